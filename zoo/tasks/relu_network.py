"""Regression on the outputs of random two-layer networks."""

import math

import jax
from jaxtyping import Array, Float, Key

from zoo.errors import check_count, check_number
from zoo.protocols import Predictor
from zoo.registry import tasks
from zoo.tasks.base import FunctionClass, dot


@tasks.register('relu_network')
class ReluNetwork(FunctionClass):
  """Prompts of `y_i = √(2/r) Σ_j a_j relu(w_j·x_i) + σ n_i` (Garg et al., 2208.01066).

  The weights `a_j ~ N(m, 1)` and `w_j ~ N(0, I)` of the r hidden features are fresh for
  each prompt, features are `~ N(0, I)`; m is `output_mean`. Predicting the prior mean
  `m √(r/π) |x|` has the risk `d (1 + m² (1 − 1/π))`, which is d for m = 0, and
  predicting 0 has `d m² r/π` more.
  """

  def __init__(
    self,
    num_features: int = 20,
    context_length: int = 100,
    hidden_features: int = 100,
    noise_std: float = 0.0,
    output_mean: float = 0.0,
  ):
    """Raises UserError naming the argument that is out of its range."""
    self.num_features = check_count('num_features', num_features)
    self.context_length = check_count('context_length', context_length)
    self.hidden_features = check_count('hidden_features', hidden_features)
    self.noise_std = check_number('noise_std', noise_std, minimum=0.0)
    self.output_mean = check_number('output_mean', output_mean)

  def sample_function(
    self, key: Key[Array, '']
  ) -> tuple[Float[Array, 'r d'], Float[Array, ' r']]:
    hidden_key, output_key = jax.random.split(key)
    r = self.hidden_features
    hidden = jax.random.normal(hidden_key, (r, self.num_features))
    output = self.output_mean + jax.random.normal(output_key, (r,))
    return hidden, output * math.sqrt(2 / r)

  def evaluate(
    self,
    function: tuple[Float[Array, 'r d'], Float[Array, ' r']],
    x: Float[Array, 't d'],
  ) -> Float[Array, ' t']:
    hidden, output = function
    return dot(jax.nn.relu(dot(x[:, None], hidden[None])), output[None])

  def baselines(self) -> dict[str, Predictor]:
    # Imported here since the estimators import the tasks.
    from zoo.estimators import regression
    from zoo.estimators.kernel import ArcCosineKernel

    return {
      'kernel': ArcCosineKernel(self.noise_std, self.output_mean, self.hidden_features),
      'ols': regression.LeastSquares(),
      'nearest_neighbours': regression.NearestNeighbours(),
      'zero': regression.Zero(),
    }
