"""Balls from known or fresh urns, against all sequences and against quadrature."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import gammaln

import zoo
from tests.marks import mostly_full, mostly_slow
from tests.sequences import (
  all_sequences,
  check_causal,
  check_law,
  p_value,
  predicted,
  prompt_of,
)
from tests.tasks import host
from zoo.tasks import Urns

_SMALL = {'num_urns': 3, 'num_symbols': 2, 'context_length': 4, 'concentration': 0.7}


def _task(**changes) -> Urns:
  task = zoo.create_task('urns', **_SMALL | changes)
  assert isinstance(task, Urns)
  return task


_SHORT = {'num_symbols': 3, 'context_length': 2}


@pytest.mark.parametrize('changes', mostly_full([_SHORT], [{}]))
def test_memorising_is_the_ratio_of_probabilities_of_all_sequences(changes):
  task = _task(**changes)
  sequences, urns = all_sequences(task), np.asarray(task.urns)
  (actual,) = predicted(task, ['memorising'], sequences)
  assert task.baselines()['bayes'] == task.baselines()['memorising']
  for b, balls in enumerate(sequences):
    for k in range(len(balls)):
      likelihood = np.prod(urns[:, balls[: k + 1]], axis=1)
      expected = [np.sum(likelihood * urns[:, i]) for i in range(task.num_symbols)]
      np.testing.assert_allclose(
        actual[b, k], np.asarray(expected) / likelihood.sum(), rtol=1e-9
      )


@pytest.mark.parametrize('concentration', mostly_full([0.5], [2.0]))
def test_generalising_is_an_integral_over_urns(concentration):
  task = _task(concentration=concentration, num_urns=None)
  assert [*task.baselines()] == ['bayes', 'generalising', 'zero']
  sequences = all_sequences(task)
  (actual,) = predicted(task, ['bayes'], sequences)
  # p = sin² θ: the density ∝ (p (1 − p))^(α − 1) dp has no poles in θ.
  nodes, weights = np.polynomial.legendre.leggauss(60)
  angle = (1 + nodes) * np.pi / 4
  p = np.stack([np.sin(angle) ** 2, np.cos(angle) ** 2])
  density = weights * (np.sin(angle) * np.cos(angle)) ** (2 * concentration - 1)
  for b, balls in enumerate(sequences):
    for k in range(len(balls)):
      likelihood = density * np.prod(p[balls[: k + 1]], axis=0)
      expected = p @ likelihood / likelihood.sum()
      np.testing.assert_allclose(actual[b, k], expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.full
def test_predictions_do_not_depend_on_later_balls():
  check_causal(_task(num_symbols=3))


@functools.cache
def _drawn(num_urns: int | None, alpha: float = 0.7) -> Any:
  """A task and 5000 prompts, by one program for all concentrations."""
  task = _task(**_SHORT, num_urns=num_urns, concentration=alpha)
  return task, host.sample_with_latents(task, 1, 5000)


_each_number = pytest.mark.parametrize('num_urns', mostly_slow([None], [4]))


@_each_number
def test_sequences_have_their_probabilities(num_urns):
  """All of them, and so the balls at each position and the label of the query."""
  task, prompt = _drawn(num_urns)
  length, size = task.context_length + 1, task.num_symbols
  one_hot = host.features(prompt)
  balls = one_hot.argmax(-1)
  np.testing.assert_array_equal(one_hot.sum(-1), 1)
  np.testing.assert_array_equal(prompt.y.argmax(-1), balls[:, 1:])
  sequences = all_sequences(task)
  if task.num_urns:
    law = np.prod(np.asarray(task.urns)[:, sequences], axis=-1).mean(axis=0)
  else:  # Γ(S α)/Γ(S α + n) Π_j Γ(α + n_j)/Γ(α)
    alpha = float(task.concentration)
    counts = np.sum(sequences[..., None] == np.arange(size), axis=1)
    log = np.sum(gammaln(alpha + counts) - gammaln(alpha), axis=1)
    law = np.exp(log + gammaln(size * alpha) - gammaln(size * alpha + length))
  check_law(task, balls, law)


@pytest.mark.parametrize('num_urns', [4, None])
def test_targets_are_the_law_of_the_urn(num_urns):
  task, prompt = _drawn(num_urns)
  laws = prompt.latents
  expected = np.repeat(laws[:, None], 3, axis=1)
  np.testing.assert_array_equal(host.targets(prompt), expected)
  np.testing.assert_allclose(laws.sum(1), 1, rtol=1e-5)
  if num_urns:
    gap = np.abs(laws[:, None] - np.asarray(task.urns)[None]).max(2)
    assert (gap.min(1) < 1e-6).all()
    assert p_value(np.bincount(gap.argmin(1), minlength=4), np.full(4, 1250)) > 1e-5


@pytest.mark.parametrize('alpha', mostly_full([0.02, 5.0], [0.7]))
def test_urns_are_dirichlet(alpha):
  drawn = _drawn(None, alpha)[1].latents
  known = _task(num_urns=5000, num_symbols=3, concentration=alpha).urns
  # E p_j = 1/3 and E p_j² = (α + 1)/(3 (3 α + 1)).
  for laws in (np.asarray(drawn), np.asarray(known)):
    assert np.isfinite(laws).all()
    for power, mean in ((1, 1 / 3), (2, (alpha + 1) / (3 * (3 * alpha + 1)))):
      values = laws**power
      error = values.std(0) / np.sqrt(len(values))
      assert np.all(np.abs(values.mean(0) - mean) <= 4.5 * error)


def test_predictions_of_balls_that_no_urn_has_are_finite():
  task = _task(concentration=0.001, num_symbols=8)
  prompt = prompt_of(np.random.default_rng(0).integers(8, size=(50, 5)), 8)
  baselines: Any = task.baselines()
  run = jax.jit(lambda prompt: [f.predictions(prompt) for f in baselines.values()])
  assert all(np.isfinite(logits).all() for logits in run(prompt))


@pytest.mark.parametrize('make', [np.array, jax.numpy.float32])
def test_a_concentration_may_be_an_array_of_one_number(make):
  task = _task(concentration=make(0.5))
  np.testing.assert_array_equal(task.urns, _task(concentration=0.5).urns)
  # A task that JAX rebuilds keeps its urns.
  rebuilt = jax.tree.map(jax.numpy.asarray, task)
  assert isinstance(rebuilt._urns, jax.Array)


def test_the_urns_depend_on_seed_and_concentration():
  task = _task()
  urns = np.asarray(task.urns)
  assert not urns.flags.writeable
  longer: Any = dataclasses.replace(task, context_length=9)  # pyright: ignore
  np.testing.assert_array_equal(longer.urns, urns)
  other: Any = dataclasses.replace(task, concentration=2.0)  # pyright: ignore
  assert not np.isclose(other.urns, urns).any()
  assert not np.isclose(np.asarray(_task(seed=1).urns), urns).any()
  shifts = task.shifts()
  assert [*shifts][:2] == ['fresh_urns', 'context_length=8']
  assert shifts['fresh_urns'] == _task(num_urns=None)
  assert 'fresh_urns' not in shifts['fresh_urns'].shifts()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('num_urns', mostly_full([3], [None]))
def test_tasks_of_several_concentrations_are_drawn_in_one_program(num_urns):
  tasks = [_task(num_urns=num_urns, concentration=alpha) for alpha in (0.7, 2.0)]
  stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *tasks)

  @jax.jit
  def both(stacked, tasks):
    keys = jax.random.split(jax.random.key(0), 2)
    many = jax.vmap(lambda task, key: task.sample_one(key))(stacked, keys)
    return many, [task.sample_one(key) for task, key in zip(tasks, keys, strict=True)]

  many, each = jax.device_get(both(stacked, tasks))
  for i, alone in enumerate(each):
    np.testing.assert_allclose(many.y_query[i], alone.y_query, rtol=1e-5)
    np.testing.assert_array_equal(many.x[i], alone.x)
