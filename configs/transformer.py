"""A transformer with any sequence mixers, by default a GPT-2 with 3 layers.

  python -m launch.main --config=configs/transformer.py
  python -m launch.main --config=configs/transformer.py:gpt2_small,task=decision_tree
  python -m launch.main --config=configs/transformer.py --config.model.mixer=delta \\
      --workdir=runs/delta

Variants, which can be joined by commas:

- `gpt2_tiny` (the default), `gpt2_small` and `gpt2` are the sizes of Garg et al. (arXiv
  2208.01066, appendix A).
- `looped` applies the layers 20 times and takes the loss after each of the last 15
  loops (Yang et al., arXiv 2311.12424). It has one layer, or the layers of a size that
  is also named.
- `set` has tokens of x and y in one, no positions, no causal mask and the loss of the
  query alone, like a prior-data fitted network.
- `garg` is a small copy of the noisy linear regression of Garg et al.: four layers of
  width 64, 5 features, up to 20 examples. It trains in minutes (docs/garg.md).
- `task=NAME` trains on another task, with that task's own sizes.

The task is linear regression without noise, with 5 features, 10 examples and the prior
mean 0.
"""

from collections.abc import Sequence

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import common
from zoo.core.errors import UserError

# Number of layers, width and number of heads of each size.
SIZES = {
  'gpt2_tiny': (3, 64, 2),
  'gpt2_small': (6, 128, 4),
  'gpt2': (12, 256, 8),
  'garg': (4, 64, 4),
}
VARIANTS = *SIZES, 'looped', 'set'


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of a transformer; zoo/config/run.py has the other fields."""
  names = variant.split(',')
  config = common.get_config()
  # The class is in zoo/models/transformer.py.
  config.model = model = ConfigDict({'name': 'transformer'})
  # Number of layers (1 to 1000), number of entries of a token between layers (≥ 1), and
  # number of heads (≥ 1), which divides the width.
  model.num_layers, model.width, model.num_heads = SIZES['gpt2_tiny']
  # Mixer of the layers, one of docs/mixers.md. Several names, joined by commas,
  # alternate from layer to layer.
  model.mixer = 'softmax'
  # Options of the mixers by name, such as {'state_size': 32}.
  model.mixer_options = ConfigDict()
  # How a prompt becomes tokens: interleaved (x and y in turn), joint (x and y in one
  # token) or shifted (a token has x and the y before it; only with causal = True).
  model.tokens = 'interleaved'
  # The model's guess of each label before it sees an example: zero, fixed, linear,
  # network, residual or residual_network. zoo/models/initial_guess.py explains each.
  model.guess = 'zero'
  # g of the fixed guess g·x + β: a number, or one for each feature.
  model.guess_weights = common.number_or_vector(0.0)
  model.guess_bias = 0.0  # β of the fixed guess, in the units of the labels.
  # How a token knows its place: by a trained vector (learned), by a rotation of queries
  # and keys (rotary), or not at all (none).
  model.positions = 'learned'
  # Whether a token sees only itself and the tokens before it. False means that every
  # token sees all tokens but the query.
  model.causal = True
  model.feed_forward = 'gelu'  # Network after each mixer: gelu, swiglu, linear, none.
  # Number of hidden entries of that network (≥ 1). None means 4 · width.
  model.hidden_features = placeholder(int)
  # Norm before each mixer, each network and the readout: layer, rms or none.
  model.norm = 'layer'
  model.num_loops = 1  # Number of times that the layers are applied (1 to 1000).
  # Number of last loops after each of which the loss is taken (≥ 1). None means all.
  model.num_trained_loops = placeholder(int)
  # Standard deviation of the initial kernels (≥ 0), 0.02 in GPT-2. None means
  # 1/√inputs.
  model.init_scale = placeholder(float)
  # Whether the backward pass computes the layers again, to save memory.
  model.remat = False
  # How tokens become vectors of the width: by a linear layer (flat), or by convolutions
  # of features that are the pixels of a square image (convolutional).
  model.read_in = 'flat'
  # What is predicted of a label: a number ('point'), or a distribution ('gaussian' or
  # 'bars', a histogram), which is trained with objective.name = 'nll'.
  model.head = 'point'
  _apply(model, names)

  config.task.num_features = 5
  # With a causal mask one pass predicts every example from those before it. With `set`
  # every token sees all examples, so only the query can be predicted.
  config.objective.positions = 'query' if 'set' in names else 'every'
  config.optimizer.learning_rate = 2e-3
  # A tenth of the steps, and 200 at most.
  config.optimizer.warmup_share, config.optimizer.warmup_steps = 0.1, 200
  config.optimizer.clip_norm = 1.0
  config.train.batch_size = 256
  if 'garg' in names:
    config.task.context_length, config.task.noise_std = 20, 0.5
    config.train.num_steps, config.train.batch_size = 3000, 64
  return common.with_variant(config, variant, own=VARIANTS)


def _apply(model: ConfigDict, names: Sequence[str]) -> None:
  """Applies the variants for transformers; raises UserError if two sizes are named."""
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
