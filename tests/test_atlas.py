"""The atlas searches rates and budgets, resumes, and tells what is not final."""

import csv
import dataclasses
import functools
import json
import math
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import stats

import zoo
from configs import atlas as sizes
from tests.compare import refuses
from tests.launch.processes import ROOT
from tests.marks import mostly_full
from zoo.config.building import abstract_model, num_weights
from zoo.config.validation import build_task
from zoo.core.errors import UserError
from zoo.host.interruption import Interruption
from zoo.host.parts import Part
from zoo.studies import atlas, runner
from zoo.studies.atlas import (
  AtlasRow,
  Cell,
  Settings,
  cells,
  measure,
  pictures,
  results,
  training,
)
from zoo.studies.atlas.search import RATES, double, find_rate, why_grey
from zoo.theory import isotropic_head_limit

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def _search(best, diverging=math.inf, rates=RATES):
  """A search where the loss is least at a rate, and what was tried."""
  tried = []

  def losses(some, num_steps):
    tried.append((num_steps, len(some)))
    return [
      math.inf if rate >= diverging else 1 + abs(math.log2(rate / best))
      for rate in some
    ]

  return find_rate(losses, rates, 10), tried


def test_all_rates_are_tried_briefly_and_the_best_longer():
  search, tried = _search(RATES[6])
  assert tried == [(10, 11), (30, 4), (90, 3)]
  assert search.rate == RATES[6]
  assert search.losses == {RATES[5]: 2.0, RATES[6]: 1.0, RATES[7]: 2.0}
  assert not search.at_edge


def test_the_search_goes_on_beyond_an_edge():
  for best in (RATES[0] / 4, RATES[-1] * 4):
    search, tried = _search(best)
    assert search.rate == pytest.approx(best)
    assert not search.at_edge
    assert tried[-1] == (90, 1)
  search, _ = _search(1e-30)
  assert search.at_edge
  assert len(search.losses) == 8
  # A rate that diverges is never the best, and of equal ones the lowest is.
  search, _ = _search(1.0, diverging=RATES[7])
  assert (search.rate, search.losses[RATES[7]]) == (RATES[6], math.inf)


SCALE = results.LossScale(2.0, 12.0)  # 10 can be learned


def _doubled(losses, limit=10**9):
  return double(losses, 100, SCALE, lambda num_steps: num_steps <= limit)


def test_a_budget_doubles_until_the_loss_is_final():
  # From 1600 to 3200 steps 1.0625 becomes 1.03125, 2.9 % less; before that by 5.6 %.
  by_budget = _doubled(lambda n: [0.99 + 100 / n, 1.01 + 100 / n])
  assert [*by_budget] == [100, 200, 400, 800, 1600, 3200]
  assert by_budget[100] == [1.99, 2.01]
  assert why_grey(by_budget[3200], by_budget[1600], SCALE) == ''
  for never in (
    lambda n: [100 / n, 100 / n],
    lambda n: [1.0],  # one seed
    lambda n: [1.0, 9.0],  # seeds that differ
    lambda n: [12.0, 12.0],  # on a plateau at chance
  ):
    assert [*_doubled(never, limit=400)] == [100, 200, 400]
  assert [*_doubled(lambda n: [math.nan])] == [100]


def test_a_loss_that_is_not_final_says_why():
  for losses, before, why in (
    ([4.0, 4.0], None, 'one budget only'),
    ([3.4, 3.4], [4.0, 4.0], '−15 % in the last doubling'),
    ([3.92, 3.92], [4.0, 4.0], ''),  # by 2 %, though the seeds agree
    ([2e-3, 2e-3], [1e-2, 1e-2], ''),  # by less than a thousandth of 10
    ([4.0], [4.0], 'one seed only'),
    # Half the interval of two seeds is 12.7 times half their difference.
    ([3.93, 4.07], [4.0, 4.0], ''),
    ([3.9, 4.1], [4.0, 4.0], 'seeds ± 13 % of what can be learned'),
    ([11.9, 11.92], [12.0, 12.0], 'no better than chance'),
    ([11.8, 11.82], [12.0, 12.0], ''),
    ([math.nan, 4.0], [4.0, 4.0], 'a seed diverged'),
  ):
    assert why_grey(losses, before, SCALE) == why


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


def _row(model, losses, guess='zero', task='prior', **changes):
  losses = tuple(map(float, losses))
  curve = {'lengths': (0, 2, 4, 8), 'by_length': (9.0, 5.0, losses[0], losses[0])}
  return AtlasRow(model, task, guess, 4, losses=losses, **curve, **changes)


def rows_of_all_kinds():
  """Two tasks, models with and without guesses, of several budgets; and baselines."""
  rows = []
  for task in ('prior', 'linear'):
    rows += [
      _row('bayes', [1.0], '', task, known=results.EXACT),
      _row('zero', [9.0], '', task, known=results.SAMPLED),
    ]
    for model, guess, late in (
      ('gru', 'zero', [3, 4, 5]),
      ('gru', 'residual', [2, 2.5, 3.5]),
      ('softmax', 'zero', [2, 2.1, 2.3]),
      ('softmax', 'residual', [2.1, 1.8, 2.2]),
    ):
      for steps, factor, grey in ((100, 2, 'one budget only'), (200, 1, '')):
        losses = [factor * loss for loss in late]
        of = {'steps': steps, 'training_operations': 1e6 * steps, 'grey': grey}
        rows.append(_row(model, losses, guess, task, weights=25_000, **of))
    rows.append(_row('lsa', [6.0], '', task, known=results.LOWEST))
  rows[-2] = dataclasses.replace(rows[-2], grey='−12 % in the last doubling')
  reason = 'it predicts one number'
  return [*rows, AtlasRow('ltb', 'linear', '', 4, known=results.NOTHING, grey=reason)]


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
  zero = [_row('gru', [4.0, 4.2], steps=100), _row('gru', [3.0, 3.3], steps=200)]
  guess = [_row('gru', [3.9, 4.0], 'residual', steps=100)]
  for rows in zero + guess, guess + zero:
    (effect,) = results.changes(rows)
    assert effect.loss.mean == pytest.approx(-0.15)
    assert effect.share.mean == pytest.approx(-0.15 / 4.1)
  assert not results.changes([*zero, _row('gru', [1.0], 'residual', steps=400)])


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


def test_baselines_with_a_closed_form_are_exact():
  config: Any = sizes.get_config('gru', 'prior', 'zero')
  assert measure.lengths_of(5) == (0, 1, 2, 5, 7, 10)

  def lines(name):
    return [measure.exact_baseline(name, config, n) for n in measure.lengths_of(5)]

  np.testing.assert_allclose(lines('zero'), 25.0)  # |w*|² + d
  assert lines('bayes')[0] == lines('gd')[0] == 5.0  # the prior mean
  # d(d + 1)/(C + d + 1) at the best step (docs/theory.md, section 3).
  np.testing.assert_allclose(
    lines('gd')[1:], [30 / 7, 30 / 8, 30 / 11, 30 / 13, 30 / 16]
  )
  np.testing.assert_allclose(lines('bayes')[1:], [4, 3, 0, 0, 0], atol=1e-9)  # d − C
  noisy = sizes.get_config('gru', 'noisy', 'zero')
  assert measure.exact_baseline('bayes', noisy, 6) == pytest.approx(0.268, abs=2e-4)
  for name in 'sparse', 'tree':
    config = sizes.get_config('gru', name, 'zero')
    squares = build_task(config).sample(jax.random.key(0), 20_000).y_query ** 2
    risk = measure.exact_baseline('zero', config, 12)
    assert abs(squares.mean() - risk) < 4 * squares.std() / math.sqrt(20_000)
    assert risk == {'sparse': pytest.approx(2), 'tree': 1}[name]
  unknown = ('nearest_neighbours', 'prior'), ('zero', 'logistic'), ('bayes', 'sparse')
  for name, task in unknown:
    config = sizes.get_config('gru', task, 'zero')
    assert math.isnan(measure.exact_baseline(name, config, 5))


def test_the_lowest_known_risk_of_linear_attention_is_found():
  lowest = [
    measure.lowest_known(sizes.get_config(model, 'prior', None, 10))
    for model in ('yq_lsa', 'lsa')
  ]
  assert lowest[0] == pytest.approx(5 * 6 / 16)  # docs/theory.md, section 3
  # The search over one angle; w* has the norm √20.
  one_head = isotropic_head_limit(5, 10, 1, math.sqrt(20))
  assert lowest[1] == pytest.approx(one_head, rel=1e-6)
  config = sizes.get_config('yq_lsa', 'quadratic_prior', None)
  assert measure.lowest_known(config) is None


def test_on_sparse_weights_linear_attention_reaches_what_it_does_on_dense_ones():
  # d(d + 1)/(C + d + 1) for E wwᵀ = I, here of a quarter of it.
  lowest = measure.lowest_known(sizes.get_config('yq_lsa', 'sparse'))
  assert lowest == pytest.approx(8 * 9 / 21 / 4)


def _tiny(model, task, guess, context_length=None):
  config: Any = sizes.get_config(model, task, guess, context_length or 3)
  config.task.num_features = 2
  config.train.batch_size, config.mesh.data = 8, 1
  config.optimizer.warmup_steps = 2
  if 'width' in config.model:
    config.model.width = 4
  return config


_GRID = atlas.Grid(
  [
    Cell('deep_set', 'linear', 'zero'),
    Cell('yq_lsa', 'linear'),
    Cell('lsa', 'nowhere'),
  ],
  _tiny,
  lambda cell: Settings('laptop', 2, 10, 5, 1e-9),
)


@pytest.fixture
def few_prompts(monkeypatch):
  monkeypatch.setattr(measure, 'NUM_PROMPTS', 64)
  monkeypatch.setattr(measure, '_FEWER_PROMPTS', 16)
  monkeypatch.setattr(cells, '_HELD_OUT', 32)
  monkeypatch.setattr(cells, '_CHUNK', 4)
  monkeypatch.setattr('zoo.studies.atlas.report.draw', lambda rows: {})


class _Stop(Interruption):
  """Asks to stop after some looks."""

  def __init__(self, looks):
    super().__init__()
    self.looks = looks

  def due(self):
    self.looks -= 1
    return self.looks < 0


def test_a_cell_without_a_loss_has_the_context_length_of_its_task(tmp_path):
  cell, settings = Cell('lsa', 'parity'), Settings('laptop', 2, 10, 5, 1e-9)
  get_config = functools.partial(sizes.get_config, 'lsa', 'parity')
  run = cells.CellRun(cell, settings, get_config, tmp_path, Interruption())
  (row,) = run.rows(lambda: SCALE)
  assert 'predicts one number' in row.grey
  assert row.context_length == 23  # the parity of 24 symbols


def test_a_cell_belongs_to_its_config_the_version_and_what_it_is_measured_on(
  tmp_path, monkeypatch
):
  def begin(change=None):
    cell = Cell('deep_set', 'linear', 'zero')
    settings = Settings('laptop', 2, 10, 5, 1e-9)

    def get_config():
      config = _tiny('deep_set', 'linear', 'zero')
      config.train.update(change or {})
      return config

    run = cells.CellRun(cell, settings, get_config, tmp_path, Interruption())
    run._write()

  begin()
  begin()
  with refuses('was trained with another config'):
    begin({'batch_size': 16})
  for module, constant in (measure, 'NUM_PROMPTS'), (cells, '_HELD_OUT'):
    with monkeypatch.context() as patch:
      patch.setattr(module, constant, 64)
      with refuses('numbers of prompts'):
        begin()
  monkeypatch.setattr(runner.metadata, 'version', lambda name: '9.9')
  with refuses('version of the library'):
    begin()


def test_baselines_belong_to_the_fields_of_their_task(tmp_path, monkeypatch):
  monkeypatch.setattr(measure, 'baselines', lambda config, name: measured[:])
  cell = Cell('deep_set', 'linear', 'zero')
  for noise_std, losses in (0.0, [1.0]), (0.5, [2.0]), (0.0, [3.0]):

    def get_config(*cell, noise_std=noise_std):
      config = _tiny(*cell)
      config.task.noise_std = noise_std
      return config

    measured = [_row('bayes', losses, '', 'linear', known=results.EXACT)]
    grid = _GRID._replace(cells=[cell], get_config=get_config)
    (row,) = training._baselines(cell, grid, tmp_path)
    assert row.losses == ((2.0,) if noise_std else (1.0,))  # kept from the first


@pytest.mark.slow
def test_an_interrupted_cell_ends_at_the_same_bits(few_prompts, tmp_path, monkeypatch):
  rows = atlas.run(_GRID, tmp_path / 'whole', 'python -m launch.atlas')
  assert rows is not None
  by_model = {row.model: row for row in rows}
  assert by_model['lsa'].grey.startswith("unknown task 'nowhere'")
  assert by_model['yq_lsa'].losses == pytest.approx((2 * 3 / 6,))
  assert by_model['bayes'].known == 'exact'
  last = by_model['deep_set']
  assert last.grey == 'one budget only'  # more would take longer than the minutes
  assert (last.steps, len(last.losses)) == (10, 2)
  assert math.isfinite(last.half_rate_loss)
  assert last.lengths == (0, 1, 3, 4, 6)
  report = (tmp_path / 'whole' / 'report.html').read_text()
  assert 'python -m launch.atlas' in report
  # With more minutes it goes on from the constant part of the first budget.
  more = _GRID._replace(
    cells=_GRID.cells[:1], settings=lambda cell: Settings('laptop', 2, 10, 5, 0.5)
  )
  monkeypatch.setattr(cells.CellRun, '_may_train', lambda self, steps: steps <= 40)
  whole = atlas.run(more, tmp_path / 'whole', '')
  assert whole is not None
  assert [row.steps for row in whole if row.is_model][:3] == [10, 20, 40]
  again, launches = None, 0
  while again is None:
    launches += 1
    stop = functools.partial(_Stop, 3 + 17 * launches)
    monkeypatch.setattr('zoo.studies.runner.Interruption', stop)
    again = atlas.run(more, tmp_path / 'parts', '', Part(1, 1))
  assert launches > 1
  assert [row.losses for row in again] == [row.losses for row in whole]
  assert [row.by_length for row in again] == [row.by_length for row in whole]
  # What is saved is what was measured.
  saved = zoo.load(tmp_path / 'parts' / 'cells' / 'deep_set,linear,zero/models/seed=1')
  task = zoo.tasks.LinearRegression(2, 3, prior_mean=0.0)
  assert measure.loss(saved.model, task, 64, 1) == pytest.approx(whole[-1].losses[1])
  other = more._replace(settings=lambda cell: Settings('laptop', 3, 10, 5, 0.5))
  with refuses('was trained with the settings'):
    atlas.run(other, tmp_path / 'parts', '')


def _check_weights(model, task):
  config: Any = sizes.get_config(model, task, 'zero')
  count = num_weights(abstract_model(config))
  assert abs(count / 25_000 - 1) <= 0.1, (model, count, config.model.width)


def test_a_transformer_and_an_lstm_have_the_same_number_of_weights():
  for model in 'softmax', 'lstm':
    _check_weights(model, 'linear')


@pytest.mark.slow
@pytest.mark.parametrize(
  'task', mostly_full(['linear', 'recall'], ['noisy', 'sparse', 'tree', 'prior'])
)
def test_all_models_have_the_same_number_of_weights(task):
  """Within 10 %, but for linear attention, whose size is that of its matrices."""
  for model in {*sizes.DEFAULT_MODELS} - {*sizes.LINEAR_ATTENTION, 'deep_lsa'}:
    _check_weights(model, task)


def test_any_model_and_task_that_is_registered_has_a_cell():
  config = sizes.get_config('sequential', 'quadratic_regression')
  assert config.model.name == 'sequential'
  assert config.task.name == 'quadratic_regression'
  assert {'sequential', 'softmax', 'set'} < {*sizes.list_models()}


def test_guesses_are_those_that_the_field_of_a_model_allows(register):
  @zoo.register_model('own')
  class Own(nnx.Module):
    guesses = 'zero', 'residual', 'other'

    def __init__(self, num_features: int, guess: str = 'other', *, rngs: nnx.Rngs): ...

  assert sizes.guesses_of('gla', 'prior') == ['zero', 'linear', 'residual']
  assert sizes.guesses_of('gla', 'tree') == ['zero']
  assert sizes.guesses_of('gla', 'tree', ['network']) == ['network']
  assert sizes.guesses_of('own', 'prior') == ['zero', 'residual']
  assert sizes.guesses_of('sequential', 'prior') == ['zero', 'linear']
  for model in 'yq_lsa', 'own', 'sequential':
    assert sizes.guesses_of(model, 'prior', ['network']) == [None]


def test_all_models_have_the_same_optimizer():
  models = 'lsa', 'multi_head_lsa', 'deep_lsa', 'softmax', 'looped', 'deep_set'
  optimizers = set()
  for model in models:
    config: Any = sizes.get_config(model, 'linear')
    config.optimizer.learning_rate = 0.1
    optimizers.add(json.dumps([config.optimizer.to_dict(), config.train.batch_size]))
    assert config.optimizer.schedule == 'wsd'
  assert len(optimizers) == 1


@pytest.mark.slow
@pytest.mark.parametrize('model', mostly_full(['deep_set'], sizes.list_models()))
def test_every_config_is_valid(model):
  """With each task and guess for a laptop, and with one of each on an accelerator."""
  for task in [*sizes.DEFAULT_TASKS, 'quadratic_prior', 'sinusoid_prior']:
    for guess in sizes.guesses_of(model, task):
      # Models without a choice of guess cannot have classes.
      if task not in ('recall', 'parity') or guess is not None:
        zoo.training.validate(sizes.get_config(model, task, guess))
  (guess,) = sizes.guesses_of(model, 'prior', ['residual'])
  zoo.training.validate(sizes.get_config(model, 'prior', guess, scale='gpu'))


def test_a_parity_is_learned_from_every_symbol_and_from_the_last_if_not_causal():
  def trained(model):
    config: Any = sizes.get_config(model, 'parity', 'zero')
    return config.objective.positions, config.model.get('tokens')

  assert trained('delta') == ('every', 'shifted') == trained('lstm')
  assert trained('set') == ('query', 'joint')
  assert trained('mlp_mixer')[0] == 'query'
  assert sizes.get_config('delta', 'noisy').objective.positions == 'query'
  for task in 'modular_addition', 'permutations', 'modular_arithmetic':
    assert sizes.get_config('delta', task).objective.positions == 'every'


@pytest.mark.slow
@pytest.mark.parametrize('task', ['logistic', 'quadratic', 'relu_network', 'sinusoid'])
def test_a_prior_has_a_mean_and_its_control_has_none(task):
  """In the mean over prompts of the labels, or probabilities, at given features."""
  x = np.random.default_rng(0).uniform(0.5, 2, (4, 5))
  for name, is_zero in ((task, True), (f'{task}_prior', False)):
    made: Any = build_task(sizes.get_config('gru', name, 'zero'))
    functions = jax.vmap(made.sample_function)(
      jax.random.split(jax.random.key(0), 10_000)
    )
    at = jax.numpy.asarray(x[:, : made.num_features], 'float32')
    values = np.asarray(jax.vmap(made.evaluate, (0, None))(functions, at))
    means = values.mean(axis=0) - (0.5 if task == 'logistic' else 0)
    errors = values.std(axis=0) / np.sqrt(len(values))
    assert np.all((np.abs(means) <= 4 * errors) == is_zero), name


def test_what_is_unknown_is_named():
  unknown: list[Any] = [('gpt5', 'linear'), ('gru', 'poker'), ('gru', 'linear', 'wild')]
  for names in unknown:
    with pytest.raises(UserError, match=f'unknown .* {names[-1]!r}|gpt5|poker'):
      sizes.get_config(*names)
