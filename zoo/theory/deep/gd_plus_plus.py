"""The GD++ family of deep linear attention: exact risks, and the lowest risk found.

Layers `z ← z + P G A z` with `P = diag(b I, c)`, `A = diag(I, 0)`, in coordinates
`[x; y − w*·x]` (GD++ of von Oswald et al., arXiv 2212.07677; docs/theory.md,
section 8).
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize
from jaxtyping import ArrayLike, Float

from zoo.core.errors import UserError, check_count, check_number, check_vector
from zoo.core.protocols import Task
from zoo.tasks.linear_regression import require_covered
from zoo.theory.deep.deep_rule import Spectrum, degree, recursion, spectrum_of
from zoo.theory.schedules import best_schedule, polynomial_optimum

# At each depth: random networks drawn, the best of them that are searched from, and the
# best results, which the search at the next depth starts from.
_NUM_DRAWN, _NUM_STARTS, _NUM_KEPT = 2000, 60, 12


class GDPlusPlus(NamedTuple):
  """Weights of the family: a step and a precondition per layer, and the readout."""

  steps: Float[np.ndarray, ' l']  # c of each layer, < 0 for descent
  preconditions: Float[np.ndarray, ' l-1']  # b of each layer but the last
  readout: float  # κ


class FamilyOptimum(NamedTuple):
  """A proved lower bound of the family's least risk, and the lowest risk found."""

  lower: float  # proved: no polynomial in S of the family's degree has a lower risk
  upper: float  # the lowest found by a search, at `weights`
  weights: GDPlusPlus


def gd_plus_plus_risk(
  task: Task,
  steps: ArrayLike | Sequence[float],
  preconditions: ArrayLike | Sequence[float],
  readout: float = -1.0,
) -> float:
  """The exact risk of deep linear attention in the GD++ family, from the prior mean.

  With `s` an eigenvalue of S, `steps` c `[L]`, and `preconditions` b `[L]` or, since
  the last one changes no prediction, `[L − 1]`,

      Φ ← Φ (1 + b s Φ²),   Ψ ← Ψ (1 + c s Φ²)   (Φ = Ψ = 1 at first),
      P = 1 − readout (Ψ_L − 1),   R = ν ∫ P² dμ + σ² (d/C) ∫ s ((1 − P)/s)² dμ.

  With `readout` −1 and preconditions 0 it is gradient descent with the steps −c. Raises
  UserError naming the argument that is wrong, and unless the feature covariance is a
  multiple of the identity.
  """
  weights = _checked(steps, preconditions, readout)
  return _risk(spectrum_of(require_covered(task), weights.steps.size), weights)


def gd_plus_plus_optimum(
  task: Task,
  num_layers: int,
  readout: float | None = None,
  preconditioned: bool = True,
) -> FamilyOptimum:
  """Bounds of the least `gd_plus_plus_risk` at a depth: one proved, one from a search.

  If `readout` is None the search is over it as well; without `preconditioned` b is 0.
  For each depth up to `num_layers`, local searches start from the best schedule, from
  the best networks with one layer less, and from random weights; with a free readout
  they start from the best networks with readout −1. The lowest risk found is not proved
  to be the infimum. Raises UserError as `gd_plus_plus_risk` does.
  """
  task = require_covered(task)
  num_layers = check_count('num_layers', num_layers)
  kappa = -1.0 if readout is None else check_number('readout', readout)
  terms = degree(num_layers) if preconditioned else num_layers
  lower = polynomial_optimum(task, terms).risk
  kept: list[GDPlusPlus] = []

  spectra = [spectrum_of(task, size) for size in range(1, num_layers + 1)]
  for size, spectrum in enumerate(spectra, start=1):
    schedule = best_schedule(task, size)
    starts = _starts(spectrum, schedule, kappa, kept)
    if not preconditioned:
      starts = [one._replace(preconditions=0 * one.preconditions) for one in starts]
    found = [_descend(spectrum, one, False, preconditioned) for one in starts]
    kept = _lowest(spectrum, found, _NUM_KEPT)
  if readout is None:
    found = [_descend(spectra[-1], one, True, preconditioned) for one in kept]
    kept = _lowest(spectra[-1], found, 1)
  lowest = _risk(spectra[-1], kept[0])
  return FamilyOptimum(min(lower, lowest), lowest, kept[0])


def _starts(
  spectrum: Spectrum,
  schedule: Float[np.ndarray, ' l'],
  readout: float,
  shorter: list[GDPlusPlus],
) -> list[GDPlusPlus]:
  """The best schedule, shorter networks plus a layer, and the best random networks."""
  num_layers = schedule.size
  sign = np.sign(readout)
  nothing = np.zeros(num_layers - 1)
  starts = [GDPlusPlus(sign * schedule, nothing, readout)]
  for steps, preconditions, _ in shorter:
    for place in range(num_layers):
      # The added layer has no effect yet, but the search can move it in any direction.
      moved = np.insert(np.append(preconditions, 0.0), place, 0.0)[: num_layers - 1]
      starts.append(GDPlusPlus(np.insert(steps, place, 0.0), moved, readout))
  random = np.random.default_rng(num_layers)
  scale = float(np.mean(np.abs(schedule)))
  drawn = []
  for _ in range(_NUM_DRAWN):
    growth = scale * np.exp(random.uniform(0, 2, size=num_layers)).cumprod()
    steps = sign * growth * np.exp(random.normal(size=num_layers))
    preconditions = -growth[:-1] * random.exponential(0.5, size=num_layers - 1)
    drawn.append(GDPlusPlus(steps, preconditions, readout))
  return starts + _lowest(spectrum, drawn, _NUM_STARTS)


def _lowest(
  spectrum: Spectrum, found: list[GDPlusPlus], count: int
) -> list[GDPlusPlus]:
  """The `count` networks of least risk, the least first."""
  return sorted(found, key=lambda one: _risk(spectrum, one))[:count]


def _risk(spectrum: Spectrum, weights: GDPlusPlus) -> float:
  return float(np.sum(np.square(_residuals(spectrum, weights)[0])))


def _descend(
  spectrum: Spectrum, start: GDPlusPlus, free: bool, preconditioned: bool
) -> GDPlusPlus:
  """The result of a local search over the weights that may change."""
  size = start.steps.size
  changes = np.array([True] * size + [preconditioned] * (size - 1) + [free])
  whole = np.concatenate([*start[:2], [start.readout]])

  def weights(some: Float[np.ndarray, ' p']) -> GDPlusPlus:
    whole[changes] = some
    steps, preconditions = np.split(whole[:-1], [size])
    return GDPlusPlus(steps.copy(), preconditions.copy(), float(whole[-1]))

  @functools.lru_cache(1)  # the search asks for both outputs at each point
  def evaluate(point: bytes) -> tuple[np.ndarray, np.ndarray]:
    return _residuals(spectrum, weights(np.frombuffer(point)))

  found = scipy.optimize.least_squares(
    lambda some: evaluate(some.tobytes())[0],
    whole[changes],
    jac=lambda some: evaluate(some.tobytes())[1][:, changes],  # pyright: ignore
    method='lm',
    x_scale='jac',
    xtol=1e-12,
    ftol=1e-12,
    gtol=1e-12,
    max_nfev=300,
  )
  return weights(found.x)


def _residuals(
  spectrum: Spectrum, weights: GDPlusPlus
) -> tuple[Float[np.ndarray, ' r'], Float[np.ndarray, 'r p']]:
  """Numbers whose squares sum to the risk, and their gradient in the weights.

  The learned weights are `κ χ_L(S) r` with `Ψ = 1 + s χ`, which avoids a division by s.
  """
  size, s = weights.steps.size, spectrum.points
  point = np.concatenate([*weights[:2], [weights.readout]])
  # The derivative in each weight is the imaginary part that a step along it, too small
  # to change the real part, gives.
  points = point[:, None, None] + 1e-30j * np.eye(point.size)[:, :, None]
  _, chi = recursion(points[:size], points[size:-1], s, np.ones_like(s))
  learned = points[-1] * chi
  scale = np.sqrt(spectrum.feature_variance) * spectrum.roots
  prior, noise = np.sqrt(spectrum.trace) * scale, np.sqrt(spectrum.noise * s) * scale
  found = np.concatenate([prior * (1 - s * learned), noise * learned], axis=1)
  return found[0].real, np.imag(found).T * 1e30


def _checked(
  steps: ArrayLike | Sequence[float],
  preconditions: ArrayLike | Sequence[float],
  readout: float,
) -> GDPlusPlus:
  steps = check_vector('steps', steps, None)
  count = steps.size
  size = np.size(preconditions)
  if size not in (count - 1, count):
    raise UserError(
      f'preconditions has {size} numbers; for {count} steps it must have {count - 1}, '
      f'or {count}, the last of which changes no prediction'
    )
  preconditions = check_vector('preconditions', np.atleast_1d(preconditions), size)
  readout = check_number('readout', readout)
  return GDPlusPlus(steps, preconditions[: count - 1], readout)
