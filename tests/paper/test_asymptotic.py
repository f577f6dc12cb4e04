"""Limits of large dimension: against quadrature, exact finite d, and simulation."""

import itertools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

import zoo
from studies.paper import asymptotic, label_moments
from tests.compare import refuses
from tests.settings import isotropic
from zoo import theory
from zoo.tasks import TaskPool
from zoo.theory.deep import trace_moments

SIZES = 10, 20, 40, 80


def over_marchenko_pastur(function, alpha):
  """The mean over the eigenvalues of XᵀX/C, for C = αd and d → ∞."""
  low, high = (1 - alpha**-0.5) ** 2, (1 + alpha**-0.5) ** 2
  middle, half = (low + high) / 2, (high - low) / 2

  def integrand(angle):  # s = middle + half cos, and its density times ds
    s = middle + half * math.cos(angle)
    return function(s) * alpha * (half * math.sin(angle)) ** 2 / (2 * math.pi * s)

  integral, _ = scipy.integrate.quad(integrand, 0, math.pi, epsabs=1e-12)
  return integral + max(0.0, 1 - alpha) * function(0.0)


def test_shares_of_the_risk_have_the_known_digits():
  free = [asymptotic.depth_limit(2, k) for k in range(1, 5)]
  np.testing.assert_allclose(free, [1 / 3, 1 / 7, 1 / 15, 1 / 31], rtol=1e-14)
  shared = [asymptotic.depth_limit(2, k, shared=True) for k in range(1, 5)]
  np.testing.assert_allclose(
    shared, [0.333333, 0.185185, 0.119342, 0.082762], atol=5e-7
  )
  assert asymptotic.depth_limit(3.0, 0) == 1
  assert asymptotic.depth_limit(3.0, 0, shared=True) == pytest.approx(1)
  assert 0 <= asymptotic.depth_limit(2.0, 5000) < 1e-300  # nothing overflows


@pytest.mark.parametrize('alpha', [0.4, 1.0, 2.5])
def test_shares_are_least_values_over_marchenko_pastur(alpha):
  for steps in (1, 2, 3):
    # The least mean of P², P(0) = 1, as a quadratic form in P's other coefficients.
    powers = range(1, steps + 1)
    moment = {
      k: over_marchenko_pastur(lambda s, k=k: s**k, alpha) for k in range(2 * steps + 1)
    }
    gram = [[moment[i + j] for j in powers] for i in powers]
    cross = [moment[i] for i in powers]
    wanted = 1 - cross @ np.linalg.solve(gram, cross)
    assert asymptotic.depth_limit(alpha, steps) == pytest.approx(wanted, rel=1e-8)

    def risk(step, steps=steps):
      return over_marchenko_pastur(lambda s: (1 - step * s) ** (2 * steps), alpha)

    best = alpha / (1 + alpha)
    assert asymptotic.depth_limit(alpha, steps, shared=True) == pytest.approx(
      risk(best)
    )
    least: Any = scipy.optimize.minimize_scalar(risk, bounds=(0, 2), method='bounded')
    assert least.x == pytest.approx(best, abs=1e-4)


def assert_falls_as_1_over_d(gaps):
  """Gaps at d = 10, 20, 40, 80; the next order, 1/d², is still seen at the first."""
  ratios = np.array(gaps[:-1]) / np.array(gaps[1:])
  np.testing.assert_allclose(ratios, 2, rtol=0.35)
  np.testing.assert_allclose(ratios[-1], 2, rtol=0.08)


def test_pretraining_has_the_known_digits():
  known = {
    (10, 0.5, 0.2): (0.864298, 0.550687),
    (10, 0.5, 0.5): (0.820849, 0.246343),
    (10, 0.5, 2): (0.891164, 0.112400),
    (10, 0.5, math.inf): (0.558764, 0.056200),
    (1, 1, math.inf): (0.670619, 0.394069),
  }
  for (alpha, kappa, tau), wanted in known.items():
    errors = asymptotic.pretraining(alpha, kappa, tau, 0.01)
    np.testing.assert_allclose(errors, wanted, atol=5e-7)
  # For long contexts m → τ'/b', with numbers that cancel in the other form.
  long = asymptotic.pretraining(1e15, 0.5, 2, 0.01).icl
  assert long / 4.9504950495e12 == pytest.approx(1, rel=1e-4)
  # As many weights as prompts; and with ever more tasks the new are as the old.
  assert asymptotic.pretraining(10, 0.5, 1, 0.01) == (math.inf, math.inf)
  icl, idg = asymptotic.pretraining(2, math.inf, 3, 0.1)
  assert icl == pytest.approx(idg)
  # Then the best step is a number: x = (1 + ρ)/α, R* = ρ + x/(1 + x), τ/(τ − 1) of it.
  assert icl == pytest.approx(1.5 * (0.1 + 0.55 / 1.55))


def pool_risks(d, num_pools):
  """Mean errors over pools, for labels of variance 1 and σ² = .01, and their errors."""
  optima, known = [], []
  for seed in range(num_pools):
    task = TaskPool(d, 2 * d, d, (0.01 * d) ** 0.5, seed)
    optima.append(asymptotic.restricted_optimum(task)[:2])
    powers = [np.linalg.eigvalsh(task.pool.T @ task.pool / d) ** k for k in (1, 2, 3)]
    known.append([np.sum(power) / d for power in powers])
  # The errors are nearly a function of the pool's spectrum, whose first moments have
  # known means, so that what is linear in them can be removed.
  means = [trace_moments.trace_moment(d, d, (k,)) / d ** (k + 1) for k in (1, 2, 3)]
  terms = np.insert(np.array(known) - means, 0, 1, axis=1)
  risks = np.array(optima) / d + 0.01
  fit, *_ = np.linalg.lstsq(terms, risks)
  left = risks - terms @ fit
  spread = np.sqrt(np.sum(left**2, axis=0) / (num_pools - 4))
  scale = np.sqrt(np.linalg.inv(terms.T @ terms)[0, 0])
  return fit[0], spread * scale


@pytest.mark.slow
@pytest.mark.full
def test_pools_at_finite_size_approach_the_limit_as_1_over_d():
  limit = np.array(asymptotic.pretraining(2, 1, math.inf, 0.01))
  counts = 150, 60, 25, 10
  for d, count in zip(SIZES, counts, strict=True):
    risks, error = pool_risks(d, count)
    icl, idg = np.abs((risks - limit) * d - [0.93, 0.085])
    # The errors times d, within four standard errors, and a term of the next order.
    assert icl < 4 * error[0] * d + 1 / d
    assert idg < 4 * error[1] * d
    assert error[1] * d < 0.022  # so a gap that falls as 1/d² would fail at d = 40


@pytest.mark.slow
def test_the_restricted_optimum_of_a_pool():
  task = TaskPool(3, 4, 5, 0.5, 1)
  optimum = asymptotic.restricted_optimum(task)
  fresh = task.shifts()['new_tasks']
  assert theory.exact_risk(optimum.rule, task) == pytest.approx(optimum.idg, rel=1e-12)
  assert theory.exact_risk(optimum.rule, fresh) == pytest.approx(optimum.icl, rel=1e-12)
  # The same least value from the quadratic form of all rules.
  gram, cross, _ = label_moments.quadratic_risk(task)
  _, columns = np.triu_indices(4)
  used = 1 + np.flatnonzero(columns == 3)  # of the label: Xᵀy/C and Σ y²/C
  inner = np.linalg.solve(gram[np.ix_(used, used)], cross[:3, used].T)
  square = np.mean(np.sum(task.pool**2, axis=1))
  assert optimum.idg == pytest.approx(square - np.sum(inner * cross[:3, used].T))
  # Terms in XᵀX and the pool's mean make the best rule better on the pool.
  best = theory.optimal_rule(task)
  assert theory.exact_risk(best, task) < optimum.idg


@pytest.mark.slow
def test_alignment_is_one_number():
  def task(*variances):
    return isotropic(2, 6, prior_covariance=np.diag(variances))

  along, across = task(1.0, 0.1), task(0.1, 1.0)
  assert asymptotic.task_alignment(along, along) == pytest.approx(1, abs=1e-12)

  # Risks of GD-β by hand: M = (1 + 1/C) Λ + (tr Λ/C) I, Γ = Λ/M of the training task.
  def risk(gamma, variances):
    m = 7 / 6 * variances + variances.sum() / 6
    return np.sum(variances - 2 * gamma * variances + gamma**2 * m)

  first, second = np.array([1.0, 0.1]), np.array([0.1, 1.0])
  gamma = [v / (7 / 6 * v + 1.1 / 6) for v in (first, second)]
  wanted = (1.1 - risk(gamma[0], second)) / (1.1 - risk(gamma[1], second))
  assert asymptotic.task_alignment(along, across) == pytest.approx(wanted, rel=1e-12)
  assert wanted < 1
  with refuses('feature_covariance times prior_covariance is 0'):
    apart = isotropic(
      2,
      3,
      feature_covariance=np.diag([1.0, 0.0]),
      prior_covariance=np.diag([0.0, 1.0]),
    )
    asymptotic.task_alignment(along, apart)


def test_the_restricted_optimum_is_for_a_pool(unchecked):
  with refuses('of type LinearRegression', 'TaskPool'):
    asymptotic.restricted_optimum(cast(Any, isotropic(2, 6)))


@pytest.mark.slow
def test_steps_in_rotated_frames():
  values, c, noise = asymptotic.power_law(3, 1.0), 5, 0.6
  np.testing.assert_allclose(values, np.array([6, 3, 2]) * 3 / 11)
  # One step: the parabola of docs/theory_one_layer.md, section 6, with N = I.
  square, cube = (values**k @ np.ones(3) for k in (2, 3))
  curvature = (1 + 1 / c) * cube + square * (values.sum() + noise**2) / c
  wanted = values.sum() - square**2 / curvature
  least = asymptotic.rotated_optimum(values, c, 1, noise)
  assert least == pytest.approx(wanted, rel=1e-12)
  # Several steps without structure are those of section 6; with it more are better.
  task = isotropic(3, c, noise_std=noise)
  for steps in (2, 3):
    wanted = theory.polynomial_optimum(task, steps).risk
    least = asymptotic.rotated_optimum([1.0, 1.0, 1.0], c, steps, noise)
    assert least == pytest.approx(wanted, rel=1e-9)
  with refuses('num_steps is 3; so many steps leave less than 1e-08 of the risk'):
    asymptotic.rotated_optimum([1.0, 1.0, 1.0], 10**5, 3)
  assert asymptotic.rotated_optimum([0.0, 0.0], c, 2) == 0
  risks = [asymptotic.rotated_optimum(values, c, k, noise) for k in (1, 2, 3, 4)]
  assert np.all(np.diff(risks) < 0)


def test_steps_in_rotated_frames_at_finite_size_approach_the_limit_as_1_over_d():
  for steps, alpha in itertools.product((1, 2, 3), (0.5, 2.0)):
    limit = asymptotic.rotated_limit([1.0], alpha, steps)
    assert limit == pytest.approx(asymptotic.depth_limit(alpha, steps), rel=1e-10)
  spectrum, noise = [1.5, 0.4, 0.4, 0.4, 2.3], 0.3
  for steps in (1, 2):
    limit = asymptotic.rotated_limit(spectrum, 2, steps, noise)
    gaps = [
      asymptotic.rotated_optimum(spectrum * (d // 5), 2 * d, steps, (noise * d) ** 0.5)
      / d
      - limit
      for d in SIZES
    ]
    assert_falls_as_1_over_d(gaps)


@pytest.mark.slow
def test_softmax_costs_one_example():
  task = isotropic(3, 5, noise_std=0.5)
  d, c, noise = 3, 5, 0.25
  least = asymptotic.softmax_risk(task)
  assert least == pytest.approx(d * (d + 1 + noise) / (c + d + noise), rel=1e-12)
  random = np.random.default_rng(0)
  x, w = random.normal(size=(100_000, c, d)), random.normal(size=(100_000, d))
  y = np.einsum('bcd,bd->bc', x, w) + 0.5 * random.normal(size=(100_000, c))
  query = random.normal(size=(100_000, d))
  y_query = np.einsum('bd,bd->b', w, query)
  prompt = zoo.Prompt(*(jnp.asarray(part, float) for part in (x, y, query, y_query)))
  # The step of C − 1 examples, in units of C: r is (C − 1)/C of theirs.
  step = (c - 1) / (c + d + noise) * c / (c - 1)
  predictions = jax.jit(asymptotic.softmax_pair, static_argnums=(1, 2))(
    prompt, step, 0.02
  )
  centred = y - y.mean(axis=1, keepdims=True)
  by_hand = step / c * np.einsum('bcd,bc,bd->b', x, centred, query)
  np.testing.assert_allclose(predictions, by_hand, atol=0.05)
  errors = (np.asarray(predictions) - y_query) ** 2
  assert abs(errors.mean() - least) < 5 * errors.std() / 100_000**0.5


def test_mistakes_are_one_line():
  known = isotropic(2, 10, prior_covariance=np.zeros((2, 2)))
  single = isotropic(2, 1)
  calls = {
    'ratio is 0': lambda: asymptotic.depth_limit(0.0, 2),
    'num_steps': lambda: asymptotic.depth_limit(1.0, -1),
    'context_ratio is -1': lambda: asymptotic.pretraining(-1.0, 1.0, 1.0, 0.0),
    'context_ratio': lambda: asymptotic.pretraining(math.inf, 1.0, 1.0, 0.0),
    'noise_variance': lambda: asymptotic.pretraining(1.0, 1.0, 2.0, -0.1),
    'num_steps is 5': lambda: asymptotic.rotated_optimum([1.0], 3, 5),
    'ratio is -2': lambda: asymptotic.rotated_limit([1.0], -2, 1),
    'variances has -1': lambda: asymptotic.rotated_optimum([-1.0], 3, 1),
    'context_length is 1': lambda: asymptotic.softmax_risk(single),
    'prior_covariance is 0': lambda: asymptotic.task_alignment(known, known),
  }
  for message, call in calls.items():
    with pytest.raises(zoo.UserError, match=message):
      call()
