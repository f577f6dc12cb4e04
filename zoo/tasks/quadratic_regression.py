"""Regression on the squares of the features."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from zoo.core.protocols import Predictor
from zoo.core.values import Vector, is_zero, number, size, vector
from zoo.tasks.base import FunctionClass, Points, Values, Weights, dot, register_task
from zoo.tasks.baselines import LeastSquares, NearestNeighbours, Zero
from zoo.tasks.posteriors import GaussianPosterior, Posterior


@register_task('quadratic_regression')
class QuadraticRegression(FunctionClass):
  """Prompts of `y_i = Σ_j w_j x_ij² / √3 + σ n_i` (code of Garg et al., 2208.01066).

  `w ~ N(w*, I)` is fresh for each prompt, features are `~ N(0, I)`. Predicting the
  prior mean `Σ_j w*_j x_j² / √3` has the risk d, and predicting 0 has
  `(2 |w*|² + (Σ_j w*_j)²) / 3` more. Given w, the labels have the mean `Σ_j w_j / √3`,
  not 0.
  """

  num_features: int = size(default=20)
  context_length: int = size(default=40)
  noise_std: float = number(default=0.0, minimum=0.0)
  prior_mean: Vector = vector(default=0.0)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    normal = jax.random.normal(key, (self.num_features,))
    return (jnp.asarray(self.prior_mean, normal.dtype) + normal) / math.sqrt(3)

  def evaluate(self, function: Weights, x: Points) -> Values:
    return dot(x * x, function[None])

  def posterior(self) -> Posterior | None:
    if is_zero(self.noise_std):
      return None
    root = np.eye(self.num_features) / math.sqrt(3)
    mean = self.prior_mean / math.sqrt(3)
    return GaussianPosterior(mean, root, self.noise_std, squares=True)

  def baselines(self) -> dict[str, Predictor]:
    # The prior of w/√3 is N(w*/√3, I/3), so this is the posterior mean.
    center = self.prior_mean / math.sqrt(3) if self.prior_mean.any() else None
    return {
      'bayes': LeastSquares(3 * self.noise_std**2, True, center),
      'ols': LeastSquares(),
      'nearest_neighbours': NearestNeighbours(),
      'zero': Zero(),
    }
