"""The exact risk of learning rules as a quadratic form, and the best rule.

The labels must depend on `ŵ·x` and noise alone, with `x ~ N(0, I)`. Then only a few
averages over the distribution of ŵ are needed (docs/theory_labels.md, section 10).
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zoo.core.errors import UserError
from zoo.core.learning_rule import LearningRule, symmetric
from zoo.tasks.task_pool import TaskPool

_MOST_FEATURES = 48  # The fourth moments of an example then take 46 MB.
# A part of a vector that depends on ŵ = uθ: a number for each length u, times 1 or θ;
# the integer is 0 for 1, and 1 for θ.
Part = tuple[Float[np.ndarray, ' n'], int]
_RANK_TOLERANCE = 1e-13  # Eigenvalues of a matrix of ones have such rounding errors.


class Prior(NamedTuple):
  """A distribution of weights `ŵ = uθ`, represented by averages over it.

  Attributes:
    lengths: The lengths u.
    average: The function `average(values, k)`, which is `E s(u) θ⊗…⊗θ` with k ≤ 3
      factors θ, for a function s with the given values at the lengths.
  """

  lengths: Float[np.ndarray, ' n']
  average: Callable[[Float[np.ndarray, ' n'], int], np.ndarray]


def pool_prior(weights: Float[np.ndarray, 'n d']) -> Prior:
  """Returns the uniform distribution over given weights."""
  lengths = np.linalg.norm(weights, axis=1)
  # Weights of length 0 have no direction; every term with a direction is 0 there.
  directions = weights / np.where(lengths > 0, lengths, 1)[:, None]

  def average(values: Float[np.ndarray, ' n'], order: int) -> np.ndarray:
    operands = [directions] * order
    indices = [f'n{letter}' for letter in 'ijk'[:order]]
    subscripts = ','.join(['n', *indices]) + '->' + 'ijk'[:order]
    total = np.einsum(subscripts, values, *operands, optimize=True)
    return np.asarray(total / len(lengths))

  return Prior(lengths, average)


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
  """The risk of a rule as a quadratic form, `Σ_i v_iᵀ Q v_i − 2 v_i·r_i + E t²`.

  The index i runs over the entries of [x_q; 1]. Each v_i holds the constant and the
  coefficients of the entries a ≤ b of G.

  Attributes:
    gram: `Q = E g gᵀ` with `g = [1; G_ab]`.
    cross: `r_i = E g t x_i`; the last row is `E g t`.
    target_square: `E t²` of the query's target t.
  """

  gram: Float[np.ndarray, 'm m']
  cross: Float[np.ndarray, 'e m']
  target_square: float


def pool_risk(task: TaskPool) -> QuadraticRisk:
  """Returns the risk on a pool of tasks, in O(d⁶) time and O(d⁴) memory.

  Raises UserError for too many features.
  """
  check_size(task.num_features)
  prior = pool_prior(task.pool)
  u, square = prior.lengths, prior.lengths**2 + task.noise_std**2
  zero = np.zeros_like(u)
  # The label is `y = uξ + σn`, whose variance is `square`.
  moments = LabelMoments(zero, u, zero, square, 2 * u**2, 3 * square * u, 3 * square**2)
  parts = (u, 1), (zero, 0)
  return quadratic_form(prior, moments, task.context_length, parts, u**2)


def check_size(num_features: int) -> None:
  """Raises UserError for more features than the fourth moments have memory for."""
  if num_features > _MOST_FEATURES:
    raise UserError(
      f'num_features is {num_features}; it must be ≤ {_MOST_FEATURES}, since the '
      'fourth moments of an example have d⁴ entries'
    )


def quadratic_form(
  prior: Prior,
  moments: LabelMoments,
  context_length: int,
  target_parts: Sequence[Part],
  target_square: Float[np.ndarray, ' n'],
) -> QuadraticRisk:
  """Returns the risk, from moments of labels and of the query's target t, given ŵ.

  `target_parts` are the parts of `E t [x_q; 1]`, and `target_square` is `E t²`.
  """
  a, d = moments, prior.average(moments.a11, 1).size
  parts = (np.ones_like(a.a11), 0), (a.a11, 1), (a.a20, 0)  # `[1; a_11 θ; a_20]`
  lift = _lift(d)
  mean = lift @ _products(prior, d, parts, parts) @ lift.T  # E K⊗K
  gram = mean + (_fourth_moments(prior, a, d) - mean) / context_length
  gram[0], gram[:, 0] = mean[0], mean[0]  # The first entry is the constant 1.
  cross = _products(prior, d, target_parts, parts) @ lift.T
  return QuadraticRisk(gram, cross, float(prior.average(target_square, 0)))


def _products(
  prior: Prior, d: int, left: Sequence[Part], right: Sequence[Part]
) -> Float[np.ndarray, 'i j']:
  """Returns `E u vᵀ` over tasks, for two vectors given by their parts."""
  return np.block(
    [
      [prior.average(a * b, i + j).reshape(d**i, d**j) for b, j in right]
      for a, i in left
    ]
  )


def _lift(d: int) -> Float[np.ndarray, 'm k']:
  """Returns the matrix L with `[1; K_ab] = L [1; a_11 θ; a_20]`, a ≤ b."""
  entries = []
  for unit, *slope, square in np.eye(d + 2):
    k = np.diag([*[unit] * d, square])
    k[:d, d] = slope
    entries.append(np.append(unit, k[np.triu_indices(d + 1)]))
  return np.stack(entries, axis=1)


def _fourth_moments(prior: Prior, a: LabelMoments, d: int) -> Float[np.ndarray, 'm m']:
  """Returns `E z_a z_b z_c z_e` of one example, a ≤ b and c ≤ e; 0 for the constant."""
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
  """Returns the risk of a rule, in its precision; for use under jit, grad and vmap."""
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
  """Returns the rule of least risk, which solves one linear system.

  If several rules have this risk, it returns one of them. `start` fixes the rule's
  `init` and `bias`, and V is 0 if the bias is 0. Without `start` the whole rule is
  free.
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
  updates = symmetric(updates)  # An entry off the diagonal occurs in G twice.
  return LearningRule(v[:-1, 0], updates[:-1], np.asarray(v[-1, 0]), updates[-1])


def _solve(
  gram: Float[np.ndarray, 'm m'], cross: Float[np.ndarray, 'e m']
) -> Float[np.ndarray, 'e m']:
  """Returns `cross gram⁺`.

  `gram` may be singular: with labels ±1, for example, G_yy is always 1.
  """
  # A diagonal entry is 0 if a label is always 0; its row and column are then 0, too.
  sizes = np.sqrt(np.diag(gram))
  scale = np.divide(1, sizes, out=np.zeros_like(sizes), where=sizes > 0)
  inverse = np.linalg.pinv(
    gram * np.outer(scale, scale), rcond=_RANK_TOLERANCE, hermitian=True
  )
  return (cross * scale) @ inverse * scale
