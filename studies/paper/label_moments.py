"""The moments of labels `φ(ŵ·x + σn)`, and the risk that is made of them.

The features are `x ~ N(0, I)` (docs/theory_labels.md, section 10).
"""

from collections.abc import Callable

import numpy as np
import scipy.integrate
from jaxtyping import ArrayLike, Float

from studies.paper.directions import normal_prior
from zoo.core.errors import UserError, check_name
from zoo.tasks.task_pool import TaskPool, require_isotropic
from zoo.theory.quadratic_risk import (
  LabelMoments,
  QuadraticRisk,
  check_size,
  pool_prior,
  quadratic_form,
)

Label = str | Callable[[np.ndarray], ArrayLike]

# The label functions by name, applied to the latent value v = ŵ·x + σn.
LABELS: dict[str, Callable[[np.ndarray], ArrayLike]] = {
  'linear': lambda v: v,
  'sign': np.sign,
  'tanh': np.tanh,
  'cubic': lambda v: v + v**3 / 10,
}
TARGETS = {'latent': 'ŵ·x_q', 'label': 'φ(ŵ·x_q + σn)'}

# The last node of this Gauss–Hermite rule is beyond 14 standard deviations.
_NODES = 64
_MOST_INTERVALS, _ACCURACY = 500, 1e-9
_POWERS = np.array([1, 1, 1, 2, 2, 3, 4])  # The moments have these powers of y.


def label_moments(
  label: Label, lengths: Float[np.ndarray, ' n'], noise_std: float
) -> LabelMoments:
  """Returns the moments of labels.

  Raises UserError if quadrature cannot be accurate.
  """
  function = label if callable(label) else LABELS[check_name('label', label, LABELS)]
  # Given the latent value sζ, ξ is normal with mean (u/s) ζ and variance 1 − (u/s)², so
  # He_j(ξ) has the mean (u/s)^j He_j(ζ), and an integral over ζ is enough.
  scales = np.hypot(lengths, noise_std)
  moments = _standard_moments(function, scales)
  ratio = lengths / np.where(scales > 0, scales, 1)
  scaled = moments * ratio[:, None] ** [0, 1, 3, 0, 2, 1, 0]
  return LabelMoments(*scaled.T)


def _standard_moments(
  function: Callable[[np.ndarray], ArrayLike], scales: Float[np.ndarray, ' n']
) -> Float[np.ndarray, 'n 7']:
  """Returns the moments without noise, by adaptive quadrature."""
  nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
  with np.errstate(over='ignore', invalid='ignore'):
    fourth = _labels(function, scales[:, None] * nodes) ** 4
    # `total` is an estimate. The first and the last node are in the tail.
    total = fourth @ weights
    tail = np.max(fourth[:, [0, -1]], axis=1) * np.exp(-(nodes[0] ** 2) / 2)
  if not np.all(np.isfinite(total)) or np.any(tail > _ACCURACY * total):
    raise UserError(
      'the label function grows too fast for the fourth moment of the labels to be '
      'computed; it may grow as a polynomial'
    )
  size = np.where(total > 0, total, 1) ** 0.25

  def integrand(zeta: float) -> Float[np.ndarray, 'n 7']:
    hermite = np.array([1, zeta, zeta**3 - 3 * zeta, 1, zeta**2 - 1, zeta, 1])
    density = np.exp(-(zeta**2) / 2) / np.sqrt(2 * np.pi)
    y = _labels(function, scales * zeta) / size
    return density * hermite * y[:, None] ** _POWERS

  moments, error, info = scipy.integrate.quad_vec(
    integrand,
    nodes[0],
    nodes[-1],
    epsabs=1e-12,
    epsrel=1e-12,
    norm='max',
    limit=_MOST_INTERVALS,
    points=(0.0,),
    full_output=True,
  )
  if not info.success and error > _ACCURACY:
    raise UserError(
      'the label function changes too quickly for its moments to be computed to 9 '
      'digits; it may jump at 0 and have kinks elsewhere, but no other jumps'
    )
  return moments * size[:, None] ** _POWERS


def _labels(
  function: Callable[[np.ndarray], ArrayLike], latent: Float[np.ndarray, '*n']
) -> Float[np.ndarray, '*n']:
  with np.errstate(all='ignore'):
    y = np.asarray(function(latent), np.float64)
  if y.shape != latent.shape:
    raise UserError(
      f'the label function gives an array of shape {y.shape} for one of shape '
      f'{latent.shape}; it must give one number for each'
    )
  if not np.all(np.isfinite(y)):
    raise UserError(
      'the label function is not finite everywhere; it must be, and may grow as a '
      'polynomial'
    )
  return y


def quadratic_risk(
  task: object, label: Label = 'linear', target: str = 'latent'
) -> QuadraticRisk:
  """Returns the risk on a task whose labels are replaced by `φ(ŵ·x + σn)`.

  The task is linear regression with Λ = Σ = I, or a pool of tasks. It takes O(d⁶) time
  and O(d⁴) memory. Raises UserError for other tasks, labels and targets.
  """
  task = require_isotropic(task)
  check_name('target', target, TARGETS)
  check_size(task.num_features)
  if type(task) is TaskPool:
    prior = pool_prior(task.pool)
  else:
    mean = task.mean_weights()
    assert mean is not None  # The task is a LinearRegression.
    prior = normal_prior(mean)
  a = label_moments(label, prior.lengths, task.noise_std)
  target_parts, square = ((a.a11, 1), (a.a10, 0)), a.a20
  if target == 'latent':
    target_parts, square = ((prior.lengths, 1), (0 * a.a10, 0)), prior.lengths**2
  return quadratic_form(prior, a, task.context_length, target_parts, square)
