"""A small GPT that predicts every example of a prompt in one pass.

python -m launch.main --config=examples/gpt_config.py
python -m launch.probe --import=examples.gpt --checkpoint=checkpoints/runs/gpt_config
"""

import jax
import jax.numpy as jnp
from flax import nnx

import zoo


@zoo.register_model('gpt')
class GPT(nnx.Module):
  """Tokens `x_1, y_1, x_2, y_2, …, x_q`; the outputs at the x tokens are predictions.

  Layers of causal softmax attention and a GELU network, each after a layer norm and
  added to its input (Garg et al., arXiv 2208.01066, with learned positions).
  """

  # What weight decay and Muon leave alone, besides vectors.
  roles = {'read_*': 'embedding', 'positions': 'embedding', 'head': 'embedding'}

  def __init__(
    self,
    num_features: int,
    context_length: int,
    num_outputs: int = 1,
    num_layers: int = 2,
    num_heads: int = 2,
    width: int = 32,
    *,
    rngs: nnx.Rngs,
  ):
    self.num_outputs = num_outputs
    self.read_x = nnx.Linear(num_features, width, rngs=rngs)
    self.read_y = nnx.Linear(num_outputs, width, rngs=rngs)
    positions = (2 * context_length + 1, width)
    self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), positions))
    self.blocks = nnx.List([Block(width, num_heads, rngs) for _ in range(num_layers)])
    self.norm = nnx.LayerNorm(width, rngs=rngs)
    self.head = nnx.Linear(width, num_outputs, rngs=rngs)

  def predictions(self, prompt):
    b, c, _ = prompt.x.shape
    if 2 * c + 1 > len(self.positions[...]):
      raise zoo.UserError(
        f'the context has {c} examples; the GPT has no positions for it'
      )
    x = self.read_x(prompt.features)
    y = self.read_y(prompt.y.reshape(b, c, self.num_outputs))
    # [:, :-1] drops the label token of the query.
    pairs = jnp.stack([x, jnp.pad(y, ((0, 0), (0, 1), (0, 0)))], axis=2)
    tokens = pairs.reshape(b, 2 * c + 2, -1)[:, :-1] + self.positions[: 2 * c + 1][None]
    for block in self.blocks:
      tokens = block(tokens)
    outputs = self.head(self.norm(tokens[:, ::2]))
    return outputs if self.num_outputs > 1 else outputs[..., 0]

  def __call__(self, prompt):
    return self.predictions(prompt)[:, -1]


class Block(nnx.Module):
  """Attention to earlier tokens, then a network of one hidden layer."""

  def __init__(self, width: int, num_heads: int, rngs: nnx.Rngs):
    self.tokens_tap = zoo.probing.Tap(axes='b n w', kind='stream')
    self.mixer_tap = zoo.probing.Tap('mixer.out', 'b n w', kind='added')
    self.network_tap = zoo.probing.Tap('network.out', 'b n w', kind='added')
    self.norm_1 = nnx.LayerNorm(width, rngs=rngs)
    self.norm_2 = nnx.LayerNorm(width, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(
      num_heads, width, decode=False, deterministic=True, rngs=rngs
    )
    self.up = nnx.Linear(width, 4 * width, rngs=rngs)
    self.down = nnx.Linear(4 * width, width, rngs=rngs)

  def __call__(self, tokens):
    tokens = self.tokens_tap(tokens)
    mask = nnx.make_causal_mask(tokens[..., 0])
    mixed = self.attention(self.norm_1(tokens), mask=mask)
    tokens = tokens + self.mixer_tap(mixed)
    hidden = jax.nn.gelu(self.up(self.norm_2(tokens)))
    return tokens + self.network_tap(self.down(hidden))
