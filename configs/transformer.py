"""A transformer with any mixers, by default a GPT-2 with 3 layers.

  python -m launch.main --config=configs/transformer.py
  python -m launch.main --config=configs/transformer.py:gpt2_small,task=decision_tree
  python -m launch.main --config=configs/transformer.py --config.model.mixer=delta

The variants gpt2_tiny (the default), gpt2_small and gpt2 are the sizes of Garg et al.
(arXiv 2208.01066, appendix A); looped applies one layer 20 times, as Yang et al. do
(arXiv 2311.12424); set has no positions and no causal mask, like a prior-data fitted
network.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import defaults
from zoo import UserError
from zoo.config.types import Config

# Layers, width and heads.
_SIZES = {
  'gpt2_tiny': (3, 64, 2),
  'gpt2_small': (6, 128, 4),
  'gpt2': (12, 256, 8),
}
_KINDS = 'looped', 'set'


def get_config(variant: str = '') -> Config:
  """The config of a transformer; raises UserError for an unknown variant."""
  names = variant.split(',')
  sizes = [name for name in names if name in _SIZES]
  if len(sizes) > 1:
    raise UserError(f'the variant {variant!r} names several sizes; it can name one')
  config = defaults.get_general_config(variant, (*_SIZES, *_KINDS))
  model = config.model
  model.name = 'transformer'
  model.num_layers, model.width, model.num_heads = _SIZES[(sizes or ['gpt2_tiny'])[0]]
  defaults.set_tokens(config, 'interleaved')
  # From zoo.list_mixers(); several, joined by commas, alternate layer by layer.
  model.mixer = 'softmax'
  # Each option goes to every mixer that has an argument of that name:
  # --config.model.mixer_options.state_size=32
  model.mixer_options = ConfigDict()
  model.positions = 'learned'  # none, learned or rotary
  model.causal = True  # False: every token sees the whole context, but not the query
  model.feed_forward = 'gelu'  # none, linear, gelu or swiglu
  model.hidden_features = placeholder(int)  # ≥ 1 of the network; None: 4 · width
  model.norm = 'layer'  # none, layer or rms
  # ≥ 0, standard deviation of the initial kernels, 0.02 for GPT-2; None: 1/√inputs
  model.init_scale = placeholder(float)
  model.remat = False  # True: the backward pass recomputes the layers, to save memory
  model.num_loops = 1  # 1 to 1000 times that the layers are applied
  # ≥ 1 of the last loops, after each of which the loss is taken; None: all
  model.num_trained_loops = placeholder(int)
  if 'looped' in names:
    model.num_layers = 1 if not sizes else model.num_layers
    model.num_loops, model.num_trained_loops = 20, 15
  if 'set' in names:
    model.tokens, model.causal, model.positions = 'joint', False, 'none'
    config.objective.positions = 'query'
  config.lock()
  return config
