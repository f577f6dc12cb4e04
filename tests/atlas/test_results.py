"""Rows are kept, compared and drawn."""

import csv
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.atlas.rows import make_row, rows_of_all_kinds
from tests.compare import refuses
from tests.launch.processes import ROOT
from zoo.studies import atlas
from zoo.studies.atlas import (
  pictures,
  results,
)
from zoo.studies.atlas.search import why_grey

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def test_the_kept_losses_are_final_by_the_same_rule():
  path = ROOT / 'docs' / 'results' / 'atlas.csv'
  rows = results.from_csv(path.read_text(), str(path))
  trained = {(row.cell, row.steps): row for row in rows if row.known == results.TRAINED}
  for (cell, steps), row in trained.items():
    before = trained.get((cell, steps // 2))
    scale = results.scale_of(rows, row.prompts)
    assert row.grey == why_grey(row.losses, before and before.losses, scale), cell
  assert atlas.summary(rows) == (
    '18 architectures, 154 cells. 130 are trained, of which 15 have a loss that is '
    'final; 16 have a value of theory; 8 have no loss.'
  )


def test_rows_are_read_as_they_were_written():
  rows = rows_of_all_kinds()
  rows[4] = dataclasses.replace(rows[4], losses=(1.0, math.nan), rate=0.0128)
  text = results.to_csv(rows)
  again = results.from_csv(text, 'a.csv')
  assert results.to_csv(again) == text
  assert repr(again) == repr(rows)  # NaN is not itself
  lines = [*csv.DictReader(text.splitlines())]
  assert (lines[2]['loss'], lines[4]['loss']) == ('8', '')
  # Student's t with two degrees of freedom, 4.302653, of 6, 8 and 10.
  assert float(lines[2]['high']) == pytest.approx(8 + 4.302653 * 2 / 3**0.5)
  for cut in 'model,task\na,b\n', text[: text.rindex(',') - 20]:
    with refuses('a.csv is no table of an atlas'):
      results.from_csv(cut, 'a.csv')


def test_a_guess_is_compared_with_the_guess_zero_by_seed():
  effects = results.changes(rows_of_all_kinds())
  assert [effect.row.cell[:3] for effect in effects] == [
    ('gru', 'prior', 'residual'),
    ('softmax', 'prior', 'residual'),
    ('gru', 'linear', 'residual'),
    ('softmax', 'linear', 'residual'),
  ]
  first = effects[0]
  assert first.loss.mean == pytest.approx(-4 / 3)
  wanted = stats.ttest_rel([2, 2.5, 3.5], [3, 4, 5])
  low, high = wanted.confidence_interval(0.95)
  assert first.loss[1:] == pytest.approx((low, high))
  assert first.share.mean == pytest.approx(-1 / 3)
  # By Holm the smallest of four is multiplied by four; here two are the smallest.
  assert first.p_value == pytest.approx(4 * wanted.pvalue)
  shares = [effect.share.mean for effect in effects[:2]]
  half = 12.7062 * abs(shares[0] - shares[1]) / 2
  pooled = results.pooled(effects)['prior', 'residual']
  assert pooled.mean == pytest.approx(sum(shares) / 2)
  assert pooled.half == pytest.approx(half, rel=1e-5)
  changed, listed = results.tables(rows_of_all_kinds())
  assert changed.rows[0][0] == 'prior, residual: all models'
  assert changed.rows[2][0].startswith('gru,')  # sorted by effect
  (lost,) = [row for row in listed.rows if row[0].startswith('ltb')]
  assert lost[2] == 'it predicts one number'


def test_guesses_are_compared_after_the_same_number_of_steps():
  """Longer training of one of the two is no effect of the guess."""
  zero = [
    make_row('gru', [4.0, 4.2], steps=100),
    make_row('gru', [3.0, 3.3], steps=200),
  ]
  guess = [make_row('gru', [3.9, 4.0], 'residual', steps=100)]
  for rows in zero + guess, guess + zero:
    (effect,) = results.changes(rows)
    assert effect.loss.mean == pytest.approx(-0.15)
    assert effect.share.mean == pytest.approx(-0.15 / 4.1)
  assert not results.changes([*zero, make_row('gru', [1.0], 'residual', steps=400)])


def test_the_share_of_what_is_not_learned():
  rows = rows_of_all_kinds()
  scale = results.scale_of(rows, ('prior', 4))
  assert scale == (1.0, 9.0)
  assert scale.share(3.0) == 0.25
  # Bayes of state tracking needs no examples; what is without them is not learned.
  solved = dataclasses.replace(rows[0], by_length=(1.0,) * 4)
  assert results.scale_of([solved, rows[1]], ('prior', 4)) == (1.0, 9.0)
  # Without Bayes 0 is no loss.
  rows = [row for row in rows if row.model != 'bayes']
  assert results.scale_of(rows, ('prior', 4)) == (0.0, 9.0)


def test_only_final_losses_have_a_colour():
  figure = pictures.heat_map(rows_of_all_kinds())
  (image,) = figure.axes[0].images
  values = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
  names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
  columns = [label.get_text() for label in figure.axes[0].get_xticklabels()]
  assert columns == ['prior', 'prior, residual', 'linear', 'linear, residual']
  gru = values[names.index('gru')]
  np.testing.assert_allclose(gru, [3 / 8, (8 / 3 - 1) / 8, 3 / 8, (8 / 3 - 1) / 8])
  texts = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
  late = values[names.index('softmax'), 3]
  assert math.isnan(late)
  assert texts['0.13\n−12 %'] == texts['–'] == '#777777'
  assert texts['0.62\ntheory'] != '#777777'


def test_all_pictures_are_drawn():
  rows = rows_of_all_kinds()
  names = ['atlas', 'atlas_operations', 'atlas_examples', 'atlas_guesses']
  assert [*pictures.draw(rows)] == names
  longer = [dataclasses.replace(row, context_length=8) for row in rows]
  drawn = pictures.draw(rows + longer)
  assert [*drawn] == [*names, 'atlas_contexts']
  panel = drawn['atlas_contexts'].axes[0]
  lines = {line.get_label(): line for line in panel.get_lines()}
  points: Any = lines['guess: zero'].get_xydata()
  assert points.tolist() == [[4, 4], [8, 4]]
  pooled = drawn['atlas_guesses'].axes[0].get_yticklabels()[0]
  assert pooled.get_text() == 'all models'
