"""The exact risk of learning rules as a quadratic form, for any label function.

It requires `y = φ(ŵ·x + σn)` with `x ~ N(0, I)`, and only a few averages over the
distribution of ŵ (docs/theory.md, section 10).
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError, check_name
from zoo.core.learning_rule import LearningRule, symmetric
from zoo.tasks.task_pool import TaskPool, require_isotropic
from zoo.theory.directions import Prior, normal_prior, pool_prior

Label = str | Callable[[np.ndarray], ArrayLike]

# The label functions by name, applied to the latent value v = ŵ·x + σn.
LABELS: dict[str, Callable[[np.ndarray], ArrayLike]] = {
  'linear': lambda v: v,
  'sign': np.sign,
  'tanh': np.tanh,
  'cubic': lambda v: v + v**3 / 10,
}
TARGETS = {'latent': 'ŵ·x_q', 'label': 'φ(ŵ·x_q + σn)'}

_NODES = 64  # of a Gauss–Hermite rule, the last beyond 14 standard deviations
_MOST_INTERVALS, _ACCURACY = 500, 1e-9
_POWERS = np.array([1, 1, 1, 2, 2, 3, 4])  # of y in the moments
_MOST_FEATURES = 48  # for these, an example's fourth moments take 46 MB
# Of a vector, given ŵ = uθ: numbers by u, or with 1 these times θ.
_Part = tuple[Float[np.ndarray, ' n'], int]
_RANK_TOLERANCE = 1e-13  # rounding errors in the eigenvalues of a matrix of ones


class LabelMoments(NamedTuple):
  """The moments `a_kj = E y^k He_j(ξ)` of `y = φ(uξ + σn)`, for each length u."""

  a10: Float[np.ndarray, ' n']
  a11: Float[np.ndarray, ' n']
  a13: Float[np.ndarray, ' n']
  a20: Float[np.ndarray, ' n']
  a22: Float[np.ndarray, ' n']
  a31: Float[np.ndarray, ' n']
  a40: Float[np.ndarray, ' n']


class QuadraticRisk(NamedTuple):
  """The risk of a rule as `Σ_i v_iᵀ Q v_i − 2 v_i·r_i + E t²`, i over [x_q; 1].

  Each v_i holds the constant and the coefficients of the entries a ≤ b of G.
  """

  gram: Float[np.ndarray, 'm m']  # Q = E g gᵀ with g = [1; G_ab]
  cross: Float[np.ndarray, 'e m']  # r_i = E g t x_i, the last E g t
  target_square: float


def label_moments(
  label: Label, lengths: Float[np.ndarray, ' n'], noise_std: float
) -> LabelMoments:
  """The moments of labels; raises UserError if quadrature cannot be accurate."""
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
  """The moments without noise, by adaptive quadrature."""
  nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
  with np.errstate(over='ignore', invalid='ignore'):
    fourth = _labels(function, scales[:, None] * nodes) ** 4
    total = fourth @ weights  # an estimate; the first and the last node are in the tail
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
  """The risk on a task whose labels are replaced by `φ(ŵ·x + σn)`.

  The task is linear regression with Λ = Σ = I, or a pool of tasks. Raises UserError for
  other tasks, labels and targets. It takes O(d⁶) time and O(d⁴) memory.
  """
  task = require_isotropic(task)
  check_name('target', target, TARGETS)
  d = task.num_features
  if d > _MOST_FEATURES:
    raise UserError(
      f'num_features is {d}; it must be ≤ {_MOST_FEATURES}, since the fourth moments '
      'of an example have d⁴ entries'
    )
  if type(task) is TaskPool:
    prior = pool_prior(task.pool)
  else:
    mean = task.mean_weights()
    assert mean is not None  # of a LinearRegression
    prior = normal_prior(mean)
  a = label_moments(label, prior.lengths, task.noise_std)
  # Of `v = [1; a_11 θ; a_20]`, and of `E t [x_q; 1]` for the query's target t, given ŵ.
  parts = (np.ones_like(a.a11), 0), (a.a11, 1), (a.a20, 0)
  target_parts, square = ((a.a11, 1), (a.a10, 0)), a.a20
  if target == 'latent':
    target_parts, square = ((prior.lengths, 1), (0 * a.a10, 0)), prior.lengths**2
  lift = _lift(d)
  one = lift @ _products(prior, d, parts, parts) @ lift.T  # E K⊗K
  gram = one + (_fourth_moments(prior, a, d) - one) / task.context_length
  gram[0], gram[:, 0] = one[0], one[0]  # products with the constant 1
  cross = _products(prior, d, target_parts, parts) @ lift.T
  return QuadraticRisk(gram, cross, float(prior.average(square, 0)))


def _products(
  prior: Prior, d: int, left: Sequence[_Part], right: Sequence[_Part]
) -> Float[np.ndarray, 'i j']:
  """`E u vᵀ` over tasks, for two vectors given by their parts."""
  return np.block(
    [
      [prior.average(a * b, i + j).reshape(d**i, d**j) for b, j in right]
      for a, i in left
    ]
  )


def _lift(d: int) -> Float[np.ndarray, 'm k']:
  """The matrix L with `[1; K_ab] = L [1; a_11 θ; a_20]`, a ≤ b."""
  entries = []
  for one, *slope, square in np.eye(d + 2):
    k = np.diag([*[one] * d, square])
    k[:d, d] = slope
    entries.append(np.append(one, k[np.triu_indices(d + 1)]))
  return np.stack(entries, axis=1)


def _fourth_moments(prior: Prior, a: LabelMoments, d: int) -> Float[np.ndarray, 'm m']:
  """`E z_a z_b z_c z_e` of one example, a ≤ b and c ≤ e; 0 for the constant."""
  eye = np.eye(d)
  pairs = np.einsum('ij,kl->ijkl', eye, eye)
  border = np.einsum('ij,k->ijk', eye, prior.average(a.a11, 1))
  by_labels = [
    pairs + pairs.transpose(0, 2, 1, 3) + pairs.transpose(0, 3, 2, 1),
    border
    + border.transpose(2, 1, 0)
    + border.transpose(0, 2, 1)
    + prior.average(a.a13, 3),
    prior.average(a.a20, 0) * eye + prior.average(a.a22, 2),
    prior.average(a.a31, 1),
    prior.average(a.a40, 0),
  ]
  fourth = np.zeros((d + 1,) * 4)
  for is_label in itertools.product((False, True), repeat=4):
    place = tuple(d if label else slice(d) for label in is_label)
    fourth[place] = by_labels[sum(is_label)]
  rows, columns = np.triu_indices(d + 1)
  chosen = fourth[rows[:, None], columns[:, None], rows, columns]
  return np.pad(chosen, ((1, 0), (1, 0)))


def risk_of(form: QuadraticRisk, rule: LearningRule) -> Float[Array, '']:
  """The risk of a rule, in its precision; for use under jit, grad and vmap."""
  leaves = jax.tree.leaves(rule)
  dtype = jnp.result_type(float, *leaves)
  init, update, bias, bias_update = (jnp.asarray(leaf, dtype) for leaf in leaves)
  rows, columns = np.triu_indices(len(init) + 1)
  updates = symmetric(jnp.concatenate([update, bias_update[None]]))
  count = jnp.asarray(np.where(rows == columns, 1.0, 2.0), dtype)
  constants = jnp.concatenate([init, bias[None]])
  entries = updates[:, rows, columns] * count[None]
  v = jnp.concatenate([constants[:, None], entries], axis=1)
  gram, cross = jnp.asarray(form.gram, dtype), jnp.asarray(form.cross, dtype)
  square = jnp.asarray(form.target_square, dtype)
  return jnp.sum((v @ gram - 2 * cross) * v) + square


def best_rule(
  form: QuadraticRisk, start: Float[np.ndarray, ' e'] | None = None
) -> LearningRule:
  """The rule of least risk, by one linear system; of several rules the nearest to 0.

  `start` fixes the rule's `init` and `bias`, and V is 0 if the bias is 0. Without
  `start` the whole rule is free.
  """
  gram, cross = form.gram, form.cross
  e = len(cross)
  if start is None:
    v = _solve(gram, cross)
  else:
    entries = _solve(gram[1:, 1:], cross[:, 1:] - np.outer(start, gram[0, 1:]))
    if start[-1] == 0:
      entries[-1] = 0
    v = np.column_stack([start, entries])
  rows, columns = np.triu_indices(e)
  updates = np.zeros((e, e, e))
  updates[:, rows, columns] = v[:, 1:]
  updates = symmetric(updates)  # an entry off the diagonal occurs in G twice
  return LearningRule(v[:-1, 0], updates[:-1], np.asarray(v[-1, 0]), updates[-1])


def _solve(
  gram: Float[np.ndarray, 'm m'], cross: Float[np.ndarray, 'e m']
) -> Float[np.ndarray, 'e m']:
  """`cross gram⁺`; gram may be singular, since with labels ±1 G_yy is always 1."""
  scale = 1 / np.sqrt(np.diag(gram))
  inverse = np.linalg.pinv(
    gram * np.outer(scale, scale), rcond=_RANK_TOLERANCE, hermitian=True
  )
  return (cross * scale) @ inverse * scale
