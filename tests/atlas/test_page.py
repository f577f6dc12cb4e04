"""What the documents say of the atlas is in its kept table."""

import numpy as np
import pytest
from scipy import stats

from studies import atlas
from studies.atlas import comparisons, results
from tests.launch.processes import ROOT
from zoo.measure.intervals import estimate


def _text(path):
  return ' '.join((ROOT / path).read_text().split())


@pytest.fixture(scope='module')
def effects():
  path = ROOT / 'docs' / 'results' / 'atlas.csv'
  return comparisons.changes(atlas.from_csv(path.read_text(), str(path)))


def _percent(number, digits):
  return f'{100 * number:+.{digits}f}'.replace('-', '−')


def _over_seeds(effects):
  """The mean change over models, with its interval over seeds."""
  changes = [
    np.divide(effect.row.losses, effect.reference.losses) - 1 for effect in effects
  ]
  return estimate(np.mean(changes, axis=0))


def test_the_mean_effects_of_guesses_are_those_of_the_table(effects):
  (tokens, outside) = comparisons.pooled(effects).values()
  low, high = (
    f'{100 * end:.1f}'.replace('-', '−') for end in (tokens.low, tokens.high)
  )
  in_tokens = f'{_percent(tokens.mean, 1)} %', f'{low} to {high} %'
  ends = f'({_percent(outside.low, 0)} to {_percent(outside.high, 0)} %)'
  for path in 'studies/atlas/README.md', 'docs/results.md':
    for said in *in_tokens, f'{_percent(outside.mean, 0)} % {ends}':
      assert said in _text(path), (path, said)


def test_what_is_said_of_a_guess_outside_the_model(effects):
  page = _text('studies/atlas/README.md')
  shares = {
    effect.row.model: effect
    for effect in effects
    if effect.row.guess == 'residual' and effect.kind == 'other models'
  }
  means = [effect.share.mean for effect in shares.values()]
  less = sum(mean < 0 for mean in means)
  assert f'{less} of {len(means)} have a lower loss' in page
  p_value = stats.binomtest(less, len(means)).pvalue
  assert f'(p = {p_value:.4f} by a sign test)' in page
  median = abs(100 * np.median(means))
  assert f'median by {median:.0f} %' in page
  lowers = f'lowers the loss of {less} of the {len(means)}'
  assert lowers in _text('docs/results.md')
  remaining = [model for model, effect in shares.items() if effect.p_value < 0.05]
  assert remaining == ['looped', 'gru']
  for model in remaining:
    assert f'`{model}` {_percent(shares[model].share.mean, 0)} %' in page
  assert min(shares, key=lambda model: shares[model].share.mean) == 'ttt'
  for model, said in (
    ('ttt', '`ttt` has the largest mean change,'),
    ('delta', '`delta` varies most between seeds: it is'),
  ):
    share = shares[model].share
    ends = share.mean, share.low, share.high
    mean, low, high = (_percent(number, 0) for number in ends)
    assert f'{said} {mean} % ({low} to {high} %)' in page


def test_the_gain_outside_the_model_is_told_by_rates_and_by_seeds(effects):
  outside = [
    effect
    for effect in effects
    if effect.row.guess == 'residual' and effect.kind == 'other models'
  ]

  def mean_of(some):
    return _percent(np.mean([effect.share.mean for effect in some]), 0)

  alike = [effect for effect in outside if effect.row.rate == effect.reference.rate]
  others = [effect for effect in outside if effect not in alike]
  assert (len(alike), mean_of(alike), mean_of(others)) == (10, '−6', '−8')
  assert mean_of([effect for effect in outside if effect.row.model != 'ttt']) == '−6'
  over_seeds = _over_seeds(outside)
  mean, half = _percent(over_seeds.mean, 1), f'{100 * over_seeds.half:.1f}'
  assert f'over seeds, too: {mean} ± {half} %' in _text('studies/atlas/README.md')
  over_seeds = _over_seeds(
    effect
    for effect in effects
    if effect.row.guess == 'linear' and effect.kind == 'other models'
  )
  mean, half = _percent(over_seeds.mean, 1), f'{100 * over_seeds.half:.1f}'
  assert f'over seeds {mean} ± {half} %' in _text('docs/results.md')


def test_fresh_seeds_have_the_same_rates_and_give_what_the_pages_say():
  kept, again = (
    atlas.from_csv((ROOT / 'docs' / 'results' / f'{name}.csv').read_text(), name)
    for name in ('atlas', 'guess_again')
  )
  trained = {row.cell: (row.rate, row.steps) for row in kept}
  assert len(again) == 2 * 19
  assert all(trained[row.cell] == (row.rate, row.steps) for row in again)
  outside = comparisons.changes(again)
  others = [effect for effect in outside if effect.kind == 'other models']
  (pool,) = comparisons.pooled(outside).values()
  mean, low, high = (_percent(end, 0) for end in (pool.mean, pool.low, pool.high))
  said = f'{mean} % ({low} to {high} %)'
  for path in 'docs/results.md', 'studies/atlas/README.md':
    assert said in _text(path), (path, said)
  page = _text('studies/atlas/README.md')
  means = [effect.share.mean for effect in others]
  assert all(mean < 0 for mean in means)
  assert len(means) == 18
  assert (
    f'Now all 18 have a lower loss, in the median by {-100 * np.median(means):.0f}'
    in page
  )
  seeds = _over_seeds(others)
  assert f'over seeds {_percent(seeds.mean, 1)} ± {100 * seeds.half:.1f} %' in page
  remaining = {
    effect.row.model: _percent(effect.share.mean, 0)
    for effect in outside
    if effect.p_value < 0.05
  }
  assert remaining == {'looped': '−3', 'gru': '−3', 'deep_set': '−1'}
  assert (
    '`looped` −3 % and `gru` −3 % are significant again, and `deep_set` −1 %' in page
  )
  deep = next(effect for effect in outside if effect.row.model == 'deep_lsa')
  *zero, worst = sorted(deep.reference.losses)
  guess = sorted(deep.row.losses)
  assert (
    f'with the guess 0 one ended at {worst:.0f}, and the others between {zero[0]:.2f} '
    f'and {zero[-1]:.2f}. With the guess outside the model all six are between '
    f'{guess[0]:.2f} and {guess[-1]:.2f}.'
  ) in page


def test_no_single_effect_of_a_guess_in_the_tokens_remains(effects):
  in_tokens = [effect for effect in effects if effect.row.guess == 'linear']
  assert len(in_tokens) == 19
  assert min(effect.p_value for effect in in_tokens) > 0.05
  assert 'No single effect remains after correction' in _text('studies/atlas/README.md')


def test_what_is_said_of_two_layers_of_linear_attention(effects):
  page = _text('studies/atlas/README.md')
  by_guess = {
    effect.row.guess: effect
    for effect in effects
    if effect.row.model == 'deep_lsa' and effect.row.task == 'prior'
  }
  losses = [
    by_guess['linear'].reference.loss,
    *(by_guess[guess].row.loss for guess in ('linear', 'residual')),
  ]
  zero, tokens, outside = (f'{loss.mean:.2f} ± {loss.half:.2f}' for loss in losses)
  assert f'a loss of {zero} with the guess 0, of {tokens} with a trained' in page
  assert f'and of {outside} with a guess outside the model' in page
  p_values = (by_guess[guess].p_value for guess in ('linear', 'residual'))
  said = (
    'the guess in the tokens has p = {:.2f} and the guess outside the model p = {:.3f}'
  )
  assert said.format(*p_values) in page
  share = by_guess['residual'].share
  mean, low, high = (abs(100 * end) for end in (share.mean, share.low, share.high))
  assert f'by {mean:.0f} % ({high:.0f} to {low:.0f} %)' in page


def test_the_cells_whose_best_rate_is_at_an_edge_are_named():
  rows = atlas.from_csv((ROOT / 'docs/results/atlas.csv').read_text(), 'atlas.csv')
  assert {(row.model, row.task) for row in rows if row.at_edge} == {('lstm', 'recall')}
  assert '`lstm`, whose best rate is at the edge of the search' in _text(
    'studies/atlas/README.md'
  )


def test_how_many_are_below_one_step_without_a_guess(effects):
  zero = {
    effect.row.model: effect.reference.loss
    for effect in effects
    if effect.kind == 'other models'
  }
  one_step = 5 * 6 / (5 + 5 + 1)
  surely = sum(loss.high < one_step for loss in zero.values())
  in_the_mean = sum(loss.mean < one_step for loss in zero.values()) - surely
  assert (len(zero), surely, in_the_mean) == (18, 10, 4)
  said = 'ten of 18 are below 2.7273 with their whole interval, four more only in'
  assert said in _text('studies/atlas/README.md')


@pytest.mark.slow
@pytest.mark.full
def test_the_table_of_linear_regression_is_that_of_the_kept_rows():
  rows = atlas.from_csv((ROOT / 'docs/results/atlas.csv').read_text(), 'atlas.csv')
  page = (ROOT / 'studies/atlas/README.md').read_text()
  table = atlas.shares_beside_softmax(rows, 'linear')
  assert f'\n{table.markdown()}\n' in page
  found = comparisons.differences(rows)
  assert f'for all {len(found)} comparisons' in ' '.join(page.split())
  linear = [one for one in found if one.row.task == 'linear']
  intervals = [one.share for one in linear]
  apart = [
    one.row.model
    for one, found in zip(linear, intervals, strict=True)
    if found.low * found.high > 0 and one.word == 'not seen to differ'
  ]
  alike = sum(one.word == 'not seen to differ' for one in linear)
  assert (len(linear), alike, len(apart)) == (18, 16, 9)
  assert {*apart} == {
    *('kda', 'deep_set', 'delta', 'mlp_mixer', 'set'),
    *('lstm', 'deep_lsa', 'mamba2', 'looped'),
  }
  (mamba2,) = [
    interval
    for one, interval in zip(linear, intervals, strict=True)
    if one.row.model == 'mamba2'
  ]
  mean, low, high = (
    f'{number:.3f}' for number in (mamba2.mean, mamba2.low, mamba2.high)
  )
  said = f'leaves {mean} more than softmax attention, with an uncorrected 95 % interval'
  assert f'{said} from {low} to {high}' in _text('studies/atlas/README.md')


def test_the_models_are_counted_as_the_page_says():
  rows = atlas.from_csv((ROOT / 'docs/results/atlas.csv').read_text(), 'atlas.csv')
  trained: dict[str, set[str]] = {}
  for row in results.at_budget(rows):
    if row.known == results.TRAINED:
      trained.setdefault(row.task, set()).add(row.model)
  layers = {'lsa', 'multi_head_lsa', 'yq_lsa', 'ltb'}
  assert len(trained['tree']) == 23
  assert layers < trained['tree']
  for task, models in trained.items():
    assert models | layers == trained['tree'], task
    assert task == 'tree' or not models & layers, task
