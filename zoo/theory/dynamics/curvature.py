"""The Hessian of the exact risk in the weights, and what kind of point it shows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.learning_rule import AnyArray, symmetric
from zoo.core.protocols import Predictor, Task
from zoo.theory.dynamics.flow import at_weights, slope_at, weights_of
from zoo.theory.exact import excess_risk
from zoo.theory.precision import double_precision
from zoo.theory.risk import Moments, context_moments, task_moments

# Eigenvalues and singular values below this fraction of the largest count as 0.
_ZERO = 1e-9
# Weights in float32 are off by 6e-8 of their size, and the errors of eigenvalues and of
# the gradient are a few times larger. So these limits are wider then.
_ZERO_OF_FLOAT32 = _STATIONARY_OF_FLOAT32 = 1e-6
# A gradient counts as 0 if its square, divided by the largest eigenvalue of the Hessian
# and by the mean square of the labels, is at most the square of this number. The ratio
# has no unit. It is twice what a step against the gradient can gain, in the risk of
# predicting 0, if the risk is as steep as the largest eigenvalue says.
_STATIONARY = 1e-8


class Curvature(NamedTuple):
  """The gradient and the Hessian of the exact risk in a model's weights, in float64.

  `curvature` returns it.

  Attributes:
    gradient_norm: The Euclidean norm of the gradient.
    eigenvalues: The eigenvalues of the Hessian, in ascending order, one for each
      weight.
    num_symmetries: The number of independent directions in the weights that do not
      change the learning rule to first order.
    condition_number: The largest eigenvalue over the smallest positive one; ∞ if none
      is positive. Eigenvalues below 1e-9 of the largest count as 0, and below 1e-6 if
      weights were given in float32, whose rounding makes such eigenvalues.
    kind: 'global minimum' if no learning rule has a lower risk, up to 1e-9 of the mean
      square of the labels; 'minimum' if the Hessian is positive in every direction that
      changes the rule; 'saddle' if the Hessian has a negative eigenvalue; 'degenerate'
      if the gradient is 0 and the Hessian does not decide; 'not stationary' if the
      gradient is not 0. A gradient g counts as 0 if `|g|²` is at most 1e-16 times the
      largest eigenvalue times the mean square of the labels, or 1e-12 times if weights
      were given in float32.
  """

  gradient_norm: float
  eigenvalues: Float[np.ndarray, ' p']
  num_symmetries: int
  condition_number: float
  kind: str


def curvature(model: Predictor | nnx.Module, task: Task) -> Curvature:
  """Computes the Hessian at a model's weights, and the kind of point that they are.

  Weights have symmetries, along which the risk does not change. At a minimum the
  Hessian is positive in all other directions. How many these are follows from the rank
  of the rule's derivative in the weights, if that rank is the same nearby. This is so
  if no larger rank occurs at random weights; otherwise the point is 'degenerate'. The
  time is that of as many gradients as there are weights.

  Args:
    model: A model of the linear family, or heads of `zoo.theory.dynamics`.
    task: A `linear_regression`.

  Returns:
    The norm of the gradient, the eigenvalues of the Hessian, and the kind of the point.

  Raises:
    UserError: If the theory does not cover the task, or if the model has no learning
      rule, no weights that train, or another number of features.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=1, context_length=2)
    >>> heads = zoo.theory.dynamics.LinearHeads([[0.0, 1.0]], [[[0.5], [0.0]]])
    >>> zoo.theory.dynamics.curvature(heads, task).kind
    'global minimum'

  References:
    docs/dynamics.md, section 1.
  """
  moments = task_moments(task)
  excess = float(sum(excess_risk(model, task)))
  with double_precision():
    subject, start = weights_of(model, moments)
    elsewhere = np.random.default_rng(0).normal(size=start.size)
    slope, hessian, moves = jax.device_get(_derivatives(subject, start, moments))
    _, _, nearby = _derivatives(subject, elsewhere, moments)
  eigenvalues = np.linalg.eigvalsh(hessian)
  steepest = max(np.abs(eigenvalues).max(), np.finfo(float).tiny)
  given = jax.tree.leaves(nnx.state(model, nnx.Param))
  is_double = all(leaf.dtype == np.float64 for leaf in given)
  zero = (_ZERO if is_double else _ZERO_OF_FLOAT32) * steepest
  stationary = _STATIONARY if is_double else _STATIONARY_OF_FLOAT32
  positive = eigenvalues[eigenvalues > zero]
  rank = _rank(moves)
  square = _risk_of_zero(moments)
  if slope @ slope > stationary**2 * steepest * square:
    kind = 'not stationary'
  elif excess <= _ZERO * square:
    kind = 'global minimum'
  elif eigenvalues[0] < -zero:
    kind = 'saddle'
  elif positive.size == rank == _rank(np.asarray(nearby)):
    kind = 'minimum'
  else:
    kind = 'degenerate'
  return Curvature(
    gradient_norm=float(np.linalg.norm(slope)),
    eigenvalues=eigenvalues,
    num_symmetries=eigenvalues.size - rank,
    condition_number=float(positive[-1] / positive[0]) if positive.size else np.inf,
    kind=kind,
  )


def _risk_of_zero(moments: Moments) -> float:
  """Returns the mean square of labels, `w*ᵀΣw* + tr ΣΛ + σ²`, the scale of risks."""
  mean, features = moments.prior_mean, moments.feature_covariance
  along = mean if features is None else features @ mean
  return float(mean @ along + context_moments(moments).mean_q)


def _rank(matrix: Float[np.ndarray, 'm p']) -> int:
  return int(np.linalg.matrix_rank(matrix, rtol=_ZERO)) if matrix.any() else 0


@nnx.jit
def _derivatives(
  model: nnx.Module, point: Float[AnyArray, ' p'], moments: Moments
) -> tuple[Float[Array, ' p'], Float[Array, 'p p'], Float[Array, 'm p']]:
  """Returns the gradient and Hessian of the risk, and the derivative of the rule."""

  def rule(point: Array) -> Array:
    learned = at_weights(model, point).learning_rule()
    parts = symmetric(learned.update), symmetric(learned.bias_update)
    return jnp.concatenate(
      [jnp.ravel(part) for part in (learned.init, learned.bias, *parts)]
    )

  return (
    slope_at(model, point, moments),
    jax.jacfwd(slope_at, argnums=1)(model, point, moments),
    jax.jacfwd(rule)(point),
  )
