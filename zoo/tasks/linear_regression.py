"""Gaussian linear regression: a new weight vector in every prompt."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Key

from zoo.errors import check_count, check_covariance, check_number, check_vector
from zoo.prompt import Prompt
from zoo.registry import tasks


@tasks.register('linear_regression')
class LinearRegression:
  """Prompts of `y_i = ŵ·x_i + σ n_i` (arXiv 2512.04268, section 2).

  `ŵ ~ N(prior_mean, prior_covariance)` anew for each prompt, features and query
  `~ N(0, feature_covariance)`, `n_i ~ N(0, 1)`; the target is `ŵ·x_q`, without noise.

  Attributes, all float64 on the host, so that exact theory loses nothing:
    num_features: d.
    context_length: C, the number of labelled examples.
    prior_mean: `[d]`; a scalar given is repeated.
    prior_covariance: `[d, d]`, or None for the identity.
    feature_covariance: `[d, d]`, or None for the identity.
    noise_std: σ, in the units of the labels.
  """

  def __init__(
    self,
    num_features: int,
    context_length: int,
    prior_mean: ArrayLike | Sequence[float] = 0.0,
    prior_covariance: ArrayLike | Sequence[Sequence[float]] | None = None,
    feature_covariance: ArrayLike | Sequence[Sequence[float]] | None = None,
    noise_std: float = 0.0,
  ):
    """Raises UserError naming the argument that is out of its range."""
    self.num_features = d = check_count('num_features', num_features)
    self.context_length = check_count('context_length', context_length)
    self.prior_mean = check_vector('prior_mean', prior_mean, d)
    self.prior_covariance = check_covariance('prior_covariance', prior_covariance, d)
    self.feature_covariance = check_covariance(
      'feature_covariance', feature_covariance, d
    )
    self.noise_std = check_number('noise_std', noise_std, minimum=0.0)

  def sample(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    """Draws `batch_size` ≥ 1 prompts on the device.

    A prompt is a pure function of the key and of its position in the batch: the same
    on any number of devices, and in a longer batch too.
    """
    batch_size = check_count('batch_size', batch_size)
    d, c = self.num_features, self.context_length
    # One flat draw costs about a third less than one draw an array. Label noise has a
    # stream of its own, so that tasks that differ in σ alone share all else.
    width = (c + 2) * d
    normal = jax.random.normal(key, (batch_size * width,)).reshape(batch_size, width)
    x, x_query, deviation = jnp.split(normal, [c * d, (c + 1) * d], axis=1)
    x = _correlate(x.reshape(batch_size, c, d), self.feature_covariance)
    x_query = _correlate(x_query, self.feature_covariance)
    deviation = _correlate(deviation, self.prior_covariance)
    weights = deviation + jnp.asarray(self.prior_mean, deviation.dtype)[None]
    y = _dot(x, weights[:, None])
    if self.noise_std > 0:
      noise = jax.random.normal(jax.random.fold_in(key, 1), (batch_size * c,))
      y = y + self.noise_std * noise.reshape(batch_size, c)
    y_query = _dot(x_query, weights)
    return Prompt(x=x, y=y, x_query=x_query, y_query=y_query)


def _correlate(
  normal: Float[Array, '*n d'], covariance: np.ndarray | None
) -> Float[Array, '*n d']:
  """Gives standard normal vectors a covariance, which may be singular."""
  if covariance is None:
    return normal
  eigenvalues, vectors = np.linalg.eigh(covariance)
  root = (vectors * np.sqrt(eigenvalues.clip(0))) @ vectors.T
  root = jnp.asarray(root, normal.dtype).reshape((1,) * (normal.ndim - 1) + root.shape)
  return _dot(normal[..., None, :], root)


def _dot(left: Float[Array, '*n d'], right: Float[Array, '*m d']) -> Float[Array, '*k']:
  """The sum over the last axis of the products, added one by one in order.

  The order in which XLA adds up a dot product depends on the shapes, and so on how many
  devices share the batch: labels would differ in their last bit.
  """

  def product(i: Int[Array, ''] | int) -> Float[Array, '*k']:
    return at(left, i) * at(right, i)

  d = left.shape[-1]
  at = functools.partial(jax.lax.dynamic_index_in_dim, axis=-1, keepdims=False)
  return jax.lax.fori_loop(
    1, d, lambda i, total: total + product(i), product(0), unroll=min(d, 16)
  )
