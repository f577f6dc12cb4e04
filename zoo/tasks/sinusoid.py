"""Regression on sine waves."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Key

from zoo.core.errors import UserError, check_vector
from zoo.core.protocols import Predictor
from zoo.estimators.baselines import Baseline, Examples, NearestNeighbours, Zero
from zoo.estimators.linear import Ridge
from zoo.tasks.base import FunctionClass, register_task

# A threshold in ε times the largest singular value of the examples. Below it the
# rounding errors of the labels affect the second weight more than the function does.
_RANK_TOLERANCE = 4


def _check_range(name: str, value: object) -> None:
  low, high = map(float, check_vector(name, value, 2))
  if low >= high:
    raise UserError(f'{name} is {value}; it must be two numbers, the smaller one first')


@register_task('sinusoid')
@struct.dataclass(eq=False, repr=False)
class Sinusoid(FunctionClass):
  """Prompts of `y_i = a sin(x_i + p)` (von Oswald et al., arXiv 2212.07677).

  The amplitude a and phase p are fresh for each prompt, independent and uniform in
  their ranges; there is one feature `x_i ~ U(−5, 5)`. The code of that paper draws a
  and p with the same random key, so that there one determines the other.
  """

  num_features = 1

  context_length: int = struct.field(pytree_node=False, default=10)
  # Least and greatest, of the amplitude a ≥ 0 and of the phase p.
  amplitude_range: Any = struct.field(pytree_node=False, default=(0.1, 0.5))
  phase_range: Any = struct.field(pytree_node=False, default=(0.0, math.pi))

  def __post_init__(self):
    super().__post_init__()
    for name in ('amplitude_range', 'phase_range'):
      if isinstance(bounds := getattr(self, name), list):  # as configs have them
        object.__setattr__(self, name, tuple(bounds))

  def check(self) -> None:
    super().check()
    _check_range('amplitude_range', self.amplitude_range)
    _check_range('phase_range', self.phase_range)
    if self.amplitude_range[0] < 0:
      raise UserError(
        f'amplitude_range is {self.amplitude_range}; its bounds must not be negative'
      )
    low, high = self.phase_range
    # A rounded 2π is accepted.
    if high - low > 2 * math.pi + 1e-6:
      raise UserError(
        f'phase_range is {self.phase_range}; it must not be longer than 2π, a full turn'
      )

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't 1']:
    """The features of the context examples and the query: `U(−5, 5)`."""
    return jax.random.uniform(
      key, (self.context_length + 1, 1), minval=-5.0, maxval=5.0
    )

  def log_density(self, x: Float[Array, 'n 1']) -> Float[Array, '']:
    inside = jnp.all(jnp.abs(x) <= 5)
    return jnp.where(inside, -len(x) * math.log(10), -jnp.inf)

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
    return {
      'bayes': SinusoidPosterior(self.amplitude_range, self.phase_range),
      'nearest_neighbours': NearestNeighbours(),
      'ols': Ridge(),
      'zero': Zero(),
    }


@struct.dataclass(eq=False, repr=False)
class SinusoidPosterior(Baseline):
  """The posterior mean of `a sin(x + p)`, a and p uniform in their ranges, no noise.

  The function is `w·s(x)` with `s(x) = (sin x, cos x)` and `w = a (cos p, sin p)`: two
  examples determine it, and more are fitted by least squares. One example determines a
  for each p; the mean over p, with the density `|da/dy|`, has a closed form. For a
  label that no function within the ranges has, the prediction is that of the prior.

  In float32 the error from one example is about 1e-7. From two examples whose distance
  is δ from a multiple of π it is about 3e-8/δ; with probability 6e-7 δ is below 1e-6,
  and the two then count as one. So the risk after two examples is about 1e-8, not 0.
  """

  amplitude_range: Any = struct.field(pytree_node=False)
  phase_range: Any = struct.field(pytree_node=False)

  def predict(self, examples: Examples) -> Float[Array, '']:
    # Two rows of zeros are added, so that there are two singular values.
    rows, y, _, x_query = examples._replace(x=_waves(examples.x[:, 0])).zeroed()
    rows, y = jnp.pad(rows, ((0, 2), (0, 0))), jnp.pad(y, (0, 2))
    u, s, vt = jnp.linalg.svd(rows, full_matrices=False)
    # The examples determine the weights along the first right singular vector s(x), as
    # one example with the feature x would; and along the second, unless all examples
    # differ by multiples of π.
    positive = s > s[0] * _RANK_TOLERANCE * float(jnp.finfo(s.dtype).eps)
    along = jnp.where(positive, (y @ u) / jnp.where(positive, s, 1), 0)
    sine, cosine = vt[0]
    across = along[1] * jnp.dot(vt[1], jnp.stack([cosine, -sine]))
    mean, possible = self._one_example(jnp.arctan2(sine, cosine), along[0])
    across = jnp.where(positive[1], across, mean)
    weights = along[0] * vt[0] + across * jnp.stack([cosine, -sine])
    known = positive[1] | (positive[0] & possible)
    weights = jnp.where(known, weights, jnp.asarray(self._prior_mean(), weights.dtype))
    return jnp.dot(weights, _waves(x_query[0]))

  def _one_example(
    self, x: Float[Array, ''], y: Float[Array, '']
  ) -> tuple[Float[Array, ''], Bool[Array, '']]:
    """The mean of `a cos(x + p)` given `a sin(x + p) = y`, and whether any (a, p) fits.

    With `u = x + p` and `v = log tan(u/2)`, so that `sin u = 1/cosh v` and `cot u =
    −sinh v`, the density `|da/dy| du = du/|sin u|` is uniform in v. The range of a
    allows an interval of |v|, the range of p one or two intervals of v.
    """
    (least, most), (first, last) = self.amplitude_range, self.phase_range
    eps = float(jnp.finfo(y.dtype).eps)
    # Not 0, for which v would be infinite.
    size = jnp.maximum(jnp.abs(y), 1e-12 * most)
    y = jnp.where(y < 0, -size, size)
    # Somewhat wider than the range, so that rounding excludes no function.
    inner = _arccosh((1 - 8 * eps) * least / size)
    outer = _arccosh((1 + 8 * eps) * most / size)
    # The half turn makes a negative label positive.
    start = jnp.mod(x + first + jnp.where(y < 0, math.pi, 0.0), 2 * math.pi)
    # The half-waves on which the sine is positive, and both signs of v.
    half_wave = 2 * math.pi * jnp.arange(2, dtype=y.dtype)[:, None]
    left = jnp.stack([-outer, inner])[None]
    right = jnp.stack([-inner, outer])[None]
    left = jnp.maximum(left, _log_tan_half(start - half_wave))
    right = jnp.minimum(right, _log_tan_half(start + (last - first) - half_wave))
    width = jnp.maximum(right - left, 0)
    middle = jnp.where(width > 0, (left + right) / 2, 0)
    total = jnp.sum(width)
    # The integral of sinh v, without a difference of two values of cosh.
    sinh = jnp.sum(2 * jnp.sinh(middle) * jnp.sinh(width / 2))
    return -y * sinh / jnp.where(total > 0, total, 1), total > 0

  def _prior_mean(self) -> tuple[float, float]:
    """The mean of a (cos p, sin p)."""
    (least, most), (first, last) = self.amplitude_range, self.phase_range
    scale = (least + most) / 2 / (last - first)
    return (
      scale * (math.sin(last) - math.sin(first)),
      scale * (math.cos(first) - math.cos(last)),
    )


def _waves(x: Float[Array, '*n']) -> Float[Array, '*n 2']:
  return jnp.stack([jnp.sin(x), jnp.cos(x)], axis=-1)


def _arccosh(x: Float[Array, '']) -> Float[Array, '']:
  """The inverse of cosh; 0 below 1."""
  return jnp.arccosh(jnp.maximum(x, 1))


def _log_tan_half(u: Float[Array, '*n']) -> Float[Array, '*n']:
  """`log tan(u/2)`; −∞ below 0 and ∞ above π."""
  half = jnp.clip(u, 0, math.pi) / 2
  # The cosine of π/2 is negative in float32.
  return jnp.log(jnp.sin(half)) - jnp.log(jnp.maximum(jnp.cos(half), 0))
