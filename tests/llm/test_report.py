"""The numbers of the report, from lines whose numbers are known by hand."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from studies.llm.guesses import LabelScale
from studies.llm.readouts import READOUTS
from studies.llm.report import plot, table
from studies.llm.summary import summarise
from tests.test_plots import assert_drawn
from zoo.reports.plots import from_csv, to_csv

SCORES = LabelScale(0.0, 5.0)
FACTS = {
  'model': 'm',
  'num_examples': 10,
  'context_split': 'train',
  'guess': {'model': 'network', 'bias': 0.0, 'noise': 0.0, 'shuffled': False},
}
# label, guess, answer without a guess, answer with one
ANSWERS = [
  (3.0, 2.0, 1.0, 2.0),  # a copy
  (4.0, 3.0, 4.0, 3.5),
  (1.0, 1.5, None, 1.5),  # a copy, without a partner
  (2.0, 4.0, 2.5, None),
  (0.0, 1.0, 2.0, 0.996),  # 1.00 as it is shown
]


def lines_of(answers) -> Any:
  return [
    {
      'index': index,
      'label': label,
      'guess': guess,
      'context_mean': 2.0,
      'constant': 2.5,
      'seconds': 1.5,
      'arms': {
        arm: {
          'free': {'value': value},
          'forced': {'value': value},
          'expected': {'value': label if value is None else value, 'mass': 0.75},
        }
        for arm, value in (('without_guess', without), ('with_guess', with_guess))
      },
    }
    for index, (label, guess, without, with_guess) in enumerate(answers)
  ]


LINES = lines_of(ANSWERS)


def summary_of(lines, scale=SCORES) -> Any:
  return {**FACTS, **summarise(lines, scale)}


def test_losses_pairs_and_copies():
  summary = summary_of(LINES)
  assert summary['num_prompts'] == 5
  assert summary['seconds'] == 7.5
  guess = summary['baselines']['guess']
  assert guess['loss'] == pytest.approx((1 + 1 + 0.25 + 4 + 1) / 5)
  assert guess['stderr'] == pytest.approx(stats.sem([1, 1, 0.25, 4, 1]))
  assert summary['baselines']['constant']['loss'] == pytest.approx(
    (0.25 + 2.25 + 2.25 + 0.25 + 6.25) / 5
  )
  without, with_guess = (
    summary['arms'][arm]['free'] for arm in ('without_guess', 'with_guess')
  )
  assert (without['num_parsed'], without['parse_rate']) == (4, 0.8)
  losses = [4, 0, 0.25, 4]
  bounds = stats.ttest_1samp(losses, 0).confidence_interval(0.95)
  assert (without['low'], without['high']) == pytest.approx(tuple(bounds))
  assert without['loss'] == pytest.approx(np.mean(losses))
  changed = 0.996**2
  assert with_guess['loss'] == pytest.approx((1 + 0.25 + 0.25 + changed) / 4)
  assert (with_guess['num_copied'], with_guess['copied_share']) == (3, 0.75)
  assert with_guess['num_changed'] == 1
  assert with_guess['changed_loss'] == pytest.approx(0.25)
  assert with_guess['changed_guess_loss'] == pytest.approx(1.0)
  # Where both arms have an answer: prompts 0, 1 and 4.
  differences = [1 - 4, 0.25 - 0, changed - 4]
  paired = summary['paired']['free']
  assert paired['num'] == 3
  assert paired['difference'] == pytest.approx(np.mean(differences))
  interval = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
  assert (paired['low'], paired['high']) == pytest.approx((interval.low, interval.high))
  against = summary['against_guess']['free']
  assert against['num'] == 4
  assert against['difference'] == pytest.approx((0.25 - 1 + changed - 1) / 4)
  assert summary['arms']['with_guess']['expected']['mass'] == 0.75


def test_an_arm_without_any_answer_is_told_as_such():
  lines = lines_of([(3.0, 2.0, None, 2.0), (4.0, 3.0, None, 3.5)])
  summary = summary_of(lines)
  free = summary['arms']['without_guess']['free']
  assert (free['num_parsed'], free['loss'], free['stderr']) == (0, None, None)
  paired = summary['paired']['free']
  assert paired.pop('num') == 0
  assert set(paired.values()) == {None}
  assert ' -      0%' in table(summary)
  assert_drawn(plot(summary, lines))


def test_classes_have_an_error_rate():
  scale = LabelScale(0.0, 0.0, ('a', 'b'))
  lines = lines_of([('a', 'b', 'a', 'b'), ('b', 'b', 'a', 'b'), ('b', 'a', None, 'b')])
  for line in lines:
    line['context_mean'] = line['constant'] = 'a'
  summary = summary_of(lines, scale)
  assert summary['metric'] == 'error rate'
  assert summary['baselines']['constant']['loss'] == pytest.approx(2 / 3)
  assert summary['arms']['without_guess']['free']['loss'] == pytest.approx(1 / 2)
  assert 'train majority    0.667' in table(summary)
  assert summary['arms']['with_guess']['free']['num_copied'] == 2
  drawn = plot(summary, lines)
  assert [panel.key for panel in drawn.panels] == ['a', 'b']


def test_the_table_and_the_figure_hold_the_numbers():
  summary = summary_of(LINES)
  told = table(summary)
  for readout, name in READOUTS.items():
    for arm in ('without_guess', 'with_guess'):
      numbers = summary['arms'][arm][readout]
      half = stats.t.ppf(0.975, numbers['num_parsed'] - 1) * numbers['stderr']
      assert f'{numbers["loss"]:.3f} ± {half:.3f}' in told
    assert name in told
  (row,) = (line for line in told.splitlines() if line.startswith('free generation'))
  assert row.split()[9:11] == ['80%', '3']  # answers, and copies of the guess
  drawn = plot(summary, LINES)
  assert from_csv('6', to_csv(drawn)) == drawn
  assert_drawn(drawn)
  assert drawn.panels[0].x_names == tuple(READOUTS.values())
  losses = drawn.series('a', 'with guess').y
  assert losses == tuple(
    summary['arms']['with_guess'][readout]['loss'] for readout in READOUTS
  )
  points = drawn.series('c', 'free generation')
  assert (points.x, points.y) == ((1.0, 1.5, 2.0, 3.0), (0.996, 1.5, 2.0, 3.5))
