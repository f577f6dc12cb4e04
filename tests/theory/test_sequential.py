"""Exact risks of sequential learners against quadrature, sampling and search."""

import numpy as np
import pytest

import zoo
from tests.compare import assert_close, refuses
from tests.marks import mostly_full, mostly_slow
from tests.settings import general, isotropic
from tests.theory.expectations import cubature, make_task
from zoo.theory import sequential

FORMS = 'number', 'numbers', 'matrix', 'matrices'


def random_steps(form, c, d, rng, centre, scale):
  """Numbers or matrices, one for all examples or one for each."""
  shape = {'number': (), 'numbers': (c,), 'matrix': (d, d), 'matrices': (c, d, d)}[form]
  middle = centre * np.eye(d) if form.startswith('matri') else centre
  return middle + scale * rng.normal(size=shape)


def each_example(steps, c, d):
  steps = np.asarray(steps, float)
  if steps.ndim in (0, 2):
    steps = np.stack([steps] * c)
  return [step if step.ndim else step * np.eye(d) for step in steps]


def learn(x, y, start, decay, erase, write):
  """The weights after 0, …, C examples of a batch of prompts, from the recursion."""
  _, c, d = x.shape
  w = np.zeros((len(x), d)) + start
  weights = [w]
  coefficients = (each_example(steps, c, d) for steps in (decay, erase, write))
  for i, (alpha, h, k) in enumerate(zip(*coefficients, strict=True)):
    key = x[:, i]
    read = np.sum(key * w, axis=1, keepdims=True)
    w = w @ alpha.T - read * (key @ h.T) + y[:, i, None] * (key @ k.T)
    weights.append(w)
  return weights


@pytest.mark.parametrize(
  ('kind', 'd', 'c'),
  mostly_slow(
    [('general', 2, 2)], [('mean', 1, 3), ('noise', 3, 1), ('singular', 3, 1)]
  ),
)
def test_curve_is_the_expectation_over_all_prompts(kind, d, c):
  # The squared error has degree 4 in each feature and 2 in all other variables, so that
  # the quadrature is exact.
  task = make_task(kind, d, c)
  prompt, weights = cubature(task)
  x, y, query, truth = (
    np.asarray(leaf) for leaf in (prompt.x, prompt.y, prompt.x_query, prompt.y_query)
  )
  rng = np.random.default_rng(0)
  for form in FORMS:
    decay = random_steps(form, c, d, rng, 0.9, 0.3)
    erase = random_steps(form, c, d, rng, 0.4, 0.3)
    write = random_steps(form, c, d, rng, 0.4, 0.3)
    start = rng.normal(size=d)
    expected = [
      weights @ (np.sum(w * query, axis=1) - truth) ** 2
      for w in learn(x, y, start, decay, erase, write)
    ]
    # Sums of up to 26244 terms of one sign, in float64.
    assert_close(
      sequential.risk_curve(task, decay, erase, write, start), expected, 1e-11
    )


def test_the_prior_mean_matters_only_with_decay_or_unequal_steps():
  def risks(mean, decay, erase, write):
    task = isotropic(4, 6, prior_mean=mean, noise_std=0.5)
    return sequential.risk_curve(task, decay, erase, write, start=mean + 0.5)

  near, far = risks(0.0, 1.0, 0.1, 0.1), risks(100.0, 1.0, 0.1, 0.1)
  np.testing.assert_allclose(near, far, rtol=1e-12)
  for steps in ((0.99, 0.1, 0.1), (1.0, 0.1, 0.11)):
    assert risks(100.0, *steps)[-1] > 10 * risks(0.0, *steps)[-1]


@pytest.mark.parametrize('kind', ['isotropic', 'noise', 'general', 'singular'])
def test_the_optimal_steps_have_the_risks_that_are_given(kind):
  task = make_task(kind, 4, 7)
  best = sequential.optimal_delta_rule(task)
  assert best.steps.shape == (7, 4, 4)
  curve = sequential.risk_curve(task, erase=best.steps, write=best.steps)
  np.testing.assert_allclose(best.curve, curve, rtol=1e-11)


@pytest.mark.parametrize('noise', [0.0, 0.8])
def test_the_optimal_delta_rule_on_isotropic_tasks(noise):
  d, c = 10, 12
  curve = sequential.optimal_delta_rule(isotropic(d, c, 2.0, noise)).curve
  m = [float(d)]
  for _ in range(c):
    m.append(m[-1] * (1 - 1 / (d + 2 + noise**2 * d / m[-1])))
  np.testing.assert_allclose(curve, m, rtol=1e-13)
  if noise == 0:
    closed_form = d * ((d + 1) / (d + 2)) ** np.arange(c + 1)
    np.testing.assert_allclose(curve, closed_form, rtol=1e-13)


@pytest.mark.parametrize('kind', mostly_full(['general'], ['noise', 'singular']))
def test_no_perturbation_lowers_the_optimal_risk(kind):
  d, c = 3, 5
  task = make_task(kind, d, c)
  best = sequential.optimal_delta_rule(task)
  rng = np.random.default_rng(0)
  for scale in (1e-3, 1e-2, 0.1, 1.0):
    for _ in range(25):
      steps = best.steps + scale * rng.normal(size=best.steps.shape)
      risks = sequential.risk_curve(task, erase=steps, write=steps)
      assert np.all(risks >= best.curve * (1 - 1e-12))


@pytest.mark.parametrize(('d', 'step', 'noise'), [(1, 1.0, 0.0), (7, 0.8, 0.6)])
def test_normalised_keys_are_what_samples_estimate(d, step, noise):
  rng = np.random.default_rng(d)
  prior = np.diag(rng.uniform(0.5, 2, d))
  task = isotropic(
    d, 6, 1.0, noise, prior_covariance=prior, feature_covariance=1.7 * np.eye(d)
  )
  x = rng.normal(size=(30_000, 6, d)) * 1.7**0.5
  truth = 1.0 + rng.normal(size=(30_000, d)) @ np.sqrt(prior)
  w = np.ones_like(truth)
  curve = sequential.normalised_delta_rule(task, step)
  assert curve[0] == pytest.approx(1.7 * np.trace(prior), rel=1e-14)
  for i in range(6):
    key = x[:, i]
    label = np.sum(key * truth, axis=1) + noise * rng.normal(size=30_000)
    residual = np.sum(key * w, axis=1) - label
    w = w - step * key * (residual / np.sum(key**2, axis=1))[:, None]
    errors = 1.7 * np.sum((w - truth) ** 2, axis=1)
    # One example of one feature is enough; samples to five standard errors.
    assert abs(curve[i + 1] - errors.mean()) <= 5 * errors.std() / 3e4**0.5 + 1e-25


def test_bad_input_is_named(unchecked):
  task = isotropic(3, 5)
  for arguments, said in (
    ({'decay': [1.0, 2.0]}, ('decay', '(2,)', '(), (5,), (3, 3), (5, 3, 3)')),
    ({'erase': np.nan}, ('erase', 'nan')),
    ({'start': [1.0]}, ('start', '(1,)')),
    ({'erase': 1e90, 'write': 1e90}, ('too large', 'after 2 of 5 examples')),
  ):
    with refuses(*said):
      sequential.risk_curve(task, **arguments)
  with refuses('step', 'inf'):
    sequential.normalised_delta_rule(task, np.inf)


def test_tasks_without_theory_are_named(unchecked):
  other = zoo.create_task('sinusoid', context_length=5)
  for function in (sequential.risk_curve, sequential.optimal_delta_rule):
    with refuses('Sinusoid', 'exact theory'):
      function(other)
  with refuses('feature_covariance'):
    sequential.normalised_delta_rule(general())
  with refuses('num_features is 2'):
    sequential.normalised_delta_rule(isotropic(2, 5, noise_std=1.0))
