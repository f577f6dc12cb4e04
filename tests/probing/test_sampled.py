"""The nearest algorithms from samples: of predictors whose algorithm is known."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.probing.models import biased
from tests.settings import general, isotropic
from zoo import estimators, probing, theory
from zoo.core.learning_rule import LearningRule
from zoo.measure.predict import BATCH_SIZE, predict, sample_batches
from zoo.probing.nearest import sampled
from zoo.probing.nearest.candidates import measure_candidates
from zoo.probing.nearest.sampled import fit_algorithms
from zoo.probing.verdicts import UNEXPLAINED, judge_by_samples, name_nearest

_D, _C = 3, 5
# Predictions are float32, whose relative error of some 10⁻⁷ is squared here.
_ROUNDING = 1e-10
_TASK = isotropic(_D, _C, prior_mean=2.0, noise_std=0.5)
_LEAST = 2048  # No fit takes fewer prompts.


def sampled_algorithm(*arguments) -> Any:
  """As in zoo; its shares are None only where a test says so."""
  return probing.sampled_algorithm(*arguments)


def fit(model, task) -> Any:
  return fit_algorithms(model, task, _LEAST, 0)


def baseline_shares(subject, task, num_prompts, seed=0) -> Any:
  candidates, _ = measure_candidates(subject, task, {}, num_prompts, seed)
  return {name: candidates.unexplained(name) for name in candidates.baselines}


def test_gradient_descent_is_found_with_its_step_and_start():
  start = np.array([2.0, -1.0, 0.5])
  model = estimators.gradient_descent(start, 0.4)
  algorithm, candidates = fit(model, _TASK)
  step = algorithm.nearest_gd
  assert step.unexplained.mean < _ROUNDING
  # Fitted to predictions of float32.
  assert abs(step.parameter - 0.4) < 1e-5
  np.testing.assert_allclose(step.start, start, atol=1e-5)
  assert step.start_distance == pytest.approx(np.linalg.norm(start - 2.0), abs=1e-5)
  matrix = algorithm.nearest_gd_beta
  assert matrix.unexplained.mean < _ROUNDING
  np.testing.assert_allclose(matrix.parameter, 0.4 * np.eye(_D), atol=1e-5)
  # The step has the loss of the predictor, which is the step.
  assert step.risk.mean == pytest.approx(algorithm.risk.mean, rel=1e-4)
  assert algorithm.nearest_ridge.unexplained.mean > 0.01
  is_descent, verdict = judge_by_samples(algorithm, candidates)
  assert is_descent
  assert verdict.startswith('Yes: one step of size 0.4000 from w_0, which is 3.35 from')


@pytest.mark.slow
def test_baselines_are_measured_on_the_prompts_of_the_fitted_algorithms():
  # The task's step is the nearest step of a model that is this step, plus an error
  # that no step explains. Both shares are then the same numbers over the same prompts.
  step = estimators.gradient_descent(_TASK)

  def near(prompt):
    return step(prompt) + jnp.cos(50 * prompt.x_query[:, 0])

  found = sampled_algorithm(near, _TASK, _LEAST)
  share: Any = baseline_shares(near, _TASK, _LEAST)['gd']
  # The fit to the other half moves the step by a little.
  assert share.mean == pytest.approx(found.nearest_gd.unexplained.mean, rel=0.03)
  assert share.stderr == pytest.approx(found.nearest_gd.unexplained.stderr, rel=0.03)


@pytest.mark.slow
def test_a_step_with_a_matrix_is_found():
  task = general(noise_std=0.7)
  algorithm, candidates = fit(estimators.gd_beta(task), task)
  matrix = algorithm.nearest_gd_beta
  assert matrix.unexplained.mean < _ROUNDING
  expected = estimators.gd_beta(task).step_matrix
  np.testing.assert_allclose(matrix.parameter, expected, atol=1e-4)
  np.testing.assert_allclose(matrix.start, task.prior_mean, atol=1e-4)
  assert algorithm.nearest_gd.unexplained.mean > 0.01
  is_descent, verdict = judge_by_samples(algorithm, candidates)
  assert not is_descent
  assert verdict.startswith('No: the nearest step')
  nearest = name_nearest(candidates)
  assert nearest.startswith('The nearest algorithm is one step with a matrix (GD-β), ')


@pytest.mark.parametrize('penalty', mostly_full([3.0], [0.1]))
def test_ridge_regression_is_found_with_its_penalty(penalty):
  start = np.array([2.0, -1.0, 0.5])
  algorithm, candidates = fit(estimators.ridge(start, penalty), _TASK)
  ridge = algorithm.nearest_ridge
  assert ridge.unexplained.mean < _ROUNDING
  assert ridge.parameter == pytest.approx(penalty, rel=1e-3)
  np.testing.assert_allclose(ridge.start, start, atol=1e-3)
  assert algorithm.nearest_gd.unexplained.mean > 0.01
  assert judge_by_samples(algorithm, candidates)[1].startswith('No: the nearest step')
  nearest = name_nearest(candidates)
  assert nearest.startswith('The nearest algorithm is ridge regression with λ = ')


def test_least_squares_has_no_penalty_and_no_start():
  ridge = sampled_algorithm(estimators.ols(_TASK), _TASK, _LEAST).nearest_ridge
  # 10⁻⁸ of the mean eigenvalue of XᵀX, about C, is the end of the search; what float32
  # does to contexts that hardly determine the weights is above _ROUNDING.
  assert ridge.parameter < 1e-4
  assert ridge.unexplained.mean < 1e-6
  assert ridge.start is None
  assert ridge.start_distance is None


# Constants and nonlinear functions of the query, too, do not vary over contexts.
_BLIND = {
  'prior': estimators.prior_mean(_TASK),
  'constant': lambda prompt: jnp.ones(len(prompt.x_query)),
  'linear': lambda prompt: prompt.x_query @ jnp.arange(3.0),
  'square': lambda prompt: jnp.sum(jnp.square(prompt.x_query), axis=1),
  'examples': lambda prompt: jnp.sum(prompt.x_query, axis=1) + 0 * prompt.x[:, 0, 0],
}


@pytest.mark.parametrize('name', mostly_full(['square', 'examples'], _BLIND))
def test_what_ignores_its_context_has_no_share(name):
  algorithm, candidates = fit(_BLIND[name], _TASK)
  for nearest in (
    algorithm.nearest_gd,
    algorithm.nearest_gd_beta,
    algorithm.nearest_ridge,
  ):
    assert nearest.unexplained is None
  assert judge_by_samples(algorithm, candidates) == (
    False,
    'No: it ignores its context.',
  )
  assert name_nearest(candidates) == ''


def test_a_step_without_labels_is_no_step():
  start = jnp.array([10.0, -20.0, 30.0])

  def predict(prompt):
    moment = jnp.einsum('bci,bcj->bij', prompt.x, prompt.x) / _C
    moved = prompt.x_query - 0.5 * jnp.einsum('bij,bj->bi', moment, prompt.x_query)
    return moved @ start

  algorithm, candidates = fit(predict, _TASK)
  nearest = algorithm.nearest_gd
  # It is as near to a step as this, and yet it does not see what a step learns from.
  assert nearest.difference.mean < 0.01 * float(jnp.sum(start**2))
  assert nearest.unexplained is None
  assert algorithm.ignores_labels
  said = 'No: it ignores the labels of its context.'
  assert judge_by_samples(algorithm, candidates) == (False, said)
  assert baseline_shares(predict, _TASK, _LEAST) == {}


@pytest.mark.slow
def test_an_offset_has_no_share_either():
  model = zoo.create_model(
    'multi_head_lsa',
    num_features=_D,
    num_heads=1,
    initial_bias=1.0,
    init_scale=0.0,
    rngs=nnx.Rngs(0),
  )
  assert probing.implicit_algorithm(model, _TASK).nearest_gd.unexplained is None
  assert sampled_algorithm(model, _TASK, _LEAST).nearest_gd.unexplained is None


@pytest.mark.slow
def test_the_variation_over_contexts_is_that_of_its_definition():
  """Of one step of size η from w*: `η² (d(1 + (d + 1)/C) + σ² d/C)` for Σ = Λ = I."""
  start = 2.0 * np.ones(_D)
  step = estimators.gradient_descent(start, 0.4)
  nothing = probing.sampled_algorithm(step, _TASK, BATCH_SIZE, seed=3)
  zero = baseline_shares(step, _TASK, BATCH_SIZE, seed=3)['zero']
  variation = 0.16 * (_D * (1 + (_D + 1) / _C) + 0.25 * _D / _C)
  # E f² = E (w*·x_q)² + variation, the first 4 d.
  assert abs(zero.mean - (4 * _D + variation) / variation) < 4 * zero.stderr
  assert nothing.nearest_gd.unexplained is not None


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('task', [general(noise_std=0.7), _TASK], ids=['general', 'I'])
def test_of_a_learning_rule_they_are_as_exact_theory_says(task):
  """The rule also has an offset, which no step has."""
  exact: Any = probing.implicit_algorithm(biased(), task)
  algorithm = sampled_algorithm(biased(), task)
  step = algorithm.nearest_gd
  # It is within some standard errors of the exact share, and its own exact difference
  # is hardly above the least one: 4 numbers are fitted to 8192 prompts of heavy tails.
  rule = LearningRule.gradient_descent(step.start, step.parameter)
  own = float(theory.squared_difference(biased(), rule, task).prediction)
  assert exact.nearest_gd.difference * (1 - 1e-9) <= own
  assert own <= 1.02 * exact.nearest_gd.difference
  error = abs(step.unexplained.mean - exact.nearest_gd.unexplained)
  assert error <= 4 * step.unexplained.stderr
  assert abs(step.difference.mean - own) <= 4 * step.difference.stderr
  assert abs(algorithm.risk.mean - exact.risk) <= 4 * algorithm.risk.stderr


def _two_steps():
  return estimators.gradient_descent(_TASK, np.array([0.5, 0.3]), num_steps=2)


def test_a_step_is_fitted_to_one_half_of_the_prompts_and_measured_on_all():
  step = sampled_algorithm(_two_steps(), _TASK, _LEAST).nearest_gd
  (prompt,) = sample_batches(_TASK, 0, _LEAST, BATCH_SIZE)
  prediction = np.asarray(predict(_two_steps(), prompt), np.float64)
  x, y, query = (
    np.asarray(part, np.float64) for part in (prompt.x, prompt.y, prompt.x_query)
  )
  along = np.einsum('pc,pci,pi->p', y, x, query) / _C
  moved = np.einsum('pci,pcj,pj->pi', x, x, query) / _C
  slope, left = query - step.parameter * moved, prediction - step.parameter * along
  start = np.linalg.lstsq(slope[_LEAST // 2 :], left[_LEAST // 2 :])[0]
  # Both from the same predictions of float32.
  np.testing.assert_allclose(step.start, start, rtol=1e-5)
  gap = np.square(left - slope @ start)
  assert step.difference.mean == pytest.approx(gap.mean(), rel=1e-5)
  assert step.difference.stderr == pytest.approx(
    gap.std(ddof=1) / _LEAST**0.5, rel=1e-5
  )


@pytest.mark.slow
@pytest.mark.full
def test_the_error_of_a_share_is_its_spread_over_seeds():
  two_steps = _two_steps()
  shares = [
    sampled_algorithm(two_steps, _TASK, _LEAST, seed).nearest_gd.unexplained
    for seed in range(20)
  ]
  spread = np.std([share.mean for share in shares], ddof=1)
  stated = np.mean([share.stderr for share in shares])
  # The spread of 20 is known to 16 %, that of the fits is left out, and both depend on
  # fourth moments of tails that 2048 prompts know to some ten per cent.
  assert 0.6 < spread / stated < 1.6


@pytest.mark.parametrize(
  ('task', 'num_prompts', 'said'),
  [
    ('logistic_regression', 512, 'LogisticRegression; a nearest step needs labels'),
    ('linear_regression', 2047, 'num_prompts is 2047; it must be an integer ≥ 2048'),
  ],
)
def test_what_cannot_be_fitted_is_refused(task, num_prompts, said):
  made = zoo.create_task(task, num_features=_D, context_length=_C)
  with refuses(said):
    sampled_algorithm(biased(), made, num_prompts)


@pytest.mark.slow
def test_what_baselines_leave_is_known_of_a_baseline():
  """OLS without noise is ridge regression and Bayes, and far from averaging."""
  task = isotropic(_D, 8, prior_mean=2.0)
  shares: Any = baseline_shares(estimators.ols(task), task, 1024)
  assert [*shares][:3] == ['gd', 'gd_beta', 'ridge, ols, bayes']
  assert shares['ridge, ols, bayes'].mean < 1e-9
  step: Any = probing.sampled_algorithm(estimators.ols(task), task).nearest_gd
  # The fitted step is at most as far as the one that is tuned for the task.
  error = 4 * np.hypot(shares['gd'].stderr, step.unexplained.stderr)
  assert step.unexplained.mean <= shares['gd'].mean + error
  assert shares['averaging'].mean > 0.5
  blind = baseline_shares(estimators.prior_mean(task), task, _LEAST)
  assert blind == {}
  with refuses('a nearest step needs labels that are numbers'):
    logistic = zoo.create_task('logistic_regression', num_features=3, context_length=4)
    baseline_shares(biased(), logistic, 64)


@pytest.mark.slow
def test_ridge_that_a_step_hardly_differs_from_is_not_gradient_descent():
  """With much noise, ridge regression is nearly one step, and yet it is no step."""
  task = isotropic(2, 4, noise_std=10.0)
  algorithm, candidates = fit(estimators.bayes(task), task)
  step: Any = algorithm.nearest_gd.unexplained
  assert step.mean + step.half < UNEXPLAINED
  is_descent, verdict = judge_by_samples(algorithm, candidates)
  assert is_descent is False
  assert '; nearer is ridge regression with λ = 100 (' in verdict
  # A step stays a step on this task.
  assert judge_by_samples(*fit(estimators.gradient_descent(task), task))[0]


@pytest.mark.slow
def test_the_excess_over_bayes_is_the_squared_distance_from_it():
  bayes = estimators.bayes(_TASK)
  _, above = measure_candidates(
    lambda prompt: bayes(prompt) + 0.5, _TASK, {}, num_prompts=_LEAST, seed=0
  )
  assert above is not None
  assert above.share is not None
  assert above.loss.mean == pytest.approx(0.25, rel=1e-5)
  (prompt,) = sample_batches(_TASK, 0, _LEAST, BATCH_SIZE)
  own = np.mean(np.square(predict(bayes, prompt) - prompt.y_query))
  assert above.share.mean == pytest.approx(0.25 / own, rel=1e-5)
  said = name_nearest(fit(bayes, _TASK)[1], above)
  assert (
    f"; the model's loss is 0.25 ± {above.loss.half:.2g} above that of Bayes" in said
  )
  # Without noise and with enough examples Bayes makes no error.
  _, above = measure_candidates(biased(), isotropic(_D, 9), {}, num_prompts=64, seed=0)
  assert above is not None
  assert above.share is None


def _ridge_in_numpy(rng, num_prompts):
  """Predictions of ridge regression for d = 4, C = 10 and σ = 0.5."""
  d, c, sigma = 4, 10, 0.5

  def context():
    x, w = (
      rng.standard_normal((num_prompts, c, d)),
      rng.standard_normal((num_prompts, d)),
    )
    y = np.einsum('pcd,pd->pc', x, w) + sigma * rng.standard_normal((num_prompts, c))
    features, labels = np.einsum('pci,pcj->pij', x, x), np.einsum('pci,pc->pi', x, y)
    learned = np.linalg.solve(features + sigma**2 * np.eye(d), labels[..., None])[
      ..., 0
    ]
    return features / c, labels / c, learned

  query = rng.standard_normal((num_prompts, d))
  (features, labels, learned), (_, _, other) = context(), context()
  prediction = np.sum(learned * query, axis=1)
  samples = sampled._Samples(prediction, prediction, query, features, labels)
  variation = np.square(prediction - np.sum(other * query, axis=1)) / 2
  return sampled._Drawn(samples, None, variation, False, False)


@pytest.mark.slow
@pytest.mark.full
def test_intervals_contain_the_best_step_at_the_least_number_of_prompts():
  """Of 400 repetitions, 0.93 to 0.97 contain the share of the best step of all."""
  task, rng = isotropic(4, 10, noise_std=0.5), np.random.default_rng(0)
  many, _ = sampled._fit(_ridge_in_numpy(rng, 100_000), task)
  truth: Any = many.nearest_gd.unexplained
  hits = []
  for _ in range(400):
    found: Any = sampled._fit(_ridge_in_numpy(rng, sampled.least_prompts(4)), task)[0]
    shares = found.nearest_gd.unexplained, found.nearest_gd_beta.unexplained
    hits.append([abs(share.mean - truth.mean) <= share.half for share in shares])
  # A step with a matrix leaves as much, as no direction differs from another.
  for coverage in np.mean(hits, axis=0):
    assert 0.93 <= coverage <= 0.97
