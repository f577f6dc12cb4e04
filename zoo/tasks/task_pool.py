"""Linear regression whose weights come from a finite pool."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from zoo.core.errors import UserError
from zoo.core.protocols import Predictor, Task
from zoo.core.values import is_zero, leaf, number, size, value
from zoo.tasks.base import LinearFunctions, register_task
from zoo.tasks.baselines import Examples, LeastSquares, Zero
from zoo.tasks.linear_regression import LinearRegression, require_covered
from zoo.tasks.posteriors import Posterior, log_density_of_features, log_norm


@register_task('task_pool')
class TaskPool(LinearFunctions):
  """Prompts of `y_i = w·x_i + σ n_i`, w from a pool (Raventós et al., 2306.15063).

  The pool of `num_tasks` weight vectors `~ N(0, I)` depends only on `seed`, and each
  prompt draws one of them; features are `~ N(0, I)`, and targets have no noise. The
  shift `new_tasks` has fresh weights for each prompt.
  """

  num_features: int = size(default=8)
  context_length: int = size(default=16)
  num_tasks: int = size(default=64, about='Weight vectors of the pool.')
  noise_std: float = number(default=0.5, minimum=0.0)
  seed: int = size(default=0, minimum=0, maximum=2**32 - 1, about='Draws the pool.')

  @property
  def pool(self) -> Float[np.ndarray, 'm d']:
    """The weight vectors, float64 and read-only; all are equally likely."""
    return _pool(self.seed, self.num_tasks, self.num_features)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    index = jax.random.randint(key, (), 0, self.num_tasks)
    return jnp.asarray(self.pool, float)[index]

  def posterior(self) -> Posterior | None:
    return None if is_zero(self.noise_std) else DiscreteBayes(self)

  def baselines(self) -> dict[str, Predictor]:
    dmmse = DiscreteBayes(self)
    return {
      'bayes': dmmse,
      'dmmse': dmmse,  # its name in the paper
      # The posterior mean of `new_tasks`.
      'ridge': LeastSquares(self.noise_std**2),
      'ols': LeastSquares(),
      'zero': Zero(),
    }

  def shifts(self) -> dict[str, Task]:
    new_tasks = LinearRegression(
      self.num_features, self.context_length, noise_std=self.noise_std
    )
    return {'new_tasks': new_tasks}


def require_isotropic(task: object) -> LinearRegression | TaskPool:
  """Returns the task if its weights are `N(w*, I)` or a pool, its features `N(0, I)`.

  Raises UserError otherwise.
  """
  if isinstance(task, TaskPool):
    return task
  task = require_covered(task)
  for name in ('prior_covariance', 'feature_covariance'):
    covariance = getattr(task, name)
    if covariance is not None and np.any(covariance != np.eye(task.num_features)):
      raise UserError(f'{name} is not the identity; with other labels it must be')
  return task


@functools.lru_cache(maxsize=8)
def _pool(seed: int, num_tasks: int, num_features: int) -> Float[np.ndarray, 'm d']:
  # NumPy guarantees that the numbers of a RandomState, unlike a Generator's, stay.
  random = np.random.RandomState(seed)
  pool = random.standard_normal((num_tasks, num_features))
  pool.flags.writeable = False
  return pool


@value
class DiscreteBayes(Posterior):
  """The posterior mean over the pool, dMMSE (arXiv 2306.15063, section 2).

  `Σ_m p_m w_m·x_q` with `p = softmax_m(−|y − X w_m|² / (2σ²))`. Without noise only the
  weights that fit the examples are left, and there is no density.
  """

  one_by_one = True  # a pool may have a million tasks

  task: TaskPool = leaf()

  def weigh(self, given: Examples) -> tuple[Float[Array, ''], Float[Array, '']]:
    x, y, _, x_query = given.zeroed()
    density = log_density_of_features(given)
    pool = jnp.asarray(self.task.pool, x.dtype)
    misfit = jnp.sum(jnp.square(y[:, None] - x @ pool.T), axis=0)
    if not is_zero(self.task.noise_std):
      scores = -misfit / (2 * self.task.noise_std**2)
      posterior = jax.nn.softmax(scores)
      density += jax.scipy.special.logsumexp(scores) - math.log(len(pool))
      density -= log_norm(self.task.noise_std, given)
    else:
      # The misfit of the true weights is rounding error, and so the smallest; before
      # the first example all misfits are 0.
      fits = (misfit == jnp.min(misfit)).astype(x.dtype)
      posterior = fits / jnp.sum(fits)
    return density, jnp.dot(posterior @ pool, x_query)
