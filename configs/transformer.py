"""A transformer with any mixers, by default a GPT-2 with 3 layers.

  python -m launch.main --config=configs/transformer.py
  python -m launch.main --config=configs/transformer.py:gpt2_small,task=decision_tree
  python -m launch.main --config=configs/transformer.py --config.model.mixer=delta \\
      --workdir=runs/delta

The variants `gpt2_tiny` (the default), `gpt2_small` and `gpt2` are the sizes of Garg et
al. (arXiv 2208.01066, appendix A); `looped` applies one layer, or the layers of a size
that is also named, 20 times, and takes the loss after each of the last 15 (Yang et al.,
arXiv 2311.12424); `set` has joint tokens, no positions, no causal mask and the loss of
the query alone, like a prior-data fitted network.

The task is noiseless linear regression with 5 features, 10 examples and a prior mean of
0; `:task=NAME` takes another task, with that task's own sizes.
"""

from collections.abc import Sequence

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import common
from zoo.core.errors import UserError

# Layers, width and heads.
SIZES = {
  'gpt2_tiny': (3, 64, 2),
  'gpt2_small': (6, 128, 4),
  'gpt2': (12, 256, 8),
}
VARIANTS = *SIZES, 'looped', 'set'


def get_config(variant: str = '') -> ConfigDict:
  """The config of a transformer; zoo/config/fields.py has all other fields."""
  names = variant.split(',')
  config = common.get_config()
  # The class is in zoo/models/transformer.py.
  config.model = model = ConfigDict({'name': 'transformer'})
  # Each ≥ 1; num_heads divides the width.
  model.num_layers, model.width, model.num_heads = SIZES['gpt2_tiny']
  model.mixer = 'softmax'  # see docs/mixers.md; several, joined by commas, alternate
  model.mixer_options = ConfigDict()  # of mixers, such as {'state_size': 32}
  model.tokens = 'interleaved'  # x and y in turn; or joint, shifted (causal)
  # The initial guess of each label: zero, fixed, linear, network, or what these leave
  # (residual, residual_network).
  model.guess = 'zero'
  model.guess_weights = common.number_or_vector(0.0)  # g of the fixed guess g·x + β
  model.guess_bias = 0.0  # β, in the units of the labels
  model.positions = 'learned'  # how a token knows its place; or rotary, none
  model.causal = True  # False: a token sees the whole context, but not the query
  model.feed_forward = 'gelu'  # after each mixer; or swiglu, linear, none
  model.hidden_features = placeholder(int)  # of that network; None: 4 · width
  model.norm = 'layer'  # before each mixer and network; or rms, none
  model.num_loops = 1  # how often the layers are applied, ≥ 1
  model.num_trained_loops = placeholder(int)  # the last, each with a loss; None: all
  # Standard deviation of the initial kernels, 0.02 in GPT-2; None: 1/√inputs.
  model.init_scale = placeholder(float)
  model.remat = False  # whether the backward pass computes layers again, to save memory
  model.read_in = 'flat'  # of tokens; or convolutional, for features that are an image
  model.head = 'point'  # or a distribution: gaussian, bars (with the objective nll)
  _apply(model, names)

  config.task.num_features = 5
  config.task.prior_mean = 0.0
  # One pass predicts every example, but not if each token sees all the others.
  config.objective.positions = 'query' if 'set' in names else 'every'
  config.optimizer.learning_rate = 2e-3
  config.optimizer.warmup_steps = common.a_tenth_of_the_steps(config, at_most=200)
  config.optimizer.clip_norm = 1.0
  config.train.batch_size = 256
  return common.with_variant(config, variant, own=VARIANTS)


def _apply(model: ConfigDict, names: Sequence[str]) -> None:
  """Applies the variants of transformers; raises UserError for two sizes."""
  sizes = [name for name in names if name in SIZES]
  if len(sizes) > 1:
    raise UserError(
      f'the variant {",".join(names)!r} names several sizes; it can name one'
    )
  for size in sizes:
    model.num_layers, model.width, model.num_heads = SIZES[size]
  if 'looped' in names:
    model.num_layers = model.num_layers if sizes else 1
    model.num_loops, model.num_trained_loops = 20, 15
  if 'set' in names:
    model.tokens, model.causal, model.positions = 'joint', False, 'none'
