"""Infima by number of heads, against searches that share no formula with them."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import zoo
from tests.settings import isotropic
from zoo import theory
from zoo.theory import constructions

GOLDEN = (
  *(14.430617330724, 9.773785699134, 8.189708336209, 7.417058776229, 6.958766544359),
  *(6.654441092557, 6.436444865496, 6.270865675466, 6.137873828095, 6.022408963585),
  6.022408963585,
)


class Quadratic(NamedTuple):
  """The risk as a function of the updates: `base + Σ_i (u_iᵀ H u_i / 2 + g_i·u_i)`.

  An update is a symmetric matrix in the orthonormal basis of `matrices`. Those of the
  weights are transformed with the root of Σ, which leaves the same set to minimise
  over; the last is that of the bias.
  """

  base: float
  hessian: np.ndarray  # [p, p]
  slopes: np.ndarray  # [n, p]


@functools.cache
def matrices(e: int) -> np.ndarray:
  """An orthonormal basis of the symmetric matrices, `[p, e, e]`."""
  rows, columns = np.triu_indices(e)
  basis = np.zeros((len(rows), e, e))
  scale = np.where(rows == columns, 1, np.sqrt(0.5))
  basis[np.arange(len(rows)), rows, columns] = scale
  basis[np.arange(len(rows)), columns, rows] = scale
  return basis


@functools.cache
def derivatives(d: int):
  """Value, gradient and Hessian of the risk in the bias's update, compiled once."""

  def risk(updates, guess, bias, moments):
    forms = jnp.einsum('np,pij->nij', updates, matrices(d + 1))
    rule = zoo.LearningRule(guess, forms[:-1], bias, forms[-1])
    return theory.population_risk(rule, moments)

  def all_of_it(guess, bias, moments):
    zeros = jnp.zeros((d + 1, (d + 1) * (d + 2) // 2))
    base, slopes = jax.value_and_grad(risk)(zeros, guess, bias, moments)

    def of_bias(update):
      return risk(zeros.at[-1].set(update), guess, bias, moments)

    return base, slopes, jax.hessian(of_bias)(zeros[-1])

  return jax.jit(all_of_it)


def quadratic(task, guess, bias) -> Quadratic:
  """By differentiation of the exact risk as a black box."""
  moments = theory.task_moments(task)
  d = task.num_features
  if moments.feature_covariance is None:
    moments = moments._replace(feature_covariance=np.eye(d))
  with jax.enable_x64(True):
    numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), moments)
    found = derivatives(d)(jnp.asarray(guess), jnp.asarray(bias), numbers)
  base, slopes, hessian = map(np.array, found)
  eigenvalues, vectors = np.linalg.eigh(moments.feature_covariance)
  seen = eigenvalues > 1e-12 * eigenvalues[-1]
  root = vectors[:, seen] / np.sqrt(eigenvalues[seen])
  # Heads cannot reach the bias if the guess has none, and then its slope is 0.
  return Quadratic(
    float(base), hessian, np.append(root.T @ slopes[:-1], slopes[-1:], 0)
  )


def least_risk(problem: Quadratic, span):
  """The least risk of heads whose values span some columns, and its slope in them."""
  e, num_heads = span.shape
  basis = matrices(e)
  q, triangle = np.linalg.qr(span, mode='complete')
  # In coordinates along q the updates are symmetric matrices whose last block is 0.
  free = q @ basis[~basis[:, num_heads:, num_heads:].any((1, 2))] @ q.T
  free = free.reshape(len(free), -1) @ basis.reshape(len(basis), -1).T
  hessian = free @ problem.hessian @ free.T
  # Directions that no feature has are flat.
  inverse = np.linalg.pinv(hessian, rcond=1e-12, hermitian=True)
  best = -problem.slopes @ free.T @ inverse @ free
  risk = problem.base + np.sum(best * problem.slopes) / 2
  gradient = np.tensordot(best @ problem.hessian + problem.slopes, basis, 1)
  # U = sym(B Aᵀ) with B the first columns of q.
  blocks = (q.T @ np.tensordot(best, basis, 1) @ q)[:, :, :num_heads]
  blocks[:, num_heads:] *= 2
  slope = np.sum(gradient @ (q @ blocks), axis=0)
  return risk, slope @ np.linalg.pinv(triangle[:num_heads]).T


def independent_search(problem: Quadratic, num_heads, num_starts, seed=0):
  """The least risk that local searches over the span of the values find."""
  e = matrices_size(problem)
  rng = np.random.default_rng(seed)
  lowest = np.inf
  for i in range(num_starts):
    span = rng.normal(size=(e, num_heads))
    span[-1] *= 10 ** (rng.uniform(-2, 2) if i % 2 else 0)
    span, _ = np.linalg.qr(span)

    def function(entries):
      risk, slope = least_risk(problem, entries.reshape(e, -1))
      return risk, slope.ravel()

    found = scipy.optimize.minimize(
      function,
      span.ravel(),
      jac=True,
      method='L-BFGS-B',
      bounds=scipy.optimize.Bounds(-10, 10),
      options={'ftol': 1e-13, 'gtol': 1e-9, 'maxiter': 500, 'maxcor': 30},
    )
    lowest = min(lowest, float(found.fun))
  return lowest


def matrices_size(problem: Quadratic) -> int:
  return round((8 * len(problem.hessian) + 1) ** 0.5 - 1) // 2


def random_case(seed):
  """A task of 2 to 4 features, a number of heads up to d, a guess and a bias."""
  rng = np.random.default_rng(seed)
  d = int(rng.integers(2, 5))
  num_heads = int(rng.integers(1, d + 1))

  def covariance(lowest_rank):
    kind = rng.integers(0, 4)
    if kind == 0:
      return None
    if kind == 1:
      return np.diag(10.0 ** rng.uniform(-1, 1, d))
    root = rng.normal(size=(d, d if kind == 2 else lowest_rank))
    return root @ root.T

  task = isotropic(
    d,
    int(rng.choice([1, 2, 3, 5, 10, 30, 200])),
    prior_mean=rng.normal(size=d) * rng.choice([0, 0.3, 1, 3]),
    prior_covariance=covariance(d - 1),
    feature_covariance=covariance(d),
    noise_std=float(rng.choice([0, 0, 0.1, 0.5, 1, 3])),
  )
  guess = rng.normal(size=d) * rng.choice([0, 0, 1])
  bias = float(rng.choice([0, 0, 0.5, -3]))
  return task, num_heads, guess, bias


def check_random_case(seed, num_starts):
  """The bracket holds, and neither a search nor a construction is below the limit."""
  task, num_heads, guess, bias = random_case(seed)
  limit = theory.head_limited_risk(task, num_heads, guess, bias)
  searched = independent_search(quadratic(task, guess, bias), num_heads, num_starts)
  assert limit.lower <= limit.upper == limit.risk
  # Both searches end where slopes are 1e-9, of risks whose digits are 1e-16 of terms
  # that are up to 1e4 times as large.
  assert limit.lower <= searched * (1 + 1e-8) + 1e-10, seed
  assert limit.risk <= searched * (1 + 1e-8) + 1e-10, seed
  rule = theory.optimal_rule(task, guess, bias)
  unlimited = theory.exact_risk(rule, task)
  assert limit.lower >= unlimited * (1 - 1e-10), seed
  if constructions.multi_head_lsa(rule).num_heads <= num_heads:
    assert limit.risk == pytest.approx(unlimited, rel=1e-10), seed
  return limit.risk, searched
