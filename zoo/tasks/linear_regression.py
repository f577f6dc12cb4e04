"""Gaussian linear regression, on which `zoo.theory` computes exact risks."""

from __future__ import annotations

import contextlib
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, ArrayLike, Float, Key

from zoo.core import draws, trees
from zoo.core.beliefs import Belief, values_of
from zoo.core.errors import (
  UserError,
  check_count,
  check_covariance,
  check_number,
  check_vector,
)
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, require_task
from zoo.core.statistics import Statistics, triangle
from zoo.core.trees import Matrix, Number, Vector
from zoo.estimators.baselines import Averaging, NearestNeighbours, Zero
from zoo.estimators.linear import GDBeta, GradientDescent, Ridge, bayes
from zoo.estimators.linear_prior import FirstSteps, LinearPrior, best_penalty
from zoo.estimators.posteriors import GaussianPosterior, Posterior, WeightPosterior
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
  """Linear regression with Gaussian weights that are new in each prompt.

  For each prompt, weights `ŵ ~ N(prior_mean, prior_covariance)` are drawn. The examples
  have features `x_i ~ N(0, feature_covariance)` and labels `y_i = ŵ·x_i + σ n_i` with
  `n_i ~ N(0, 1)`. The query is drawn like the features of an example. Its target is
  `ŵ·x_q`, without noise. The latents of a prompt are ŵ.

  The Bayes predictor is the mean of the Gaussian posterior (baseline `bayes`). It is
  ridge regression towards the prior mean w*: it minimises
  Σ_i (w·x_i − y_i)² + σ² (w − w*)ᵀ Λ⁻¹ (w − w*), where Λ is the prior covariance.
  The formulas of `zoo.theory` are for this class. They are not used for a subclass,
  which may draw prompts from another distribution. A model of a subclass is trained on
  the prompts that `sample_one` of the subclass draws.

  Covariances and the prior mean are kept as float64 on the host, so that the formulas
  lose no precision. By default the prior mean is 0, as in most papers. The config files
  of single layers of linear attention and of `sequential` have the task of Table 1 of
  arXiv 2512.04268, whose prior mean is 2.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C, from 1 to 2³¹ − 1.
    prior_mean: Mean w* of the weights: a number for all features, or a vector `[d]`.
    prior_covariance: Covariance of the weights `[d, d]`; it may be singular. None is
      the identity.
    feature_covariance: Covariance of the features `[d, d]`; it may be singular. None is
      the identity.
    noise_std: Standard deviation σ of the noise, from 0 to 1e19 (the square of more
      would overflow float32).

  Raises:
    UserError: If a covariance is not symmetric and positive semi-definite. The
      constructor checks the covariances alone; `zoo.create_task` checks all fields.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((3, 5, 2), (3, 5), (3,))

  References:
    arXiv 2512.04268, section 2 and Table 1.
  """

  num_features: int = struct.field(pytree_node=False, default=10)
  context_length: int = struct.field(pytree_node=False, default=10)
  prior_mean: Vector = 0.0
  prior_covariance: Matrix = None
  feature_covariance: Matrix = None
  noise_std: Number = 0.0
  # Compiled programs multiply by these symmetric roots of the covariances.
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
    """Whether the features are known to be `N(0, I)`."""
    return self.feature_covariance is None and self._draws_gaussians

  @property
  def _draws_gaussians(self) -> bool:
    """Whether features are `N(0, feature_covariance)`, which a subclass may change."""
    return type(self).sample_features is LinearRegression.sample_features

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    """Returns the log density of features under `N(0, feature_covariance)`.

    The covariance must not be singular.
    """
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
    """Returns the prior mean w* `[d]`, in float64 on the host."""
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
    """Returns the baselines of this task, by name.

    `gd` and `gd_beta` are one step of gradient descent, whose step size or step matrix
    is the best one for each number of examples. `ridge` has the best penalty; it is
    left out if the best penalty has no closed form. `gd`, `gd_beta`, `ridge`, `ols` and
    `bayes` start from the prior mean. `averaging`, `nearest_neighbours` and `zero` use
    no prior.

    A subclass may draw the weights from another prior. Its baselines are therefore
    `ols` from 0 and the three that use no prior.
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

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes the posterior mean of each weight, and then the variance of each.

    Args:
      prompt: Prompts `[b]`.

    Returns:
      The belief, with values `[b, c + 1, 2d]`.

    Raises:
      UserError: If the class of the task is a subclass, which may have another prior.
    """
    if not covers(self):
      raise self.no_belief('it may draw its weights from another prior')
    of_weights = WeightPosterior(self.mean_weights(), self._prior_root, self.noise_std)
    names = tuple(
      f'{what} of weight {i}'
      for what in ('mean', 'variance')
      for i in range(self.num_features)
    )
    return Belief(values_of(of_weights, prompt), names, 'moments')

  def belief_prediction(
    self, values: Float[Array, 'b k'], prompt: Prompt
  ) -> Float[Array, ' b']:
    return jnp.sum(values[:, : self.num_features] * prompt.x_query, axis=1)

  def sample_batch(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    """Draws `batch_size` prompts; `sample` compiles this method.

    All prompts are drawn at once, as arrays of the whole batch. Their distribution is
    that of `sample_one`; their values differ from those that `sample_one` draws with
    the same key. Unless `has_long_context`, `sample_statistics` returns the statistics
    of these prompts if it gets the same key. For a subclass this method calls the
    subclass's `sample_one` instead.

    Args:
      key: Random key.
      batch_size: Number of prompts, ≥ 1.

    Returns:
      The prompts, with their latents.
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
    """Draws the second moments of prompts, which are all that the linear family uses.

    The result has the statistics of the prompts that `sample` draws with the same key.
    If `has_long_context`, the statistics have only the same distribution as those of
    the prompts, and their cost does not depend on C. The statistics do not depend on
    `prior_mean`.

    Args:
      key: Random key.
      batch_size: Number of prompts, ≥ 1.

    Returns:
      The statistics of `batch_size` prompts.

    Raises:
      UserError: If `batch_size` is not an integer ≥ 1, or if the task is of a subclass,
        whose prompts may have another distribution.

    Example:
      >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
      >>> task.sample_statistics(jax.random.key(0), 4).x_query.shape  # [d, b]
      (2, 4)
    """
    require_covered(self)
    return _statistics(trees.fresh(self), key, check_count('batch_size', batch_size))

  def statistics_batch(self, key: Key[Array, ''], batch_size: int) -> Statistics:
    """Draws what `sample_statistics` returns, which compiles this method.

    Args:
      key: Random key.
      batch_size: Number of prompts.

    Returns:
      The statistics of the prompts.
    """
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
    """Whether pseudo-examples are cheaper to draw than the examples themselves.

    d + 1 pseudo-examples have second moments of the same distribution as C examples.
    They are taken if C is at least 3/2 times their number, since some of their numbers
    are chi variables, which are drawn by rejection and cost more than normal ones.
    """
    return 2 * self.context_length >= 3 * (self.num_features + 1)

  # In the methods below the axis of the batch is the last one, as in `draws`.
  #
  # The noise of the labels is drawn with keys of its own, so that tasks that differ
  # only in σ share all other numbers. If σ is 0, no noise is drawn.
  #
  # The key `fold_in(key, 1)` of the noise is a pair of words, which the generator makes
  # from `key` and the counter (0, 1). `draws.words` uses the same counter for prompt 0,
  # so this pair of words is also among the random words of prompt 0. The noise is still
  # independent of that prompt in effect: the generator hashes the key of the noise anew
  # for each number of the noise.

  def _draw(
    self, key: Key[Array, ''], batch_size: int, is_pseudo: bool
  ) -> tuple[Array, Array, Array, Array]:
    """Draws features `[n, d, b]`, the query and `ŵ − w*` `[d, b]`, and noise `[n, b]`.

    Each of the n = C examples has a row. If `is_pseudo`, each of the n = d + 1
    pseudo-examples has one. ŵ are the weights of a prompt, and w* is their mean.

    Returns:
      The features, the query, the deviation and the noise.
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
    """Draws the noise of the examples, or pseudo-examples, in units of σ."""
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
    """Draws d + 1 pseudo-examples and 2d more numbers; the cost is the same for any C.

    The pseudo-examples are the columns of Bartlett's factor T. It is lower triangular
    with standard normal entries below the diagonal and, on the diagonal, chi variables
    of C, C − 1, … degrees of freedom. Then `T Tᵀ` has the distribution of
    `Σ_i v_i v_iᵀ` over C standard normal vectors (Muirhead, Aspects of Multivariate
    Statistical Theory, theorem 3.2.14). Here v has the features and, as its last entry,
    the noise, which `_noise` draws. The features of the last column are 0.

    Returns:
      The features of the pseudo-examples, and the other numbers `[2d, b]`.
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
  """Returns whether the class of a task is `LinearRegression` itself.

  The formulas of `zoo.theory` hold for this class. They need not hold for a subclass,
  which may draw its prompts from another distribution. The class `TaskPool` is an
  exception: `zoo.theory.exact_risk` has formulas for it, although this function returns
  False.

  Args:
    task: Any object.

  Returns:
    Whether the class of the task is `LinearRegression`.

  Example:
    >>> zoo.theory.covers(zoo.tasks.LinearRegression(2, 4))
    True
    >>> zoo.theory.covers(zoo.tasks.SparseRegression(2, 4))
    False
  """
  return type(task) is LinearRegression


def require_covered(task: object) -> LinearRegression:
  """Returns the task if it is a `LinearRegression`, and not of a subclass.

  Raises:
    UserError: If the task is of another class, or if a field is out of its range.
  """
  if not covers(task):
    raise UserError(
      f'the task is of type {type(task).__name__}; exact theory covers '
      'LinearRegression, and the estimators that take a task are for it, too'
    )
  require_task(task)
  return task
