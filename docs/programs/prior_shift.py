"""Moves trained models from one prior mean to another."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError, check_vector
from zoo.models import LTB, YqLSA
from zoo.models.sequential import SequentialLearner
from zoo.models.token_model import TokenModel

Movable = YqLSA | LTB | SequentialLearner | TokenModel


def transport(model: Movable, shift: Float[ArrayLike, ' d'] | float) -> Movable:
  """A copy of a model that does for the prior mean `a + shift` what it did for a.

  It predicts `f'(X, y, x_q) = shift·x_q + f(X, y − X shift, x_q)`, so its risk on
  `N(a + shift, Λ)` is that of `model` on `N(a, Λ)`. With `M = [[I, 0], [−shiftᵀ, 1]]`,
  so that `M [x; y] = [x; y − shift·x]`,

  - yq-LSA gets `w ← w + shift`, and `W ← W M` for W_K, W_Q and W_V;
  - LTB, whose queries have no guess, gets `W ← W M` for W_K and W_V, `W_P ← N W_P` and
    `W_1 ← W_1 N⁻¹` with `N = [[I, 0], [−shiftᵀ/r, 1]]`, where r is the factor of labels
    in the readout;
  - the delta rule of `sequential` starts from `start + shift`;
  - a model with the guess `residual`, which sees `y − w·x`, gets `w ← w + shift`.

  Raises UserError for other models, whose weights cannot express f'.
  """
  moved = nnx.clone(model)
  shift = check_vector('shift', shift, model.num_features)
  match moved:
    case TokenModel() if moved.guess.kind == 'residual' and moved.num_outputs == 1:
      weights = moved.guess.weights
      weights[...] = weights[...] + jnp.asarray(shift, weights.dtype)[:, None]
    case SequentialLearner(start=nnx.Param() as start, decays=False, erases=True):
      start[...] = start[...] + jnp.asarray(shift, start.dtype)
    case YqLSA():
      for matrix in (moved.w_k, moved.w_q, moved.w_v):
        matrix[...] = matrix[...] @ _adding(-shift, matrix)
      moved.w[...] = moved.w[...] + jnp.asarray(shift, moved.w.dtype)
    case LTB():
      for matrix in (moved.w_k, moved.w_v):
        matrix[...] = matrix[...] @ _adding(-shift, matrix)
      label = float(moved.readout()[-1])
      if label == 0:
        raise UserError(
          'the readout of the model does not depend on the label of a token; an LTB is '
          'transported only if it does'
        )
      moved.w_1[...] = moved.w_1[...] @ _adding(shift / label, moved.w_1)
      moved.w_p[...] = _adding(-shift / label, moved.w_p) @ moved.w_p[...]
    case _:
      name = type(model).__name__
      if isinstance(model, SequentialLearner):
        guess = 'zero' if model.start is None else 'linear'
        name += f' with rule={model.rule!r} and guess={guess!r}'
      raise UserError(
        f'the model is {name}; transport is for YqLSA, LTB, '
        "SequentialLearner with rule='delta' and guess='linear', and models of one "
        'output with '
        "guess='residual', whose trained w·x_q is added to their prediction"
      )
  return moved


def _adding(row: Float[ArrayLike, ' d'], like: nnx.Param) -> Float[Array, 'e e']:
  """The identity with `row` placed before the 1 of its last row."""
  row = jnp.asarray(row, like.dtype)
  return jnp.eye(len(row) + 1, dtype=like.dtype).at[-1, :-1].set(row)
