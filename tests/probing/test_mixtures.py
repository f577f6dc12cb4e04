"""Strategies: mixtures with known weights, known groups and known shares."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.probing.models import sample
from tests.settings import curve_key
from zoo.estimators.baselines import Zero
from zoo.estimators.linear import Ridge
from zoo.probing import strategies
from zoo.probing.nearest import mixtures
from zoo.probing.nearest.mixtures import (
  nearest_mixture,
  sample_known,
)
from zoo.probing.nearest.simplex import (
  distances,
  likelihood_stderrs,
  nearest,
  nearest_by_likelihood,
  softmax,
)

POOL: Any = zoo.create_task(
  'task_pool', num_features=3, context_length=3, num_tasks=4, noise_std=0.5
)
CHAIN: Any = zoo.create_task('markov_chain', num_symbols=3, context_length=4)
SIGNS: Any = zoo.create_task('logistic_regression', num_features=2, context_length=4)


@dataclasses.dataclass(frozen=True)
class Made:
  """Predicts what a function makes of prompts, after each number of examples."""

  predictions: Callable[[zoo.Prompt], Any]

  def __call__(self, prompt):
    return self.predictions(prompt)[:, -1]


@dataclasses.dataclass(frozen=True)
class Mixed:
  """Mixes means or probabilities of predictors with known weights."""

  predictors: tuple[Any, ...]
  weights: tuple[float, ...]
  label_kind: str

  def predictions(self, prompt):
    values = jnp.stack([part.predictions(prompt) for part in self.predictors])
    weights = jnp.asarray(self.weights).reshape(-1, *[1] * (values.ndim - 1))
    match self.label_kind:
      case 'numbers':
        return jnp.sum(weights * values, axis=0)
      case 'signs':
        p = jnp.sum(weights * jax.nn.sigmoid(values), axis=0)
        return jnp.log(p) - jnp.log1p(-p)
      case _:
        return jnp.log(jnp.sum(weights * jax.nn.softmax(values), axis=0))

  def __call__(self, prompt):
    return self.predictions(prompt)[:, -1]


@pytest.mark.parametrize(
  ('task', 'weight'),
  mostly_full([], [POOL, CHAIN], [0.3, 0.02], slow=[(POOL, 0.02), (CHAIN, 0.3)]),
)
def test_known_mixtures_return_their_weights(task, weight):
  baselines = task.baselines()
  names = ('bayes', 'ridge') if task is POOL else ('bigram', 'unigram')
  parts = {name: baselines[name] for name in (*names, 'zero')}
  model = Mixed(
    tuple(parts[name] for name in names), (weight, 1 - weight), task.label_kind
  )
  result = strategies(model, task, parts, num_prompts=256)
  assert result.unexplained is not None
  assert abs(result.unexplained.mean) < 1e-9
  assert result.num_prompts == 256
  assert len(result.by_length) == task.context_length + 1
  if task is POOL:  # without examples both predict 0
    assert {*result.by_length[0].weights} == {'bayes', 'ridge, zero'}
  expected = dict(zip(parts, (weight, 1 - weight, 0.0), strict=True))
  for mixture in (result, *result.by_length[1:]):
    assert mixture.weights == pytest.approx(expected, abs=1e-3)
    assert mixture.unexplained is not None
    assert abs(mixture.unexplained.mean) < 1e-9
    assert abs(mixture.distance.mean) < 1e-9


@pytest.mark.slow
@pytest.mark.full
def test_errors_of_weights_are_their_spread_over_other_prompts():
  baselines = POOL.baselines()
  parts = {name: baselines[name] for name in ('bayes', 'ridge')}

  def predictions(prompt):  # a mixture, and what none of them predicts
    mixed = 0.5 * sum(part.predictions(prompt) for part in parts.values())
    return mixed + 2 * jnp.sin(9 * prompt.features[..., 0])

  claimed = strategies(Made(predictions), POOL, parts, 1024).stderrs['bayes']
  prompt = POOL.sample(jax.random.key(5), 24 * 512)
  known = jax.jit(lambda prompt: [g.predictions(prompt) for g in parts.values()])
  own = 0.5 * sum(known(prompt)) + 2 * jnp.sin(9 * prompt.features[..., 0])
  own, *others = (
    np.asarray(part, np.float64)[..., None] for part in (own, *known(prompt))
  )
  weights = [
    nearest(own[at], np.stack(others)[:, at], squares=True)
    for at in np.split(np.arange(24 * 512), 24)
  ]
  spread = np.std(weights, axis=0, ddof=1)[0]
  # Spreads of eight and of 24 have errors of 27 and 15 %.
  assert 0.4 < claimed / spread < 2.2


def _check_losses(known, predictors):
  """The losses are those of the prompts of a curve with the seed 2."""
  task, num_prompts = known.task, known.losses.shape[1]

  @jax.jit
  def losses():
    prompt = task.sample(curve_key(2), num_prompts)
    return [task.loss(g.predictions(prompt), prompt.targets) for g in predictors]

  # Predictors have probabilities of at least 1e-12; logits are in float32.
  np.testing.assert_allclose(known.losses, losses(), rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_losses_of_classes_are_those_of_their_curves():
  predictors = {'zero': Zero(), 'bigram': CHAIN.baselines()['bigram']}
  known = sample_known(CHAIN, predictors, 300, seed=2)
  _check_losses(known, predictors.values())


@pytest.mark.slow
def test_signs_are_mixed_as_probabilities_and_have_their_losses():
  parts = {'ridge': Ridge(0.25), 'zero': Zero()}  # as log odds
  model = Mixed((*parts.values(),), (0.6, 0.4), 'signs')
  known = sample_known(SIGNS, parts, 64, seed=2)
  result, _ = nearest_mixture(model, known, by_prompt=False)
  assert result.weights == pytest.approx({'ridge': 0.6, 'zero': 0.4}, abs=1e-3)
  _check_losses(known, parts.values())


@pytest.mark.slow
@pytest.mark.parametrize(
  'task',
  mostly_full(
    [POOL], [zoo.create_task('markov_chain', num_symbols=2, context_length=5)]
  ),
)
def test_bayes_itself_is_bayes_at_every_length(task):
  baselines = task.baselines()
  result = strategies(baselines['bayes'], task, baselines, num_prompts=256)
  for mixture in (result, *result.by_length):
    (name,) = [name for name, weight in mixture.weights.items() if weight > 1e-6]
    assert 'bayes' in name.split(', ')
    assert mixture.weights[name] == pytest.approx(1)
    assert abs(mixture.distance.mean) < 1e-12
  assert result.by_prompt is not None
  unexplained: Any = result.by_prompt.unexplained
  assert abs(unexplained.mean) < 1e-9
  assert unexplained.stderr < 1e-9


@pytest.mark.slow
def test_a_model_far_from_all_is_not_explained():
  baselines = POOL.baselines()
  predictors = {name: baselines[name] for name in ('bayes', 'ridge')}

  def far(prompt):
    # Without examples it sees the query alone, and has no share.
    last = jnp.pad(prompt.y, ((0, 0), (1, 0)))
    return 50 * jnp.sin(20 * (prompt.features[..., 0] + last))

  result = strategies(Made(far), POOL, predictors, num_prompts=1024)
  assert result.by_prompt is not None
  none, *shares = [mixture.unexplained for mixture in result.by_length]
  assert none is None
  # After each of 0 to 3 examples the squared distance is the same, and it is the
  # variation over contexts but after 0 examples, where this is 0.
  wanted = [(share, 1) for share in shares]
  wanted += [(result.unexplained, 4 / 3), (result.by_prompt.unexplained, 4 / 3)]
  for share, value in wanted:
    assert share is not None
    assert abs(share.mean - value) < max(4 * share.stderr, 0.01)
    assert share.stderr < 0.1


_predictions = jax.jit(lambda ridge, prompt: ridge.predictions(prompt))
_at_query = jax.jit(lambda prompt: Ridge(1.0)(prompt))


@pytest.fixture(scope='module')
def known():
  """What predictors predict on the same prompts; some cannot be told apart."""
  predictors = {
    'a': POOL.baselines()['bayes'],
    'b': Ridge(0.25),
    'c': Ridge(0.25 + 1e-7),
    'd': POOL.baselines()['bayes'],
    'e': Ridge(0.3),
    'zero': Zero(),
  }
  return sample_known(POOL, predictors, 256, seed=0)


def test_losses_of_numbers_are_squares_and_scores_those_of_variance_1(known):
  (prompt,) = known.batches
  predictions = _predictions(Ridge(0.25), prompt)
  at = known.names.index('b')
  expected = np.square(predictions - prompt.targets)
  np.testing.assert_allclose(known.losses[at], expected, rtol=2e-5, atol=2e-5)
  # The density at 0 is a factor of all likelihoods.
  logs = stats.norm.logpdf(prompt.y, predictions[:, :-1]) - stats.norm.logpdf(0.0)
  scores = np.cumsum(logs, axis=1)
  np.testing.assert_allclose(known.log_likelihoods[at, :, 0], 0)
  np.testing.assert_allclose(
    known.log_likelihoods[at, :, 1:], scores, rtol=2e-5, atol=2e-5
  )


@pytest.mark.slow
def test_predictors_that_cannot_be_told_apart_are_one_group(known):
  ridge = Ridge(0.25)
  exact, _ = nearest_mixture(ridge, known, by_prompt=False)
  assert exact.weights == pytest.approx({'a, d': 0, 'b, c': 1, 'e': 0, 'zero': 0})

  def noisy(prompt):
    return ridge.predictions(prompt) + 3 * jnp.sin(50 * prompt.features[..., 0])

  # A weight that is 1 whatever the model predicts has no error.
  equal = {name: POOL.baselines()['bayes'] for name in 'ab'}
  whole, _ = nearest_mixture(ridge, sample_known(POOL, equal, 64, 0), by_prompt=False)
  assert whole.weights == {'a, b': 1}
  assert np.isnan(whole.stderrs['a, b'])
  # The difference of these ridges is below the error of the distance from the model.
  rough, _ = nearest_mixture(Made(noisy), known, by_prompt=False)
  assert {*rough.weights} == {'a, d', 'b, c, e', 'zero'}


@pytest.mark.parametrize('squares', [True, False])
def test_the_nearest_weights_are_those_of_a_general_solver(squares):
  random = np.random.default_rng(0)
  own, *others = softmax(random.normal(size=(3, 6, 40, 2)) * 2).transpose(1, 2, 3, 0)
  others = np.stack(others)
  weights = nearest(own, others, squares)

  def distance(values):
    return distances(own, np.tensordot(values, others, 1), squares).mean()

  total = {'type': 'eq', 'fun': lambda values: values.sum() - 1}
  reference = minimize(
    distance,
    np.full(5, 0.2),
    method='SLSQP',
    bounds=[(0, 1)] * 5,
    constraints=[total],
    options={'ftol': 1e-14},
  )
  assert weights.min() >= 0
  assert weights.sum() == pytest.approx(1)
  np.testing.assert_allclose(weights, reference.x, atol=1e-4)
  assert distance(weights) <= reference.fun + 1e-10


@pytest.mark.parametrize('squares', [True, False])
def test_prior_and_power_of_a_known_posterior_return(squares):
  random = np.random.default_rng(1)
  others = softmax(random.normal(size=(3, 2, 200, 4))).transpose(1, 2, 3, 0)
  scores = -3 * random.exponential(size=(2, 200, 4))
  prior = np.array([0.7, 0.3])
  weights = softmax(np.log(prior)[:, None, None] + 0.8 * scores)
  own = np.einsum('mpt,mptk->ptk', weights, others)
  fitted, power = nearest_by_likelihood(own, others, scores, squares)
  np.testing.assert_allclose(fitted, prior, atol=1e-3)
  assert power == pytest.approx(0.8, abs=1e-3)


# Of 100 intervals, 88 to 100 contain the truth with a probability of 99.9 %, and of 20
# intervals 15 to 20. The spreads of 100 and of 20 draws are known to 7 and 16 %, and
# three such errors are allowed.
@pytest.mark.parametrize(
  ('squares', 'num_draws', 'least_share', 'error'),
  mostly_full([(True, 20, 0.75, 0.48)], [True, False], [(100, 0.88, 0.21)]),
)
def test_errors_of_prior_and_power_are_their_spread(
  squares, num_draws, least_share, error
):
  """Predictions are a posterior with errors that no prior and no power explains."""
  random = np.random.default_rng(2)
  prior, power, count = np.array([0.7, 0.3]), 0.8, 64
  scaled = []
  for _ in range(num_draws):
    others = softmax(random.normal(size=(3, 2, count, 3))).transpose(1, 2, 3, 0)
    scores = -3 * random.exponential(size=(2, count, 3))
    weights = softmax(np.log(prior)[:, None, None] + power * scores)
    own = np.einsum('mpt,mptk->ptk', weights, others)
    # A mean of labels that are drawn from the posterior is the posterior on average.
    own = random.multinomial(16, own) / 16
    if not squares:
      own = (own + 1e-9) / (own + 1e-9).sum(axis=-1, keepdims=True)
    fitted = nearest_by_likelihood(own, others, scores, squares)
    errors, of_power = likelihood_stderrs(*fitted, own, others, scores, squares)
    assert errors[0] == pytest.approx(errors[1])
    of_prior = (fitted[0][0] - prior[0]) / errors[0]
    scaled.append([of_prior, (fitted[1] - power) / of_power])
  assert np.mean(np.abs(scaled) < 1.96, axis=0).min() >= least_share
  np.testing.assert_allclose(np.std(scaled, axis=0), 1, atol=error)


class Posterior(Mixed):
  """Weighs classes by Bayes' rule, with a known prior."""

  def predictions(self, prompt):
    logs = jnp.stack(
      [jax.nn.log_softmax(part.predictions(prompt)) for part in self.predictors]
    )
    seen = jnp.sum(prompt.y[None] * logs[:, :, :-1], axis=-1)
    scores = jnp.pad(jnp.cumsum(seen, axis=-1), [(0, 0), (0, 0), (1, 0)])
    prior = jnp.log(jnp.asarray(self.weights))[:, None, None]
    weights = jax.nn.log_softmax(prior + scores, axis=0)
    return jax.nn.logsumexp(weights[..., None] + logs, axis=0)


@pytest.mark.slow
def test_weights_by_likelihood_explain_bayes_rule():
  baselines = CHAIN.baselines()
  parts = {name: baselines[name] for name in ('bigram', 'unigram')}
  model = Posterior((*parts.values(),), (0.4, 0.6), 'classes')
  result = strategies(model, CHAIN, parts, num_prompts=256)
  by_prompt = result.by_prompt
  assert by_prompt is not None
  assert by_prompt.prior == pytest.approx({'bigram': 0.4, 'unigram': 0.6}, abs=1e-3)
  assert by_prompt.power == pytest.approx(1, abs=1e-3)
  assert 0 < by_prompt.power_stderr < 1e-3
  assert max(by_prompt.stderrs.values()) < 1e-3
  assert by_prompt.unexplained is not None
  assert result.unexplained is not None
  assert by_prompt.unexplained.mean < 1e-6 < result.unexplained.mean
  assert len(by_prompt.by_length) == CHAIN.context_length + 1


@pytest.mark.slow
def test_predictions_by_prefix_are_those_of_one_pass():
  task = dataclasses.replace(POOL, context_length=1)
  parts = {'ridge': Ridge(0.25), 'zero': Zero()}
  model = Ridge(1.0)
  known = sample_known(task, parts, 14, seed=2)
  together, _ = nearest_mixture(model, known, by_prompt=False)
  alone, _ = nearest_mixture(lambda prompt: model(prompt), known, by_prompt=False)
  assert alone.weights == pytest.approx(together.weights, abs=1e-4)
  assert 0.1 < alone.weights['ridge'] < 0.9
  # Eight parts of seven prompts are too many.
  assert all(np.isnan(error) for error in alone.stderrs.values())


@pytest.mark.slow
def test_mistakes_are_one_line(known):
  with refuses('predictors is empty'):
    strategies(Zero(), POOL, {})
  with refuses('num_prompts is 63; it must be an integer ≥ 64'):
    strategies(Zero(), POOL, {'zero': Zero()}, num_prompts=63)
  few = dataclasses.replace(POOL, context_length=1)
  with refuses('odd predicts'):
    sample_known(few, {'odd': lambda prompt: prompt.x_query}, 8, seed=0)
  with refuses('odd predicts numbers that are not finite'):
    sample_known(few, {'odd': lambda prompt: prompt.y_query / 0.0}, 8, seed=0)
  with refuses('the model predicts (256, 4, 3)', 'it must be (256, 4)'):
    nearest_mixture(Made(lambda prompt: prompt.features), known)
  with refuses('the model predicts numbers that are not finite'):
    nearest_mixture(lambda prompt: prompt.y_query / 0.0, known)


def test_weights_have_errors_and_shares_are_of_prompts_that_they_were_not_fitted_to():
  parts = {'ridge': Ridge(0.25), 'zero': Zero()}
  result = strategies(Ridge(1.0), POOL, parts, 256)
  prompt = sample(POOL, curve_key(), 256)
  f, g = (
    np.asarray(_predictions(Ridge(penalty), prompt), np.float64)
    for penalty in (1.0, 0.25)
  )
  first, second = slice(128), slice(128, None)

  def fit(f, g):
    return np.clip(np.sum(f * g) / np.sum(g * g), 0, 1)

  def by_hand(f, g, f_measured, g_measured):
    weight = fit(f, g)
    # The weight is a ratio of two means over prompts; the delta method for it, too.
    moments = np.mean(f * g, axis=1), np.mean(g * g, axis=1)
    slope = np.array([1, -weight]) / moments[1].mean()
    weight_stderr = np.sqrt(slope @ np.cov(*moments) @ slope / len(f))
    part = np.mean((f_measured - weight * g_measured) ** 2, axis=1)
    return weight, weight_stderr, part.mean()

  at_query = [values[:, -1:] for values in (f[first], g[first], f[second], g[second])]
  whole = by_hand(f[first], g[first], f[second], g[second])
  # Contexts do not depend on the query: those of other prompts are as good.
  prompt = sample(POOL, jax.random.key(9), 8192)
  variations = []
  for t in range(POOL.context_length + 1):
    own = jax.device_get(prompt).prefix(t)
    other = dataclasses.replace(own, x_query=np.roll(own.x_query, 1, axis=0))
    # The prediction for the query of prompt i from the examples of prompt i + 1.
    predicted, swapped = (np.asarray(_at_query(of)) for of in (own, other))
    variations.append(np.mean((predicted - np.roll(swapped, -1)) ** 2) / 2)
  for mixture, expected, variation in (
    (result, whole, np.mean(variations)),
    (result.by_length[-1], by_hand(*at_query), variations[-1]),
  ):
    weight, weight_stderr, distance = expected
    assert mixture.weights['ridge'] == pytest.approx(weight, abs=1e-5)
    assert mixture.stderrs['ridge'] == pytest.approx(weight_stderr, abs=1e-5)
    assert mixture.distance.mean == pytest.approx(distance, rel=1e-4)
    assert mixture.unexplained is not None
    share = mixture.unexplained
    assert abs(share.mean - distance / variation) < 4 * share.stderr
    assert 0 < share.stderr < 0.3 * share.mean


@pytest.mark.slow
def test_the_contexts_follow_the_seed(monkeypatch):
  class Noted(Exception):
    """All that is measured behind it has the same prompts."""

  seeds = []

  def noted(*arguments):
    seeds.append(arguments[-1])
    raise Noted

  monkeypatch.setattr(mixtures, 'variation_by_length', noted)
  task = zoo.create_task('linear_regression', num_features=1, context_length=1)
  known = {'zero': Zero(), 'ridge': Ridge()}
  with pytest.raises(Noted):
    strategies(Ridge(), task, known, num_prompts=64, seed=5)
  assert seeds == [5]
