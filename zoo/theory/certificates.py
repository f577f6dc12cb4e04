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


class Certificate(NamedTuple):
  """Derivatives of the exact risk at a rule, over its symmetric parts."""

  gradient_norm: float  # Euclidean, over all parts of the rule
  smallest_eigenvalue: float  # of the Hessian, which is the same at every rule
  excess_risk: float  # the exact risk minus that of the global optimum


def certificate(subject: Predictor, task: Task) -> Certificate:
  """Gradient, curvature and excess of the exact risk, in float64.

  Only the Hessian of one coordinate of the weights is computed, which has O(d⁴) entries
  and takes O(d⁶) time: seconds up to d = 30. Raises UserError as `exact_risk` does.
  """
  excess = excess_risk(subject, task)
  moments = task_moments(task)
  features = moments.feature_covariance
  with double_precision():
    moments = jax.tree.map(jnp.array, moments)
    gradient = _gradient(rule_of(subject), moments)
    squares = [np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)]
    hessian = _coordinate_hessian(task.num_features, moments)
    smallest = float(np.linalg.eigvalsh(hessian)[0])
  # This is the Hessian of the bias part; the Hessian of the weights is its Kronecker
  # product with Σ.
  if features is not None:
    smallest *= min(1.0, float(np.linalg.eigvalsh(features)[0]))
  return Certificate(float(sum(squares)) ** 0.5, smallest, float(sum(excess)))


_gradient = jax.jit(jax.grad(population_risk))


@functools.partial(jax.jit, static_argnums=0)
def _coordinate_hessian(num_features: int, moments: Moments) -> Array:
  """The Hessian of one coordinate's mean square, in an orthonormal basis."""
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
