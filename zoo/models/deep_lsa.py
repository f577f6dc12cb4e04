"""Layers of linear self-attention: of the paper's, or of gradient descent and GD++."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.errors import check_count, check_name, check_number
from zoo.models.linear_attention import LinearAttention
from zoo.models.token_model import TokenModel
from zoo.prompt import Prompt
from zoo.registry import models

FORMS = 'dense', 'sparse', 'gd_plus_plus'
READOUTS = 'last', 'linear'


@models.register('deep_lsa')
class DeepLSA(TokenModel):
  """Layers of linear self-attention over the tokens `[x_i; y_i]`, `[x_q; guess]`.

  Z ← Z + (1/C) Σ_h W_P W_V Z W_M Zᵀ W_Kᵀ W_Q Z   (arXiv 2512.04268, eqs. 3, 5 and 6)

  That is the form `dense`, four matrices per head; SparseLayer has the others. Sparse
  layers add L steps of preconditioned gradient descent from 0 to the guess. There, as
  in its sources, the query's token holds minus the guess and at last minus the
  prediction, since descent takes from the labels of the context what it adds to the
  prediction. One sparse layer predicts as a dense one with W_Kᵀ W_Q = diag(A, 0).
  """

  order_invariant = True
  nested_heads = True

  def __init__(
    self,
    num_features: int,
    num_outputs: int = 1,
    num_layers: int = 2,
    num_heads: int = 1,
    shared: bool = False,
    form: str = 'dense',
    readout: str = 'last',
    guess: str = 'zero',
    guess_weights: ArrayLike | Sequence[float] = 0.0,
    guess_bias: float = 0.0,
    init_scale: float = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    """All matrices start from N(0, init_scale²); `shared` layers have the same ones.

    The prediction is the label in the query's last token, or with `readout='linear'` a
    trained map of that token, which starts as that. Raises UserError naming the
    argument that is out of its range.
    """
    super().__init__(
      num_features, num_outputs, 'joint', guess, guess_weights, guess_bias, rngs=rngs
    )
    self.num_layers = check_count('num_layers', num_layers)
    self.num_heads = check_count('num_heads', num_heads)
    init_scale = check_number('init_scale', init_scale, minimum=0.0)
    check_name('form', form, FORMS)
    check_name('readout', readout, READOUTS)

    def layer() -> LinearAttention | SparseLayer:
      if form == 'dense':
        features = self.token_width - 1  # its tokens have one label
        return LinearAttention(features, num_heads, init_scale, rngs=rngs)
      moves = form == 'gd_plus_plus'
      return SparseLayer(num_features, num_heads, init_scale, moves, rngs=rngs)

    self.layers = nnx.List([layer() for _ in range(1 if shared else num_layers)])
    self.sign = 1 if form == 'dense' else -1
    if readout == 'linear':
      start = jnp.eye(self.token_width)[:, num_features:]
      self.read_out = nnx.Param(self.sign * start)

  def body(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b 1 k']:
    return self._read(self._layers(tokens)[-1])

  def layer_tokens(self, prompt: Prompt) -> list[Float[Array, 'b t e']]:
    """The tokens, and the tokens after each layer."""
    return self._layers(self.embed(prompt))

  def read(
    self, tokens: Float[Array, 'b t e'], prompt: Prompt
  ) -> Float[Array, 'b 1 *k']:
    """What the readout would predict of the query from the tokens of any layer."""
    return self._finish(self._read(tokens), prompt)

  def _layers(self, tokens: Float[Array, 'b t e']) -> list[Float[Array, 'b t e']]:
    each = [tokens.at[:, -1, self.num_features :].multiply(self.sign)]
    for i in range(self.num_layers):
      each.append(self.layers[i % len(self.layers)].forward_tokens(each[-1]))
    return each

  def _read(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b 1 k']:
    query = tokens[:, -1:]
    if hasattr(self, 'read_out'):
      return query @ self.read_out[...]
    return self.sign * query[..., self.num_features :]


class SparseLayer(nnx.Module):
  """Z + (1/C) Σ_h P_h Z W_M Zᵀ Q_h Z with P_h = diag(B_h, I), Q_h = −diag(A_h, 0).

  The layers of Ahn et al. (arXiv 2306.00297). In `sparse` B_h is 0, and a layer is a
  step of gradient descent, preconditioned by Σ_h A_hᵀ: y_i is what is left of a label.
  `gd_plus_plus` has B_h: with A = I, B = γ·I it also takes γ XᵀX/C of the features away
  (GD++ of von Oswald et al., arXiv 2212.07677).

  Parameters: `a`, and of gd_plus_plus `b`, `[h, d, d]`.
  """

  def __init__(
    self,
    num_features: int,
    num_heads: int,
    init_scale: float,
    moves_features: bool,
    *,
    rngs: nnx.Rngs,
  ):
    """Samples the matrices from N(0, init_scale²), head by head."""

    def matrices() -> nnx.Param:
      normal = jax.random.normal(rngs.params(), (num_heads, num_features, num_features))
      # Not eager, so that a model can also be made without a mesh.
      return nnx.Param(
        init_scale * normal, out_sharding=('model', None, None), eager_sharding=False
      )

    self.a = matrices()
    if moves_features:
      self.b = matrices()

  def scores(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b h c t']:
    """`(1/C) Zᵀ Q_h Z`, key by query; the query's token is no key."""
    d, c = self.a.shape[-1], tokens.shape[1] - 1
    x, keys = tokens[..., :d], tokens[:, :-1, :d]
    return -jnp.einsum('bci,hij,btj->bhct', keys, self.a[...], x) / max(c, 1)

  def forward_tokens(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b t e']:
    """The updated tokens."""
    d, scores = self.a.shape[-1], self.scores(tokens)
    x, keys, labels = tokens[..., :d], tokens[:, :-1, :d], tokens[:, :-1, d:]
    labels = jnp.einsum('bck,bhct->btk', labels, scores)
    if hasattr(self, 'b'):
      moves = jnp.einsum('hij,bcj,bhct->bti', self.b[...], keys, scores)
    else:
      moves = jnp.zeros_like(x)
    return tokens + jnp.concatenate([moves, labels], axis=-1)
