"""Linear regression whose features have new principal axes in each prompt."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Key

from zoo.core.errors import check_count, check_number
from zoo.core.protocols import Predictor
from zoo.core.trees import Number
from zoo.estimators.baselines import Zero
from zoo.estimators.linear import GradientDescent, Ridge
from zoo.estimators.linear_prior import FirstSteps, best_first_step
from zoo.tasks.base import LinearFunctions, dot, register_task, turned
from zoo.tasks.linear_regression import LinearRegression


@register_task('rotated_regression')
@struct.dataclass(eq=False, repr=False)
class RotatedRegression(LinearFunctions):
  """Linear regression whose features have new principal axes in each prompt.

  For each prompt, weights `w ~ N(0, I)` and a uniformly random orthogonal matrix Q are
  drawn. The examples have features `x_i ~ N(0, Q V Qᵀ)` and labels
  `y_i = w·x_i + σ n_i` with `n_i ~ N(0, 1)`, and the query is drawn like the features
  of an example. V is diagonal, and its k-th entry is proportional to `k^−a`, with the
  mean 1 over all d of them. The target of the query is `w·x_q`, without noise. The
  latents are w.

  Since Q differs between prompts, a model cannot learn the axes in its weights. The
  Bayes predictor is ridge regression with the penalty σ² (baseline `bayes`), which does
  not need Q.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    exponent: Exponent a ≥ 0 of the eigenvalues `∝ k^−a`. It is part of a compiled
      program, since the eigenvalues are computed in float64 on the host.
    noise_std: Standard deviation σ ≥ 0 of the noise.

  Example:
    >>> task = zoo.create_task('rotated_regression', num_features=2, exponent=1.0)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> prompt.x.shape, prompt.y.shape, task.variances.round(3)
    ((3, 20, 2), (3, 20), array([1.333, 0.667]))

  References:
    Bordelon et al., arXiv 2510.01098.
  """

  num_features: int = struct.field(pytree_node=False, default=10)
  context_length: int = struct.field(pytree_node=False, default=20)
  exponent: float = struct.field(pytree_node=False, default=1.0)
  noise_std: Number = 0.0

  @property
  def stationary(self) -> bool:
    """Whether the examples and the query are independent and alike, given w and Q."""
    return type(self).sample_one is LinearFunctions.sample_one

  def check(self) -> None:
    super().check()
    check_number('exponent', self.exponent, minimum=0.0)

  @property
  def variances(self) -> Float[np.ndarray, ' d']:
    """The eigenvalues of the covariance of the features, `[d]`, in falling order."""
    return power_law(self.num_features, self.exponent)

  @property
  def in_one_frame(self) -> LinearRegression:
    """The task in the principal axes of the features, the same axes in all prompts.

    A predictor that rotates with the features, such as gradient descent, has the same
    risk on that task, which exact theory covers.
    """
    return LinearRegression(
      self.num_features,
      self.context_length,
      feature_covariance=np.diag(self.variances),
      noise_std=self.noise_std,
    )

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    normal_key, frame_key = jax.random.split(key)
    normal = super().sample_features(normal_key)
    scaled = normal * jnp.sqrt(jnp.asarray(self.variances, normal.dtype))[None]
    # The signs of the columns do not matter, since the features are symmetric.
    shape = self.num_features, self.num_features
    frame, _ = jnp.linalg.qr(jax.random.normal(frame_key, shape))
    return dot(scaled[:, None], frame[None])

  def sample_context(
    self, key: Key[Array, ''], x_query: Float[Array, ' d']
  ) -> Float[Array, 'c d']:
    """Draws the features of the context examples, given those of the query.

    The query is `Q s` with `s ~ N(0, V)`, and tells something about Q. Its norm is that
    of s, so the direction of s is drawn given its norm. Q is then any orthogonal matrix
    that turns s into the query, with equal probability.

    Args:
      key: Random key.
      x_query: Features of the query `[d]`.

    Returns:
      Features of the context examples `[c, d]`.
    """
    direction_key, features_key, frame_key = jax.random.split(key, 3)
    variances = jnp.asarray(self.variances, x_query.dtype)
    square = dot(x_query, x_query)
    direction = _bingham(direction_key, square / (2 * variances))
    normal = super().sample_features(features_key)[:-1]
    scaled = normal * jnp.sqrt(variances)[None]
    shape = self.num_features, self.num_features
    # The signs of the columns are drawn, too, since the signs of the direction are
    # given.
    frame, upper = jnp.linalg.qr(jax.random.normal(frame_key, shape))
    frame = frame * jnp.sign(jnp.diagonal(upper))[None]
    x, own = dot(scaled[:, None], frame[None]), dot(frame, direction[None])
    return turned(x, own, x_query)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    return jax.random.normal(key, (self.num_features,))

  def mean_weights(self) -> Float[np.ndarray, ' d']:
    return np.zeros(self.num_features)

  def baselines(self) -> dict[str, Predictor]:
    task = self.in_one_frame
    step = np.array([best_first_step(task)])
    return {
      # Features do not depend on the weights, so the posterior does not need the axes.
      'bayes': Ridge(self.noise_std**2, prior_std=1.0),
      'gd': GradientDescent(np.zeros(self.num_features), step, FirstSteps.of(task)),
      'ols': Ridge(),
      'zero': Zero(),
    }


def _bingham(key: Key[Array, ''], rates: Float[Array, ' d']) -> Float[Array, ' d']:
  """Draws a unit vector u with the density `∝ exp(−Σ_j rates_j u_j²)`, by rejection.

  Only differences of rates matter, so let Λ have the rates minus the least of them.
  Proposals are the directions of `N(0, Ω⁻¹)` with `Ω = I + 2 Λ/b`, where b makes the
  bound of the density ratio the least (Kent, Ganeiber & Mardia, arXiv 1310.8110,
  section 2).

  Returns:
    The vector `[d]`.
  """
  d = rates.size
  # The bound keeps float32 from overflowing.
  rates = jnp.minimum(rates - jnp.min(rates), 1e30)
  low, high = jnp.zeros((), rates.dtype), jnp.asarray(d, rates.dtype)

  def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = ends
    b = (low + high) / 2
    is_low = jnp.sum(1 / (b + 2 * rates)) > 1
    return jnp.where(is_low, b, low), jnp.where(is_low, high, b)

  # The equation Σ 1/(b + 2 λ_j) = 1 has one root. It lies between 1 and d, since one
  # rate is 0.
  b = jax.lax.fori_loop(0, 40, halve, (low + 1, high))[1]
  precisions = 1 + 2 * rates / b

  def draw(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    key, _, _ = state
    key, normal_key, accept_key = jax.random.split(key, 3)
    point = jax.random.normal(normal_key, (d,)) / jnp.sqrt(precisions)
    point = point / jnp.sqrt(dot(point, point))
    # `of_ratio` is the logarithm of (density / density of the proposals), minus the
    # bound of that logarithm.
    of_ratio = (
      -dot(rates, point * point)
      + d / 2 * jnp.log(dot(precisions, point * point))
      + (d - b) / 2
      - d / 2 * jnp.log(d / b)
    )
    accepted = jnp.log(jax.random.uniform(accept_key)) < of_ratio
    return key, point, accepted

  start = key, jnp.zeros_like(rates), jnp.zeros((), bool)
  return jax.lax.while_loop(lambda state: ~state[2], draw, start)[1]


def power_law(num_features: int, exponent: int | float) -> Float[np.ndarray, ' d']:
  """Returns d eigenvalues `∝ k^−a` for k = 1 … d, with the mean 1.

  Args:
    num_features: Number of eigenvalues d ≥ 1.
    exponent: Exponent a, any number.

  Raises:
    UserError: If an argument is out of its range.
  """
  d = check_count('num_features', num_features)
  a = check_number('exponent', exponent)
  values = np.arange(1, d + 1.0) ** -a
  return values * d / values.sum()
