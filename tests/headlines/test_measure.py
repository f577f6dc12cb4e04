"""Every headline can be measured."""

import numpy as np
import pytest

from configs import get_config
from studies.headlines import HEADLINES, saddles, transience
from studies.headlines.broken import measure, rows_of
from studies.runner import Trainer
from studies.study import FAILS, HOLDS, StudyResult
from tests.marks import FULL
from zoo.reports.style import BLUE
from zoo.training import sweeps

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')
UNTRAINED = 'pool_lines', 'saddles', 'tabular'
TRAINED = [name for name in HEADLINES if name not in UNTRAINED]
SLOWEST = (
  *('ranking', 'pool_crossing', 'deep_linear', 'garg_toy', 'state_tracking'),
  *('clusters', 'transience', 'diversity', 'filter', 'markov_phases', 'laplace'),
  *('recall', 'one_step', 'tabular', 'induction', 'prior_mean', 'saddles'),
  'beliefs',
  'appearance',
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
def test_every_headline_has_a_valid_config(tmp_path, monkeypatch):
  # Its prompts are drawn before the first training, and cost more than all the rest.
  monkeypatch.setattr(transience, 'prompts_of', lambda *arguments: ())
  for name in TRAINED:
    with pytest.raises(Checked):
      HEADLINES[name].measure(OnlyChecks(tmp_path, get_config))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
  'name',
  [pytest.param(name, marks=FULL) if name in SLOWEST else name for name in HEADLINES],
)
def test_a_broken_model_fails_the_headline(name, tmp_path):
  headline, (numbers, panels) = HEADLINES[name], measure(name, tmp_path)
  assert panels or name in UNTRAINED
  assert numbers.keys() >= headline.expected.keys()  # some have no range
  assert all(np.all(np.isfinite(number)) for number in numbers.values())
  assert StudyResult(headline, numbers).verdict == FAILS
  if name == 'tabular':
    rows = rows_of(name, numbers)
    assert {row[2] for row in rows if row[-1] == 'holds'} <= {'shuffled_auc'}


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
def test_separate_heads_pause_at_each_saddle(tmp_path, monkeypatch):
  monkeypatch.setattr(saddles, '_SEEDS', (0,))
  monkeypatch.setattr(saddles, '_COLOURS', (BLUE,))
  headline, train = HEADLINES['saddles'], OnlyChecks(tmp_path, get_config)
  numbers = headline.measure(train).numbers
  assert StudyResult(headline, numbers).verdict == HOLDS, numbers
