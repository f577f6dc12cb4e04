"""Every headline can be measured."""

import numpy as np
import pytest
from flax import nnx

import zoo
from configs import get_config
from studies.headlines import (
  HEADLINES,
  clusters,
  diversity,
  markov_phases,
  pool_lines,
  saddles,
  tabular,
  transience,
)
from studies.runner import Trainer
from studies.study import FAILS, HOLDS, StudyResult
from tests.marks import FULL
from zoo.config.building import build_model
from zoo.reports.style import BLUE
from zoo.theory import dynamics
from zoo.training import sweeps

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')
UNTRAINED = 'pool_lines', 'saddles', 'tabular'
TRAINED = [name for name in HEADLINES if name not in UNTRAINED]
SLOWEST = (
  *('ranking', 'pool_crossing', 'deep_linear', 'garg_toy', 'state_tracking'),
  *('clusters', 'transience', 'diversity', 'filter', 'markov_phases', 'laplace'),
  *('recall', 'one_step'),
)
ONE_SEED = ({'seed': 0},)


class Checked(Exception):
  """The configs of a headline are valid."""


class OnlyChecks(Trainer):
  """Validates the first configs instead of training them."""

  def __call__(self, name, config, fields, points=ONE_SEED, part=None):
    whole = self.config(config, fields)
    for point in points:
      sweeps.at_point(whole, point)
    raise Checked


@pytest.mark.slow
def test_every_headline_has_a_valid_config(tmp_path):
  for name in TRAINED:
    with pytest.raises(Checked):
      HEADLINES[name].measure(OnlyChecks(tmp_path, get_config))


@pytest.mark.slow
def test_the_lines_of_pools_fail_if_the_posterior_mean_is_ridge(tmp_path, monkeypatch):
  ridge = pool_lines._mean('ridge', 64, new=True, num_prompts=2048)
  monkeypatch.setattr(pool_lines, '_mean', lambda *args, **kwargs: ridge)
  headline = HEADLINES['pool_lines']
  measurement = headline.measure(OnlyChecks(tmp_path, get_config))
  assert StudyResult(headline, measurement.numbers).verdict == FAILS


@pytest.mark.slow
def test_tables_are_not_predicted_without_training(tmp_path, monkeypatch):
  config = get_config('tabular')
  zoo.save(build_model(config, nnx.Rngs(0)), tmp_path / 'untrained', config)
  monkeypatch.setattr(tabular, '_CHECKPOINT', tmp_path / 'untrained')
  monkeypatch.setattr(tabular, '_SPLITS', 2)
  headline = HEADLINES['tabular']
  numbers = headline.measure(OnlyChecks(tmp_path, get_config)).numbers
  held = {
    name for name, range_ in headline.expected.items() if range_.holds(numbers[name])
  }
  assert held <= {'shuffled_auc'}


class Short(Trainer):
  """Trains four steps instead of thousands."""

  def __call__(self, name, config, fields, points=ONE_SEED, part=None):
    short = {
      'train.num_steps': 4,
      'train.batch_size': 8,
      'train.log_every': 2,
      'optimizer.warmup_steps': 0,
      'checkpoint.every': 2,
      'checkpoint.keep': 2,
      'eval.every': 2,
      'eval.num_batches': 2,
    }
    return super().__call__(name, config, {**fields, **short}, points, part)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
  'name',
  [pytest.param(name, marks=FULL) if name in SLOWEST else name for name in TRAINED],
)
def test_a_headline_measures_what_it_expects_and_fails_untrained(
  name, tmp_path, monkeypatch
):
  monkeypatch.setattr(markov_phases, '_PARTS', {'start': (2, 2), 'whole': (4, 2)})
  monkeypatch.setattr(transience, '_STEPS', (2, 4))
  monkeypatch.setattr(transience, '_SEEDS', (0,))
  monkeypatch.setattr(clusters, '_SEEDS', [{'seed': 0}])
  monkeypatch.setattr(diversity, '_STEPS', (2, 4))
  headline = HEADLINES[name]
  measurement = headline.measure(Short(tmp_path / 'runs', get_config))
  assert measurement.numbers.keys() >= headline.expected.keys()  # some have no range
  assert all(np.all(np.isfinite(number)) for number in measurement.numbers.values())
  assert measurement.panels
  assert StudyResult(headline, measurement.numbers).verdict == FAILS


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize('name', ['one_step', 'pool_lines', 'prior_mean'])
def test_a_headline_of_a_minute_holds(name, tmp_path, unchecked):
  headline = HEADLINES[name]
  measurement = headline.measure(Trainer(tmp_path / 'runs', get_config))
  assert StudyResult(headline, measurement.numbers).verdict == HOLDS, (
    measurement.numbers
  )


@pytest.mark.slow
@pytest.mark.full
def test_separate_heads_pause_at_each_saddle_and_merged_ones_do_not(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(saddles, '_SEEDS', (0,))
  monkeypatch.setattr(saddles, '_COLOURS', (BLUE,))
  headline, train = HEADLINES['saddles'], OnlyChecks(tmp_path, get_config)
  numbers = headline.measure(train).numbers
  assert StudyResult(headline, numbers).verdict == HOLDS, numbers

  def merged(num_features, num_heads, rank, scale, seed):
    return dynamics.merged_heads(num_features, num_heads, scale, seed)

  monkeypatch.setattr(dynamics, 'separate_heads', merged)
  broken = headline.measure(train).numbers
  assert not headline.expected['drops'].holds(broken['drops'])
