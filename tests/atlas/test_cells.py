"""Cells are measured, resume, and belong to what they were trained with."""

import functools
import json
import math
from importlib import metadata
from typing import Any

import jax
import msgspec
import numpy as np
import pytest
from flax import nnx

import zoo
from configs import atlas as sizes
from studies import atlas
from studies.atlas import (
  Cell,
  Settings,
  cells,
  measure,
  notes,
  results,
  search,
  training,
)
from tests.atlas.rows import make_row
from tests.built import model_of, task_of
from tests.compare import refuses
from zoo.config.read import read
from zoo.core.protocols import PredictsAll
from zoo.estimators.baselines import Zero
from zoo.host.interruption import Interruption
from zoo.host.parts import Part
from zoo.measure.predict import Programs
from zoo.theory import isotropic_head_limit

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


@pytest.mark.slow
def test_baselines_with_a_closed_form_are_exact():
  config = read(sizes.get_config('gru', 'prior', 'zero'))
  assert measure.lengths_of(5) == (2, 5, 10)

  def lines(name):
    return [measure.exact_baseline(name, config, n) for n in (0, 1, 2, 5, 7, 10)]

  np.testing.assert_allclose(lines('zero'), 25.0)  # |w*|² + d
  assert lines('bayes')[0] == lines('gd')[0] == 5.0  # the prior mean
  # d(d + 1)/(C + d + 1) at the best step (docs/theory_one_layer.md, section 3).
  np.testing.assert_allclose(
    lines('gd')[1:], [30 / 7, 30 / 8, 30 / 11, 30 / 13, 30 / 16]
  )
  np.testing.assert_allclose(lines('bayes')[1:], [4, 3, 0, 0, 0], atol=1e-9)  # d − C
  noisy = read(sizes.get_config('gru', 'noisy', 'zero'))
  assert measure.exact_baseline('bayes', noisy, 6) == pytest.approx(0.268, abs=2e-4)
  for name in 'sparse', 'tree':
    config = read(sizes.get_config('gru', name, 'zero'))
    squares = task_of(config).sample(jax.random.key(0), 20_000).y_query ** 2
    risk = measure.exact_baseline('zero', config, 12)
    assert abs(squares.mean() - risk) < 4 * squares.std() / math.sqrt(20_000)
    assert risk == {'sparse': pytest.approx(2), 'tree': 1}[name]
  unknown = ('nearest_neighbours', 'prior'), ('zero', 'logistic'), ('bayes', 'sparse')
  for name, task in unknown:
    config = read(sizes.get_config('gru', task, 'zero'))
    assert math.isnan(measure.exact_baseline(name, config, 5))


def test_the_lowest_known_risk_of_linear_attention_is_found():
  lowest = [
    measure.lowest_known(read(sizes.get_config(model, 'prior', None, 10)))
    for model in ('yq_lsa', 'lsa')
  ]
  assert lowest[0] == pytest.approx(5 * 6 / 16)  # docs/theory_one_layer.md, section 3
  # The search over one angle; w* has the norm √20.
  one_head = isotropic_head_limit(5, 10, 1, math.sqrt(20))
  assert lowest[1] == pytest.approx(one_head, rel=1e-6)
  config = sizes.get_config('yq_lsa', 'quadratic_prior', None)
  assert measure.lowest_known(read(config)) is None


def test_on_sparse_weights_linear_attention_reaches_what_it_does_on_dense_ones():
  # d(d + 1)/(C + d + 1) for E wwᵀ = I, here of a quarter of it.
  lowest = measure.lowest_known(read(sizes.get_config('yq_lsa', 'sparse')))
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
  lambda cell: Settings('laptop', (0, 1), (1e5,)),
)


@pytest.fixture
def few_prompts(monkeypatch):
  monkeypatch.setattr(measure, 'NUM_PROMPTS', 64)
  monkeypatch.setattr(measure, 'FEWER_PROMPTS', 16)
  monkeypatch.setattr(search, 'HELD_OUT', 32)
  monkeypatch.setattr(cells, '_CHUNK', 4)
  monkeypatch.setattr('studies.atlas.report.draw', lambda rows: {})
  monkeypatch.setattr(search, 'RATES', (0.002, 0.004, 0.008))


class _Stop(Interruption):
  """Asks to stop after some looks."""

  def __init__(self, looks):
    super().__init__()
    self.looks = looks

  def due(self):
    self.looks -= 1
    return self.looks < 0


@pytest.mark.slow
def test_in_a_curve_prompts_of_the_length_of_training_are_those_of_training():
  """The beginning of a longer prompt of clusters often lacks the class of its query."""
  config = sizes.get_config('yq_lsa', 'linear')
  task, length = task_of(config), config.task.context_length
  programs = Programs()
  of_training = measure.loss(Zero(), task, 64, 0, programs)
  curve, longer = measure.losses_by_length(
    Zero(), read(config), (length, 2 * length), 64, programs
  )
  assert curve == pytest.approx(of_training, rel=1e-6)
  assert longer != pytest.approx(of_training, rel=1e-6)


def test_weights_that_are_not_finite_have_no_loss():
  """Also of a model with two ways to predict, which do not agree on NaN."""
  config = sizes.get_config('sequential', 'linear')
  task, model = task_of(config), model_of(config, nnx.Rngs(0))
  weights = nnx.state(model, nnx.Param)
  nnx.update(model, jax.tree.map(lambda array: array + math.nan, weights))
  assert isinstance(model, PredictsAll)
  assert math.isnan(measure.loss(model, task, 64, 0))
  assert np.isnan(measure.losses_by_length(model, read(config), (11, 23), 64)).all()


def test_a_cell_without_a_loss_has_the_context_length_of_its_task(tmp_path):
  cell, settings = Cell('lsa', 'parity'), Settings('laptop', (0, 1), (1e5,))
  config = read(sizes.get_config('lsa', 'parity'))
  run = cells.CellRun(cell, settings, lambda: config, tmp_path, Interruption())
  (row,) = run.rows()
  assert 'predicts one number' in row.reason
  assert row.context_length == 23  # the parity of 24 symbols


@pytest.mark.parametrize('model', ['softmax', 'lsa', 'deep_lsa'])
def test_only_networks_of_linear_attention_have_a_cap_on_their_steps(tmp_path, model):
  """A step of softmax attention takes 4.4e7 operations, so that 3e12 pay for 68,000."""
  cell, settings = Cell(model, 'tree', 'zero'), Settings('laptop', (0,), (1e11, 3e12))
  config = read(sizes.get_config(model, 'tree'))
  run = cells.CellRun(cell, settings, lambda: config, tmp_path, Interruption())
  run.notes.step_operations = 4.4e7
  capped = model != 'softmax'
  assert run._steps(1e11) == 2273
  assert run._steps(3e12) == (40_000 if capped else 68_182)


@pytest.mark.slow
def test_a_cell_belongs_to_its_config_the_version_and_what_it_is_measured_on(
  tmp_path, monkeypatch
):
  def begin(change=None):
    cell = Cell('deep_set', 'linear', 'zero')
    settings = Settings('laptop', (0, 1), (1e5,))

    def get_config():
      config = _tiny('deep_set', 'linear', 'zero')
      config.train.update(change or {})
      return config

    run = cells.CellRun(cell, settings, get_config, tmp_path, Interruption())
    notes.write_notes(tmp_path, run.notes)

  begin()
  begin()
  with refuses('was trained with another config'):
    begin({'batch_size': 16})
  for module, constant in (measure, 'NUM_PROMPTS'), (search, 'HELD_OUT'):
    with monkeypatch.context() as patch:
      patch.setattr(module, constant, 64)
      with refuses('numbers of prompts'):
        begin()
  monkeypatch.setattr(metadata, 'version', lambda name: '9.9')
  with refuses('version of the library'):
    begin()


@pytest.mark.slow
def test_baselines_belong_to_the_fields_of_their_task(tmp_path, monkeypatch):
  monkeypatch.setattr(measure, 'baselines', lambda config, name: measured[:])
  cell = Cell('deep_set', 'linear', 'zero')
  for noise_std, losses in (0.0, [1.0]), (0.5, [2.0]), (0.0, [3.0]):

    def get_config(*cell, noise_std=noise_std):
      config = _tiny(*cell)
      config.task.noise_std = noise_std
      return read(config)

    measured = [make_row('bayes', losses, '', 'linear', known=results.EXACT)]
    made = functools.partial(get_config, *cell)
    (row,) = training._baselines(cell, made, tmp_path)
    assert row.losses == ((2.0,) if noise_std else (1.0,))  # kept from the first


def test_a_cell_of_another_version_is_refused_before_any_is_trained(
  tmp_path, monkeypatch
):
  first, second = _GRID.cells[:2]
  calls = []

  def get_config(*cell):
    calls.append(cell)
    return _GRID.get_config(*cell)

  grid = _GRID._replace(cells=[first, second], get_config=get_config)
  folder = tmp_path / 'cells' / second.name
  folder.mkdir(parents=True)
  old = notes.Notes(grid.settings(second).key, 'of another version')
  (folder / 'notes.json').write_bytes(msgspec.json.encode(old))
  (tmp_path / 'atlas.csv').write_text('as it was')
  for part in None, Part(1, 2):
    with refuses(second.name, 'give another --out'):
      atlas.run(grid, tmp_path, '', part)
  assert (tmp_path / 'atlas.csv').read_text() == 'as it was'
  assert not (tmp_path / 'cells' / first.name).exists()
  assert calls == [second] * 2  # of those that were begun: a width is searched for


@pytest.mark.slow
def test_an_interrupted_cell_ends_at_the_same_bits(few_prompts, tmp_path, monkeypatch):
  monkeypatch.setattr(search, 'MOST_RATES', len(search.RATES))
  rows = atlas.run(_GRID, tmp_path / 'whole', 'python -m launch.atlas')
  assert rows is not None
  by_model = {row.model: row for row in rows}
  assert by_model['lsa'].reason.startswith("unknown task 'nowhere'")
  assert by_model['yq_lsa'].losses == pytest.approx((2 * 3 / 6,))
  assert by_model['bayes'].known == 'exact'
  last = by_model['deep_set']
  assert (last.budget, len(last.losses)) == (1e5, 2)
  assert abs(last.training_operations / 1e5 - 1) < 0.05
  assert math.isfinite(last.rate_loss)
  assert last.lengths == (1, 3, 6)
  report = (tmp_path / 'whole' / 'report.html').read_text()
  assert 'python -m launch.atlas' in report
  lines = (tmp_path / 'whole' / 'rows.jsonl').read_text().splitlines()
  assert [json.loads(line)['cell'] for line in lines] == [c.name for c in _GRID.cells]
  # With a larger budget the first is kept, and its constant part may be gone on from.
  more = _GRID._replace(
    cells=_GRID.cells[:1],
    settings=lambda cell: Settings('laptop', (0, 1), (1e5, 4e5)),
  )
  whole = atlas.run(more, tmp_path / 'whole', '')
  assert whole is not None
  # The cells of the earlier call are still there.
  assert {row.model for row in whole} >= {'deep_set', 'yq_lsa', 'lsa', 'bayes'}
  trained = [row for row in whole if row.model == 'deep_set']
  assert [row.budget for row in trained] == [1e5, 4e5]
  assert (trained[0].losses, trained[0].minutes) == (last.losses, last.minutes)
  assert trained[1].steps == pytest.approx(4 * last.steps, abs=2)
  again, launches = None, 0
  while again is None:
    launches += 1
    stop = functools.partial(_Stop, 3 + 40 * launches)
    monkeypatch.setattr('studies.runner.Interruption', stop)
    again = atlas.run(more, tmp_path / 'parts', '', Part(1, 1))
  assert launches > 1
  parts = [row for row in again if row.model == 'deep_set']
  assert [row.losses for row in parts] == [row.losses for row in trained]
  assert [row.by_length for row in parts] == [row.by_length for row in trained]
  # A smaller budget leaves the larger one.
  less = atlas.run(_GRID, tmp_path / 'whole', '')
  assert less is not None
  assert [row.budget for row in less if row.model == 'deep_set'] == [1e5, 4e5]
  # What is saved is what was measured.
  models = tmp_path / 'parts' / 'cells' / 'deep_set,linear,zero' / 'models'
  saved = zoo.load(models / f'steps={trained[1].steps}' / 'seed=1')
  task = zoo.tasks.LinearRegression(2, 3, prior_mean=0.0)
  assert measure.loss(saved.model, task, 64, 1) == pytest.approx(trained[-1].losses[1])
  for seeds, budgets in ((0, 1, 2), (1e5,)), ((0, 1), (4e5,)):
    settings = Settings('laptop', seeds, budgets)
    other = more._replace(settings=lambda cell, settings=settings: settings)
    with refuses('was trained with the scale, seeds, smallest budget'):
      atlas.run(other, tmp_path / 'parts', '')


@pytest.mark.slow
@pytest.mark.full
def test_a_search_with_several_seeds_takes_their_mean_and_no_short_runs(
  few_prompts, tmp_path
):
  def searched(search_seeds):
    settings = Settings('laptop', (0,), (1e5,), search_seeds)
    grid = _GRID._replace(cells=_GRID.cells[:1], settings=lambda cell: settings)
    rows = atlas.run(grid, tmp_path / str(search_seeds), '')
    assert rows is not None
    (folder,) = (tmp_path / str(search_seeds) / 'cells').iterdir()
    config = read(_GRID.get_config(*_GRID.cells[0]))
    return rows[-1], notes.read_notes(folder, settings, lambda: config).tried

  (_, of_one), (row, of_two) = searched(1), searched(2)
  ((steps, found),) = of_two.items()
  tried: dict[float, Any] = dict(found)  # No loss of these is None.
  assert steps == row.steps == max(of_one)
  # All rates have the first seed, and the best third of them and those about the best
  # of these have two.
  assert {*search.RATES} <= tried.keys()
  assert min(map(len, tried.values())) == 1
  losses = {rate: pair for rate, pair in tried.items() if len(pair) > 1}
  by_first_seed = sorted(search.RATES, key=lambda rate: tried[rate][0])
  third = by_first_seed[: -(-len(search.RATES) // 3)]
  assert {*third} <= losses.keys()
  best = min(third, key=lambda rate: np.mean(losses[rate]))
  assert {best / 2, best, 2 * best} <= losses.keys()
  assert row.rate in losses
  assert row.rate_loss == pytest.approx(np.mean(losses[row.rate]))
  means = [float(np.mean(pair)) for pair in losses.values()]
  assert row.rate_loss == pytest.approx(min(means))
  for rate, (loss, other) in losses.items():
    assert loss != other
    if rate in of_one[steps]:
      assert loss == pytest.approx(of_one[steps][rate][0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.full
def test_losses_at_a_rate_that_another_search_chose_are_not_reported(
  few_prompts, tmp_path
):
  """A folder may be from before a change of the search."""
  grid = _GRID._replace(
    cells=_GRID.cells[:1], settings=lambda cell: Settings('laptop', (0,), (1e5,))
  )
  first = atlas.run(grid, tmp_path, '')
  (path,) = (tmp_path / 'cells').glob('*/notes.json')
  kept = json.loads(path.read_text())
  (found,) = kept['found'].values()
  found.update(rate=2 * found['rate'], losses=[99.0])
  path.write_text(json.dumps(kept))
  (tmp_path / 'rows.jsonl').unlink()
  again = atlas.run(grid, tmp_path, '')
  assert first is not None
  assert again is not None
  assert (again[-1].rate, again[-1].losses) == (first[-1].rate, first[-1].losses)


@pytest.mark.slow
@pytest.mark.full
def test_seeds_do_not_depend_on_what_is_trained_beside_them(few_prompts, tmp_path):
  """Three are trained at once, and five are the same five."""

  def losses(seeds):
    settings = Settings('laptop', seeds, (1e5,))
    grid = _GRID._replace(cells=_GRID.cells[:1], settings=lambda cell: settings)
    rows = atlas.run(grid, tmp_path / str(len(seeds)), '')
    assert rows is not None
    return rows[-1].losses

  five = losses((0, 1, 2, 3, 4))
  assert len({*five}) == 5
  assert losses((3, 4)) == pytest.approx(five[3:], rel=1e-5)
