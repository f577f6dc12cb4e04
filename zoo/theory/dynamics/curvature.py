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

# Relative to the largest: eigenvalues and singular values below it count as 0.
_ZERO = 1e-9
_STATIONARY = 1e-8  # a gradient of at most this norm counts as 0


class Curvature(NamedTuple):
  """The gradient and the Hessian of the exact risk in a model's weights, in float64."""

  gradient_norm: float
  eigenvalues: Float[np.ndarray, ' p']  # of the Hessian, in ascending order
  # How many directions do not change the learning rule to first order.
  num_symmetries: int
  condition_number: float  # the largest over the smallest eigenvalue that is > 0
  # 'global minimum': no learning rule has a lower risk. 'minimum': a local one.
  # 'saddle': the Hessian has a negative eigenvalue. 'degenerate': the gradient is 0 and
  # the Hessian does not decide. 'not stationary': the gradient is not 0.
  kind: str


def curvature(model: Predictor | nnx.Module, task: Task) -> Curvature:
  """The Hessian at a model's weights, and the kind of point that it proves them to be.

  Weights have symmetries, along which the risk does not change; at a minimum the
  Hessian is positive in all other directions. For the rank of the rule's derivative to
  count these directions it has to be the same nearby, which it is if no larger rank
  occurs at random weights; otherwise the point is 'degenerate'. It takes as many
  gradients as there are weights. Raises UserError as `gradient_flow` does.
  """
  moments = task_moments(task)
  excess = float(sum(excess_risk(model, task)))
  with double_precision():
    subject, start = weights_of(model, moments)
    elsewhere = np.random.default_rng(0).normal(size=start.size)
    slope, hessian, moves = jax.device_get(_derivatives(subject, start, moments))
    _, _, nearby = _derivatives(subject, elsewhere, moments)
  eigenvalues = np.linalg.eigvalsh(hessian)
  zero = _ZERO * max(np.abs(eigenvalues).max(), np.finfo(float).tiny)
  positive = eigenvalues[eigenvalues > zero]
  rank = _rank(moves)
  if np.linalg.norm(slope) > _STATIONARY:
    kind = 'not stationary'
  elif excess <= _ZERO * context_moments(moments).mean_q:
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


def _rank(matrix: Float[np.ndarray, 'm p']) -> int:
  return int(np.linalg.matrix_rank(matrix, rtol=_ZERO)) if matrix.any() else 0


@nnx.jit
def _derivatives(
  model: nnx.Module, point: Float[AnyArray, ' p'], moments: Moments
) -> tuple[Float[Array, ' p'], Float[Array, 'p p'], Float[Array, 'm p']]:
  """The gradient and Hessian of the risk, and the derivative of the rule."""

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
