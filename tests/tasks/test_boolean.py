"""Boolean functions: their prompts, and their baselines, against enumeration."""

import collections
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import zoo
from tests.compare import refuses
from tests.marks import FULL, SLOW, mostly_full
from tests.tasks import host
from zoo.core import losses
from zoo.estimators.baselines import Examples
from zoo.tasks import boolean

_NAMES = 'conjunction', 'majority', 'parity', 'sparse_parity'
# The logit of a certain label; in float32 it is 13.86 for the label +1, since 1 − 1e-6
# is rounded, and −13.82 for −1. Both have a loss of 1e-6, up to 5%.
_CERTAIN = float(losses.logit(jnp.ones(())))
_ABOUT = 0.05


def _task(name, num_features=5, context_length=8, **changes) -> Any:
  fields = {'num_features': num_features, 'context_length': context_length}
  return zoo.create_task(name, **fields | changes)


def _prompts(task, count) -> zoo.Prompt:
  return host.sample(task, 0, count)


def _each(prompt, k):
  """The features and labels of k examples, and the next features, as integers."""
  prefix = prompt.prefix(k)
  for x, y, x_query in zip(prefix.x, prefix.y, prefix.x_query, strict=True):
    yield x.astype(int), y.astype(int), x_query.astype(int)


@functools.partial(jax.jit, static_argnums=0)
def _predict_all(baseline, prompt):
  return baseline.predictions(prompt)


def _at(baseline, prompt, k):
  """The predictions from k examples, of one program for all k."""
  return np.asarray(_predict_all(baseline, prompt), float)[:, k]


def _signs(d):
  return itertools.product([-1, 1], repeat=d)


def _literals(d):
  """The weights of a conjunction and their probabilities."""
  for w in itertools.product([0, 1, -1], repeat=d):
    yield w, np.prod([0.7 if entry == 0 else 0.15 for entry in w])


def _forced(x, w):
  return tuple(weight or entry for entry, weight in zip(x, w, strict=True))


def _examples_with_literals(w):
  """The distribution of an example (x, y): 30% are forced to be positive."""
  distribution = collections.Counter()
  size, d = sum(map(abs, w)), len(w)
  for x in _signs(d):
    for forced, probability in ((False, 0.7), (True, 0.3)):
      point = _forced(x, w) if forced else x
      y = np.sign(np.dot(w, point) - (size - 1))
      distribution[point, y] += probability / 2**d
  return distribution


def _uniform_examples(w, label):
  return {(x, label(w, x)): 1 / 2 ** len(w) for x in _signs(len(w))}


def _functions(name, d):
  """Each function's probability and its distribution of an example."""
  if name == 'conjunction':
    for w, probability in _literals(d):
      yield probability, _examples_with_literals(w)
  for w in itertools.product([0, 1], repeat=d):
    size = sum(w)
    if name == 'majority':

      def majority(w, x):
        return np.sign(np.dot(w, x) - 0.5)

      yield 0.3**size * 0.7 ** (d - size), _uniform_examples(w, majority)
    if name == 'parity' or (name == 'sparse_parity' and size == 2):

      def parity(w, x):
        relevant = [xj for xj, wj in zip(x, w, strict=True) if wj]
        return 1 if relevant.count(1) % 2 else -1

      number = 2**d if name == 'parity' else d * (d - 1) / 2
      yield 1 / number, _uniform_examples(w, parity)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  mostly_full(['conjunction'], _NAMES, slow=['parity']),
)
def test_each_prompt_is_as_probable_as_its_definition_says(name):
  d, count = 3 if 'parity' in name else 2, 40_000
  expected = collections.Counter()
  for probability, examples in _functions(name, d):
    pairs = itertools.product(examples.items(), repeat=2)
    for ((x, y), p), ((x_query, y_query), p_query) in pairs:
      expected[*x, y, *x_query, y_query] += probability * p * p_query
  assert sum(expected.values()) == pytest.approx(1)

  prompt = _prompts(_task(name, d, 1), count)
  np.testing.assert_array_equal(prompt.context_targets, (1 + prompt.y) / 2)
  drawn = np.concatenate(
    [prompt.x[:, 0], prompt.y, prompt.x_query, 2 * prompt.y_query[:, None] - 1], axis=1
  )
  counts = collections.Counter(map(tuple, drawn.astype(int).tolist()))
  assert set(counts) <= {prompt for prompt, p in expected.items() if p}
  # The number of a prompt is binomial. One of at most 256 beyond 5 standard errors
  # happens by chance once in 5000 seeds, and the seed is fixed.
  for outcome, p in expected.items():
    assert abs(counts[outcome] - count * p) <= 5 * np.sqrt(count * p * (1 - p)), outcome


def test_without_literals_a_conjunction_holds():
  none, x = np.zeros(3, 'f'), np.array([*_signs(3)], 'f')
  task = _task('conjunction', num_features=3, context_length=1)
  np.testing.assert_array_equal(jax.jit(task.evaluate)(none, x), 1)


@pytest.mark.slow
@pytest.mark.parametrize('num_random', mostly_full([5], [1, 12]))
def test_a_nearest_neighbour_has_its_label(num_random):
  # With 4 features there are copies and ties; the loop rounds nothing.
  prompt = _prompts(_task('nearest_neighbour', 4, 20, num_random=num_random), 200)
  coins = []
  for x, x_query, targets in zip(
    prompt.x, prompt.x_query, host.targets(prompt), strict=True
  ):
    points = np.concatenate([x, x_query[None]]).astype(int)
    for i, point in enumerate(points):
      products = [int(point @ earlier) for earlier in points[:i]]
      copy = 4 in products
      if i >= num_random or copy:
        assert targets[i] == targets[products.index(max(products))]
      else:
        coins.append(targets[i])
  assert set(coins) == {0.0, 1.0}
  assert abs(np.mean(coins) - 0.5) <= 4 * 0.5 / np.sqrt(len(coins))


def test_a_third_of_the_context_is_random_unless_told():
  def number(context_length):
    return _task('nearest_neighbour', context_length=context_length).num_random

  assert [number(c) for c in (1, 2, 3, 60)] == [1, 1, 1, 20]


def test_bad_input_is_refused_in_one_line(unchecked):
  with refuses('num_relevant is 6; it must be an'):
    _task('sparse_parity', num_relevant=6)
  with refuses('num_random is 9; it must be an'):
    _task('nearest_neighbour', num_random=9)


def test_bayes_is_named_only_where_it_can_be_computed():
  def names(name, **fields):
    return list(_task(name, **fields).baselines())

  assert names('conjunction', num_features=7)[0] == 'bayes'
  assert names('conjunction', num_features=8)[0] == 'bayes_estimate'
  assert names('majority', num_features=12)[0] == 'bayes'
  assert names('majority', num_features=28)[0] == 'naive_bayes'
  assert names('sparse_parity', num_features=20, num_relevant=3)[0] == 'bayes'
  assert 'bayes' not in names('sparse_parity', num_features=60, num_relevant=5)


def test_a_longer_context_has_as_many_random_labels():
  shifts = _task('nearest_neighbour', context_length=9).shifts()
  tasks = [shifts[name] for name in ('context_length=18', 'context_length=288')]
  assert [task.num_random for task in tasks] == [3, 3]
  assert tasks[0].baselines()['bayes'] == tasks[1].baselines()['bayes']


@functools.cache
def _listed(name, d):
  return [*_functions(name, d)]


def _posterior(name, x, y, x_query):
  """P(y_q = 1) by a sum over all functions, from the definition of the task."""
  weight: dict[int, Any] = {1: 0.0, -1: 0.0}
  for probability, examples in _listed(name, len(x_query)):
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
      probability *= examples.get((tuple(row), label), 0.0)
    for label in weight:
      weight[label] += probability * examples.get((tuple(x_query.tolist()), label), 0.0)
  return weight[1] / (weight[1] + weight[-1])


# Logarithms of float32, of up to 20 log(10) ≈ 46 with roundings of 4e-6; otherwise some
# roundings. And 1e-6 where a label is certain.
@pytest.mark.parametrize(
  ('name', 'd', 'c', 'error'),
  [
    ('conjunction', 5, 20, 1e-5),
    pytest.param('majority', 6, 16, 3e-6, marks=SLOW),
    pytest.param('parity', 5, 14, 3e-6, marks=FULL),
    pytest.param('sparse_parity', 6, 16, 3e-6, marks=FULL),
  ],
)
def test_bayes_is_exact(name, d, c, error):
  task = _task(name, d, c)
  prompt = jax.tree.map(lambda array: array[:12], _prompts(task, 64))
  probabilities = expit(
    np.asarray(_predict_all(task.baselines()['bayes'], prompt), float)
  )
  for k in (0, 1, 4, 9, c):
    expected = [_posterior(name, *row) for row in _each(prompt, k)]
    np.testing.assert_allclose(probabilities[:, k], expected, rtol=0, atol=error)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('k', mostly_full([5], [0, 1, 2, 12, 20]))
def test_bayes_for_conjunctions_agrees_with_enumeration(k):
  count = 12
  with jax.enable_x64(True):
    prompt = _prompts(_task('conjunction', 6, 20), count)
    expected = np.asarray([_posterior('conjunction', *row) for row in _each(prompt, k)])
    prefix = prompt.prefix(k)
    estimates = {
      draws: expit(jax.jit(boolean.ConjunctionSampling(draws))(prefix))
      for draws in (256, 16_384)
    }
  # The error of a probability falls as 1/√draws. Its root mean square with 256 draws
  # was measured as at most 0.01 for 7 and 8 features, so 0.00125 with 64 times as many;
  # the largest of 12 is a few times that.
  gaps = {draws: np.abs(estimate - expected) for draws, estimate in estimates.items()}
  assert np.sqrt(np.mean(gaps[256] ** 2)) <= 0.015
  assert np.sqrt(np.mean(gaps[16_384] ** 2)) <= 0.002
  assert gaps[16_384].max() <= 0.008


def test_conjunctions_are_enumerated_up_to_seven_features():
  for d, key, kind in (
    (7, 'bayes', boolean.VersionSpace),
    (8, 'bayes_estimate', boolean.ConjunctionSampling),
  ):
    baselines = _task('conjunction', d).baselines()
    assert [own for own in baselines if own.startswith('bayes')] == [key]
    assert isinstance(baselines[key], kind)


@pytest.mark.parametrize('k', mostly_full([0, 7], [1, 20]))
def test_elimination_is_valiants(k):
  task = _task('conjunction', 5, 20)
  prompt = _prompts(task, 64)
  logits = _at(task.baselines()['elimination'], prompt, k)
  for (x, y, x_query), logit in zip(_each(prompt, k), logits, strict=True):
    literals = {(j, value) for j in range(5) for value in (1, -1)}
    positives = [row for row, label in zip(x, y, strict=True) if label == 1]
    for row in positives:
      literals -= {(j, -row[j]) for j in range(5)}
    if all(x_query[j] == value for j, value in literals):
      expected = _CERTAIN
    else:
      expected = -1 - max(0, np.log(2.0 ** len(positives) / 5))
    # A few roundings of float32.
    assert logit == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_contradictory_labels_are_a_fair_coin_or_those_before():
  x: Any = np.array([[1.0, -1.0], [1.0, -1.0]], 'f')
  y: Any = np.array([1.0, -1.0], 'f')
  seen: Any = np.ones(2, bool)
  examples = Examples(x, y, seen, x[0])
  spaces = (boolean.VersionSpace(_task(n, 2, 2)) for n in ('majority', 'conjunction'))
  predictors: Any = [boolean.ParityBayes(), *spaces]
  run = jax.jit(lambda examples: [f.predict(examples) for f in predictors])
  assert [*map(float, run(examples))] == [_CERTAIN, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize('k', [0, 1, 4, 5, 20])
def test_neighbours_are_known_after_the_random_ones(k):
  task = _task('nearest_neighbour', 4, 20, num_random=5)
  prompt = _prompts(task, 200)
  targets = np.asarray(prompt.prefix(k).y_query)
  logits = _at(task.baselines()['bayes'], prompt, k)
  copies = [any((x == x_query).all(axis=1)) for x, _, x_query in _each(prompt, k)]
  known = np.asarray(copies) | (k >= 5)
  expected = np.where(known, _CERTAIN * (2 * targets - 1), 0)
  np.testing.assert_allclose(logits, expected, rtol=0, atol=_ABOUT)


@pytest.mark.parametrize('k', [0, 1, 20])
def test_naive_bayes_is_a_shrunk_correlation(k):
  prompt = _prompts(_task('conjunction', 5, 20), 64)  # of any task
  logits = _at(_task('majority', 5, 20).baselines()['naive_bayes'], prompt, k)
  expected = [2 * (y @ x @ x_query) / (k + 5) for x, y, x_query in _each(prompt, k)]
  # One division of integers.
  np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-7)
