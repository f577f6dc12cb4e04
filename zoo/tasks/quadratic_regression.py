"""Regression on the squares of the features."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Key

from zoo.core.errors import check_vector
from zoo.core.protocols import Predictor
from zoo.core.trees import Number, Vector
from zoo.estimators.baselines import NearestNeighbours, Zero
from zoo.estimators.linear import Ridge
from zoo.estimators.posteriors import GaussianPosterior, Posterior
from zoo.tasks.base import (
  FunctionClass,
  Points,
  Values,
  Weights,
  as_vector,
  dot,
  register_task,
)


@register_task('quadratic_regression')
@struct.dataclass(eq=False, repr=False)
class QuadraticRegression(FunctionClass):
  """Regression on squares of the features, with weights that are new in each prompt.

  For each prompt, weights `w ~ N(prior_mean, I)` are drawn. The examples have features
  `x_i ~ N(0, I)` and labels `y_i = Σ_j w_j x_ij² / √3 + σ n_i` with `n_i ~ N(0, 1)`,
  and the query is drawn like the features of an example. Its target is the same
  function of the query, without noise. The latents are `w / √3`. Given w, labels have
  the mean `Σ_j w_j / √3`, which is not 0.

  The Bayes predictor is ridge regression on the squares (baseline `bayes`). Predicting
  the prior mean `Σ_j w*_j x_j² / √3`, with `w*` = `prior_mean`, has the risk d.
  Predicting 0 has a risk that is larger by `(2 |w*|² + (Σ_j w*_j)²) / 3`.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    noise_std: Standard deviation σ ≥ 0 of the noise.
    prior_mean: Mean w* of the weights: a number for all features, or a vector `[d]`.

  Example:
    >>> task = zoo.create_task('quadratic_regression', num_features=2, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((3, 5, 2), (3, 5), (3,))

  References:
    Code of Garg et al., arXiv 2208.01066.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=40)
  noise_std: Number = 0.0
  prior_mean: Vector = 0.0

  def __post_init__(self):
    super().__post_init__()
    mean = as_vector(self.prior_mean, self.num_features)
    object.__setattr__(self, 'prior_mean', mean)

  def check(self) -> None:
    super().check()
    check_vector('prior_mean', self.prior_mean, self.num_features)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    normal = jax.random.normal(key, (self.num_features,))
    return (jnp.asarray(self.prior_mean, normal.dtype) + normal) / math.sqrt(3)

  def evaluate(self, function: Weights, x: Points) -> Values:
    return dot(x * x, function[None])

  def _mean(self) -> Float[np.ndarray, ' d']:
    return check_vector('prior_mean', self.prior_mean, self.num_features)

  def posterior(self) -> Posterior | None:
    if self.noise_std == 0:
      return None
    root = np.eye(self.num_features) / math.sqrt(3)
    mean = self._mean() / math.sqrt(3)
    return GaussianPosterior(mean, root, self.noise_std, squares=True)

  def baselines(self) -> dict[str, Predictor]:
    # The prior of w/√3 is N(w*/√3, I/3), so this ridge regression is the posterior
    # mean.
    std = 1 / math.sqrt(3)
    center = self._mean() / math.sqrt(3) if self._mean().any() else None
    return {
      'bayes': Ridge(3 * self.noise_std**2, center, squares=True, prior_std=std),
      'ols': Ridge(),
      'nearest_neighbours': NearestNeighbours(),
      'zero': Zero(),
    }
