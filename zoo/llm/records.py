"""The files of a run, written as the run proceeds, and checked when read again."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from zoo.core.errors import RunError, UserError
from zoo.core.fields import Fields
from zoo.host.files import (
  MIB,
  is_finite_number,
  parse_json,
  read_bytes,
  read_json,
  write_atomically,
)
from zoo.host.interruption import Interruption
from zoo.llm.benchmarks import Benchmark
from zoo.llm.guesses import Guesses, Scale
from zoo.llm.prompts import Prompts
from zoo.llm.readouts import Answers, Model, Readout, ReadoutConfig, read_all
from zoo.llm.summary import ARMS, PARSED, Line, ModelFacts

PROMPTS, GUESSES, SUMMARY = 'prompts.jsonl', 'guesses.json', 'summary.json'
_PROBABILITIES = 'probabilities'  # a key beside the splits in the file of guesses
_MAX_BYTES = 2**10 * MIB


def ask(
  prompts: Prompts,
  model: Model,
  config: ReadoutConfig,
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
  config: ReadoutConfig,
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
  content = read_bytes(path, _MAX_BYTES)
  whole = content.rfind(b'\n') + 1
  if whole < len(content):
    with path.open('rb+') as file:
      file.truncate(whole)
  lines = {}
  for number, text in enumerate(content[:whole].split(b'\n')[:-1], start=1):
    source = f'line {number} of {path}'
    try:
      line = _read_line(Fields(parse_json(text, source), source), prompts)
    except UserError as error:
      raise RunError(
        f'{source} is damaged; delete that line to ask its prompt again ({error})'
      ) from error
    lines[line['index']] = line
  return lines


def write_guesses(guesses: Guesses, path: pathlib.Path) -> None:
  """Writes a `guesses.json`; raises OSError."""
  found: dict[str, object] = {**guesses.labels}
  if guesses.probabilities is not None:
    found[_PROBABILITIES] = guesses.probabilities
  write_atomically(path, json.dumps(found) + '\n')


def read_guesses(
  path: pathlib.Path, benchmark: Benchmark, scale: Scale
) -> Guesses | None:
  """The guesses of a `guesses.json`; None if there is no such file yet.

  Raises RunError unless there is a guess for each example of each split.
  """
  if not path.is_file():
    return None
  labels: Any = None
  probabilities: Any = None
  try:
    labels = read_json(path, _MAX_BYTES)
    probabilities = labels.pop(_PROBABILITIES, None)
  except (UserError, AttributeError, TypeError):  # the latter two: not a JSON object
    pass
  if not _has_all(labels, benchmark, scale.has) or not (
    probabilities is None
    or _has_all(probabilities, benchmark, lambda p: _is_distribution(p, scale))
  ):
    raise RunError(f'{path} is damaged; delete it to make the guesses again')
  if not scale.classes:
    labels = {split: [float(guess) for guess in labels[split]] for split in labels}
  return Guesses(labels, probabilities)


def _has_all(
  found: Any, benchmark: Benchmark, is_valid: Callable[[object], bool]
) -> bool:
  return (
    isinstance(found, dict)
    and found.keys() == benchmark.splits.keys()
    and all(
      isinstance(found[split], list)
      and len(found[split]) == len(examples)
      and all(map(is_valid, found[split]))
      for split, examples in benchmark.splits.items()
    )
  )


def _is_distribution(found: object, scale: Scale) -> bool:
  return (
    isinstance(found, list)
    and len(found) == len(scale.classes)
    and all(is_finite_number(p) and 0 <= p <= 1 for p in found)
  )


def read_model_facts(path: pathlib.Path) -> ModelFacts | None:
  """The model's part of a `summary.json`; None if there is no such file yet.

  All other numbers of a summary follow from the lines. Raises RunError if the file is
  damaged.
  """
  if not path.is_file():
    return None
  try:
    fields = Fields(read_json(path, _MAX_BYTES), str(path))
    return {
      'model': fields.text('model'),
      'num_params': fields.integer('num_params', 0, 2**62),
      'engine': fields.text('engine'),
    }
  except UserError as error:
    raise RunError(
      f'{path} is damaged; delete it to make it again ({error})'
    ) from error


def _read_line(fields: Fields, prompts: Prompts) -> Line:
  index = fields.integer('index', 0, len(prompts) - 1)
  record = prompts.record(index)
  for name in 'query', 'context', 'label', 'guess':
    if fields.raw(name) != record[name]:
      raise UserError(f'its {name} is not that of prompt {index}')
  arms = fields.nested('arms')
  return {
    **record,
    'arms': {
      arm: _read_answers(arms.nested(arm), prompts.wording.scale) for arm in ARMS
    },
    'seconds': fields.number('seconds', 0.0, 1e9),
  }


def _read_answers(fields: Fields, scale: Scale) -> Answers:
  free, forced = (_read_parsed(fields.nested(name), scale) for name in PARSED)
  expected = fields.nested('expected')
  mass = expected.number('mass', 0.0, 2.0)  # at most 1, up to rounding
  if scale.classes:
    value = expected.choice('value', scale.classes)
    probabilities = expected.nested('probabilities')
    of_classes = {name: probabilities.number(name, 0.0, 1.0) for name in scale.classes}
    read: Readout = {'value': value, 'mass': mass, 'probabilities': of_classes}
  else:
    rounding = 1e-6 * (scale.high - scale.low)
    value = expected.number('value', scale.low - rounding, scale.high + rounding)
    read = {'value': value, 'mass': mass}
  prompt = fields.text('prompt')
  return {'prompt': prompt, 'free': free, 'forced': forced, 'expected': read}


def _read_parsed(fields: Fields, scale: Scale) -> Readout:
  value = fields.raw('value')
  if value is not None and not scale.has(value):
    raise UserError(f'{fields.source} has a value that is not a label')
  return {'value': value, 'answer': fields.text('answer')}
