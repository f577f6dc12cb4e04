"""Linear regression with few non-zero weights."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Key

from zoo.core.beliefs import Belief, values_of
from zoo.core.errors import check_count
from zoo.core.prompt import Prompt
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
from zoo.tasks.base import LinearFunctions, check_noise, register_task

# The cost of `SparseBayes` grows with the number of supports, the sets of non-zero
# weights. There is no Bayes predictor for more of them than this.
MOST_SUPPORTS = 20_000


@register_task('sparse_regression')
@struct.dataclass(eq=False, repr=False)
class SparseRegression(LinearFunctions):
  """Linear regression with few non-zero weights, which are new in each prompt.

  For each prompt, a set of `num_nonzero` coordinates is drawn uniformly. The weights w
  are `N(0, 1)` in these coordinates and 0 in the others. The examples have features
  `x_i ~ N(0, I)` and labels `y_i = w·x_i + σ n_i` with `n_i ~ N(0, 1)`, and the query
  is drawn like the features of an example. Its target is `w·x_q`, without noise. The
  latents are w. Predicting 0 has the risk `num_nonzero`.

  The Bayes predictor is the mean over all possible sets, each weighted by its posterior
  probability (baseline `bayes`). There is no such baseline if there are more than
  20,000 sets.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    num_nonzero: Number of weights that are not 0, from 1 to d.
    noise_std: Standard deviation σ of the noise: 0, or from 1e-5 to 1e15.

  Example:
    >>> task = zoo.create_task('sparse_regression', num_features=4, num_nonzero=2)
    >>> prompt = task.sample(jax.random.key(0), 3, latents=True)
    >>> prompt.x.shape, prompt.y.shape, (prompt.latents != 0).sum(axis=1).tolist()
    ((3, 10, 4), (3, 10), [2, 2, 2])

  References:
    Garg et al., arXiv 2208.01066.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=10)
  num_nonzero: int = struct.field(pytree_node=False, default=3)
  noise_std: Number = 0.0

  def check(self) -> None:
    super().check()
    check_count('num_nonzero', self.num_nonzero, maximum=self.num_features)
    lost = 'the posterior would be lost in the rounding errors of float32'
    check_noise(self.noise_std, 1e-5, 1e15, lost)

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

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes the probability that each weight is not 0.

    The sum of these is `num_nonzero`.

    Args:
      prompt: Prompts `[b]`.

    Returns:
      The belief, with values `[b, c + 1, d]`.

    Raises:
      UserError: If there are too many sets of weights.
    """
    bayes = self._bayes()
    if not isinstance(bayes, SparseBayes):
      raise self.no_belief(
        f'there are more than {MOST_SUPPORTS:,} sets of {self.num_nonzero} of '
        f'{self.num_features} weights'
      )
    names = tuple(f'weight {i} is not 0' for i in range(self.num_features))
    return Belief(values_of(bayes, prompt), names, 'moments')

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
