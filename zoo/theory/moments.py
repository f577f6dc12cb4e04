"""The exact risk of learning rules on linear regression, without sampling."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zoo.errors import UserError
from zoo.learning_rule import LearningRule, symmetric
from zoo.tasks import LinearRegression

_FEW_FEATURES = 128  # whose update takes 17 MB in float64


class Moments(NamedTuple):
  """What the risk depends on in a task: a pytree that can be mapped over and traced."""

  context_length: Any
  prior_mean: Any  # [d]
  prior_covariance: Any  # [d, d]
  feature_covariance: Any  # [d, d], or None for the identity, which is cheaper
  noise_variance: Any


class Parts(NamedTuple):
  """A mean square in two parts that sum to it."""

  even: Array  # what stays when ŵ − w* and the label noise change sign
  odd: Array  # what changes its sign with them


def covers(task: Any) -> bool:
  """Whether exact theory covers a task: linear regression, sampled as it is there."""
  return getattr(type(task), 'sample', None) is LinearRegression.sample


def task_moments(task: Any) -> Moments:
  """The moments of a task, float64; UserError unless it is LinearRegression."""
  if not covers(task):
    raise UserError(
      f'the task is of type {type(task).__name__}; exact theory covers LinearRegression'
    )
  prior = task.prior_covariance
  return Moments(
    context_length=task.context_length,
    prior_mean=task.prior_mean,
    prior_covariance=np.eye(task.num_features) if prior is None else prior,
    feature_covariance=task.feature_covariance,
    noise_variance=task.noise_std**2,
  )


def population_risk(rule: LearningRule, moments: Moments) -> Float[Array, '']:
  """`E (f − ŵ·x_q)²` in the precision of the rule; for use under jit, grad and vmap.

  O(d³) time; O(d⁴) when there is a feature covariance.
  """
  even, odd = mean_square(rule, moments, truth=1.0)
  return even + odd


def float64_risk(rule: LearningRule, moments: Moments) -> Float[Array, '']:
  """`population_risk` in float64, where x64 is enabled, with little memory for large d.

  Unless features are correlated the risk is a sum over coordinates. Where they are many
  a few at a time are taken to float64: at d = 512 all together take 15 GiB.
  """

  def float64(leaf: Any) -> Array:
    return jnp.asarray(leaf, jnp.float64)

  if rule.num_features <= _FEW_FEATURES or moments.feature_covariance is not None:
    return population_risk(jax.tree.map(float64, rule), moments)
  moments = jax.tree.map(float64, moments)

  def coordinate(row: tuple[Any, Any, Any]) -> Array:
    constant, update, target = (float64(leaf)[None] for leaf in row)
    even, odd = coordinate_mean_square(constant, update, target, None, moments)
    return even + odd

  target = jnp.eye(rule.num_features, dtype=jnp.float64)
  rows = jnp.asarray(rule.init), jnp.asarray(rule.update), target
  offset = coordinate((rule.bias, rule.bias_update, jnp.zeros_like(target[0])))
  return jnp.sum(jax.lax.map(coordinate, rows, batch_size=16)) + offset


def mean_square(
  rule: LearningRule, moments: Moments, truth: float = 0.0, gradient: bool = False
) -> Parts:
  """`E (f − truth ŵ·x_q)²`, or of its gradient in `x_q` instead, in its two parts.

  Both are polynomials in the entries of the rule (docs/theory.md, section 2).
  """
  dtype = jnp.result_type(float, *jax.tree.leaves(rule))
  moments = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), moments)
  init, update = jnp.asarray(rule.init, dtype), jnp.asarray(rule.update, dtype)
  features = moments.feature_covariance
  target = truth * jnp.eye(rule.num_features, dtype=dtype)
  metric = None if gradient else features
  parts = coordinate_mean_square(init, update, target, metric, moments)
  if gradient:
    return parts
  bias, bias_update = (
    jnp.asarray(leaf, dtype)[None] for leaf in (rule.bias, rule.bias_update)
  )
  offset = coordinate_mean_square(
    bias, bias_update, jnp.zeros_like(target[:1]), None, moments
  )
  return Parts(parts.even + offset.even, parts.odd + offset.odd)


def coordinate_mean_square(
  constant: Float[Array, ' n'],
  update: Float[Array, 'n e e'],
  target: Float[Array, 'n d'],
  metric: Float[Array, 'n n'] | None,
  moments: Moments,
) -> Parts:
  """`E Σ_ij metric_ij u_i u_j` of `u_i = constant_i + ⟨update_i, G⟩ − target_i·ŵ`."""
  c, mean, prior, features, noise = moments
  d = mean.size
  # In y − w*·x for y, the blocks of `update` are P, ρ and s, and those of G are
  # S = XᵀX/C and q, which are even, and r = S(ŵ − w*) + σ Xᵀn/C, which is odd.
  update = symmetric(update)
  s = update[:, d, d]
  label_column = update[:, :d, d]
  rho = label_column + jnp.outer(s, mean)
  shift = jnp.einsum('ni,j->nij', label_column + jnp.outer(s / 2, mean), mean)
  p = update[:, :d, :d] + shift + jnp.swapaxes(shift, 1, 2)
  if features is None:
    features = jnp.eye(d, dtype=p.dtype)
  else:
    p = p @ features
  spread = features @ prior  # ΣΛ
  tau = jnp.trace(spread) + noise  # E q
  spread_square = jnp.sum(spread * spread.T)

  def weigh(matrix: Float[Array, 'n m'], other: Float[Array, 'n m']) -> Array:
    """`Σ_ij metric_ij (row i)·(other row j)`."""
    return jnp.sum(matrix * (other if metric is None else metric @ other))

  mixed = p if metric is None else jnp.tensordot(metric, p, 1)
  even_mean = constant - target @ mean + jnp.trace(p, axis1=1, axis2=2) + s * tau
  even_mean, s = even_mean[:, None], s[:, None]
  p_spread = jnp.einsum('nij,ij->n', p, spread)[:, None]  # tr PΣΛΣ
  variance_q = 2 * spread_square + (2 / c) * (tau * tau + 2 * spread_square)
  even = (
    weigh(even_mean, even_mean)
    + (2 / c) * jnp.sum(mixed * jnp.swapaxes(p, 1, 2))
    + variance_q * weigh(s, s)
    + (4 / c) * weigh(s, p_spread)
  )
  second_moment_r = (1 + 1 / c) * spread @ features + tau / c * features
  odd = (
    4 * weigh(rho, rho @ second_moment_r)
    - 4 * weigh(rho, target @ spread.T)
    + weigh(target, target @ prior)
  )
  return Parts(even, odd)
