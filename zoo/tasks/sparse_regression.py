"""Linear regression with few non-zero weights."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from zoo.errors import UserError, check_count, check_number
from zoo.protocols import Predictor
from zoo.registry import tasks
from zoo.tasks.base import FunctionClass, dot


@tasks.register('sparse_regression')
class SparseRegression(FunctionClass):
  """Prompts of `y_i = w·x_i + σ n_i` with sparse w (Garg et al., arXiv 2208.01066).

  For each prompt `num_nonzero` random coordinates of w are `N(0, 1)`, the others 0;
  features are `~ N(0, I)`. Predicting 0 has the risk `num_nonzero`. There is no
  baseline `bayes` if there are more than 20,000 sets of `num_nonzero` coordinates.
  """

  def __init__(
    self,
    num_features: int = 20,
    context_length: int = 10,
    num_nonzero: int = 3,
    noise_std: float = 0.0,
  ):
    """Raises UserError naming the argument that is out of its range."""
    self.num_features = check_count('num_features', num_features)
    self.context_length = check_count('context_length', context_length)
    self.num_nonzero = check_count('num_nonzero', num_nonzero)
    if self.num_nonzero > self.num_features:
      raise UserError(
        f'num_nonzero is {num_nonzero}; it must be at most num_features, {num_features}'
      )
    self.noise_std = check_number('noise_std', noise_std, minimum=0.0)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    weights_key, support_key = jax.random.split(key)
    weights = jax.random.normal(weights_key, (self.num_features,))
    nonzero = jnp.arange(self.num_features) < self.num_nonzero
    return jnp.where(jax.random.permutation(support_key, nonzero), weights, 0)

  def evaluate(
    self, function: Float[Array, ' d'], x: Float[Array, 't d']
  ) -> Float[Array, ' t']:
    return dot(x, function[None])

  def baselines(self) -> dict[str, Predictor]:
    # Imported here since the estimators import the tasks.
    from zoo.estimators import regression, sparse

    found: dict[str, Predictor] = {}
    if math.comb(self.num_features, self.num_nonzero) <= sparse.MOST_SUPPORTS:
      found['bayes'] = sparse.SparseBayes(
        self.num_features, self.num_nonzero, self.noise_std
      )
    return found | {
      'lasso': sparse.Lasso(),
      'ols': regression.LeastSquares(),
      'averaging': regression.Averaging(),
      'nearest_neighbours': regression.NearestNeighbours(),
      'zero': regression.Zero(),
    }
