"""Prompts that tell algorithms apart, and the elimination that rests on them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import zoo
from tests.compare import refuses
from zoo.measure.tests import p_value_above_zero
from zoo.probing import elimination, probe, sampled_algorithm, telling_prompts
from zoo.probing.nearest.candidates import Candidates
from zoo.probing.nearest.telling import _LEAST_TELLING, standing_of_descent

# With so much noise, ridge regression on prompts of the task is nearly a step.
_TASK = zoo.create_task(
  'linear_regression', num_features=3, context_length=12, noise_std=10.0
)
_LEAST = 2048


def _pair(task=_TASK):
  known = task.baselines()
  return {name: known[name] for name in ('gd', 'ridge')}


@pytest.fixture(scope='module')
def telling():
  return telling_prompts(_TASK, _pair())


def _ridge(prompt, penalty):
  """The predictions of ridge regression from 0, in NumPy."""
  x, y, query = (np.asarray(a, float) for a in (prompt.x, prompt.y, prompt.x_query))
  moment = np.einsum('bci,bcj->bij', x, x) + penalty * np.eye(x.shape[2])
  weights = np.linalg.solve(moment, np.einsum('bci,bc->bi', x, y)[..., None])
  return np.einsum('bi,bi->b', weights[..., 0], query)


def _step(prompt, size):
  """The predictions of a step of gradient descent from 0, in NumPy."""
  x, y, query = (np.asarray(a, float) for a in (prompt.x, prompt.y, prompt.x_query))
  return size * np.einsum('bci,bc,bi->b', x, y, query) / x.shape[1]


def test_algorithms_differ_far_more_on_telling_prompts(telling):
  (row,) = telling.rows
  (prompt,) = telling.prompts
  assert (row.first, row.second, len(prompt.y)) == ('gd', 'ridge', 64)
  step: Any = _pair()['gd']
  difference = _step(prompt, float(np.ravel(step.step_sizes)[0])) - _ridge(
    prompt, 100.0
  )
  assert row.on_telling == pytest.approx(np.sqrt(np.mean(difference**2)), rel=1e-3)
  assert row.on_telling > 10 * row.on_task


def test_telling_prompts_are_in_the_support(telling):
  (prompt,) = telling.prompts
  features = np.concatenate([prompt.x, prompt.x_query[:, None]], axis=1)
  squares = np.sum(features.astype(float) ** 2, axis=(1, 2))
  # The sum of squares of normal numbers is χ², and the log density falls with it. The
  # quantile is that of 8192 draws, so that its rank has the deviation √81.
  from scipy import stats

  largest = stats.chi2.isf((82 - 4 * 9) / 8192, df=3 * 13)
  assert squares.max() < largest


def test_labels_follow_from_one_function():
  task = zoo.create_task('linear_regression', num_features=2, context_length=6)
  known = task.baselines()
  pair = {'gd': known['gd'], 'zero': known['zero']}
  (prompt,) = telling_prompts(task, pair, 32).prompts
  weights = np.linalg.pinv(prompt.x) @ np.asarray(prompt.y)[..., None]
  np.testing.assert_allclose(
    (np.asarray(prompt.x) @ weights)[..., 0], prompt.y, atol=1e-4
  )
  target = np.einsum('bi,bi->b', weights[..., 0], prompt.x_query)
  np.testing.assert_allclose(target, prompt.y_query, atol=1e-4)


@struct.dataclass
class _Signs(zoo.tasks.FunctionClass):
  """Lines at features ±1, whose density is not given."""

  num_features: int = struct.field(pytree_node=False, default=3)
  context_length: int = struct.field(pytree_node=False, default=6)

  def sample_features(self, key):
    shape = self.context_length + 1, self.num_features
    return jnp.where(jax.random.bernoulli(key, 0.5, shape), 1.0, -1.0)

  def sample_function(self, key):
    return jax.random.normal(key, (self.num_features,))

  def evaluate(self, function, x):
    return x @ function


def test_prompts_without_a_density_are_chosen_among_those_of_the_task():
  pair = {'ols': zoo.estimators.Ridge(), 'ridge': zoo.estimators.Ridge(4.0)}
  found = telling_prompts(_Signs(), pair, 32)
  (prompt,), (row,) = found.prompts, found.rows
  assert not found.is_searched
  assert set(np.unique(prompt.x)) == {-1.0, 1.0}
  assert row.on_telling > 2 * row.on_task


def test_ridge_and_a_step_are_told_apart_at_large_noise():
  pair = _pair()
  for name, other in ('gd', 'ridge'), ('ridge', 'gd'):
    found = elimination(pair[name], _TASK, pair, _LEAST)
    assert found.remaining == [name]
    (_, row) = found.rows
    assert row.candidate == other
    assert row.on_task.mean < 0.01  # It would be a Yes on prompts of the task.
    assert row.on_telling is not None
    assert row.on_telling.low > 0.05
    assert row.nearer_on_telling == name


def test_nothing_remains_for_a_model_between_two_or_without_context():
  pair = _pair()

  def between(prompt):
    # It is nearer to the step where predictions are small, so on prompts of the task.
    step, ridge = pair['gd'](prompt), pair['ridge'](prompt)
    return jnp.where(jnp.abs(step) < 4, 0.9 * step + 0.1 * ridge, ridge)

  found = elimination(between, _TASK, pair, _LEAST)
  assert found.remaining == []
  assert str(found).endswith('remaining: none of these candidates')
  of_constant = elimination(lambda prompt: prompt.x_query[:, 0], _TASK, pair, _LEAST)
  assert of_constant.remaining == []
  assert 'ignores its context' in str(of_constant)


@pytest.mark.slow
@pytest.mark.parametrize('count', [_LEAST_TELLING, 64])
def test_of_two_candidates_that_are_as_near_one_is_out_as_seldom_as_said(count):
  """A model midway between two candidates, which differ more on some prompts."""
  generator, hits = np.random.default_rng(0), []
  for _ in range(2000):
    half = np.exp(generator.normal(size=count)) / 2
    own = generator.normal(size=count)  # relative to the middle
    gaps = {'first': (own - half) ** 2, 'second': (own + half) ** 2}
    found = Candidates(gaps, np.ones(count))
    for pair in ('first', 'second'), ('second', 'first'):
      hits.append(p_value_above_zero(found.farther(*pair)) < 0.025)
  assert np.mean(hits) <= 0.025 + 3 * (0.025 * 0.975 / len(hits)) ** 0.5


@pytest.mark.slow
def test_a_report_asks_telling_prompts_before_it_says_yes():
  pair = _pair()
  said = {}
  for name in pair:
    report = probe(lambda prompt, it=pair[name]: it(prompt), _TASK, only=['algorithm'])
    said[name] = report.is_gradient_descent, report.verdict
  assert said['gd'][0] is True
  assert 'nothing is nearer on prompts that tell them apart' in said['gd'][1]
  assert said['ridge'][0] is False
  fitted = sampled_algorithm(pair['gd'], _TASK, _LEAST)
  standing = standing_of_descent(pair['gd'], _TASK, fitted, 0)
  assert standing is not None
  assert standing.nearer_on_telling == ''


def test_mistakes_have_one_message():
  with refuses('predictors has 1 entries; two or more can be told apart'):
    telling_prompts(_TASK, {'gd': _pair()['gd']})
  with refuses('num_prompts is 31; it must be an integer ≥ 32'):
    telling_prompts(_TASK, _pair(), 31)
  with refuses('candidates has 0 entries; an elimination needs two or more'):
    elimination(_pair()['gd'], _TASK, {})
