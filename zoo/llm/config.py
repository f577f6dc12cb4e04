"""What the fields of configs/llm/defaults.py may hold."""

import copy
from typing import Any, TypeAlias

from flax.traverse_util import flatten_dict

from configs.llm import defaults
from zoo.core.errors import (
  UserError,
  check_count,
  check_name,
  check_number,
  check_truth,
)

Config: TypeAlias = Any  # a ConfigDict with the fields of configs/llm/defaults.py

EMBEDDING = 'network', 'cosine'  # guesses that use embeddings of the texts
FITTED = *EMBEDDING, 'constant'  # are fitted to the train split
GUESSES = *FITTED, 'oracle', 'wrong'
BENCHMARKS = 'stsb', 'sick_relatedness', 'sick_entailment', 'trec_qa', 'jsonl'
MAX_LABEL = 1e12
MAX_EXAMPLES = 20
_MAX_COUNT = 2**31 - 1

ORACLE = 'oracle'  # becomes one guess for each size of its noise
# The guesses of an ablation by name: what of the section `guess` differs.
KINDS: dict[str, dict[str, Any]] = {
  'network': {'model': 'network'},
  'cosine': {'model': 'cosine'},
  'constant': {'model': 'constant'},
  'shuffled': {'model': 'cosine', 'shuffled': True},
  'plus_1': {'model': 'cosine', 'bias': 1.0},
  'minus_1': {'model': 'cosine', 'bias': -1.0},
  'wrong': {'model': 'wrong'},
  ORACLE: {'model': 'oracle'},
}


def validate(config: Config) -> None:
  """Checks each field of a config; raises UserError at the first mistake.

  The fields are those of configs/llm/defaults.py, in the same order.
  """
  _check_names('config', config, defaults.get_config())
  check_count('config.seed', config.seed, minimum=0, maximum=2**32 - 1)
  _check_models(config)
  _check_benchmark(config.benchmark)
  _check_guess(config.guess)
  prompts = config.prompts
  name = 'config.prompts'
  check_count(f'{name}.num_prompts', prompts.num_prompts, 2, _MAX_COUNT)
  check_count(f'{name}.num_examples', prompts.num_examples, 0, MAX_EXAMPLES)
  check_name(f'{name}.context_split', prompts.context_split, ('train', 'dev'))
  readouts = config.readouts
  check_count('config.readouts.max_new_tokens', readouts.max_new_tokens, 1, 2**24)
  check_count('config.readouts.grid_points', readouts.grid_points, 2, 10**4 + 1)


def validate_ablation(config: Config) -> None:
  """Checks the section `ablation`; the experiments check their own fields."""
  ablation, name = config.ablation, 'config.ablation'
  _check_names(name, ablation, defaults.ablation_section())
  _check_several(f'{name}.guesses', ablation.guesses)
  for guess in ablation.guesses:
    check_name(f'a value of {name}.guesses:', guess, KINDS)
  _check_several(f'{name}.noise', ablation.noise)
  for noise in ablation.noise:
    check_number(f'a value of {name}.noise', noise, minimum=0.0)
  _check_several(f'{name}.num_examples', ablation.num_examples)
  for num_examples in ablation.num_examples:
    check_count(f'a value of {name}.num_examples', num_examples, 0, MAX_EXAMPLES)


def _check_models(config: Config) -> None:
  model = config.model
  _check_text('config.model.weights', model.weights)
  check_name('config.model.dtype', model.dtype, ('float32', 'bfloat16'))
  check_count('config.model.batch_size', model.batch_size, maximum=2**16)
  _check_text('config.encoder.weights', config.encoder.weights)


def _check_benchmark(benchmark: Config) -> None:
  name = 'config.benchmark'
  check_name(f'{name}.name', benchmark.name, BENCHMARKS)
  _check_text(f'{name}.instruction', benchmark.instruction)
  _check_several(f'{name}.inputs', benchmark.inputs)
  for text in benchmark.inputs:
    _check_text(f'a value of {name}.inputs', text)
  _check_text(f'{name}.label', benchmark.label)
  if benchmark.low is not None:
    _check_label(f'{name}.low', benchmark.low)
  if benchmark.high is not None:
    _check_label(f'{name}.high', benchmark.high)


def _check_guess(guess: Config) -> None:
  name = 'config.guess'
  check_name(f'{name}.model', guess.model, GUESSES)
  _check_label(f'{name}.bias', guess.bias)
  check_number(f'{name}.noise', guess.noise, minimum=0.0, maximum=MAX_LABEL)
  check_truth(f'{name}.shuffled', guess.shuffled)
  check_count(f'{name}.num_epochs', guess.num_epochs, maximum=10**4)
  check_count(f'{name}.batch_size', guess.batch_size, maximum=_MAX_COUNT)
  check_number(f'{name}.learning_rate', guess.learning_rate, above=0.0)


def _check_names(section: str, given: Config, known: Config) -> None:
  """Raises UserError unless a config, or a section of one, has the known fields."""
  names = flatten_dict(given.to_dict(), sep='.').keys()
  wanted = flatten_dict(known.to_dict(), sep='.').keys()
  for name in sorted(wanted - names):
    raise UserError(f'the {section} has no field {name!r}; it is needed')
  for name in sorted(names - wanted):
    check_name(f'field of the {section}:', name, wanted)


def _check_text(name: str, text: object) -> None:
  if not isinstance(text, str) or not text.strip():
    raise UserError(f'{name} is {text!r}; it must be a text')


def _check_label(name: str, label: object) -> None:
  check_number(name, label, minimum=-MAX_LABEL, maximum=MAX_LABEL)


def _check_several(name: str, contents: object) -> None:
  """Raises UserError unless they are a tuple of different values, at least one."""
  if not isinstance(contents, tuple | list) or not contents:
    raise UserError(f'{name} is {contents!r}; it must be a tuple of at least one value')
  if len({*map(repr, contents)}) < len(contents):
    raise UserError(f'{name} is {contents!r}; it repeats a value')


def changed(config: Config, **sections: Any) -> Config:
  """A copy of a config in which some fields of sections have other contents."""
  copied: Any = copy.deepcopy(config)
  with copied.unlocked():
    copied.update(sections)
  return copied
