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
  """Prompts of `y_i = Σ_j w_j x_ij² / √3 + σ n_i` (code of Garg et al., 2208.01066).

  `w ~ N(w*, I)` is fresh for each prompt, features are `~ N(0, I)`. Predicting the
  prior mean `Σ_j w*_j x_j² / √3` has the risk d, and predicting 0 has
  `(2 |w*|² + (Σ_j w*_j)²) / 3` more. Given w, the labels have the mean `Σ_j w_j / √3`,
  not 0.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=40)
  noise_std: Number = 0.0  # σ ≥ 0
  prior_mean: Vector = 0.0  # w*, a number or one for each feature

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
    # The prior of w/√3 is N(w*/√3, I/3), so this is the posterior mean.
    std = 1 / math.sqrt(3)
    center = self._mean() / math.sqrt(3) if self._mean().any() else None
    return {
      'bayes': Ridge(3 * self.noise_std**2, center, squares=True, prior_std=std),
      'ols': Ridge(),
      'nearest_neighbours': NearestNeighbours(),
      'zero': Zero(),
    }
