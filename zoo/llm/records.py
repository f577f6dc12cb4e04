"""The files of a run, written as the run proceeds; they are our own, and trusted."""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import TextIO, TypeVar

from zoo.core.errors import RunError, in_one_line
from zoo.host.files import UnreadableFile, parse_json, read_json
from zoo.llm.summary import Line

PROMPTS, GUESSES, SUMMARY = 'prompts.jsonl', 'guesses.json', 'summary.json'

_Kind = TypeVar('_Kind')


def read_if_there(path: pathlib.Path, kind: type[_Kind]) -> _Kind | None:
  """The content of a JSON file of the run; raises RunError if it is damaged."""
  if not path.is_file():
    return None
  try:
    return read_json(path, kind)
  except UnreadableFile as error:
    raise RunError(f'{path} is damaged; delete it to make it again') from error


def read_lines(path: pathlib.Path) -> dict[int, Line]:
  """The lines of a `prompts.jsonl` by index, without an incomplete last line.

  Raises RunError for a line that is otherwise damaged.
  """
  lines = {}
  for number, text in enumerate(_whole_lines(path).splitlines(), start=1):
    try:
      line = parse_json(text, Line, 'it')
    except UnreadableFile as error:
      raise RunError(
        f'line {number} of {path} is damaged; delete that line to ask its prompt again '
        f'({in_one_line(error)})'
      ) from error
    lines[line['index']] = line
  return lines


def remove_incomplete_line(path: pathlib.Path) -> None:
  """Removes the end of a line that a run which was killed has begun; raises OSError."""
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
