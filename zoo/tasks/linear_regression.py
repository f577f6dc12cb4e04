"""Gaussian linear regression with a new weight vector in every prompt."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from zoo import draws
from zoo.errors import (
  UserError,
  check_count,
  check_covariance,
  check_number,
  check_vector,
)
from zoo.prompt import Prompt
from zoo.protocols import Predictor
from zoo.registry import tasks
from zoo.statistics import Statistics, triangle
from zoo.tasks.base import FunctionClass, compiled, dot, symmetric_root


@tasks.register('linear_regression')
class LinearRegression(FunctionClass):
  """Prompts of `y_i = ŵ·x_i + σ n_i` (arXiv 2512.04268, section 2).

  A fresh `ŵ ~ N(prior_mean, prior_covariance)` for each prompt, features and query
  `~ N(0, feature_covariance)`, `n_i ~ N(0, 1)`; the target is `ŵ·x_q`, without noise.

  Attributes, all float64 on the host, so that exact theory loses no precision:
    num_features: d.
    context_length: C, the number of labelled examples.
    prior_mean: `[d]`; a scalar argument is repeated. By default labels are centred, as
      in most papers; the configs train the task of Table 1, whose prior mean is 2.
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
    if self.context_length >= 2**31:  # it is an int32 in compiled programs
      raise UserError(f'context_length is {context_length}; it must be below 2³¹')
    self.prior_mean = check_vector('prior_mean', prior_mean, d)
    self.prior_covariance = check_covariance('prior_covariance', prior_covariance, d)
    self.feature_covariance = check_covariance(
      'feature_covariance', feature_covariance, d
    )
    self.noise_std = check_number('noise_std', noise_std, minimum=0.0)
    if self.noise_std > 1e19:
      raise UserError(
        f'noise_std is {noise_std}; it must be ≤ 1e19, so that its square is a float32'
      )
    for name in ('prior_mean', 'prior_covariance', 'feature_covariance'):
      if (array := getattr(self, name)) is not None:
        array = array.copy()
        array.flags.writeable = False  # compiled programs hold it as a constant
        setattr(self, name, array)

  @property
  def statistics_key(self) -> tuple:
    """A key that is equal for tasks with the same samples of `sample_statistics`."""
    arrays = self.prior_covariance, self.feature_covariance
    contents = (None if array is None else array.tobytes() for array in arrays)
    return self.num_features, self.context_length, self.noise_std > 0, *contents

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    normal = super().sample_features(key)
    return _correlate(normal[..., None], self.feature_covariance)[..., 0]

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    normal = jax.random.normal(key, (self.num_features, 1))
    deviation = _correlate(normal, self.prior_covariance)[:, 0]
    return deviation + jnp.asarray(self.prior_mean, deviation.dtype)

  def evaluate(
    self, function: Float[Array, ' d'], x: Float[Array, 't d']
  ) -> Float[Array, ' t']:
    return dot(x, function[None])

  def baselines(self) -> dict[str, Predictor]:
    # Imported here since the estimators import the tasks.
    from zoo.estimators import linear_regression

    return linear_regression.baselines(self)

  # Not with `sample_one`: the statistics below are of the same prompts, which are
  # sampled flat, and whose bits are those of earlier releases.
  @compiled
  def _prompts(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    x, noise, x_query, deviation = self._draw(key, batch_size, self._examples)
    weights = deviation + jnp.asarray(self.prior_mean, deviation.dtype)[:, None]
    targets, y_query = dot(x, weights[None], -2), dot(x_query, weights, -2)
    labels = targets if noise is None else targets + self.noise_std * noise
    return Prompt(
      x=jnp.moveaxis(x, -1, 0),
      y=labels.T,
      x_query=x_query.T,
      y_query=y_query,
      context_targets=None if noise is None else targets.T,
    )

  def sample_statistics(self, key: Key[Array, ''], batch_size: int) -> Statistics:
    """Samples the statistics of `batch_size` ≥ 1 prompts that the linear family uses.

    They are the statistics of the prompts that `sample` gives; with `has_long_context`
    they only have the same distribution, at a cost that does not depend on C. They do
    not depend on `prior_mean`, nor on `noise_std` except for whether it is 0.
    """
    return copy.copy(self)._statistics(key, check_count('batch_size', batch_size))

  @compiled
  def _statistics(self, key: Key[Array, ''], batch_size: int) -> Statistics:
    examples = self._pseudo_examples if self.has_long_context else self._examples
    x, noise, x_query, deviation = self._draw(key, batch_size, examples)

    def vectors(x: Array, deviation: Array, noise: Array | None) -> Array:
      parts = [x, dot(x, deviation[None], -2)[:, None]]
      return jnp.concatenate(parts if noise is None else [*parts, noise[:, None]], 1)

    u_cub = draws.materialize_once(key, vectors, x, deviation, noise)
    return Statistics(
      moment=triangle(u_cub) / self.context_length,
      x_query=x_query,
      deviation=dot(x_query, deviation, -2),
    )

  @property
  def has_long_context(self) -> bool:
    """Whether pseudo-examples are cheaper to sample than the examples themselves."""
    return 2 * self.context_length >= 3 * (self.num_features + 1)

  # Positions in the batch come last, as in `draws`. Label noise has its own streams, so
  # that tasks that differ only in σ share everything else. The key of the noise,
  # fold_in(key, 1), equals two words that prompt 0 uses as well; keys are hashed before
  # they are used, so nothing is correlated.

  def _draw(
    self, key: Key[Array, ''], batch_size: int, examples: Callable[..., Any]
  ) -> tuple[Array, Array | None, Array, Array]:
    """Features `[c, d, b]`, noise/σ `[c, b]`, query `[d, b]` and `ŵ − w*` `[d, b]`."""
    x, noise, rest = examples(key, batch_size)
    x_query, deviation = jnp.split(rest, 2)
    return (
      _correlate(x, self.feature_covariance),
      noise,
      _correlate(x_query, self.feature_covariance),
      _correlate(deviation, self.prior_covariance),
    )

  def _examples(
    self, key: Key[Array, ''], batch_size: int
  ) -> tuple[Array, Array | None, Array]:
    """Standard normal features, label noise, and 2d more numbers."""
    c, d = self.context_length, self.num_features
    normal = draws.normals(key, (c + 2) * d, batch_size)
    noise = None
    if self.noise_std > 0:
      noise = draws.normals(jax.random.fold_in(key, 1), c, batch_size)
    return normal[: c * d].reshape(c, d, batch_size), noise, normal[c * d :]

  def _pseudo_examples(
    self, key: Key[Array, ''], batch_size: int
  ) -> tuple[Array, Array | None, Array]:
    """One pseudo-example per feature and one for the noise, for any number of examples.

    They are the columns of Bartlett's factor: `T Tᵀ` has the distribution of
    `Σ_i v_i v_iᵀ` over C standard normal vectors if T is lower triangular with standard
    normal entries and, on the diagonal, chi variables of C, C − 1, … degrees of freedom
    (Muirhead, Aspects of Multivariate Statistical Theory, theorem 3.2.14). The noise is
    the last entry of v.
    """
    c, d = self.context_length, self.num_features
    below = d * (d - 1) // 2
    normal = draws.normals(key, below + 2 * d, batch_size)
    diagonal = draws.chi(jax.random.fold_in(key, 2), c - np.arange(d), batch_size)
    columns, start = [], 0
    for j in range(d):
      stop = start + d - 1 - j
      zeros = jnp.zeros((j, batch_size), normal.dtype)
      columns.append(jnp.concatenate([zeros, diagonal[j : j + 1], normal[start:stop]]))
      start = stop
    if self.noise_std == 0:
      return jnp.stack(columns), None, normal[below:]
    noise = draws.normals(jax.random.fold_in(key, 1), d, batch_size)
    corner = draws.chi(jax.random.fold_in(key, 3), np.array([c - d]), batch_size)
    x = jnp.stack([*columns, jnp.zeros((d, batch_size), normal.dtype)])
    return x, jnp.concatenate([noise, corner]), normal[below:]


def _correlate(
  normal: Float[Array, '*n d b'], covariance: np.ndarray | None
) -> Float[Array, '*n d b']:
  """Gives standard normal vectors a covariance, which may be singular."""
  if covariance is None:
    return normal
  root = jnp.asarray(symmetric_root(covariance), normal.dtype)[..., None]
  root = root.reshape((1,) * (normal.ndim - 2) + root.shape)
  return dot(normal[..., None, :, :], root, axis=-2)
