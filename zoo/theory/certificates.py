"""Certificates that a rule is, or is not, the global optimum of its task.

The risk is a convex quadratic function of the rule, so a rule is optimal if its
gradient vanishes; a positive definite Hessian makes the optimum unique.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from zoo.core.protocols import Predictor, Task
from zoo.theory.exact import excess_risk, rule_of
from zoo.theory.precision import double_precision
from zoo.theory.risk import (
  Moments,
  coordinate_mean_square,
  population_risk,
  task_moments,
)

_ROUNDING = 1e-12


class Certificate(NamedTuple):
  """Derivatives of the exact risk at a rule, in float64.

  The Hessian is that in the symmetric parts of `update` and `bias_update`, in an
  orthonormal basis, since the other parts do not matter.

  Attributes:
    gradient_norm: The Euclidean norm of the gradient over all parts of the rule. It is
      0 at the global optimum, up to rounding.
    smallest_eigenvalue: The smallest eigenvalue of the Hessian, which is the same at
      every rule. It is 0 if it is below 1e-12 of the largest one, since it may then be
      a rounding error. If it is above 0, only one rule has the least risk.
    excess_risk: The exact risk minus that of the global optimum.
  """

  gradient_norm: float
  smallest_eigenvalue: float
  excess_risk: float


def certificate(subject: Predictor, task: Task) -> Certificate:
  """Computes the gradient, the curvature and the excess of the exact risk at a rule.

  The risk is convex and quadratic in the rule. So a gradient of 0 certifies that no
  rule has a lower risk, whatever training found.

  The time is O(d⁶), since the Hessian of one coordinate of the weights has O(d⁴)
  entries: seconds up to d = 30. The other coordinates have the same Hessian up to the
  feature covariance.

  Args:
    subject: A `LearningRule`, or a model or an estimator that has one.
    task: A `linear_regression`.

  Returns:
    The norm of the gradient, the smallest eigenvalue of the Hessian, and the excess.

  Raises:
    UserError: If the theory does not cover the task, or if the subject has no learning
      rule, predicts differently from it, or has another number of features.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> step = zoo.estimators.gradient_descent(task)
    >>> certificate = zoo.theory.certificate(step, task)
    >>> certificate.gradient_norm < 1e-12, certificate.smallest_eigenvalue > 0
    (True, True)

  References:
    docs/theory_one_layer.md, section 3.
  """
  excess = excess_risk(subject, task)
  moments = task_moments(task)
  features = moments.feature_covariance
  with double_precision():
    moments = jax.tree.map(jnp.array, moments)
    gradient = _gradient(rule_of(subject, task), moments)
    squares = [np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)]
    hessian = _coordinate_hessian(task.num_features, moments)
    eigenvalues = np.linalg.eigvalsh(hessian)
    smallest = float(eigenvalues[0])
    if smallest < _ROUNDING * eigenvalues[-1]:
      smallest = 0.0
  # `hessian` is the Hessian of the bias part. The Hessian of the weights is the
  # Kronecker product of `hessian` with Σ.
  if features is not None:
    smallest *= min(1.0, float(np.linalg.eigvalsh(features)[0]))
  return Certificate(float(sum(squares)) ** 0.5, smallest, float(sum(excess)))


_gradient = jax.jit(jax.grad(population_risk))


@functools.partial(jax.jit, static_argnums=0)
def _coordinate_hessian(num_features: int, moments: Moments) -> Array:
  """Returns the Hessian of one coordinate's mean square, in an orthonormal basis."""
  e = num_features + 1
  rows, columns = np.triu_indices(e)
  # An entry off the diagonal occurs in the matrix twice.
  scale = np.where(rows == columns, 1.0, np.sqrt(0.5))

  def mean_square(point: Array) -> Array:
    update = jnp.zeros((e, e), point.dtype).at[rows, columns].set(point[1:] * scale)
    update = update + jnp.triu(update, 1).T
    no_target = jnp.zeros((1, num_features), point.dtype)
    even, odd = coordinate_mean_square(
      point[:1], update[None], no_target, None, moments
    )
    return even + odd

  return jax.hessian(mean_square)(jnp.zeros(1 + len(rows)))
