"""The files of a run, written as the run proceeds; they are our own, and trusted."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from zoo.core.errors import RunError, in_one_line
from zoo.host.files import write_atomically
from zoo.host.interruption import Interruption
from zoo.llm.config import Config
from zoo.llm.guesses import Guesses
from zoo.llm.prompts import Prompts
from zoo.llm.readouts import Answers, Model, read_all
from zoo.llm.summary import ARMS, Line, ModelFacts

PROMPTS, GUESSES, SUMMARY = 'prompts.jsonl', 'guesses.json', 'summary.json'


def ask(
  prompts: Prompts,
  model: Model,
  config: Config,
  batch_size: int,
  path: pathlib.Path,
  interruption: Interruption,
  without_guess: Sequence[Answers] | None = None,
) -> list[Line] | None:
  """Asks the prompts that have no line in the file, appends theirs, and returns all.

  Each call of the model has `batch_size` prompts in both arms, or, if the answers to
  all prompts `without_guess` are known, twice as many prompts with guesses. Returns
  None after an interruption.
  """
  if without_guess is not None:
    batch_size *= 2
  lines = read_lines(path, prompts)
  missing = [index for index in range(len(prompts)) if index not in lines]
  with (
    path.open('a', encoding='utf-8') as file,
    tqdm(
      desc=model.name,
      initial=len(prompts) - len(missing),
      total=len(prompts),
      unit='prompt',
      dynamic_ncols=True,
      # A log file, unlike a terminal, would record every refresh.
      mininterval=0.2 if sys.stderr.isatty() else 10.0,
    ) as bar,
  ):
    for start in range(0, len(missing), batch_size):
      batch = missing[start : start + batch_size]
      began = time.monotonic()
      answers = _ask_batch(prompts, model, config, batch, without_guess)
      seconds = (time.monotonic() - began) / len(batch)
      for index, arms in zip(batch, answers, strict=True):
        line: Line = {**prompts.record(index), 'arms': arms, 'seconds': seconds}
        file.write(json.dumps(line, ensure_ascii=False) + '\n')
        lines[index] = line
      file.flush()
      os.fsync(file.fileno())
      bar.update(len(batch))
      if interruption.requested:
        return None
  return [lines[index] for index in range(len(prompts))]


def _ask_batch(
  prompts: Prompts,
  model: Model,
  config: Config,
  batch: Sequence[int],
  without_guess: Sequence[Answers] | None,
) -> list[dict[str, Answers]]:
  """The answers to some prompts by arm; an arm with known answers is not asked."""
  places = range(len(ARMS)) if without_guess is None else [ARMS.index('with_guess')]
  texts = [prompts.texts(index)[place] for index in batch for place in places]
  queries = [prompts.query(index) for index in batch for _ in places]
  answers = iter(read_all(model, texts, queries, prompts.wording, config))
  if without_guess is None:
    return [{arm: next(answers) for arm in ARMS} for _ in batch]
  return [
    {'without_guess': without_guess[index], 'with_guess': next(answers)}
    for index in batch
  ]


def read_lines(path: pathlib.Path, prompts: Prompts) -> dict[int, Line]:
  """The lines of a `prompts.jsonl` by index; an incomplete last line is removed.

  Raises RunError for a line that is otherwise damaged, or not of these prompts.
  """
  if not path.is_file():
    return {}
  content = path.read_bytes()
  whole = content.rfind(b'\n') + 1
  if whole < len(content):
    with path.open('rb+') as file:
      file.truncate(whole)
  lines = {}
  for number, text in enumerate(content[:whole].split(b'\n')[:-1], start=1):
    try:
      line: Line = json.loads(text)
      record = prompts.record(line['index'])
      if any(line[name] != value for name, value in record.items()):
        raise ValueError('it is of another prompt')
    except (ValueError, LookupError, TypeError) as error:
      raise RunError(
        f'line {number} of {path} is damaged; delete that line to ask its prompt again '
        f'({in_one_line(error)})'
      ) from error
    lines[line['index']] = line
  return lines


def write_guesses(guesses: Guesses, path: pathlib.Path) -> None:
  """Writes a `guesses.json`; raises OSError."""
  write_atomically(path, json.dumps(guesses._asdict()) + '\n')


def read_guesses(path: pathlib.Path) -> Guesses | None:
  """The guesses of a `guesses.json`; None if there is no such file yet."""
  found = _read(path)
  return None if found is None else Guesses(**found)


def read_model_facts(path: pathlib.Path) -> ModelFacts | None:
  """The model's part of a `summary.json`; None if there is no such file yet.

  All other numbers of a summary follow from the lines.
  """
  found = _read(path)
  if found is None:
    return None
  return {
    'model': found['model'],
    'num_params': found['num_params'],
    'engine': found['engine'],
  }


def _read(path: pathlib.Path) -> Any:
  """The content of a JSON file of the run; raises RunError if it is damaged."""
  if not path.is_file():
    return None
  try:
    return json.loads(path.read_text('utf-8'))
  except ValueError as error:
    raise RunError(f'{path} is damaged; delete it to make it again') from error
