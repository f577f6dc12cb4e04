"""Stacked linear self-attention: dense, gradient-descent, GD++ or scalar layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import (
  UserError,
  check_count,
  check_name,
  check_number,
  check_truth,
)
from zoo.core.exact_forms import DeepRule
from zoo.core.prompt import Prompt
from zoo.core.registry import register_model
from zoo.core.taps import Tap
from zoo.mixers.mixer import split
from zoo.models.linear_attention import LinearLayer
from zoo.models.token_model import MAX_LAYERS, TokenModel

FORMS = 'dense', 'sparse', 'gd_plus_plus', 'scalar'
READOUTS = 'last', 'linear'


@register_model('deep_lsa')
class DeepLSA(TokenModel):
  """Layers of linear self-attention over the tokens `[x_i; y_i]`, `[x_q; guess]`.

    Z ← Z + (1/C) Σ_h W_P W_V Z W_M Zᵀ W_Kᵀ W_Q Z   (arXiv 2512.04268, eqs. 3, 5 and 6)

  This is the form 'dense', with four matrices in each head. The other forms have the
  layers of Ahn et al. (arXiv 2306.00297),

    Z ← Z + (1/C) Σ_h P_h Z W_M Zᵀ Q_h Z,   P_h = diag(B_h, I),  Q_h = −diag(A_h, 0)

  - 'sparse': B_h = 0. L such layers add L steps of preconditioned gradient descent from
    0 to the guess.
  - 'gd_plus_plus': B_h is trained, too. With A = I and B = γ·I a layer also multiplies
    the features by I − γ XᵀX/C (GD++ of von Oswald et al., arXiv 2212.07677).
  - 'scalar': A_h and B_h are multiples of the identity. The risk of this form is known
    exactly.

  In these three forms, as in their sources, the label entry of the query's token starts
  as minus the guess and ends as minus the prediction, because each step subtracts from
  the labels of the context what it adds to the prediction. One sparse layer predicts
  the same as a dense layer with W_Kᵀ W_Q = diag(A, 0) and with (0, …, 0, 1) as the last
  row of W_P W_V.

  All matrices start from N(0, init_scale²).

  Args:
    num_features: Number d of features of an example, ≥ 1.
    num_outputs: Number k of outputs of a prediction, ≥ 1. The default, 1, is for labels
      that are numbers. Several outputs are the logits of classes.
    num_layers: Number L of layers, from 1 to 1000; 3 by default.
    num_heads: Number of heads of a layer, ≥ 1; 1 by default.
    shared: Whether all layers have the same weights; False by default.
    form: The form of a layer: 'dense' (the default), 'sparse', 'gd_plus_plus' or
      'scalar'.
    readout: What is read of the query's token after the last layer: 'last' (the
      default) is its label entry; 'linear' is a trained linear map of the token, which
      starts by reading that entry.
    guess: Initial guess of each label, made before any example is seen: one of 'zero'
      (the default), 'fixed', 'linear', 'network', 'residual' and 'residual_network',
      which `zoo.models.initial_guess.GUESSES` explains.
    guess_weights: Slope g of the guess 'fixed', g·x + β: a number or `[d]`; 0 by
      default.
    guess_bias: Offset β of that guess, in the units of the labels; 0 by default.
    init_scale: Standard deviation of the initial matrices, ≥ 0; 0.1 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range, or if `guess_weights` or `guess_bias`
      is not 0 with a guess other than 'fixed'.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = zoo.models.DeepLSA(2, num_layers=1, form='sparse', rngs=nnx.Rngs(0))
    >>> print(model(task.sample(jax.random.key(0), 3)).round(2))  # not trained
    [-0.05 -0.24  0.  ]
  """

  order_invariant = True
  roles = {'read_out': 'embedding'}

  def __init__(
    self,
    num_features: int,
    num_outputs: int = 1,
    num_layers: int = 3,
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
    check_count('num_layers', num_layers, maximum=MAX_LAYERS)
    check_count('num_heads', num_heads)
    check_truth('shared', shared)
    check_name('form', form, FORMS)
    check_name('readout', readout, READOUTS)
    check_number('init_scale', init_scale, minimum=0.0, maximum=1e30)
    super().__init__(
      num_features, num_outputs, 'joint', guess, guess_weights, guess_bias, rngs=rngs
    )
    self.num_layers, self.num_heads = num_layers, num_heads

    def layer() -> LinearLayer | SparseLayer:
      if form == 'dense':
        features = self.token_width - 1  # LinearLayer adds one.
        return LinearLayer(features, num_heads, init_scale, rngs=rngs)
      return SparseLayer(num_features, num_heads, init_scale, form, rngs=rngs)

    num_made = 1 if shared else num_layers
    self.layers = nnx.List([layer() for _ in range(num_made)])
    self.form, self.sign = form, 1 if form == 'dense' else -1
    start = self.sign * jnp.eye(self.token_width)[:, num_features:]
    self.read_out = nnx.Param(start) if readout == 'linear' else None

  def body(self, tokens: Float[Array, 'b n e'], at: slice) -> Float[Array, 'b 1 k']:
    """Returns the output at the query's token, the only one that is asked for."""
    return self._read(self._layers(tokens)[-1])

  def layer_tokens(self, prompt: Prompt) -> list[Float[Array, 'b t e']]:
    """Returns the tokens before the first layer and after each layer.

    Args:
      prompt: Prompts `[b]` with d features.

    Returns:
      num_layers + 1 arrays `[b, c + 1, d + k]`.
    """
    return self._layers(self.embed(prompt))

  def read(
    self, tokens: Float[Array, 'b t e'], prompt: Prompt
  ) -> Float[Array, 'b 1 *k']:
    """Returns the readout's prediction for the query, from the tokens of any layer.

    Args:
      tokens: Tokens between layers, such as those of `layer_tokens`.
      prompt: The prompts to which they belong.

    Returns:
      Predictions `[b, 1]`, or logits `[b, 1, k]`.
    """
    return self.finish(self._read(tokens)[None], prompt)[0]

  def exact_form(self) -> DeepRule:
    """Returns the exact form of a 'scalar' model, of which `zoo.theory` has the risk.

    Raises:
      UserError: If the form is not 'scalar', if there are several outputs, or if the
        guess is a network.
    """
    for name, value, wanted in (
      ('form', self.form, 'scalar'),
      ('num_outputs', self.num_outputs, 1),
    ):
      if value != wanted:
        raise UserError(
          f'{name} is {value!r}; the risk of deep_lsa is known exactly only with '
          f'{wanted!r}'
        )
    if not self.guess.is_affine:
      raise UserError(
        f'guess is {self.guess.kind!r}; the exact risk needs a linear guess'
      )
    layers: Any = [self.layers[i % len(self.layers)] for i in range(self.num_layers)]
    steps = jnp.stack([-jnp.sum(layer.a[...]) for layer in layers])
    moves = jnp.stack([-jnp.sum(layer.a[...] * layer.b[...]) for layer in layers])
    d, zeros = self.num_features, jnp.zeros(self.num_features, steps.dtype)
    read = jnp.append(zeros, jnp.asarray(self.sign, steps.dtype))
    if self.read_out is not None:
      read = self.read_out[...][:, 0]
    guess, bias = self.guess.affine()
    residual = self.guess.is_residual
    return DeepRule(
      steps=steps,
      preconditions=moves,
      readout=read[d],
      feature_readout=read[:d],
      start=zeros if residual else self.sign * guess[:, 0],
      offset=self.sign * bias[0],
      residual=guess[:, 0] if residual else zeros,
    )

  def _layers(self, tokens: Float[Array, 'b t e']) -> list[Float[Array, 'b t e']]:
    states = [tokens.at[:, -1, self.num_features :].multiply(self.sign)]
    for i in range(self.num_layers):
      states.append(self.layers[i % len(self.layers)].forward_tokens(states[-1]))
    return states

  def _read(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b 1 k']:
    query = tokens[:, -1:]
    if self.read_out is not None:
      return query @ self.read_out[...]
    return self.sign * query[..., self.num_features :]


class SparseLayer(nnx.Module):
  """A layer Z + (1/C) Σ_h P_h Z W_M Zᵀ Q_h Z, P_h = diag(B_h, I), Q_h = −diag(A_h, 0).

  These are the layers of Ahn et al. (arXiv 2306.00297). In the form 'sparse', B_h is 0.
  A layer is then a step of gradient descent, preconditioned by Σ_h A_hᵀ, that leaves
  y_i as the residual of a label. The form 'gd_plus_plus' also has B_h: with A = I and B
  = γ·I a layer multiplies the features by I − γ XᵀX/C (GD++ of von Oswald et al., arXiv
  2212.07677). In the form 'scalar', A_h and B_h are multiples of the identity; this is
  the family whose exact risk is known.

  The parameters are `a` and, except in 'sparse', `b`. Both are `[h, d, d]`, or `[h]` in
  'scalar', and start from N(0, init_scale²), head by head.
  """

  # The parameters are matrices even if there is one feature.
  roles = {'a': 'hidden', 'b': 'hidden'}

  def __init__(
    self,
    num_features: int,
    num_heads: int,
    init_scale: float,
    form: str,
    *,
    rngs: nnx.Rngs,
  ):
    self.num_features = num_features
    entries = () if form == 'scalar' else (num_features, num_features)

    def matrices() -> nnx.Param:
      normal = jax.random.normal(rngs.params(), (num_heads, *entries))
      axes = split('model', *(None for _ in entries))
      return nnx.Param(init_scale * normal, **axes)

    self.a = matrices()
    self.b = None if form == 'sparse' else matrices()
    self.scores_tap = Tap(axes='b h k q', kind='scores')
    self.update_tap = Tap(axes='b n e', kind='added')

  def matrices(self, parameter: nnx.Param) -> Float[Array, 'h d d']:
    """Returns the parameter `a` or `b` as matrices, also in the form 'scalar'."""
    value = parameter[...]
    if value.ndim == 3:
      return value
    return value[:, None, None] * jnp.eye(self.num_features, dtype=value.dtype)[None]

  def scores(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b h c t']:
    """Returns `(1/C) Zᵀ Q_h Z`, key by query; the query's token is not a key."""
    d, c = self.num_features, tokens.shape[1] - 1
    x, keys = tokens[..., :d], tokens[:, :-1, :d]
    scores = -jnp.einsum('bci,hij,btj->bhct', keys, self.matrices(self.a), x)
    return self.scores_tap(scores / max(c, 1))

  def forward_tokens(self, tokens: Float[Array, 'b t e']) -> Float[Array, 'b t e']:
    """Returns the tokens after this layer."""
    d, scores = self.num_features, self.scores(tokens)
    x, keys, labels = tokens[..., :d], tokens[:, :-1, :d], tokens[:, :-1, d:]
    labels = jnp.einsum('bck,bhct->btk', labels, scores)
    if self.b is not None:
      moves = jnp.einsum('hij,bcj,bhct->bti', self.matrices(self.b), keys, scores)
    else:
      moves = jnp.zeros_like(x)
    return tokens + self.update_tap(jnp.concatenate([moves, labels], axis=-1))
