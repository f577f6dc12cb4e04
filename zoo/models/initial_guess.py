"""The initial guess of a label, made before any example is seen."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError, check_name, check_number, check_vector
from zoo.models.linear_attention import Constant

# The kinds of guess by name, each with the label that it guesses for features x.
GUESSES = {
  'zero': '0',
  'fixed': 'g·x + β, given and not trained (arXiv 2512.04268, eq. 6)',
  'linear': 'w·x, trained from w = 0 (arXiv 2512.04268, Definition 3)',
  'network': 'a network of one hidden layer, trained with the model from the guess 0',
  'residual': 'w·x, trained from w = 0, outside the model, which sees the labels '
  'y − w·x; w·x_q is added to its prediction',
  'residual_network': 'the same with a network of one hidden layer in place of w·x',
}
_HIDDEN = 32  # The network has this many hidden features.


class InitialGuess(nnx.Module):
  """The guess `[…, k]` of the labels of features `[…, d]`, one of GUESSES.

  Args:
    kind: One of GUESSES.
    num_features: Number d of features.
    num_outputs: Number k of outputs; 1 by default.
    weights: g of the guess 'fixed', a number or `[d]`; 0 by default.
    bias: β of the guess 'fixed'; 0 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If the kind is unknown, or if g or β is not 0 with another kind than
      'fixed'.
  """

  roles = {'*': 'vector'}  # Weight decay would pull the guess to 0.

  def __init__(
    self,
    kind: str,
    num_features: int,
    num_outputs: int = 1,
    weights: ArrayLike | Sequence[float] = 0.0,
    bias: float = 0.0,
    *,
    rngs: nnx.Rngs,
  ):
    check_name('guess', kind, GUESSES)
    d, k = num_features, num_outputs
    guess = check_vector('guess_weights', weights, d)
    bias = check_number('guess_bias', bias)
    if kind != 'fixed' and (guess.any() or bias):
      raise UserError(
        f"guess_weights and guess_bias are only for guess='fixed'; guess is {kind!r}"
      )
    self.kind, self.num_features, self.num_outputs = kind, d, num_outputs
    if kind == 'fixed':
      weights = jnp.asarray(guess, float)[:, None]
      self.weights = Constant(jnp.broadcast_to(weights, (d, k)))
      self.bias = Constant(jnp.full(k, bias, float))
    if kind in ('linear', 'residual'):
      self.weights = nnx.Param(jnp.zeros((d, k)))
    if not self.is_affine:
      self.hidden = nnx.Linear(d, _HIDDEN, rngs=rngs)
      zeros = jax.nn.initializers.zeros
      self.out = nnx.Linear(_HIDDEN, k, kernel_init=zeros, rngs=rngs)

  @property
  def is_affine(self) -> bool:
    """Whether the guess is affine in the features, rather than a network."""
    return self.kind not in ('network', 'residual_network')

  @property
  def is_residual(self) -> bool:
    """Whether the guess is added outside the model, which then sees only residuals."""
    return self.kind in ('residual', 'residual_network')

  def affine(self) -> tuple[Float[Array, 'd k'], Float[Array, ' k']]:
    """Returns the weights and the offset of an affine guess."""
    zeros = jnp.zeros(self.num_outputs)
    if self.kind == 'zero':
      return jnp.zeros((self.num_features, self.num_outputs)), zeros
    return self.weights[...], self.bias[...] if self.kind == 'fixed' else zeros

  def __call__(self, x: Float[Array, '*n d']) -> Float[Array, '*n k']:
    """Returns the guess `[…, k]` for features `[…, d]`."""
    if self.kind == 'zero':
      return jnp.zeros((*x.shape[:-1], self.num_outputs), x.dtype)
    if not self.is_affine:
      return self.out(jax.nn.gelu(self.hidden(x)))
    guess = x @ self.weights[...]
    if self.kind == 'fixed':
      bias = self.bias[...]
      guess += bias.reshape((1,) * (guess.ndim - 1) + bias.shape)
    return guess
