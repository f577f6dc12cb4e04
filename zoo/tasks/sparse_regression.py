"""Linear regression with few non-zero weights."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Key

from zoo.core.errors import check_count
from zoo.core.protocols import Predictor
from zoo.core.trees import Number
from zoo.estimators.baselines import (
  Averaging,
  NearestNeighbours,
  Zero,
)
from zoo.estimators.linear import Ridge
from zoo.estimators.posteriors import Posterior
from zoo.estimators.sparse import Lasso, SparseBayes
from zoo.tasks.base import LinearFunctions, register_task

MOST_SUPPORTS = 20_000  # the cost of `SparseBayes` grows with their number


@register_task('sparse_regression')
@struct.dataclass(eq=False, repr=False)
class SparseRegression(LinearFunctions):
  """Prompts of `y_i = w·x_i + σ n_i` with sparse w (Garg et al., arXiv 2208.01066).

  For each prompt `num_nonzero` random coordinates of w are `N(0, 1)`, the others 0;
  features are `~ N(0, I)`. Predicting 0 has the risk `num_nonzero`. There is no
  baseline `bayes` if there are more than 20,000 sets of `num_nonzero` coordinates.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=10)
  # Coordinates of w that are not 0, 1 to d.
  num_nonzero: int = struct.field(pytree_node=False, default=3)
  noise_std: Number = 0.0  # σ ≥ 0

  def check(self) -> None:
    super().check()
    check_count('num_nonzero', self.num_nonzero, maximum=self.num_features)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    weights_key, support_key = jax.random.split(key)
    weights = jax.random.normal(weights_key, (self.num_features,))
    nonzero = jnp.arange(self.num_features) < self.num_nonzero
    return jnp.where(jax.random.permutation(support_key, nonzero), weights, 0)

  def posterior(self) -> Posterior | None:
    return None if self.noise_std == 0 else self._bayes()

  def _bayes(self) -> Posterior | None:
    if math.comb(self.num_features, self.num_nonzero) > MOST_SUPPORTS:
      return None
    return SparseBayes(self.num_features, self.num_nonzero, self.noise_std)

  def baselines(self) -> dict[str, Predictor]:
    bayes = self._bayes()
    predictors: dict[str, Predictor] = {} if bayes is None else {'bayes': bayes}
    return predictors | {
      'lasso': Lasso(),
      'ols': Ridge(),
      'averaging': Averaging(),
      'nearest_neighbours': NearestNeighbours(),
      'zero': Zero(),
    }
