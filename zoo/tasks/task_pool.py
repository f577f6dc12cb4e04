"""Linear regression whose weights come from a finite pool."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from zoo.errors import UserError, check_count, check_number
from zoo.protocols import Predictor, Task
from zoo.registry import tasks
from zoo.tasks.base import FunctionClass, dot
from zoo.tasks.linear_regression import LinearRegression


@tasks.register('task_pool')
class TaskPool(FunctionClass):
  """Prompts of `y_i = w·x_i + σ n_i`, w from a pool (Raventós et al., 2306.15063).

  The pool of `num_tasks` weight vectors `~ N(0, I)` depends only on `seed`, and each
  prompt draws one of them; features are `~ N(0, I)`, and targets have no noise. The
  shift `new_tasks` has fresh weights for each prompt.
  """

  def __init__(
    self,
    num_features: int = 8,
    context_length: int = 16,
    num_tasks: int = 64,
    noise_std: float = 0.5,
    seed: int = 0,
  ):
    """Raises UserError naming the argument that is out of its range."""
    self.num_features = check_count('num_features', num_features)
    self.context_length = check_count('context_length', context_length)
    self.num_tasks = check_count('num_tasks', num_tasks)
    self.noise_std = check_number('noise_std', noise_std, minimum=0.0)
    self.seed = check_count('seed', seed, minimum=0)
    if self.seed >= 2**32:
      raise UserError(f'seed is {seed}; it must be below 2³²')

  @property
  def pool(self) -> Float[np.ndarray, 'm d']:
    """The weight vectors, float64 and read-only; all are equally likely."""
    return _pool(self.seed, self.num_tasks, self.num_features)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    index = jax.random.randint(key, (), 0, self.num_tasks)
    return jnp.asarray(self.pool, float)[index]

  def evaluate(
    self, function: Float[Array, ' d'], x: Float[Array, 't d']
  ) -> Float[Array, ' t']:
    return dot(x, function[None])

  def baselines(self) -> dict[str, Predictor]:
    # Imported here since the estimators import the tasks.
    from zoo.estimators import regression
    from zoo.estimators.task_pool import DiscreteBayes

    dmmse = DiscreteBayes(self)
    return {
      'bayes': dmmse,
      'dmmse': dmmse,  # its name in the paper
      # The posterior mean of `new_tasks`.
      'ridge': regression.LeastSquares(self.noise_std**2),
      'ols': regression.LeastSquares(),
      'zero': regression.Zero(),
    }

  def shifts(self) -> dict[str, Task]:
    new_tasks = LinearRegression(
      self.num_features, self.context_length, noise_std=self.noise_std
    )
    return {'new_tasks': new_tasks}


@functools.lru_cache(maxsize=8)
def _pool(seed: int, num_tasks: int, num_features: int) -> Float[np.ndarray, 'm d']:
  # NumPy guarantees that the numbers of a RandomState, unlike a Generator's, stay.
  random = np.random.RandomState(seed)
  pool = random.standard_normal((num_tasks, num_features))
  pool.flags.writeable = False
  return pool
