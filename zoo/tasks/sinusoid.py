"""Regression on sine waves."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from zoo.errors import UserError, check_count, check_vector
from zoo.protocols import Predictor
from zoo.registry import tasks
from zoo.tasks.base import FunctionClass


@tasks.register('sinusoid')
class Sinusoid(FunctionClass):
  """Prompts of `y_i = a sin(x_i + p)` (von Oswald et al., arXiv 2212.07677).

  The amplitude a and phase p are fresh for each prompt, independent and uniform in
  their ranges; there is one feature `x_i ~ U(−5, 5)`. The code of that paper draws a
  and p with the same random key, so that there one determines the other.
  """

  num_features = 1

  def __init__(
    self,
    context_length: int = 10,
    amplitude_range: Sequence[float] = (0.1, 0.5),
    phase_range: Sequence[float] = (0.0, math.pi),
  ):
    """Raises UserError naming the argument that is out of its range."""
    self.context_length = check_count('context_length', context_length)
    self.amplitude_range = _check_range('amplitude_range', amplitude_range)
    if self.amplitude_range[0] < 0:
      raise UserError(
        f'amplitude_range is {amplitude_range}; its bounds must not be negative'
      )
    self.phase_range = _check_range('phase_range', phase_range)
    low, high = self.phase_range
    # A rounded 2π is accepted.
    if high - low > 2 * math.pi + 1e-6:
      raise UserError(
        f'phase_range is {phase_range}; it must not be longer than 2π, a full turn'
      )

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't 1']:
    """The features of the context examples and the query: `U(−5, 5)`."""
    return jax.random.uniform(
      key, (self.context_length + 1, 1), minval=-5.0, maxval=5.0
    )

  def sample_function(
    self, key: Key[Array, '']
  ) -> tuple[Float[Array, ''], Float[Array, '']]:
    amplitude_key, phase_key = jax.random.split(key)
    (least, most), (first, last) = self.amplitude_range, self.phase_range
    return (
      jax.random.uniform(amplitude_key, minval=least, maxval=most),
      jax.random.uniform(phase_key, minval=first, maxval=last),
    )

  def evaluate(
    self, function: tuple[Float[Array, ''], Float[Array, '']], x: Float[Array, 't 1']
  ) -> Float[Array, ' t']:
    amplitude, phase = function
    return amplitude * jnp.sin(x[:, 0] + phase)

  def baselines(self) -> dict[str, Predictor]:
    # Imported here since the estimators import the tasks.
    from zoo.estimators import regression
    from zoo.estimators.sinusoid import SinusoidPosterior

    return {
      'bayes': SinusoidPosterior(self.amplitude_range, self.phase_range),
      'nearest_neighbours': regression.NearestNeighbours(),
      'ols': regression.LeastSquares(),
      'zero': regression.Zero(),
    }


def _check_range(name: str, value: Sequence[float]) -> tuple[float, float]:
  low, high = map(float, check_vector(name, value, 2))
  if low >= high:
    raise UserError(f'{name} is {value}; it must be two numbers, the smaller one first')
  return low, high
