"""Gaussian linear regression, its estimators, and their best steps and penalties."""

from __future__ import annotations

import contextlib
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, ArrayLike, Float, Key

from zoo.core import draws, trees
from zoo.core.errors import (
  UserError,
  check_count,
  check_covariance,
  check_number,
  check_vector,
)
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.statistics import Statistics, triangle
from zoo.core.trees import Matrix, Number, Vector
from zoo.estimators.baselines import Averaging, NearestNeighbours, Zero
from zoo.estimators.linear import GDBeta, GradientDescent, Ridge, bayes
from zoo.estimators.linear_prior import FirstSteps, LinearPrior, best_penalty
from zoo.estimators.posteriors import GaussianPosterior, Posterior
from zoo.tasks.base import (
  LinearFunctions,
  as_vector,
  dot,
  log_normal,
  register_task,
  with_root,
)


@register_task('linear_regression')
@struct.dataclass(eq=False, repr=False)
class LinearRegression(LinearFunctions):
  """Prompts of `y_i = ŵ·x_i + σ n_i` (arXiv 2512.04268, section 2).

  A fresh `ŵ ~ N(prior_mean, prior_covariance)` for each prompt, features and query
  `~ N(0, feature_covariance)`, `n_i ~ N(0, 1)`; the target is `ŵ·x_q`, without noise.

  Arrays are float64 on the host, so that exact theory loses no precision. Exact theory
  covers this class alone: a subclass may draw otherwise, and is trained on what its
  `sample_one` draws.

  By default labels are centred, as in most papers; the configs train the task of Table
  1, whose prior mean is 2.
  """

  num_features: int = struct.field(pytree_node=False, default=10)
  # It is an int32 in compiled programs.
  context_length: int = struct.field(pytree_node=False, default=10)
  prior_mean: Vector = 0.0  # w*, a number or one for each feature
  prior_covariance: Matrix = None  # of ŵ, d × d; None: the identity
  feature_covariance: Matrix = None  # d × d; None: the identity
  noise_std: Number = 0.0  # σ, from 0 to 1e19, whose square is a float32
  # The symmetric roots of the covariances, which compiled programs multiply by.
  _prior_root: Matrix = None
  _feature_root: Matrix = None

  def __post_init__(self):
    super().__post_init__()
    mean = as_vector(self.prior_mean, self.num_features)
    object.__setattr__(self, 'prior_mean', mean)
    for name in ('prior', 'feature'):
      matrix, root = getattr(self, f'{name}_covariance'), getattr(self, f'_{name}_root')
      matrix, root = with_root(f'{name}_covariance', matrix, root)
      object.__setattr__(self, f'{name}_covariance', matrix)
      object.__setattr__(self, f'_{name}_root', root)

  def check(self) -> None:
    check_count('num_features', self.num_features)
    check_count('context_length', self.context_length, maximum=2**31 - 1)
    check_vector('prior_mean', self.prior_mean, self.num_features)
    for name in ('prior_covariance', 'feature_covariance'):
      if (covariance := getattr(self, name)) is not None:
        check_covariance(name, covariance, self.num_features)
    check_number('noise_std', self.noise_std, minimum=0.0, maximum=1e19)

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    normal = super().sample_features(key)
    return _correlate(normal[..., None], self._feature_root)[..., 0]

  @property
  def has_normal_features(self) -> bool:
    """Whether features are known to be `N(0, I)`."""
    return self.feature_covariance is None and self._draws_gaussians

  @property
  def _draws_gaussians(self) -> bool:
    """Whether features are `N(0, feature_covariance)`; a subclass may draw others."""
    return type(self).sample_features is LinearRegression.sample_features

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    """That of `N(0, feature_covariance)`, which must not be singular."""
    if self.feature_covariance is None or not self._draws_gaussians:
      return super().log_density(x)
    root = jnp.linalg.cholesky(jnp.asarray(self.feature_covariance, x.dtype))
    normal = jax.scipy.linalg.solve_triangular(root, x.T, lower=True)
    return log_normal(normal) - len(x) * jnp.sum(jnp.log(jnp.diagonal(root)))

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    normal = jax.random.normal(key, (self.num_features, 1))
    deviation = _correlate(normal, self._prior_root)[:, 0]
    return deviation + jnp.asarray(self.prior_mean, deviation.dtype)

  def mean_weights(self) -> Float[np.ndarray, ' d']:
    """The mean w*, in float64 on the host."""
    return check_vector('prior_mean', self.prior_mean, self.num_features)

  def linear_prior(self) -> LinearPrior | None:
    if not covers(self):
      return None
    return LinearPrior(
      mean=self.mean_weights(),
      covariance=self.prior_covariance,
      features=self.feature_covariance,
      noise_std=self.noise_std,
      context_length=self.context_length,
    )

  def posterior(self) -> Posterior | None:
    features = self.feature_covariance
    singular = features is not None and np.linalg.matrix_rank(features) < len(features)
    if self.noise_std == 0 or singular or not covers(self):
      return None
    root = np.eye(self.num_features) if self._prior_root is None else self._prior_root
    mean, noise = self.mean_weights(), self.noise_std
    return GaussianPosterior(mean, root, noise, feature_covariance=features)

  def baselines(self) -> dict[str, Predictor]:
    """`gd` and `gd_beta` are one step, tuned for each length; `ridge` needs a penalty.

    All but `averaging`, `nearest_neighbours` and `zero` start from the prior mean. A
    subclass, which may draw otherwise, has those that know nothing of the prior.
    """
    untuned: dict[str, Predictor] = {
      'averaging': Averaging(),
      'nearest_neighbours': NearestNeighbours(),
      'zero': Zero(),
    }
    if not covers(self):
      return {'ols': Ridge()} | untuned
    c = self.context_length
    start, tuned = self.mean_weights(), FirstSteps.of(self)
    estimators: dict[str, Predictor] = {
      'gd': GradientDescent(start, np.array([tuned.step_size(c)]), tuned),
      'gd_beta': GDBeta(start, np.asarray(tuned.step_matrix(c)), tuned),
    }
    with contextlib.suppress(UserError):
      estimators['ridge'] = Ridge(best_penalty(self), start)
    estimators |= {'ols': Ridge(0.0, start), 'bayes': bayes(self)}
    return estimators | untuned

  def sample_batch(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    """What `sample` compiles; other prompts than those of `sample_one`.

    The statistics below are of these prompts, which are sampled flat, and whose bits
    are those of earlier releases. A subclass is sampled by its `sample_one`.
    """
    if not covers(self):
      return super().sample_batch(key, batch_size)
    x, x_query, deviation, noise = self._draw(key, batch_size, is_pseudo=False)
    mean = jnp.asarray(self.prior_mean, deviation.dtype)
    weights = deviation + jnp.broadcast_to(mean, (self.num_features,))[:, None]
    targets, y_query = dot(x, weights[None], -2), dot(x_query, weights, -2)
    labels = targets + noise
    return Prompt(
      x=jnp.moveaxis(x, -1, 0),
      y=labels.T,
      x_query=x_query.T,
      y_query=y_query,
      context_targets=targets.T,
      latents=weights.T,
    )

  def sample_statistics(self, key: Key[Array, ''], batch_size: int) -> Statistics:
    """Samples the statistics of `batch_size` ≥ 1 prompts that the linear family uses.

    They are the statistics of the prompts that `sample` gives; with `has_long_context`
    they only have the same distribution, at a cost that does not depend on C. They do
    not depend on `prior_mean`.
    """
    return _statistics(trees.fresh(self), key, check_count('batch_size', batch_size))

  def statistics_batch(self, key: Key[Array, ''], batch_size: int) -> Statistics:
    """What `sample_statistics` compiles."""
    x, x_query, deviation, noise = self._draw(key, batch_size, self.has_long_context)

    def vectors(x: Array, deviation: Array, noise: Array) -> Array:
      labels = dot(x, deviation[None], -2) + noise
      return jnp.concatenate([x, labels[:, None]], 1)

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
  # that tasks that differ only in σ share everything else; for σ = 0 none is drawn. The
  # key of the noise, fold_in(key, 1), equals two words that prompt 0 uses as well; keys
  # are hashed before they are used, so nothing is correlated.

  def _draw(
    self, key: Key[Array, ''], batch_size: int, is_pseudo: bool
  ) -> tuple[Array, Array, Array, Array]:
    """Features `[n, d, b]`, the query and `ŵ − w*` `[d, b]`, and label noise `[n, b]`.

    They are those of the n = C examples, or of n = d + 1 pseudo-examples.
    """
    c, d = self.context_length, self.num_features
    if is_pseudo:
      x, rest = self._pseudo_examples(key, batch_size)
    else:
      normal = draws.normals(key, (c + 2) * d, batch_size)
      x, rest = normal[: c * d].reshape(c, d, batch_size), normal[c * d :]
    x_query, deviation = jnp.split(rest, 2)
    noise_std = jnp.asarray(self.noise_std, x.dtype)
    noise = jax.lax.cond(
      noise_std > 0,
      lambda: noise_std * self._noise(key, batch_size, is_pseudo),
      lambda: jnp.zeros((len(x), batch_size), x.dtype),
    )
    return (
      _correlate(x, self._feature_root),
      _correlate(x_query, self._feature_root),
      _correlate(deviation, self._prior_root),
      noise,
    )

  def _noise(
    self, key: Key[Array, ''], batch_size: int, is_pseudo: bool
  ) -> Float[Array, 'n b']:
    """The noise of the examples, or pseudo-examples, in units of σ."""
    c, d = self.context_length, self.num_features
    count = d if is_pseudo else c
    noise = draws.normals(jax.random.fold_in(key, 1), count, batch_size)
    if not is_pseudo:
      return noise
    corner = draws.chi(jax.random.fold_in(key, 3), np.array([c - d]), batch_size)
    return jnp.concatenate([noise, corner])

  def _pseudo_examples(
    self, key: Key[Array, ''], batch_size: int
  ) -> tuple[Array, Array]:
    """d + 1 pseudo-examples, for any number of examples, and 2d more numbers.

    They are the columns of Bartlett's factor: `T Tᵀ` has the distribution of
    `Σ_i v_i v_iᵀ` over C standard normal vectors if T is lower triangular with standard
    normal entries and, on the diagonal, chi variables of C, C − 1, … degrees of freedom
    (Muirhead, Aspects of Multivariate Statistical Theory, theorem 3.2.14). The noise is
    the last entry of v, by `_noise`; the features of the last column are 0.
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
    last = jnp.zeros((d, batch_size), normal.dtype)
    return jnp.stack([*columns, last]), normal[below:]


_statistics = jax.jit(LinearRegression.statistics_batch, static_argnums=2)


def _correlate(
  normal: Float[Array, '*n d b'], root: Float[ArrayLike, 'd d'] | None
) -> Float[Array, '*n d b']:
  """Gives standard normal vectors the covariance that has this symmetric root."""
  if root is None:
    return normal
  root = jnp.asarray(root, normal.dtype)[..., None]
  root = root.reshape((1,) * (normal.ndim - 2) + root.shape)
  return dot(normal[..., None, :, :], root, axis=-2)


def covers(task: object) -> TypeGuard[LinearRegression]:
  """Whether exact theory covers a task: linear regression, but no subclass of it."""
  return type(task) is LinearRegression


def require_covered(task: object) -> LinearRegression:
  """Returns the task; raises UserError unless it is linear regression."""
  if not covers(task):
    raise UserError(
      f'the task is of type {type(task).__name__}; exact theory covers '
      'LinearRegression, for which the estimators are, too'
    )
  return task
