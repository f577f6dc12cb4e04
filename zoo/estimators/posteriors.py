"""Bayes predictors that know the density of a prompt, so that they can be mixed."""

from __future__ import annotations

import abc
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, ArrayLike, Float

from zoo.core.distributions import Distribution, Gaussian, GaussianMixture
from zoo.core.prompt import Prompt
from zoo.core.trees import Matrix, Number, Vector
from zoo.estimators.baselines import Baseline, Describing, Examples
from zoo.estimators.linear import Ridge

_LOG_2_PI = math.log(2 * math.pi)


class Posterior(Baseline):
  """Base of Bayes predictors that also know how probable the examples are.

  A subclass defines `weigh`, and is decorated with `flax.struct.dataclass`. If its
  labels are numbers, it is a subclass of `Describing`, too.
  """

  @abc.abstractmethod
  def weigh(self, examples: Examples) -> tuple[Float[Array, ''], Float[Array, '*k']]:
    """Returns a log density and the prediction.

    The density is that of the examples that are seen and of the features of the query.
    The prediction is that of `predict`.
    """

  def predict(self, examples: Examples) -> Float[Array, '*k']:
    return self.weigh(examples)[1]


@struct.dataclass(eq=False, repr=False)
class GaussianPosterior(Posterior, Describing):
  """The posterior mean of linear regression with noise, with the density of prompts.

  The model is `y = w·x + σ n` with `w ~ N(mean, root rootᵀ)` and `x ~ N(0, Σ)`.

  Args:
    mean: Mean of the weights `[d]`.
    root: A root of the covariance of the weights, `[d, k]`.
    noise_std: Standard deviation σ > 0 of the noise.
    squares: Whether labels depend on the squares of x, `y = w·x² + σ n`.
    feature_covariance: Covariance Σ of the features, which must not be singular. None
      is the identity.
  """

  mean: Vector
  root: Matrix
  noise_std: Number
  squares: bool = struct.field(pytree_node=False, default=False)
  feature_covariance: Matrix = None

  def weigh(self, examples: Examples) -> tuple[Float[Array, ''], Float[Array, '']]:
    x, y, _, x_query = examples.zeroed()
    of_features = log_density_of_features(examples, self.feature_covariance)
    if self.squares:
      x, x_query = jnp.square(x), jnp.square(x_query)
    mean, root = (jnp.asarray(array, x.dtype) for array in (self.mean, self.root))
    residual, count = y - x @ mean, examples.num_seen
    # The residual y − x·mean is N(0, A Aᵀ + σ²) with A = x root. All terms of its
    # density below are positive.
    u, s, vt = jnp.linalg.svd(x @ root, full_matrices=False)
    variance = jnp.square(jnp.asarray(self.noise_std, x.dtype))
    along, variances = residual @ u, s * s + variance
    misfit = jnp.sum(jnp.square(along) / variances)
    misfit += jnp.sum(jnp.square(residual - u @ along)) / variance
    log_det = jnp.sum(jnp.log(variances)) + (count - len(s)) * jnp.log(variance)
    weights = mean + root @ ((along * s / variances) @ vt)
    density = -(misfit + log_det + count * _LOG_2_PI) / 2
    return of_features + density, jnp.dot(x_query, weights)

  def describe(self, examples: Examples) -> Gaussian:
    ridge = Ridge(
      jnp.square(jnp.asarray(self.noise_std, examples.x.dtype)),
      self.mean,
      self.root,
      self.squares,
      prior_std=1.0,
    )
    return Gaussian(self.predict(examples), ridge.describe(examples).std)


@struct.dataclass(eq=False, repr=False)
class WeightPosterior(Baseline):
  """The posterior of the weights of linear regression: their means and variances.

  With `A = X root = U S Vᵀ` the mean is `mean + root V (S/(S² + σ²)) Uᵀ (y − X mean)`,
  and the covariance `root (I − V (S²/(S² + σ²)) Vᵀ) rootᵀ`, of which the diagonal is
  given. Without noise, singular values that are rounding errors count as 0.

  Args:
    mean: Mean of the weights `[d]`.
    root: A root of the covariance of the weights, `[d, k]`. None is the identity.
    noise_std: Standard deviation σ ≥ 0 of the noise.
  """

  mean: Vector
  root: Matrix
  noise_std: Number

  def predict(self, examples: Examples) -> Float[Array, '']:
    d = len(examples.x_query)
    return jnp.dot(examples.x_query, self._of_weights(examples)[:d])

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the means and then the variances, after each number of examples."""
    return self._everywhere(self._of_weights, prompt)

  def _of_weights(self, examples: Examples) -> Float[Array, ' m']:
    x, y, *_ = examples.zeroed()
    mean = jnp.asarray(self.mean, x.dtype)
    root = np.eye(x.shape[1]) if self.root is None else self.root
    root = jnp.asarray(root, x.dtype)
    u, s, vt = jnp.linalg.svd(x @ root, full_matrices=False)
    is_some = s > s[0] * jnp.finfo(s.dtype).eps * max(x.shape)
    squares = s * s + jnp.square(jnp.asarray(self.noise_std, x.dtype))
    squares = jnp.where(is_some, squares, 1)
    along = jnp.where(is_some, s / squares, 0) * ((y - x @ mean) @ u)
    # What is left of each axis; those that the features do not reach keep all.
    axes = root @ vt.T
    known = jnp.where(is_some, s * s / squares, 0)
    outside = root - axes @ vt
    left = jnp.sum(jnp.square(axes) * (1 - known)[None], axis=1)
    variance = left + jnp.sum(jnp.square(outside), axis=1)
    return jnp.concatenate([mean + axes @ along, variance])


def as_mixture(distribution: Distribution) -> GaussianMixture:
  """Returns a Gaussian as a mixture of one component, and a mixture as it is."""
  if isinstance(distribution, GaussianMixture):
    return distribution
  assert isinstance(distribution, Gaussian)
  mean, std = distribution.mean[..., None], distribution.std[..., None]
  return GaussianMixture(jnp.zeros_like(mean), mean, std)


def log_density_of_features(
  examples: Examples, covariance: Float[ArrayLike, 'd d'] | None = None
) -> Float[Array, '']:
  """Returns the log density of the features of the seen examples and of the query.

  All are `N(0, covariance)`.

  Args:
    examples: The examples and the query.
    covariance: The covariance `[d, d]`, which must not be singular. None is the
      identity.
  """
  points = jnp.concatenate([examples.zeroed().x, examples.x_query[None]])
  log_det = jnp.zeros((), points.dtype)
  if covariance is not None:
    root = jnp.linalg.cholesky(jnp.asarray(covariance, points.dtype))
    points = jax.scipy.linalg.solve_triangular(root, points.T, lower=True)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
  of_each = len(examples.x_query) * _LOG_2_PI + log_det
  return -(jnp.sum(jnp.square(points)) + (examples.num_seen + 1) * of_each) / 2


def log_norm(noise_std: float | Array, examples: Examples) -> Float[Array, '']:
  """Returns `log (√(2π) σ)^k`, the norm of the density of the noise of k examples."""
  std = jnp.asarray(noise_std, examples.y.dtype)
  return examples.num_seen * (jnp.log(std) + _LOG_2_PI / 2)
