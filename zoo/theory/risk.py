"""The moments of a task, and the exact risk of learning rules, without sampling."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zoo.core.learning_rule import AnyArray, LearningRule, symmetric
from zoo.tasks.linear_regression import require_covered

_FEW_FEATURES = 128  # An update with so many features takes 17 MB in float64.
_COORDINATES_AT_A_TIME = 16

# The annotations describe arrays on the host; in a traced program they are JAX arrays.


class Moments(NamedTuple):
  """The numbers of a task that determine the risk of a learning rule, as a pytree.

  `task_moments` returns it.

  Attributes:
    context_length: C, the number of examples.
    prior_mean: w*, the mean of the weights.
    prior_covariance: Λ, the covariance of the weights.
    feature_covariance: Σ. None means the identity, with which the risk is computed
      faster.
    noise_variance: σ², the variance of the label noise.
  """

  context_length: float
  prior_mean: Float[np.ndarray, ' d']
  prior_covariance: Float[np.ndarray, 'd d']
  feature_covariance: Float[np.ndarray, 'd d'] | None
  noise_variance: float


class ContextMoments(NamedTuple):
  """Moments of what a context tells about `ε = ŵ − w*`.

  With labels minus w*·x, the context enters the prediction through `S = XᵀX/C`,
  `r = Sε + σ Xᵀn/C` and `q = (1/C) Σ_i (ε·x_i + σ n_i)²`
  (docs/theory_one_layer.md, section 2).

  Attributes:
    features: `Σ = E S`.
    spread: `ΣΛ = E r εᵀ`.
    mean_q: `τ = E q = tr ΣΛ + σ²`.
    variance_q: The variance of q.
    variance_label: D, the variance of the part of q that is uncorrelated with S.
    second_moment_r: `M = E r rᵀ`.
  """

  features: Float[np.ndarray, 'd d']
  spread: Float[np.ndarray, 'd d']
  mean_q: float
  variance_q: float
  variance_label: float
  second_moment_r: Float[np.ndarray, 'd d']


def task_moments(task: object) -> Moments:
  """Returns the moments of a task, in float64.

  Args:
    task: A `linear_regression`.

  Returns:
    What the risk of a learning rule depends on.

  Raises:
    UserError: If the theory does not cover the task.

  Example:
    >>> task = zoo.tasks.LinearRegression(
    ...   num_features=2, context_length=3, noise_std=0.5
    ... )
    >>> zoo.theory.task_moments(task).noise_variance
    0.25
  """
  task = require_covered(task)
  prior = task.prior_covariance
  return Moments(
    context_length=task.context_length,
    prior_mean=task.mean_weights(),
    prior_covariance=np.eye(task.num_features) if prior is None else prior,
    feature_covariance=task.feature_covariance,
    noise_variance=task.noise_std**2,
  )


def context_moments(moments: Moments) -> ContextMoments:
  """Returns the moments of a context, in NumPy or JAX like those of the task."""
  c, mean, prior, features, noise = moments
  if features is None:
    xp = prior.__array_namespace__()
    features = xp.eye(mean.size, dtype=prior.dtype)
  spread = features @ prior
  tau = spread.trace() + noise
  square = (spread * spread.T).sum()  # tr ΣΛΣΛ
  return ContextMoments(
    features=features,
    spread=spread,
    mean_q=tau,
    variance_q=2 * square + (2 / c) * (tau * tau + 2 * square),
    variance_label=2 * (1 + 1 / c) * square + 2 * tau * tau / c,
    second_moment_r=(1 + 1 / c) * spread @ features + tau / c * features,
  )


class Parts(NamedTuple):
  """A mean square as the sum of two parts.

  Attributes:
    even: The mean square of the terms that stay the same when `ŵ − w*` and the noise
      change sign.
    odd: The mean square of the terms whose sign then changes.
  """

  even: Array
  odd: Array


def population_risk(rule: LearningRule, moments: Moments) -> Float[Array, '']:
  """Returns the risk `E (f − ŵ·x_q)²` of a rule, as a function for jit, grad and vmap.

  It takes O(d³) time, or O(d⁴) with a feature covariance.

  Args:
    rule: The learning rule.
    moments: Those of the task, from `task_moments`.

  Returns:
    The risk, in the precision of the rule. `exact_risk` always computes in float64.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> rule = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> moments = zoo.theory.task_moments(task)
    >>> round(float(zoo.theory.population_risk(rule, moments)), 3)
    1.0

  References:
    docs/theory_one_layer.md, section 2.
  """
  even, odd = mean_square(rule, moments, truth=1.0)
  return even + odd


def float64_risk(rule: LearningRule, moments: Moments) -> Float[Array, '']:
  """Computes `population_risk` in float64, with little memory if d is large.

  x64 must be enabled. Without a feature covariance the risk is a sum over coordinates
  of the weights. For large d these are converted to float64 a few at a time: at d = 512
  all of them would take 15 GiB.

  Returns:
    The risk.
  """
  if rule.num_features <= _FEW_FEATURES or moments.feature_covariance is not None:
    even, odd = mean_square(jax.tree.map(jnp.float64, rule), moments, truth=1.0)
    return even + odd
  cast: Moments = jax.tree.map(jnp.float64, moments)

  def coordinate(row: tuple[AnyArray, AnyArray, AnyArray]) -> Array:
    constant, update, target = (jnp.float64(leaf)[None] for leaf in row)
    even, odd = coordinate_mean_square(constant, update, target, None, cast)
    return even + odd

  target = jnp.eye(rule.num_features, dtype=jnp.float64)
  rows = jnp.asarray(rule.init), jnp.asarray(rule.update), target
  offset = coordinate((rule.bias, rule.bias_update, jnp.zeros_like(target[0])))
  return (
    jnp.sum(jax.lax.map(coordinate, rows, batch_size=_COORDINATES_AT_A_TIME)) + offset
  )


def mean_square(
  rule: LearningRule, moments: Moments, truth: float = 0.0, gradient: bool = False
) -> Parts:
  """Returns `E (f − truth ŵ·x_q)²` in two parts.

  With `gradient` it is the mean square of the gradient with respect to `x_q`. Both are
  polynomials in the entries of the rule (docs/theory_one_layer.md, section 2).
  """
  dtype = jnp.result_type(float, *jax.tree.leaves(rule))
  cast: Moments = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), moments)
  init, update = jnp.asarray(rule.init, dtype), jnp.asarray(rule.update, dtype)
  target = truth * jnp.eye(rule.num_features, dtype=dtype)
  metric = None if gradient else cast.feature_covariance
  parts = coordinate_mean_square(init, update, target, metric, cast)
  if gradient:
    return parts
  bias, bias_update = (
    jnp.asarray(leaf, dtype)[None] for leaf in (rule.bias, rule.bias_update)
  )
  offset = coordinate_mean_square(
    bias, bias_update, jnp.zeros_like(target[:1]), None, cast
  )
  return Parts(parts.even + offset.even, parts.odd + offset.odd)


def coordinate_mean_square(
  constant: Float[Array, ' n'],
  update: Float[Array, 'n e e'],
  target: Float[Array, 'n d'],
  metric: Float[AnyArray, 'n n'] | None,
  moments: Moments,
) -> Parts:
  """Returns `E Σ_ij metric_ij u_i u_j` in two parts.

  Here `u_i = constant_i + ⟨update_i, G⟩ − target_i·ŵ`.
  """
  c, _, prior, features, _ = moments
  mean = jnp.asarray(moments.prior_mean)
  d = mean.size
  # With y − w*·x in place of y, the blocks of `update` are P, ρ and s, and those of G
  # are S = XᵀX/C and q, which are even, and r = S(ŵ − w*) + σ Xᵀn/C, which is odd.
  update = symmetric(update)
  s = update[:, d, d]
  label_column = update[:, :d, d]
  rho = label_column + jnp.outer(s, mean)
  shift = jnp.einsum('ni,j->nij', label_column + jnp.outer(s / 2, mean), mean)
  p = update[:, :d, :d] + shift + jnp.swapaxes(shift, 1, 2)
  if features is not None:
    p = p @ features
  context = context_moments(moments)

  def weigh(matrix: Float[Array, 'n m'], other: Float[Array, 'n m']) -> Array:
    """Returns `Σ_ij metric_ij (row i)·(other row j)`."""
    return jnp.sum(matrix * (other if metric is None else metric @ other))

  mixed = p if metric is None else jnp.tensordot(metric, p, 1)
  even_mean = constant - target @ mean + jnp.trace(p, axis1=1, axis2=2)
  even_mean, s = (even_mean + s * context.mean_q)[:, None], s[:, None]
  p_spread = jnp.einsum('nij,ij->n', p, context.spread)[:, None]  # tr PΣΛΣ
  even = (
    weigh(even_mean, even_mean)
    + (2 / c) * jnp.sum(mixed * jnp.swapaxes(p, 1, 2))
    + context.variance_q * weigh(s, s)
    + (4 / c) * weigh(s, p_spread)
  )
  odd = (
    4 * weigh(rho, rho @ context.second_moment_r)
    - 4 * weigh(rho, target @ context.spread.T)
    + weigh(target, target @ prior)
  )
  return Parts(even, odd)
