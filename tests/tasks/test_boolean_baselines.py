import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import zoo
from tests.marks import mostly_full
from zoo.core import losses
from zoo.tasks import boolean
from zoo.tasks.baselines import Examples

# The logit of a certain label; in float32 it is 13.86 for the label +1, since 1 − 1e-6
# is rounded, and −13.82 for −1. Both have a loss of 1e-6, up to 5%.
_CERTAIN = float(losses.logit(jnp.ones(())))
_ABOUT = 0.05


def _task(name, num_features=28, context_length=60, **changes) -> Any:
  given = {'num_features': num_features, 'context_length': context_length}
  return zoo.create_task(name, **given | changes)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _drawn(task, count, seed) -> zoo.Prompt:
  return task.sample(jax.random.key(seed), count)


def _prompts(task, count, seed=0) -> zoo.Prompt:
  return jax.device_get(_drawn(task, count, seed))  # whose parts compile nothing


def _each(prompt, k):
  """The features and labels of k examples, and the next features, as integers."""
  prefix = prompt.prefix(k)
  for x, y, x_query in zip(prefix.x, prefix.y, prefix.x_query, strict=True):
    yield x.astype(int), y.astype(int), x_query.astype(int)


_log_loss = jax.jit(losses.log_loss)


@jax.jit
def _entropy(logit):
  return losses.log_loss(logit, jax.nn.sigmoid(logit))


@functools.partial(jax.jit, static_argnums=0)
def _predict(baseline, prompt):
  return baseline(prompt)


@functools.partial(jax.jit, static_argnums=0)
def _predict_all(baseline, prompt):
  return baseline.predictions(prompt)


def _call(baseline, prompt, k):
  return np.asarray(_predict(baseline, prompt.prefix(k)), float)


def _at(baseline, prompt, k):
  """The same from one program for all k; a test below compares the two."""
  return np.asarray(_predict_all(baseline, prompt), float)[:, k]


def _conjunction_posterior(x, y, x_query, disjunction=False):
  """P(y_q = 1) by a sum over all 3^d functions, from the definition of the task."""
  d = len(x_query)
  w = np.asarray([*itertools.product([0, 1, -1], repeat=d)])
  size = np.abs(w).sum(axis=1)
  prior = 0.7 ** (d - size) * 0.15**size

  def likelihood(x, y):
    """P(x, y | w), of a point as drawn and of one that was forced."""
    if disjunction:
      label = np.where(w @ x > -size, 1, -1)
      forced = -1
    else:
      label = np.where(w @ x == size, 1, -1)
      forced = 1
    drawn = 0.7 * (label == y) / 2**d
    # The features of w's literals are given, the others as before.
    return drawn + 0.3 * ((label == forced) & (y == forced)) / 2.0 ** (d - size)

  for one in zip(x, y, strict=True):
    prior = prior * likelihood(*one)
  up, down = (np.sum(prior * likelihood(x_query, label)) for label in (1, -1))
  return up / (up + down)


@pytest.mark.parametrize('k', mostly_full([5], [0, 1, 2, 12, 20]))
def test_bayes_for_conjunctions_agrees_with_enumeration(k):
  count = 32
  with jax.enable_x64(True):
    prompt = _prompts(_task('conjunction', 6, 20), count)
    expected = np.asarray([_conjunction_posterior(*one) for one in _each(prompt, k)])
    found = {
      draws: expit(_call(boolean.ConjunctionBayes(draws), prompt, k))
      for draws in (256, 16_384)
    }
  # The error of a probability falls as 1/√draws. Its root mean square with 256 draws
  # was measured as at most 0.01 for 7 and 8 features, so 0.00125 with 64 times as many;
  # the largest of 32 is a few times that.
  gaps = {draws: np.abs(one - expected) for draws, one in found.items()}
  assert np.sqrt(np.mean(gaps[256] ** 2)) <= 0.015
  assert np.sqrt(np.mean(gaps[16_384] ** 2)) <= 0.002
  assert gaps[16_384].max() <= 0.008


@pytest.mark.parametrize('name', ['conjunction', 'disjunction'])
@pytest.mark.parametrize('k', mostly_full([0, 5], [1, 2, 20]))
def test_bayes_for_few_literals_is_exact(name, k):
  task = _task(name, 5, 20)
  prompt = _prompts(task, 48)
  disjunction = name == 'disjunction'
  expected = [_conjunction_posterior(*one, disjunction) for one in _each(prompt, k)]
  found = 1 / (1 + np.exp(-_at(task.baselines()['bayes'], prompt, k)))
  # Logarithms of float32, of up to 20 log(10) ≈ 46 with roundings of 4e-6; and 1e-6
  # where a label is certain.
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('name', ['conjunction', 'disjunction'])
def test_conjunctions_are_enumerated_up_to_seven_features(name):
  for d, kind in ((7, boolean.VersionSpace), (8, boolean.ConjunctionBayes)):
    bayes = _task(name, d).baselines()['bayes']
    inner = bayes.baseline if isinstance(bayes, boolean.Negated) else bayes
    assert isinstance(inner, kind)


@pytest.mark.parametrize('name', ['conjunction', 'disjunction'])
@pytest.mark.parametrize('k', mostly_full([0, 7], [1, 40]))
def test_elimination_is_valiants(name, k):
  task = _task(name, 8, 40)
  prompt = _prompts(task, 64)
  sign = 1 if name == 'conjunction' else -1
  found = _at(task.baselines()['elimination'], prompt, k)
  for (x, y, x_query), logit in zip(_each(prompt, k), found, strict=True):
    literals = {(j, value) for j in range(8) for value in (1, -1)}
    positives = [sign * one for one, label in zip(x, y, strict=True) if label == sign]
    for one in positives:
      literals -= {(j, -one[j]) for j in range(8)}
    if all(sign * x_query[j] == value for j, value in literals):
      expected = _CERTAIN
    else:
      expected = -1 - max(0, np.log(2.0 ** len(positives) / 8))
    # A few roundings of float32.
    assert logit == pytest.approx(sign * expected, rel=1e-5)


@pytest.mark.parametrize(
  ('name', 'changes'), [('majority', {}), ('sparse_parity', {'num_relevant': 3})]
)
@pytest.mark.parametrize('k', mostly_full([0, 4], [1, 16]))
def test_version_spaces_agree_with_enumeration(name, changes, k):
  d = 6
  task = _task(name, d, 16, **changes)
  prompt = _prompts(task, 32)
  found = _at(task.baselines()['bayes'], prompt, k)
  for (x, y, x_query), logit in zip(_each(prompt, k), found, strict=True):
    weight = {1: 0.0, -1: 0.0}
    for w in itertools.product([0, 1], repeat=d):
      if name == 'majority':
        prior = 0.3 ** sum(w) * 0.7 ** (d - sum(w))
        labels: list[Any] = [1 if np.dot(w, one) > 0 else -1 for one in (*x, x_query)]
      else:
        prior = float(sum(w) == 3)
        labels = [
          -np.prod([-a for a, b in zip(one, w, strict=True) if b] or [1])
          for one in (*x, x_query)
        ]
      if all(np.equal(labels[:-1], y)):
        weight[labels[-1]] += prior
    expected = weight[1] / (weight[1] + weight[-1])
    # Roundings of float32, and 1e-6 where the label is certain.
    assert 1 / (1 + np.exp(-logit)) == pytest.approx(expected, abs=3e-6)


@pytest.mark.parametrize('k', mostly_full([0, 3, 9], [1, 5, 14]))
def test_parities_agree_with_enumeration(k):
  d = 5
  prompt = _prompts(_task('parity', d, 14), 64)
  found = _at(boolean.ParityBayes(), prompt, k)
  for (x, y, x_query), logit in zip(_each(prompt, k), found, strict=True):
    votes = []
    for subset in itertools.product([0, 1], repeat=d):
      labels = [2 * (np.dot(subset, one > 0) % 2) - 1 for one in (*x, x_query)]
      if all(np.equal(labels[:-1], y)):
        votes.append(labels[-1])
    assert logit == pytest.approx(np.mean(votes) * _CERTAIN, abs=_ABOUT)


def test_contradictory_labels_are_a_fair_coin_or_those_before():
  x = jnp.asarray([[1.0, -1.0], [1.0, -1.0]])
  y, seen = jnp.asarray([1.0, -1.0]), jnp.ones(2, bool)
  given = Examples(x, y, seen, x[0])
  parity = jax.jit(boolean.ParityBayes().predict)(given)
  assert float(parity) == _CERTAIN
  for name in ('majority', 'conjunction'):
    space = boolean.VersionSpace(_task(name, 2, 2))
    assert float(jax.jit(space.predict)(given)) == 0


@pytest.mark.parametrize('k', [0, 1, 4, 5, 15])
def test_neighbours_are_known_after_the_random_ones(k):
  task = _task('nearest_neighbour', 3, 15, num_random=5)
  prompt = _prompts(task, 64)
  targets = np.asarray(prompt.prefix(k).y_query)
  found = _at(task.baselines()['bayes'], prompt, k)
  copies = [any((x == x_query).all(axis=1)) for x, _, x_query in _each(prompt, k)]
  known = np.asarray(copies) | (k >= 5)
  expected = np.where(known, _CERTAIN * (2 * targets - 1), 0)
  np.testing.assert_allclose(found, expected, rtol=0, atol=_ABOUT)


@pytest.mark.parametrize('k', [0, 1, 20])
def test_averaging_is_a_shrunk_correlation(k):
  task = _task('majority', 9, 20)
  prompt = _prompts(task, 16)
  found = _at(task.baselines()['averaging'], prompt, k)
  expected = [2 * (y @ x @ x_query) / (k + 9) for x, y, x_query in _each(prompt, k)]
  # One division of integers.
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


_TASKS = {
  'disjunction': ({}, [0, 3, 15, 40]),
  'conjunction': ({'num_features': 8, 'context_length': 12}, [1, 12]),
  'majority': ({'num_features': 8, 'context_length': 20}, [0, 1, 5, 20]),
  'parity': ({'num_features': 6, 'context_length': 10}, [0, 1, 6, 10]),
  'sparse_parity': ({'num_features': 10, 'context_length': 15}, [0, 1, 5, 10]),
  'nearest_neighbour': ({'num_features': 4, 'context_length': 20}, [0, 1, 4, 20]),
}


@pytest.mark.parametrize('name', mostly_full(['majority'], _TASKS))
def test_bayes_is_calibrated_and_no_other_baseline_is_better(name):
  changes, lengths = _TASKS[name]
  task, count = _task(name, **changes), 512
  baselines = task.baselines()
  assert next(iter(baselines)) == 'bayes'
  found: dict[str, list] = {one: [] for one in baselines}
  prompts = _prompts(task, count, seed=9)
  for k in lengths:
    prompt = prompts.prefix(k)
    logits = {one: _predict(f, prompt) for one, f in baselines.items()}
    for one, logit in logits.items():
      found[one].append(np.asarray(_log_loss(logit, prompt.y_query), float))
    # The log loss of a calibrated prediction has the mean of its own entropy. One that
    # is certain has a loss of 1e-6 but an entropy of 1.5e-5.
    logit = logits['bayes']
    entropy = _entropy(logit)
    gap = found['bayes'][-1] - np.asarray(entropy, float)
    assert abs(gap.mean()) <= 4 * gap.std() / np.sqrt(count) + 1.6e-5, k
  for one, values in found.items():
    for k, value, best in zip(lengths, values, found['bayes'], strict=True):
      gain = best - value
      assert gain.mean() <= 4 * gain.std() / np.sqrt(count) + 2e-6, (one, k)
