"""The configs of all models: `--config=configs/NAME.py`, or `--config=NAME`.

  python -m launch.main --config=configs/yq_lsa.py:smoke
  python -m launch.main --config=configs/transformer.py:gpt2_small,task=decision_tree
  python -m launch.main --config=configs/transformer.py --config.model.mixer=delta

NAME may also be a model of your own that --import registers.
"""

from typing import Any

from configs import defaults
from zoo import UserError
from zoo.config import schema
from zoo.config.schema import Config

# What each model is and, after a blank line, what its training reaches. That of linear
# attention takes 8 s on 2 CPU cores, with imports and compilation.
ABOUT = {
  'lsa': """\
One head of linear attention with a fixed initial guess (arXiv 2512.04268, eq. 3).

Training ends at a risk of 14.4330; the infimum for one head is 14.4306. One step
of gradient descent has 5.2381, which no number of heads reaches with a fixed guess of
0. `:paper` ends at 14.4558.""",
  'multi_head_lsa': """\
Linear attention with 11 heads and a fixed initial guess (arXiv 2512.04268, eq. 6).

Training ends at a risk of 6.0244; the infimum for ten heads or more is 6.0224, which is
40/51 above one step of gradient descent. `:paper` ends at 6.0410.""",
  'yq_lsa': """\
Linear attention that learns its guess (arXiv 2512.04268, Definition 3).

Training ends at a risk of 5.2387; one step of gradient descent from the prior mean has
5.2381, which is the optimum. `:paper` ends at 6.0117: at its learning rate Adam needs
4000 of the 5000 steps to carry the guess from 0 to 2.""",
  'ltb': """\
Linear attention followed by a linear MLP (arXiv 2402.14951; 2512.04268, eq. 30).

Training ends at a risk of 5.2389; one step of gradient descent from the prior mean has
5.2381, which is the optimum. `:paper` ends at 5.2477.""",
  'sequential': """\
Linear weights that learn one example at a time, as by the delta rule.

By default training minimises the exact risk.""",
  'transformer': """\
A transformer with any mixers, by default a GPT-2 with 3 layers.

The variants `gpt2_tiny` (the default), `gpt2_small` and `gpt2` are the sizes of Garg et
al. (arXiv 2208.01066, appendix A); `looped` applies one layer 20 times, as Yang et al.
do (arXiv 2311.12424); `set` has no positions and no causal mask, like a prior-data
fitted network.""",
  'deep_lsa': 'Layers of linear attention (arXiv 2512.04268, eqs. 3, 5 and 6).',
  'deep_set': 'A network of each example, and one of their mean and the query.',
  'lstm': 'An LSTM that reads the examples one by one.',
  'gru': 'A GRU that reads the examples one by one.',
  'mlp': 'An MLP that reads the concatenated tokens of the prompt.',
  'mlp_mixer': 'MLPs across the tokens alternate with MLPs across their entries.',
}
# Linear models, in the setting of the paper; the others are in a more general one.
_LINEAR = 'lsa', 'multi_head_lsa', 'yq_lsa', 'ltb', 'sequential'
# Each example's token contains its label, so that the query alone can be predicted.
_OF_THE_QUERY = 'deep_lsa', 'mlp', 'mlp_mixer'
# Layers, width and heads of transformers.
_SIZES = {
  'gpt2_tiny': (3, 64, 2),
  'gpt2_small': (6, 128, 4),
  'gpt2': (12, 256, 8),
}


def get_config(name: str, variant: str = '') -> Config:
  """The config of a model, whose section has the defaults of its constructor.

  The variants are those of configs/defaults.py, and for the transformer those above.
  Raises UserError for an unknown model or variant.
  """
  own = (*_SIZES, 'looped', 'set') if name == 'transformer' else ()
  is_general = name in ABOUT and name not in _LINEAR
  make = defaults.get_general_config if is_general else defaults.get_config
  config: Any = make(variant, own)
  config.model = schema.section('model', name)
  if name == 'multi_head_lsa':
    config.model.num_heads = 11  # d + 1
  elif name == 'sequential' and config.task.name == 'linear_regression':
    config.objective.name = 'exact'
  elif name == 'transformer':
    _apply(config, variant)
  elif name in _OF_THE_QUERY:
    config.objective.positions = 'query'
  return config.lock()


def _apply(config: Any, variant: str) -> None:
  """Applies the variants of transformers."""
  model, names = config.model, variant.split(',')
  sizes = [name for name in names if name in _SIZES]
  if len(sizes) > 1:
    raise UserError(f'the variant {variant!r} names several sizes; it can name one')
  if sizes:
    model.num_layers, model.width, model.num_heads = _SIZES[sizes[0]]
  if 'looped' in names:
    model.num_layers = model.num_layers if sizes else 1
    model.num_loops, model.num_trained_loops = 20, 15
  if 'set' in names:
    model.tokens, model.causal, model.positions = 'joint', False, 'none'
    config.objective.positions = 'query'
