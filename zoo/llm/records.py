"""The files of a run, written as the run proceeds; they are our own, and trusted."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import TextIO, TypeVar

from zoo.core.errors import RunError, in_one_line
from zoo.host.files import UnreadableFile, parse_as, read_as, write_atomically
from zoo.llm.guesses import Guesses
from zoo.llm.prompts import Prompt
from zoo.llm.summary import Line, ModelFacts, Summary

PROMPTS, GUESSES, SUMMARY = 'prompts.jsonl', 'guesses.json', 'summary.json'

_Kind = TypeVar('_Kind')


def read_lines(path: pathlib.Path, prompts: Sequence[Prompt]) -> dict[int, Line]:
  """The lines of a `prompts.jsonl` by index, without an incomplete last line.

  Raises RunError for a line that is otherwise damaged, or not of these prompts.
  """
  lines = {}
  for number, text in enumerate(_whole_lines(path).splitlines(), start=1):
    try:
      line = parse_as(text, Line, 'it')
      if line | prompts[line['index']].record != line:
        raise ValueError('it is of another prompt')
    except (ValueError, LookupError) as error:
      raise RunError(
        f'line {number} of {path} is damaged; delete that line to ask its prompt again '
        f'({in_one_line(error)})'
      ) from error
    lines[line['index']] = line
  return lines


def remove_incomplete_line(path: pathlib.Path) -> None:
  """Removes from a `prompts.jsonl` what a run that was killed did not write to its end.

  Raises OSError.
  """
  if path.is_file():
    os.truncate(path, len(_whole_lines(path)))


def _whole_lines(path: pathlib.Path) -> bytes:
  content = path.read_bytes() if path.is_file() else b''
  return content[: content.rfind(b'\n') + 1]


def append_lines(file: TextIO, lines: Sequence[Line]) -> None:
  """Writes lines to a `prompts.jsonl`, which are then on the disk; raises OSError."""
  for line in lines:
    file.write(json.dumps(line, ensure_ascii=False) + '\n')
  file.flush()
  os.fsync(file.fileno())


def write_guesses(guesses: Guesses, folder: pathlib.Path) -> None:
  """Writes the `guesses.json` of a run; raises OSError."""
  content = json.dumps(dataclasses.asdict(guesses))
  write_atomically(folder / GUESSES, content + '\n')


def read_guesses(folder: pathlib.Path) -> Guesses | None:
  """The guesses of a run; None if they are not made yet."""
  return _read(folder / GUESSES, Guesses)


def write_summary(summary: Summary, folder: pathlib.Path) -> None:
  """Writes the `summary.json` of a run; raises OSError."""
  write_atomically(folder / SUMMARY, json.dumps(summary, indent=2) + '\n')


def read_model_facts(folder: pathlib.Path) -> ModelFacts | None:
  """The model's part of a summary; None if the run is not finished.

  All other numbers of a summary follow from the lines.
  """
  return _read(folder / SUMMARY, ModelFacts)


def _read(path: pathlib.Path, kind: type[_Kind]) -> _Kind | None:
  """The content of a JSON file of the run; raises RunError if it is damaged."""
  if not path.is_file():
    return None
  try:
    return read_as(path, kind)
  except UnreadableFile as error:
    raise RunError(f'{path} is damaged; delete it to make it again') from error
