"""Linear regression whose weights come from a finite pool."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Key

from zoo.core.beliefs import Belief, values_of
from zoo.core.distributions import GaussianMixture
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.core.trees import Number
from zoo.estimators.baselines import Describing, Examples, Zero
from zoo.estimators.linear import Ridge
from zoo.estimators.posteriors import Posterior, log_density_of_features, log_norm
from zoo.tasks.base import LinearFunctions, check_noise, register_task
from zoo.tasks.linear_regression import LinearRegression, require_covered


@register_task('task_pool')
@struct.dataclass(eq=False, repr=False)
class TaskPool(LinearFunctions):
  """Linear regression whose weights come from a finite pool.

  The pool has `num_tasks` weight vectors `~ N(0, I)`, which depend only on `seed` and
  the sizes. Each prompt draws one of them, w, uniformly. The examples have features
  `x_i ~ N(0, I)` and labels `y_i = w·x_i + σ n_i` with `n_i ~ N(0, 1)`, and the query
  is drawn like the features of an example. Its target is `w·x_q`, without noise. The
  latents are w.

  The Bayes predictor is the posterior mean over the pool (baseline `bayes`, called
  dMMSE in the paper). The shift `new_tasks` has weights `~ N(0, I)` that are new in
  each prompt; its Bayes predictor is the baseline `ridge`. A trained model that is
  close to `ridge` there has learned more than the pool. The property `pool` has the
  weight vectors, `[num_tasks, d]`.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    num_tasks: Number of weight vectors in the pool, ≥ 1.
    noise_std: Standard deviation σ of the noise: 0, or from 1e-10 to 1e15.
    seed: Seed of the pool, from 0 to 2³² − 1.

  Example:
    >>> task = zoo.create_task('task_pool', num_features=2, num_tasks=3)
    >>> prompt = task.sample(jax.random.key(0), 5)
    >>> prompt.x.shape, prompt.y.shape, task.pool.shape
    ((5, 16, 2), (5, 16), (3, 2))

  References:
    Raventós et al., arXiv 2306.15063.
  """

  num_features: int = struct.field(pytree_node=False, default=8)
  context_length: int = struct.field(pytree_node=False, default=16)
  num_tasks: int = struct.field(pytree_node=False, default=64)
  noise_std: Number = 0.5
  seed: int = struct.field(pytree_node=False, default=0)

  def check(self) -> None:
    super().check()
    check_count('num_tasks', self.num_tasks)
    check_noise(self.noise_std, 1e-10, 1e15, 'the posterior would overflow in float32')
    check_count('seed', self.seed, minimum=0, maximum=2**32 - 1)

  @property
  def pool(self) -> Float[np.ndarray, 'm d']:
    """The weight vectors of the pool, `[num_tasks, d]`, float64 and read-only."""
    return _pool(self.seed, self.num_tasks, self.num_features)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    index = jax.random.randint(key, (), 0, self.num_tasks)
    return jnp.asarray(self.pool, float)[index]

  def posterior(self) -> Posterior | None:
    return None if self.noise_std == 0 else DiscreteBayes(self)

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes the probabilities of the weight vectors of the pool.

    Args:
      prompt: Prompts `[b]`.

    Returns:
      The belief, with values `[b, c + 1, num_tasks]`.
    """
    names = tuple(f'member {i}' for i in range(self.num_tasks))
    return Belief(values_of(DiscreteBayes(self), prompt), names)

  def belief_prediction(
    self, values: Float[Array, 'b m'], prompt: Prompt
  ) -> Float[Array, ' b']:
    pool = jnp.asarray(self.pool, values.dtype)
    weights = jnp.matmul(values, pool, precision='highest')
    return jnp.sum(weights * prompt.x_query, axis=1)

  def baselines(self) -> dict[str, Predictor]:
    dmmse = DiscreteBayes(self)
    return {
      'bayes': dmmse,
      'dmmse': dmmse,
      # With this penalty it is the posterior mean for the shift `new_tasks`.
      'ridge': Ridge(self.noise_std**2),
      'ols': Ridge(),
      'zero': Zero(),
    }

  def shifts(self) -> dict[str, Task]:
    new_tasks = LinearRegression(
      self.num_features, self.context_length, noise_std=self.noise_std
    )
    return {'new_tasks': new_tasks}


def require_isotropic(task: object) -> LinearRegression | TaskPool:
  """Returns the task, if its weights and its features are isotropic.

  The weights must be `N(w*, I)` or come from a pool, and the features must be
  `N(0, I)`.

  Raises:
    UserError: If the task is another one, or has another covariance.
  """
  if type(task) is TaskPool:
    return task
  task = require_covered(task)
  for name in ('prior_covariance', 'feature_covariance'):
    covariance = getattr(task, name)
    if covariance is not None and np.any(covariance != np.eye(task.num_features)):
      raise UserError(f'{name} is not the identity; with other labels it must be')
  return task


@functools.lru_cache(maxsize=8)
def _pool(seed: int, num_tasks: int, num_features: int) -> Float[np.ndarray, 'm d']:
  # NumPy guarantees the numbers of a RandomState for all its versions, but not those of
  # a Generator.
  random = np.random.RandomState(seed)
  pool = random.standard_normal((num_tasks, num_features))
  pool.flags.writeable = False
  return pool


@struct.dataclass(eq=False, repr=False)
class DiscreteBayes(Posterior, Describing):
  """The posterior mean over the weight vectors of a pool, called dMMSE in the paper.

  It predicts `Σ_m p_m w_m·x_q` with `p = softmax_m(−|y − X w_m|² / (2σ²))`. Without
  noise only the weights that fit the examples remain, and prompts have no density.

  Args:
    task: The task with the pool.

  References:
    Raventós et al., arXiv 2306.15063, section 2.
  """

  # A pool may have a million tasks.
  one_by_one = True

  task: TaskPool

  def weigh(self, examples: Examples) -> tuple[Float[Array, ''], Float[Array, '']]:
    density, posterior, _ = self._of_pool(examples)
    pool = jnp.asarray(self.task.pool, examples.x.dtype)
    return density, jnp.dot(posterior @ pool, examples.x_query)

  def describe(self, examples: Examples) -> GaussianMixture:
    """Returns the distribution of the observed label of the query.

    It has one component for each weight vector of the pool.
    """
    _, _, log_weights = self._of_pool(examples)
    pool = jnp.asarray(self.task.pool, examples.x.dtype)
    means = pool @ examples.x_query
    noise_std = jnp.asarray(self.task.noise_std, means.dtype)
    return GaussianMixture(log_weights, means, jnp.full_like(means, noise_std))

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the posterior of the weight vectors after each number of examples."""
    return self._everywhere(lambda examples: self._of_pool(examples)[1], prompt)

  def _of_pool(
    self, examples: Examples
  ) -> tuple[Float[Array, ''], Float[Array, ' m'], Float[Array, ' m']]:
    """Returns the log density, the posterior, and its logarithm up to a constant."""
    x, y, _, _ = examples.zeroed()
    density = log_density_of_features(examples)
    pool = jnp.asarray(self.task.pool, x.dtype)
    misfit = jnp.sum(jnp.square(y[:, None] - x @ pool.T), axis=0)
    noise_std = jnp.asarray(self.task.noise_std, x.dtype)
    some_noise = jnp.where(noise_std > 0, noise_std, 1)
    scores = -misfit / (2 * some_noise**2)
    density += jax.scipy.special.logsumexp(scores) - math.log(len(pool))
    density -= log_norm(some_noise, examples)
    # Without noise the misfit of the true weights is a rounding error, so it is the
    # smallest one. Before the first example all misfits are 0.
    fits = (misfit == jnp.min(misfit)).astype(x.dtype)
    without_noise = fits / jnp.sum(fits)
    posterior = jnp.where(noise_std > 0, jax.nn.softmax(scores), without_noise)
    log_weights = jnp.where(noise_std > 0, scores, jnp.log(fits))
    return density, posterior, log_weights
