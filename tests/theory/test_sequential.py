"""Exact risks of sequential learners against quadrature, sampling and search."""

import numpy as np
import pytest

import zoo
from tests.compare import assert_close, refuses
from tests.marks import mostly_full
from tests.settings import general, isotropic, root
from zoo.theory import sequential

TASK = isotropic(10, 10, prior_mean=2.0)
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
  each = (each_example(steps, c, d) for steps in (decay, erase, write))
  for i, (alpha, h, k) in enumerate(zip(*each, strict=True)):
    key = x[:, i]
    read = np.sum(key * w, axis=1, keepdims=True)
    w = w @ alpha.T - read * (key @ h.T) + y[:, i, None] * (key @ k.T)
    weights.append(w)
  return weights


def sample(task, n, rng):
  """Features, labels and weights of n prompts."""
  d, c = task.num_features, task.context_length
  x = rng.normal(size=(n, c, d)) @ root(task.feature_covariance, d).T
  w = task.prior_mean + rng.normal(size=(n, d)) @ root(task.prior_covariance, d).T
  y = np.einsum('ncd,nd->nc', x, w) + task.noise_std * rng.normal(size=(n, c))
  return x, y, w


def assert_within_five_standard_errors(found, samples):
  error = np.std(samples, ddof=1) / np.sqrt(len(samples))
  assert abs(found - np.mean(samples)) <= 5 * error


def test_golden_values():
  # d = C = 10 and |w*|² = 40; from other code, to the last digit given.
  delta = {'erase': 0.08, 'write': 0.08}
  found = [
    sequential.optimal_delta_rule(TASK).curve[-1],
    sequential.curve(TASK, **delta)[-1],
    sequential.curve(TASK, **delta, start=0.0)[-1],
    sequential.curve(TASK, decay=0.95, erase=0.95 * 0.08, write=0.08)[-1],
    sequential.normalised_delta_rule(TASK)[-1],
  ]
  expected = 4.189039, 4.195136, 20.975680, 8.201822, 3.486784
  np.testing.assert_allclose(found, expected, rtol=0, atol=5.1e-7)


@pytest.mark.parametrize(
  ('kind', 'd', 'c'),
  mostly_full(
    [('mean', 1, 3), ('noise', 3, 1), ('general', 2, 2), ('singular', 3, 1)],
    ['mean', 'noise', 'general', 'singular'],
    [(1, 3), (2, 2), (3, 1)],
  ),
)
def test_curve_is_the_expectation_over_all_prompts(cubature, make_task, kind, d, c):
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
    assert_close(sequential.curve(task, decay, erase, write, start), expected, 1e-11)


def test_the_prior_mean_matters_only_with_decay_or_unequal_steps():
  def risks(mean, decay, erase, write):
    task = isotropic(4, 6, prior_mean=mean, noise_std=0.5)
    return sequential.curve(task, decay, erase, write, start=mean + 0.5)

  near, far = risks(0.0, 1.0, 0.1, 0.1), risks(100.0, 1.0, 0.1, 0.1)
  np.testing.assert_allclose(near, far, rtol=1e-12)
  for steps in ((0.99, 0.1, 0.1), (1.0, 0.1, 0.11)):
    assert risks(100.0, *steps)[-1] > 10 * risks(0.0, *steps)[-1]


@pytest.mark.parametrize('kind', ['isotropic', 'noise', 'general', 'singular'])
def test_the_optimal_steps_have_the_risks_that_are_given(make_task, kind):
  task = make_task(kind, 4, 7)
  best = sequential.optimal_delta_rule(task)
  assert best.steps.shape == (7, 4, 4)
  found = sequential.curve(task, erase=best.steps, write=best.steps)
  np.testing.assert_allclose(best.curve, found, rtol=1e-11)


@pytest.mark.parametrize('noise', [0.0, 0.8])
def test_the_optimal_delta_rule_on_isotropic_tasks(noise):
  d, c = 10, 12
  found = sequential.optimal_delta_rule(isotropic(d, c, 2.0, noise)).curve
  m = [float(d)]
  for _ in range(c):
    m.append(m[-1] * (1 - 1 / (d + 2 + noise**2 * d / m[-1])))
  np.testing.assert_allclose(found, m, rtol=1e-13)
  if noise == 0:
    closed_form = d * ((d + 1) / (d + 2)) ** np.arange(c + 1)
    np.testing.assert_allclose(found, closed_form, rtol=1e-13)


@pytest.mark.parametrize('kind', mostly_full(['general'], ['noise', 'singular']))
def test_no_perturbation_lowers_the_optimal_risk(make_task, kind):
  d, c = 3, 5
  task = make_task(kind, d, c)
  best = sequential.optimal_delta_rule(task)
  rng = np.random.default_rng(0)
  for scale in (1e-3, 1e-2, 0.1, 1.0):
    for _ in range(25):
      steps = best.steps + scale * rng.normal(size=best.steps.shape)
      risks = sequential.curve(task, erase=steps, write=steps)
      assert np.all(risks >= best.curve * (1 - 1e-12))


def test_no_decay_and_no_other_write_lower_the_risk_at_a_step(make_task):
  d, c = 3, 4
  task = make_task('general', d, c)
  best = sequential.optimal_delta_rule(task)
  rng = np.random.default_rng(0)
  unchanged = np.stack([np.eye(d)] * c), best.steps, best.steps
  for scale in (1e-3, 0.1, 1.0):
    for _ in range(30):
      decay, erase, write = (steps.copy() for steps in unchanged)
      for steps in (decay, erase, write):
        steps[-1] += scale * rng.normal(size=(d, d))
      found = sequential.curve(task, decay, erase, write)[-1]
      assert found >= best.curve[-1] * (1 - 1e-12)


def test_nothing_to_learn_takes_no_step():
  task = isotropic(2, 3, prior_covariance=np.zeros((2, 2)))
  curve, steps = sequential.optimal_delta_rule(task)
  assert not curve.any()
  assert not steps.any()


def test_normalised_keys_in_two_dimensions():
  # Only the directions count. Averages over 8 equally spaced angles are exact for the
  # degree 4 that the squared error has in each direction.
  angles = np.arange(8) * np.pi / 4
  m = np.diag([1.0, 3.0])
  task = isotropic(2, 4, 1.0, prior_covariance=m)
  expected = [np.trace(m)]
  for _ in range(4):
    keys = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    factors = np.eye(2) - 0.7 * keys[:, :, None] * keys[:, None]
    m = np.mean(factors @ m @ np.swapaxes(factors, 1, 2), axis=0)
    expected.append(np.trace(m))
  found = sequential.normalised_delta_rule(task, 0.7)
  np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize(
  ('d', 'step', 'noise'), [(1, 1.0, 0.0), (7, 1.0, 0.6), (9, 0.4, 2.0)]
)
def test_normalised_keys_are_what_samples_estimate(d, step, noise):
  rng = np.random.default_rng(d)
  prior = np.diag(rng.uniform(0.5, 2, d))
  task = isotropic(
    d, 6, 1.0, noise, prior_covariance=prior, feature_covariance=1.7 * np.eye(d)
  )
  x, y, truth = sample(task, 100_000, rng)
  w = np.zeros_like(truth) + task.prior_mean
  found = sequential.normalised_delta_rule(task, step)
  assert found[0] == pytest.approx(1.7 * np.trace(prior), rel=1e-14)
  for i in range(6):
    key = x[:, i]
    residual = np.sum(key * w, axis=1) - y[:, i]
    w = w - step * key * (residual / np.sum(key**2, axis=1))[:, None]
    errors = 1.7 * np.sum((w - truth) ** 2, axis=1)
    if d == 1:  # one example is enough
      np.testing.assert_allclose(errors, 0, atol=1e-25)
      assert found[i + 1] == 0
    else:
      assert_within_five_standard_errors(found[i + 1], errors)


def test_bad_input_is_named(unchecked):
  task = isotropic(3, 5)
  shapes = '(), (5,), (3, 3), (5, 3, 3)'
  for arguments, said in (
    ({'decay': [1.0, 2.0]}, ('decay', '(2,)', shapes)),
    ({'erase': np.eye(5)}, ('erase', '(5, 5)', shapes)),
    ({'write': np.ones((3, 5, 5))}, ('write', '(3, 5, 5)', shapes)),
    ({'write': 'much'}, ('write', "'much'")),
    ({'erase': np.nan}, ('erase', 'nan')),
    ({'start': [1.0]}, ('start', '(1,)')),
    ({'erase': 1e90, 'write': 1e90}, ('too large', 'after 2 of 5 examples')),
  ):
    with refuses(*said):
      sequential.curve(task, **arguments)
  with refuses('step', 'inf'):
    sequential.normalised_delta_rule(task, np.inf)


def test_tasks_without_theory_are_named(unchecked):
  other = zoo.create_task('sinusoid', context_length=5)
  for function in (
    sequential.curve,
    sequential.optimal_delta_rule,
    sequential.normalised_delta_rule,
  ):
    with refuses('Sinusoid', 'exact theory'):
      function(other)
  with refuses('feature_covariance'):
    sequential.normalised_delta_rule(general())
  with refuses('feature_covariance'):
    zero = isotropic(3, 5, feature_covariance=np.zeros((3, 3)))
    sequential.normalised_delta_rule(zero)
  with refuses('num_features is 2'):
    sequential.normalised_delta_rule(isotropic(2, 5, noise_std=1.0))
