"""Rows are kept, compared and drawn."""

import csv
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from studies import atlas
from studies.atlas import (
  AtlasRow,
  comparisons,
  pictures,
  results,
)
from tests.atlas.rows import make_row, rows_of_all_kinds
from tests.compare import refuses

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


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
  effects = comparisons.changes(rows_of_all_kinds())
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
  assert (first.loss.low, first.loss.high) == pytest.approx((low, high))
  assert first.share.mean == pytest.approx(-1 / 3)
  # By Holm the smallest of four is multiplied by four; here two are the smallest.
  assert first.p_value == pytest.approx(4 * wanted.pvalue)
  shares = [effect.share.mean for effect in effects[:2]]
  half = 12.7062 * abs(shares[0] - shares[1]) / 2
  pool = comparisons.Pool('prior', 4, 'residual', 'other models')
  pooled = comparisons.pooled(effects)[pool]
  assert pooled.mean == pytest.approx(sum(shares) / 2)
  assert pooled.half == pytest.approx(half, rel=1e-5)
  changed, listed = atlas.tables(rows_of_all_kinds())
  assert changed.rows[0][0] == 'prior, residual, C = 4: other models'
  assert changed.rows[2][0].startswith('gru,')  # sorted by effect
  (lost,) = [row for row in listed.rows if row[0].startswith('ltb')]
  assert lost[1] == 'it predicts one number'


def test_guesses_are_compared_after_the_largest_common_budget():
  """Longer training of one of the two is no effect of the guess."""
  zero = [
    make_row('gru', [4.0, 4.2], budget=1e9),
    make_row('gru', [3.0, 3.3], budget=1e10),
  ]
  guess = [make_row('gru', [3.9, 4.0], 'residual', budget=1e9)]
  for rows in zero + guess, guess + zero:
    (effect,) = comparisons.changes(rows)
    assert effect.loss.mean == pytest.approx(-0.15)
    assert effect.share.mean == pytest.approx(-0.15 / 4.1)
    assert results.common_budgets(rows) == [1e9]
  assert not comparisons.changes(
    [*zero, make_row('gru', [1.0], 'residual', budget=4e9)]
  )


def test_networks_of_linear_attention_are_pooled_alone():
  rows = [
    make_row(model, losses, guess, budget=1e9)
    for model, change in (
      ('deep_lsa', -4.0),
      ('gd_plus_plus', -2.0),
      ('gru', 1.0),
      ('softmax', 0.0),
    )
    for guess, losses in (
      ('zero', [8.0, 8.2]),
      ('linear', [8.1 + change, 8.1 + change]),  # by other changes of the seeds
    )
  ]
  pooled = comparisons.pooled(comparisons.changes(rows))
  assert {kind: shares.mean for (_, _, _, kind), shares in pooled.items()} == {
    'linear attention': pytest.approx(-3 / 8.1),
    'other models': pytest.approx(0.5 / 8.1),
  }
  alone = [row for row in rows if row.model != 'gd_plus_plus']
  kinds = {pool.kind for pool in comparisons.pooled(comparisons.changes(alone))}
  assert kinds == {'other models'}


def test_models_are_compared_with_softmax_attention():
  rows = [
    make_row('zero', [9.0], '', known=results.EXACT),
    make_row('zero', [9.0], '', 'linear', known=results.EXACT),
    make_row('softmax', [1.0, 1.1, 0.9], budget=1e9),
    make_row('gla', [0.01, 0.011, 0.009], budget=1e9),
    make_row('delta', [1.0, 1.05, 0.95], budget=1e9),
    make_row('ttt', [7.0, 7.1, 6.9], budget=1e9),
    make_row('gru', [math.nan, 1.0, 1.0], budget=1e9),
    make_row('gla', [0.01, 0.01, 0.01], task='linear', budget=1e9),
  ]
  found = comparisons.differences(rows)
  words = {one.row.model: one.word for one in found}
  assert words == {'gla': 'lower', 'delta': 'not seen to differ', 'ttt': 'higher'}
  shares = np.divide(rows[4].losses, 9), np.divide(rows[2].losses, 9)
  largest: Any = stats.ttest_ind(*shares, equal_var=False)
  (delta,) = [one for one in found if one.row.model == 'delta']
  assert delta.p_value == pytest.approx(largest.pvalue)
  ends = delta.share.low, delta.share.high
  assert ends == pytest.approx(tuple(largest.confidence_interval()))


def test_the_table_beside_softmax_names_what_differs():
  rows = [
    *rows_of_all_kinds()[:2],
    make_row('softmax', [2.0, 2.1, 1.9], budget=1e9),
    make_row('gla', [1.1, 1.11, 1.09], budget=1e9),
    make_row('delta', [2.0, 2.05, 1.95], budget=1e9),
    make_row('ttt', [7.0, 7.1, 6.9], budget=1e9),
  ]
  assert atlas.beside_softmax(rows).rows == [
    ['prior', '0.12', 'gla 0.012', 'ttt 0.75', '1']
  ]
  assert atlas.summary(rows).startswith(
    '4 architectures, 4 cells. 4 cells are trained: 0 with 1e+09 operations for each '
    'seed, 4 with fewer (they reach the limit of steps). All of it took'
  )


def test_an_interval_and_its_p_value_never_contradict_each_other():
  """Of three seeds that agree by chance, and of shares far apart on one scale."""
  zero = make_row('zero', [1.0], '', known=results.EXACT)
  for losses in ([0.37, 0.38, 0.39], [0.1, 0.01, 0.2], [0.3, 0.001, 0.5]):
    rows = [make_row('softmax', [0.5, 0.6, 0.45]), make_row('gla', losses)]
    (gla,) = comparisons.differences([zero, *rows])  # one test, so without correction
    assert (gla.p_value < 0.05) == (gla.share.low * gla.share.high > 0)


def test_what_is_as_good_as_learned_does_not_differ():
  zero = make_row('zero', [1.0], '', known=results.SAMPLED)
  rows = [
    make_row('softmax', [1e-5, 2e-5, 1e-4]),
    make_row('gla', [9e-4, 8e-4, 9e-4]),
    make_row('ttt', [0.9, 0.8, 0.9]),
  ]
  gla, ttt = comparisons.differences([zero, *rows])
  assert (gla.share.mean, gla.p_value) == (0.0, 1.0)
  assert ttt.word == 'higher'


def test_only_a_narrow_interval_is_like_bayes():
  rows = rows_of_all_kinds()[:2]  # Bayes has 1, no examples leave 9
  for losses, wanted in (
    ([1.01, 1.02, 1.03], True),
    ([0.5, 1.5, 1.0], False),  # Bayes is in the interval, and so is much else
    ([1.2, 1.2, 1.2], False),
  ):
    row = make_row('gru', losses, task='prior', budget=1e9)
    assert results.is_like_bayes(row, rows) == wanted
  assert not results.is_like_bayes(row, rows[1:])  # Bayes is not known


def test_the_share_of_what_is_not_learned():
  rows = rows_of_all_kinds()
  scale = results.scale_of(rows, ('prior', 4))
  assert scale == (1.0, 9.0)
  assert scale.share(3.0) == 0.25
  # Bayes of state tracking needs no examples; what is without them is not learned.
  solved = dataclasses.replace(rows[0], by_length=(1.0001,) * 4)  # as it is sampled
  assert results.scale_of([solved, rows[1]], ('prior', 4)) == (1.0, 9.0)
  # Without Bayes 0 is no loss.
  rows = [row for row in rows if row.model != 'bayes']
  assert results.scale_of(rows, ('prior', 4)) == (0.0, 9.0)


_PICTURES = ['atlas', 'atlas_slopes', 'atlas_guesses']


def _matrix(axes):
  """The values by model and column, and the texts."""
  (image,) = axes.images
  values = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
  names = [label.get_text() for label in axes.get_yticklabels()]
  columns = [label.get_text() for label in axes.get_xticklabels()]
  shown = {
    (name, column): values[i, j]
    for i, name in enumerate(names)
    for j, column in enumerate(columns)
  }
  return shown, {text.get_text() for text in axes.texts}


def test_every_cell_of_the_largest_budget_has_a_colour():
  values, texts = _matrix(pictures.heat_map(rows_of_all_kinds()))
  columns = [
    'prior mean, guess 0',
    'prior mean, guess outside',
    'linear regression',
    'linear, residual',
  ]
  gru = [values['gru', column] for column in columns]
  np.testing.assert_allclose(gru, [3 / 8, (8 / 3 - 1) / 8, 3 / 8, (8 / 3 - 1) / 8])
  assert math.isnan(values['ltb', 'linear regression'])
  assert {'0.62\ntheory', '–'} < texts


def test_slopes_are_of_the_last_factor_of_ten():
  rows = rows_of_all_kinds()
  middle = [
    dataclasses.replace(row, budget=5e8, losses=(77.0,) * 3)
    for row in rows
    if row.budget == 1e8
  ]
  for made in rows, rows + middle:
    values, _ = _matrix(pictures.slopes(pictures.slope_ratios(made)))
    column = 'prior, × 10'
    assert values['gru', column] == pytest.approx((4 - 1) / (8 - 1))
    assert ('lsa', column) not in values


def test_only_tasks_of_several_budgets_have_slopes():
  rows = [
    row
    for row in rows_of_all_kinds()
    if row.task == 'linear' or row.budget != 1e9 or row.guess != 'zero'
  ]
  drawn = pictures.draw(rows)
  assert [*drawn] == _PICTURES
  values, _ = _matrix(drawn['atlas_slopes'].axes[0])
  assert {column for _, column in values} == {
    'linear, × 10',
    'linear, residual, × 10',
  }
  assert 'with 1e+08 operations' in atlas.summary(rows)
  assert 'steps); 6 also with 1e+09. All of it took' in atlas.summary(rows)
  assert not pictures.slope_ratios([row for row in rows if row.budget != 1e9])


def test_a_cell_that_reaches_the_most_steps_has_a_star_and_no_slope():
  rows = [
    dataclasses.replace(row, training_operations=row.budget / 2)
    if row.model == 'gru'
    else row
    for row in rows_of_all_kinds()
  ]
  values, texts = _matrix(pictures.heat_map(rows))
  assert values['gru', 'prior mean, guess 0'] == pytest.approx(3 / 8)
  assert '0.38*' in texts
  ratios = pictures.slope_ratios(rows)
  assert {model for model, _ in ratios} == {'softmax'}
  gru = [row for row in rows if row.model == 'gru' or not row.is_model]
  assert 'atlas_slopes' not in pictures.draw(gru)
  assert 'seed, 4 with fewer (they reach the limit of steps)' in atlas.summary(rows)


def test_what_has_diverged_is_no_dash():
  rows = [
    *rows_of_all_kinds(),
    make_row('a', [math.nan, 1.0], budget=1e9),
    AtlasRow('b', 'prior', 'zero', 4, results.NOTHING, budget=1e9, reason='diverged'),
  ]
  _, texts = _matrix(pictures.heat_map([row for row in rows if row.budget != 1e8]))
  assert 'diverged' in texts
  zero = make_row('zero', [9.0], '', known=results.EXACT)
  alone = [make_row(model, [1.0], budget=1e9) for model in ('softmax', 'gla')]
  untested = comparisons.differences([zero, *alone])
  assert [one.word for one in untested] == ['']


def test_all_pictures_are_drawn():
  rows = rows_of_all_kinds()
  longer = [dataclasses.replace(row, context_length=8) for row in rows]
  drawn = pictures.draw(rows + longer)
  assert [*drawn] == [*_PICTURES, 'atlas_contexts']
  panel = drawn['atlas_contexts'].axes[0]
  lines = {line.get_label(): line for line in panel.get_lines()}
  points: Any = lines['guess: zero'].get_xydata()
  assert points.tolist() == [[4, 4], [8, 4]]
  pooled = drawn['atlas_guesses'].axes[0].get_yticklabels()[0]
  assert pooled.get_text() == 'other models (mean)'


def test_shares_beside_softmax_have_plain_welch_intervals():
  rows = [
    make_row('zero', [9.0], '', known=results.EXACT),
    make_row('softmax', [1.0, 1.1, 0.9], budget=1e9),
    make_row('gla', [0.2, 0.1, 0.6], budget=1e9),
    make_row('ttt', [4.5], budget=1e9),
  ]
  gla, ttt = comparisons.differences(rows)
  welch: Any = stats.ttest_ind(
    np.divide(gla.row.losses, 9), np.divide(gla.reference.losses, 9), equal_var=False
  )
  found = gla.share
  assert found.mean == pytest.approx(-0.7 / 9)
  assert (found.low, found.high) == pytest.approx(tuple(welch.confidence_interval()))
  # A single seed has no interval, and cannot be tested.
  found = ttt.share
  assert (found.mean, math.isnan(found.low), math.isnan(found.high)) == (
    pytest.approx(0.39, abs=0.002),
    True,
    True,
  )
  # Half of the interval of 0.9, 1 and 1.1 is 4.302653 × 0.1 / √3.
  half = 4.302653 * 0.1 / 3**0.5 / 9
  assert atlas.shares_beside_softmax(rows, 'prior').rows[1:] == [
    ['softmax', f'0.111 ± {half:.3f}', '', ''],
    ['ttt', '0.500', '+0.389', ''],
  ]
  assert not atlas.shares_beside_softmax(rows, 'linear').rows
