"""The GD++ family of deep linear attention: exact risks, and the lowest risk found.

Its layers are `z ← z + P G A z` with `P = diag(b I, c)` and `A = diag(I, 0)`, in the
coordinates `[x; y − w*·x]` (GD++ of von Oswald et al., arXiv 2212.07677;
docs/theory_depth.md).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool, Float

from zoo.core.errors import UserError, check_count, check_number, check_vector
from zoo.core.learning_rule import AnyArray
from zoo.core.protocols import Task
from zoo.estimators.linear_prior import second_moments
from zoo.tasks.linear_regression import require_covered
from zoo.theory.deep.deep_rule import (
  Spectrum,
  check_depth,
  degree,
  recursion,
  spectrum_of,
)
from zoo.theory.schedules import best_schedule, polynomial_optimum
from zoo.theory.search import checked_lower, least_squares

# At each depth, so many random networks are drawn; so many of the best of them are
# starts of a search; and so many of the best results are starts at the next depth.
_NUM_DRAWN, _NUM_STARTS, _NUM_KEPT = 2000, 60, 12


class GDPlusPlus(NamedTuple):
  """Weights of the GD++ family.

  Attributes:
    steps: c of each layer, `[L]`; it is < 0 for gradient descent.
    preconditions: b of each layer but the last, `[L − 1]`.
    readout: ρ.
  """

  steps: Float[np.ndarray, ' l']
  preconditions: Float[np.ndarray, ' l-1']
  readout: float


# The steps, preconditions and readout of a network, one after the other.
Point = Float[np.ndarray, ' _']


class FamilyOptimum(NamedTuple):
  """A lower bound of the family's least risk, and the lowest risk found.

  `gd_plus_plus_optimum` returns it.

  Attributes:
    lower: The bound: no polynomial in S of the family's degree has a lower risk.
    upper: The lowest risk that a search found, at `weights`.
    weights: The weights of this risk.
  """

  lower: float
  upper: float
  weights: GDPlusPlus


def gd_plus_plus_risk(
  task: Task,
  steps: ArrayLike | Sequence[float],
  preconditions: ArrayLike | Sequence[float],
  readout: float = -1.0,
) -> float:
  """Computes the exact risk of deep linear attention in the GD++ family.

  The guess of the network is the prior mean. Let `S = XᵀX/C` be the second moment of
  the features of a context. Φ and Ψ are functions of an eigenvalue s of S. In each
  layer, Φ(S) multiplies the features of the tokens, and Ψ(S) multiplies the weights
  that the labels of the context follow, in labels minus `w*·x`. Both are 1 before the
  first layer, and a layer with the weights b and c changes them to

      Φ ← Φ (1 + b s Φ²),   Ψ ← Ψ (1 + c s Φ²)   (with the old Φ in both).

  The risk R follows from Ψ_L, which is Ψ after the last layer:

      P = 1 − readout (Ψ_L − 1),
      R = ς (ν ∫ P² dμ + σ² (d/C) ∫ s ((1 − P)/s)² dμ).

  μ is the expected spectrum of S, which is the distribution of a random eigenvalue of a
  random S. ν is the trace of the prior covariance, σ² the variance of the noise, d the
  number of features, C the number of examples, and ς the variance of each feature.

  With `readout` −1 and preconditions 0 the network is gradient descent with the step
  sizes −c.

  Args:
    task: A `linear_regression` whose feature covariance is a multiple of the identity.
    steps: c of each layer, `[L]`, of at most 5 layers. The degree of P is (3ᴸ − 1)/2,
      and float64 does not hold the moments of 6 layers.
    preconditions: b of each layer, `[L]` or `[L − 1]`: the last one changes no
      prediction.
    readout: The factor of the label entry.

  Returns:
    The risk, in float64.

  Raises:
    UserError: If the theory does not cover the task or its feature covariance, if there
      are more than 5 layers, or if an argument has a wrong shape or is not finite.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> round(zoo.theory.deep.gd_plus_plus_risk(task, [-0.5, -0.5], [0.0]), 4)
    0.8519

  References:
    von Oswald et al., arXiv 2212.07677. docs/theory_depth.md.
  """
  steps = check_vector('steps', steps, None)
  check_depth(steps.size)
  count, size = steps.size, np.size(preconditions)
  if size not in (count - 1, count):
    raise UserError(
      f'preconditions has {size} numbers; for {count} steps it must have {count - 1}, '
      f'or {count}, the last of which changes no prediction'
    )
  preconditions = check_vector('preconditions', np.atleast_1d(preconditions), size)
  readout = check_number('readout', readout)
  point = np.concatenate([steps, preconditions[: count - 1], [readout]])
  return _risk(spectrum_of(require_covered(task), count), point)


def gd_plus_plus_optimum(
  task: Task,
  num_layers: int,
  readout: float | None = None,
  preconditioned: bool = True,
) -> FamilyOptimum:
  """Returns bounds of the least `gd_plus_plus_risk`: one proved, one from a search.

  For each depth up to `num_layers`, local searches start from the best schedule, from
  the best networks with one layer less, and from random weights. With a free readout
  they start from the best networks with readout −1. The lowest risk found is not proved
  to be the infimum.

  Args:
    task: A `linear_regression` whose feature covariance is a multiple of the identity.
    num_layers: L, from 1 to 5.
    readout: The factor of the label entry. None means that the search is over it as
      well.
    preconditioned: Whether the preconditions b are free. If not, they are 0.

  Returns:
    The lower bound, the lowest risk found, and the weights that have it.

  Raises:
    UserError: If the theory does not cover the task or its feature covariance, or an
      argument is out of its range.
    RuntimeError: If the search ends below the lower bound, which a mistake in this
      library would cause.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> best = zoo.theory.deep.gd_plus_plus_optimum(task, num_layers=1)
    >>> round(best.upper, 4), best.weights.steps.round(4).tolist()
    (1.0, [-0.5])

  References:
    docs/theory_depth.md.
  """
  task = require_covered(task)
  num_layers = check_count('num_layers', num_layers)
  check_depth(num_layers)
  factor = -1.0 if readout is None else check_number('readout', readout)
  terms = degree(num_layers) if preconditioned else num_layers
  lower = polynomial_optimum(task, terms).risk

  def changes(size: int, free: bool) -> Bool[np.ndarray, ' p']:
    return np.array([True] * size + [preconditioned] * (size - 1) + [free])

  spectra = [spectrum_of(task, size) for size in range(1, num_layers + 1)]
  kept: list[Point] = []
  for size, spectrum in enumerate(spectra, start=1):
    starts = _starts(spectrum, best_schedule(task, size), factor, kept)
    if not preconditioned:
      starts = [start * changes(size, True) for start in starts]
    ends = _descend(spectrum, starts, changes(size, False))
    kept = _lowest(spectrum, ends, _NUM_KEPT)
  if readout is None:
    ends = _descend(spectra[-1], kept, changes(num_layers, True))
    kept = _lowest(spectra[-1], ends, 1)
  point = kept[0]
  steps, preconditions = np.split(point[:-1], [num_layers])
  lowest = _risk(spectra[-1], point)
  weights = GDPlusPlus(steps, preconditions, float(point[-1]))
  prior, features = second_moments(task)
  scale = float(np.trace(prior @ features))  # The risk of the guess alone.
  return FamilyOptimum(checked_lower(lower, lowest, scale), lowest, weights)


def _starts(
  spectrum: Spectrum,
  schedule: Float[np.ndarray, ' l'],
  readout: float,
  shorter: list[Point],
) -> list[Point]:
  """Returns the best schedule, shorter networks plus a layer, and random networks."""
  num_layers = schedule.size
  sign = np.sign(readout)
  starts = [np.concatenate([sign * schedule, np.zeros(num_layers - 1), [readout]])]
  for point in shorter:
    steps, preconditions = np.split(point[:-1], [num_layers - 1])
    for place in range(num_layers):
      # The added layer has no effect yet, but the search can move it in any direction.
      moved = np.insert(np.append(preconditions, 0.0), place, 0.0)[: num_layers - 1]
      starts.append(np.concatenate([np.insert(steps, place, 0.0), moved, [readout]]))
  random = np.random.default_rng(num_layers)
  scale = float(np.mean(np.abs(schedule)))
  drawn = []
  for _ in range(_NUM_DRAWN):
    growth = scale * np.exp(random.uniform(0, 2, size=num_layers)).cumprod()
    steps = sign * growth * np.exp(random.normal(size=num_layers))
    preconditions = -growth[:-1] * random.exponential(0.5, size=num_layers - 1)
    drawn.append(np.concatenate([steps, preconditions, [readout]]))
  return starts + _lowest(spectrum, drawn, _NUM_STARTS)


def _lowest(spectrum: Spectrum, points: list[Point], count: int) -> list[Point]:
  """Returns the `count` networks of least risk, the least first."""
  return sorted(points, key=lambda point: _risk(spectrum, point))[:count]


def _risk(spectrum: Spectrum, point: Point) -> float:
  return float(np.sum(np.square(_residuals(spectrum, point))))


def _descend(
  spectrum: Spectrum, starts: list[Point], changes: Bool[np.ndarray, ' p']
) -> list[Point]:
  """Returns the results of local searches over the weights that may change.

  All starts have the same other weights.
  """
  places = np.flatnonzero(changes)

  def residuals(weights: Float[AnyArray, ' q']) -> Float[AnyArray, ' r']:
    return _residuals(spectrum, jnp.asarray(starts[0]).at[places].set(weights))

  ends = []
  for end in least_squares(residuals, [start[places] for start in starts]):
    point = starts[0].copy()
    point[places] = end
    ends.append(point)
  return ends


def _residuals(
  spectrum: Spectrum, point: Float[AnyArray, ' p']
) -> Float[AnyArray, ' r']:
  """Returns numbers whose squares sum to the risk, in NumPy or JAX like the weights.

  The learned weights are `ρ χ_L(S) r` with `Ψ = 1 + s χ`, which avoids a division by s.
  """
  s, size = spectrum.points, len(point) // 2
  _, chi = recursion(point[:size], point[size:-1], s, np.ones_like(s))
  learned = point[-1] * chi
  scale = np.sqrt(spectrum.feature_variance) * spectrum.roots
  prior, noise = np.sqrt(spectrum.trace) * scale, np.sqrt(spectrum.noise * s) * scale
  xp = point.__array_namespace__()
  return xp.concatenate([prior * (1 - s * learned), noise * learned])
