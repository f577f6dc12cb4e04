"""Trained models moved from one prior mean to another."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import ArrayLike, Float

from zoo.errors import UserError, check_vector
from zoo.models import YqLSA
from zoo.models.token_model import TokenModel


def transport(
  model: YqLSA | TokenModel, shift: Float[ArrayLike, ' d'] | float
) -> YqLSA | TokenModel:
  """A copy of a model that is on the prior mean `a + shift` what it was on a.

  It predicts `f'(X, y, x_q) = shift·x_q + f(X, y − X shift, x_q)`, so its risk on
  `N(a + shift, Λ)` is that of `model` on `N(a, Λ)`. For this `w ← w + shift`, and
  yq-LSA sees `[x; y − shift·x]` by `W ← W [[I, 0], [−shiftᵀ, 1]]` for W of W_K, W_Q and
  W_V; a model with the guess `residual` sees `y − w·x` already. Raises UserError for
  other models, which have no trained w·x_q in their prediction.
  """
  if isinstance(model, YqLSA):
    moved = nnx.clone(model)
    change = check_vector('shift', shift, model.num_features)
    dtype = model.w.dtype
    change = jnp.asarray(change, dtype)
    relative = jnp.eye(len(change) + 1, dtype=dtype).at[-1, :-1].set(-change)
    for matrix in (moved.w_k, moved.w_q, moved.w_v):
      matrix[...] = matrix[...] @ relative
    moved.w[...] = moved.w[...] + change
    return moved
  if not isinstance(model, TokenModel):
    raise UserError(
      f'the model is a {type(model).__name__}; transport is for YqLSA and for models '
      "with guess='residual', whose trained w·x_q is added to their prediction"
    )
  if model.guess.kind != 'residual' or model.num_outputs != 1:
    raise UserError(
      f'the model has the guess {model.guess.kind!r} and {model.num_outputs} outputs; '
      "transport needs guess='residual' and one output, so that a trained w·x_q is "
      'added to the prediction'
    )
  moved = nnx.clone(model)
  change = check_vector('shift', shift, model.num_features)
  weights = moved.guess.weights
  weights[...] = weights[...] + jnp.asarray(change, weights.dtype)[:, None]
  return moved
