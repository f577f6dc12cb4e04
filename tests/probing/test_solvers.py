"""Solvers on the spectrum, next to loops over the weights of one prompt in NumPy."""

import numpy as np
import pytest

from tests.compare import assert_close
from zoo.probing.nearest import solvers

_P, _C, _D = 6, 7, 4
# Float64: some hundred roundings, of matrices that are far from singular.
_EXACT = 1e-10


def _prompts(c=_C):
  rng = np.random.default_rng(0)
  x, query = rng.normal(size=(_P, c, _D)), rng.normal(size=(_P, _D))
  return x, rng.normal(size=(_P, c)), query, rng.normal(size=_D)


def _by_loop(iterate, num_steps, c=_C):
  """The predictions of weights that `iterate(w, S, r, k)` gives for each prompt."""
  x, y, query, start = _prompts(c)
  predictions = []
  for i in range(_P):
    s, r = x[i].T @ x[i] / c, x[i].T @ y[i] / c
    predictions.append(query[i] @ iterate(start.copy(), s, r, num_steps))
  return np.array(predictions)


def _filtered(solver, *arguments, c=_C):
  spectra = solvers.spectra(*_prompts(c))
  return spectra.predict(solver(spectra.values, *arguments))


@pytest.mark.parametrize('num_steps', [0, 1, 4])
def test_steps_of_gradient_descent(num_steps):
  def iterate(w, s, r, k):
    for _ in range(k):
      w = w + 0.3 * (r - s @ w)
    return w

  predictions = _filtered(solvers.gradient_descent, num_steps, 0.3)
  assert_close(predictions, _by_loop(iterate, num_steps), _EXACT)


def test_a_root_is_a_preconditioner():
  root = np.diag([0.5, 1.0, 2.0, 1.5]) + 0.1
  spectra = solvers.spectra(*_prompts(), root)
  predictions = spectra.predict(solvers.gradient_descent(spectra.values, 3, 0.05))

  def iterate(w, s, r, k):
    for _ in range(k):
      w = w + 0.05 * root @ root @ (r - s @ w)
    return w

  assert_close(predictions, _by_loop(iterate, 3), _EXACT)


def test_chebyshev_is_its_recurrence_of_three_terms():
  """Saad, Iterative Methods for Sparse Linear Systems, algorithm 12.1."""
  low, high = 0.2, 3.0

  def iterate(w, s, r, k):
    theta, delta = (high + low) / 2, (high - low) / 2
    sigma, residual = theta / delta, r - s @ w
    rho, move = delta / theta, residual / theta
    for _ in range(k):
      w = w + move
      residual = residual - s @ move
      after = 1 / (2 * sigma - rho)
      move = after * rho * move + 2 * after / delta * residual
      rho = after
    return w

  for num_steps in 0, 1, 2, 5:
    predictions = _filtered(solvers.chebyshev, num_steps, low, high)
    assert_close(predictions, _by_loop(iterate, num_steps), _EXACT)


def test_gd_plus_plus_changes_the_features_of_all_tokens():
  step, contraction, num_steps = 0.3, 0.2, 3
  x, y, query, start = _prompts()
  expected = []
  for i in range(_P):
    features, labels = np.vstack([x[i], query[i]]), y[i] - x[i] @ start
    answer = query[i] @ start
    for _ in range(num_steps):
      seen = features[:-1]
      moves = step * features @ (seen.T @ labels) / _C
      labels, answer = labels - moves[:-1], answer + moves[-1]
      features = features - contraction * features @ (seen.T @ seen) / _C
    expected.append(answer)
  predictions = _filtered(solvers.gd_plus_plus, num_steps, step, contraction)
  assert_close(predictions, expected, _EXACT)


@pytest.mark.parametrize('num_steps', [0, 1, 5])
def test_iterative_newton(num_steps):
  """As in the paper, on sums over examples instead of means."""
  x, y, query, start = _prompts()
  expected = []
  for i in range(_P):
    s = x[i].T @ x[i]
    inverse = s / np.linalg.norm(s @ s.T, 2)
    for _ in range(num_steps):
      inverse = 2 * inverse - inverse @ s @ inverse
    w = start + inverse @ x[i].T @ (y[i] - x[i] @ start)
    expected.append(query[i] @ w)
  assert_close(_filtered(solvers.newton, num_steps), expected, _EXACT)


def test_the_error_of_newton_squares_in_each_step():
  values = np.array([[3.0, 1.0, 0.3, 0.1]])
  error = 1 - values * solvers.newton(values, 0)
  for num_steps in range(1, 8):
    error = error**2
    np.testing.assert_allclose(
      1 - values * solvers.newton(values, num_steps), error, atol=1e-13
    )


@pytest.mark.parametrize('num_steps', [0, 1, 3])
def test_conjugate_gradients_are_the_best_weights_of_their_krylov_space(num_steps):
  """Those of least error in the norm of S, from S^j g for j < k (not by a loop)."""

  def best(w, s, r, k):
    residual = r - s @ w
    krylov = [np.linalg.matrix_power(s, j) @ residual for j in range(k)]
    if not krylov:
      return w
    basis = np.linalg.qr(np.stack(krylov, axis=1))[0]
    return w + basis @ np.linalg.solve(basis.T @ s @ basis, basis.T @ residual)

  predictions = solvers.conjugate_gradients(solvers.spectra(*_prompts()), num_steps)
  assert_close(predictions, _by_loop(best, num_steps), 1e-8)


@pytest.mark.parametrize('c', [_C, 2])
def test_conjugate_gradients_reach_least_squares_and_stay_there(c):
  """In one step for each eigenvalue; it is the solution nearest to the start."""

  def least_squares(w, s, r, k):
    return w + np.linalg.pinv(s, rcond=1e-10) @ (r - s @ w)

  for num_steps in min(c, _D), 12:
    predictions = solvers.conjugate_gradients(solvers.spectra(*_prompts(c)), num_steps)
    assert_close(predictions, _by_loop(least_squares, 0, c), 1e-8)
