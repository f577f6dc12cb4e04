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

# A singular value of the examples that is below this threshold counts as 0. The unit is
# ε times the largest singular value. Below it the rounding errors of the labels affect
# the second weight more than the function does.
_RANK_TOLERANCE = 4


def _check_range(name: str, value: object) -> None:
  low, high = map(float, check_vector(name, value, 2))
  if low >= high:
    raise UserError(f'{name} is {value}; it must be two numbers, the smaller one first')


@register_task('sinusoid')
@struct.dataclass(eq=False, repr=False)
class Sinusoid(FunctionClass):
  """Regression on a sine wave, whose amplitude and phase are new in each prompt.

  For each prompt, an amplitude a and a phase p are drawn, independently and uniformly
  in their ranges. The examples have one feature `x_i ~ U(−5, 5)` and the label
  `y_i = a sin(x_i + p)`. There is no noise, so the target of the query is its label.
  The latents are a and p. (The code of the paper draws a and p with the same random
  key, so that one determines the other there.)

  The Bayes predictor has a closed form (baseline `bayes`, class `SinusoidPosterior`).

  Args:
    context_length: Number of examples C ≥ 1.
    amplitude_range: Least and greatest amplitude: two different numbers ≥ 0, the
      smaller one first.
    phase_range: Least and greatest phase: two different numbers, the smaller one first,
      whose difference is at most 2π.

  Example:
    >>> task = zoo.create_task('sinusoid', context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> prompt.x.shape, prompt.y.shape, bool((abs(prompt.y) <= 0.5).all())
    ((3, 5, 1), (3, 5), True)

  References:
    von Oswald et al., arXiv 2212.07677.
  """

  num_features = 1

  context_length: int = struct.field(pytree_node=False, default=10)
  amplitude_range: Any = struct.field(pytree_node=False, default=(0.1, 0.5))
  phase_range: Any = struct.field(pytree_node=False, default=(0.0, math.pi))

  def __post_init__(self):
    super().__post_init__()
    for name in ('amplitude_range', 'phase_range'):
      if isinstance(bounds := getattr(self, name), list):
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
    # A 2π that was rounded up is accepted.
    if high - low > 2 * math.pi + 1e-6:
      raise UserError(
        f'phase_range is {self.phase_range}; it must not be longer than 2π, a full turn'
      )

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't 1']:
    """Draws the features of the context examples and the query, `U(−5, 5)`."""
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

  The function is `w·s(x)` with `s(x) = (sin x, cos x)` and `w = a (cos p, sin p)`. Two
  examples determine w, and more are fitted by least squares. One example determines a
  for each p; the mean over p, with the density `|da/dy|`, has a closed form. If no
  function within the ranges has the label, the prediction is that of the prior.

  In float32 the error from one example is about 1e-7. From two examples whose distance
  is δ from a multiple of π it is about 3e-8/δ. If δ is below 1e-6, which has the
  probability 6e-7, the two count as one. The risk after two examples is therefore about
  1e-8, not 0.

  Args:
    amplitude_range: Least and greatest amplitude a.
    phase_range: Least and greatest phase p.
  """

  amplitude_range: Any = struct.field(pytree_node=False)
  phase_range: Any = struct.field(pytree_node=False)

  def predict(self, examples: Examples) -> Float[Array, '']:
    # Two rows of zeros are added, so that there are two singular values.
    rows, y, _, x_query = examples._replace(x=_waves(examples.x[:, 0])).zeroed()
    rows, y = jnp.pad(rows, ((0, 2), (0, 0))), jnp.pad(y, (0, 2))
    u, s, vt = jnp.linalg.svd(rows, full_matrices=False)
    # The examples determine the weights along the first right singular vector. This
    # vector is s(x) for some x, so that the examples act like one example with the
    # feature x. Unless all features differ by multiples of π, the examples also
    # determine the weights along the second vector.
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
    """Returns the mean of `a cos(x + p)` given `a sin(x + p) = y`, and whether any fit.

    Let `u = x + p` and `v = log tan(u/2)`, so that `sin u = 1/cosh v` and
    `cot u = −sinh v`. The density `|da/dy| du = du/|sin u|` is uniform in v. The range
    of a allows an interval of |v|, and the range of p allows one or two intervals of v.
    """
    (least, most), (first, last) = self.amplitude_range, self.phase_range
    eps = float(jnp.finfo(y.dtype).eps)
    # A size of 0 would make v infinite, so that the size is at least this small one.
    size = jnp.maximum(jnp.abs(y), 1e-12 * most)
    y = jnp.where(y < 0, -size, size)
    # The interval is a little wider than the range, so that rounding excludes no
    # function.
    inner = _arccosh((1 - 8 * eps) * least / size)
    outer = _arccosh((1 + 8 * eps) * most / size)
    # For a negative label, half a turn makes it positive.
    start = jnp.mod(x + first + jnp.where(y < 0, math.pi, 0.0), 2 * math.pi)
    # Rows are the half-waves on which the sine is positive, and columns the signs of v.
    half_wave = 2 * math.pi * jnp.arange(2, dtype=y.dtype)[:, None]
    left = jnp.stack([-outer, inner])[None]
    right = jnp.stack([-inner, outer])[None]
    left = jnp.maximum(left, _log_tan_half(start - half_wave))
    right = jnp.minimum(right, _log_tan_half(start + (last - first) - half_wave))
    width = jnp.maximum(right - left, 0)
    middle = jnp.where(width > 0, (left + right) / 2, 0)
    total = jnp.sum(width)
    # The integral of sinh v is a difference of two values of cosh. This product is the
    # same without the rounding errors of that difference.
    sinh = jnp.sum(2 * jnp.sinh(middle) * jnp.sinh(width / 2))
    return -y * sinh / jnp.where(total > 0, total, 1), total > 0

  def _prior_mean(self) -> tuple[float, float]:
    """Returns the mean of a (cos p, sin p)."""
    (least, most), (first, last) = self.amplitude_range, self.phase_range
    scale = (least + most) / 2 / (last - first)
    return (
      scale * (math.sin(last) - math.sin(first)),
      scale * (math.cos(first) - math.cos(last)),
    )


def _waves(x: Float[Array, '*n']) -> Float[Array, '*n 2']:
  return jnp.stack([jnp.sin(x), jnp.cos(x)], axis=-1)


def _arccosh(x: Float[Array, '']) -> Float[Array, '']:
  """Returns the inverse of cosh, and 0 for x below 1."""
  return jnp.arccosh(jnp.maximum(x, 1))


def _log_tan_half(u: Float[Array, '*n']) -> Float[Array, '*n']:
  """Returns `log tan(u/2)`; −∞ for u below 0 and ∞ above π."""
  half = jnp.clip(u, 0, math.pi) / 2
  # The cosine of π/2 is negative in float32.
  return jnp.log(jnp.sin(half)) - jnp.log(jnp.maximum(jnp.cos(half), 0))
