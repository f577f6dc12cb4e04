"""Minutes to Bayes: what is measured, when a run ends, and the table."""

import importlib
import time

import pytest

from tests.launch.conftest import forget_commands
from zoo.estimators.baselines import Zero
from zoo.tasks import LinearRegression


@pytest.fixture
def learning_time():
  """The module, without the flags that other commands define in the same process."""
  forget_commands()
  yield importlib.import_module('benchmarks.learning_time')
  forget_commands()


def test_the_distance_of_bayes_is_0_and_that_of_0_is_by_formula(learning_time):
  task = LinearRegression(3, 6, prior_mean=0.0, noise_std=0.5)
  distance = learning_time._Distance(task)
  bayes = task.baselines()['bayes']
  assert distance(bayes) == pytest.approx(0, abs=1e-6)
  # E t² = d is the risk of Bayes plus the mean square of its prediction.
  zero = distance(Zero())
  assert zero == pytest.approx(3 / distance._risk - 1, rel=0.05)


def test_the_rates_are_those_of_the_atlas(learning_time):
  rates = learning_time.rates()
  assert {*learning_time.MODELS} <= rates.keys()
  assert all(0 < rates[name] < 1 for name in learning_time.MODELS)


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_a_run_ends_at_the_share_or_at_the_limit(learning_time, tmp_path, monkeypatch):
  monkeypatch.setattr(learning_time, '_MEASURE_EVERY', 2)
  first, *_ = learning_time.cells_of(['deep_set'], [2], limit=1e-6).values()
  late = learning_time.compute(first, tmp_path / 'late')
  assert late is not None
  assert late['steps'] == 2
  assert 'minutes_0.1' not in late
  monkeypatch.setattr(learning_time._Distance, '__call__', lambda self, model: 0.05)
  half = learning_time.compute({**first, 'limit': 1e-6}, tmp_path / 'half')
  assert half is not None
  assert {'minutes_0.1', 'steps_0.1'} <= half.keys()
  assert 'minutes_0.01' not in half
  monkeypatch.setattr(learning_time._Distance, '__call__', lambda self, model: 0.0)
  start = time.monotonic()
  found = learning_time.compute({**first, 'limit': 60.0}, tmp_path / 'found')
  assert found is not None
  assert found['steps_0.01'] == 2
  assert found['minutes_0.01'] <= (time.monotonic() - start) / 60
  assert not [*tmp_path.glob('*/run')]


def test_the_table_has_the_median_of_the_seeds_and_their_range(learning_time):
  minutes = {0: 1.0, 1: 4.0, 2: 2.0}
  rows = {
    f'd=3/lstm/seed={seed}': {'minutes': 30.2, 'minutes_0.1': value}
    for seed, value in minutes.items()
  }
  rows['d=3/lstm/seed=1']['minutes_0.01'] = 20.0
  rows['d=10/lstm/seed=0'] = {'minutes': 30.2}
  assert learning_time.table(rows).splitlines() == [
    '| model | d = 3, 10 % | d = 3, 1 % | d = 10, 10 % | d = 10, 1 % |',
    '| --- | --: | --: | --: | --: |',
    '| lstm | 2.0 (1.0 to 4.0) | > 30 (20.0 to > 30) | > 30 | > 30 |',
  ]
