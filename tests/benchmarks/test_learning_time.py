"""Minutes to Bayes: what is measured, when a run ends, and the table."""

import importlib
import itertools
import json
import math
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from benchmarks import learning_curves
from tests.launch.conftest import forget_commands
from zoo.core.errors import UserError
from zoo.estimators.baselines import Zero
from zoo.reports import plots
from zoo.tasks import LinearRegression
from zoo.training import optimizers

_DOCS = pathlib.Path(__file__).parents[2] / 'docs'


@pytest.fixture
def learning_time():
  """The module, without the flags that other commands define in the same process."""
  forget_commands()
  yield importlib.import_module('benchmarks.learning_time')
  forget_commands()


@pytest.mark.slow
@pytest.mark.full
def test_the_distance_of_bayes_is_0_and_that_of_0_is_by_formula(learning_time):
  task = LinearRegression(3, 6, prior_mean=0.0, noise_std=0.5)
  distance = learning_time._Distance(task)
  bayes = task.baselines()['bayes']
  assert distance(bayes) == pytest.approx(0, abs=1e-6)
  # E t² = d is the risk of Bayes plus the mean square of its prediction.
  zero = distance(Zero())
  assert zero == pytest.approx(3 / distance._risk - 1, rel=0.05)


def test_the_kept_rates_are_the_best_of_the_search(learning_time):
  tried = {}
  for point in learning_curves.points_from(_kept('learning_rates.csv')):
    tried.setdefault((point.features, point.model), {})[point.rate] = point.distance
  rates = learning_time.best_rates()
  cells = [(d, model) for d in (3, 10) for model in learning_time.MODELS]
  assert {*rates} == {*tried} == {*cells}
  for cell, distances in tried.items():
    best = rates[cell]
    assert distances[best] == min(distances.values()) < math.inf
    for factor in (1 / 4, 4):
      assert any(math.isclose(rate, factor * best, rel_tol=1e-5) for rate in distances)


def test_a_number_of_features_without_a_kept_rate_is_refused(learning_time):
  with pytest.raises(UserError, match='no learning rate for lstm with d = 7; --search'):
    learning_time.cells_of(['lstm'], [7], [0], limit=1.0)


def test_a_search_ends_when_the_best_rate_is_between_others(
  learning_time, tmp_path, monkeypatch
):
  def compute(cell, folder):
    # The distance is least at the rate 2⁻⁶·⁵, and 1 diverges.
    distance = abs(math.log2(cell['rate']) + 6.5) if cell['rate'] < 1 else None
    return {'curve': [(0.5, 100, 9.0), (1.2, 200, distance)]}

  monkeypatch.setattr(learning_time, 'compute', compute)
  (name, cell), *_ = learning_time.search_cells(['deep_set'], [3]).items()
  row = learning_time.search({**cell, 'rate': 0.25}, tmp_path)
  tried = learning_curves.points_from(learning_time._search_text({name: row}))
  assert [(point.rate, point.distance) for point in tried] == [
    (2**-8, 1.5),
    (2**-6, 0.5),
    (2**-4, 2.5),
    (0.25, 4.5),
    (1.0, math.inf),
  ]


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_the_rate_falls_with_the_root_of_the_steps(learning_time):
  cell, *_ = learning_time.search_cells(['lstm'], [3]).values()
  name = learning_time.config_of({**cell, 'rate_steps': 2}).optimizer.name
  optimizer = optimizers.OPTIMIZERS[name](lambda step: 0.5)
  state = optimizer.init(jnp.zeros(()))
  for step in range(7):
    # With one gradient at all steps, an update of Adam is the rate. The tolerance is
    # that of 1 − β₂ = 0.001 in float32, which the first updates divide by.
    updates, state = optimizer.update(jnp.ones(()), state)
    (update,) = jax.tree.leaves(updates)
    assert -float(update) == pytest.approx(0.5 * (1 + step / 2) ** -0.5, rel=1e-4)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_a_run_ends_at_the_share_or_at_the_limit(learning_time, tmp_path, monkeypatch):
  monkeypatch.setattr(learning_time, '_LOG_EVERY', 2)
  cell, *_ = learning_time.search_cells(['deep_set'], [2]).values()
  late = learning_time.compute({**cell, 'limit': 1e-6}, tmp_path / 'late')
  assert [steps for _, steps, _ in late['curve']] == [2]
  assert late['curve'][0][-1] > 0.01
  shares = iter([0.5, 0.05, 0.01, 0.0])
  monkeypatch.setattr(
    learning_time._Distance, '__call__', lambda self, model: next(shares)
  )
  start = time.process_time()
  found = learning_time.compute({**cell, 'limit': 60.0}, tmp_path / 'found')
  assert [share for *_, share in found['curve']] == [0.5, 0.05, 0.01]
  minutes, _, _ = zip(*found['curve'], strict=True)
  assert minutes[-1] <= (time.process_time() - start) / 60
  assert all(b >= 1.05 * a for a, b in itertools.pairwise(minutes))
  assert not [*tmp_path.glob('*/run')]


@pytest.mark.slow
def test_a_run_that_is_stopped_has_no_row(learning_time, tmp_path, monkeypatch):
  monkeypatch.setattr(zoo, 'training_run', lambda config, workdir: iter(()))
  (tmp_path / 'run').mkdir()
  cell, *_ = learning_time.search_cells(['deep_set'], [2]).values()
  assert learning_time.compute(cell, tmp_path) is None
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_a_run_that_diverges_ends_with_an_infinite_distance(learning_time, tmp_path):
  cell, *_ = learning_time.search_cells(['deep_set'], [2]).values()
  row = learning_time.compute({**cell, 'rate': 1e38, 'limit': 60.0}, tmp_path)
  *_, last = learning_time.points_of({'cell': json.loads(json.dumps(row))})
  assert last.distance == math.inf
  assert (
    learning_curves.points_from(learning_curves.to_csv([last]))[0].distance == math.inf
  )


def test_a_table_has_the_medians_of_the_seeds_and_their_ranges():
  curves = {
    ('lstm', 0): [(0.5, 0.9), (0.9, 0.6), (2.0, 0.09), (8.0, 0.05), (10.0, 0.04)],
    ('lstm', 1): [(0.5, 0.9), (1.1, 0.5), (9.0, 0.10), (10.0, 0.02)],
    ('lstm', 2): [(0.5, 0.7), (1.0, 0.4), (3.0, 0.10), (10.0, 0.03)],
    ('gru', 0): [(0.5, 0.9), (1.0, 0.2), (4.0, 0.0099)],
    ('gru', 1): [(0.5, 0.9), (1.0, 0.2), (10.0, 0.02)],
    ('gru', 2): [(0.5, 0.9), (1.0, 0.2), (6.0, 0.01)],
    ('softmax', 0): [(1.5, 0.9), (10.0, math.inf)],
    ('softmax', 1): [(0.5, 0.8), (10.0, 0.7)],
    ('rwkv7', 0): [(0.5, 0.4), (2.0, 0.01)],
    ('gla', 0): [(0.5, math.inf)],
  }
  points = [
    learning_curves.Point(3, model, seed, 0.01, minutes, 100, distance)
    for (model, seed), curve in curves.items()
    for minutes, distance in curve
  ]
  assert learning_curves.points_from(learning_curves.to_csv(points)) == points
  (features, table), *others = learning_curves.tables(points).items()
  assert not others
  assert features == 3
  assert table.markdown(right=range(1, 6)).splitlines() == [
    '| model | seeds | minutes to 10 % | minutes to 1 % | after 1 minute, % '
    '| after 10 minutes, % |',
    '| --- | --: | --: | --: | --: | --: |',
    '| rwkv7 | 1 | 2.0 | 2.0 | 40 | 1.0 |',
    '| gru | 3 | 6.0 (4.0 to 10.0) | 6.0 (4.0 to > 10) | 20 | 1.0 (1.0 to 2.0) |',
    '| lstm | 3 | 3.0 (2.0 to 9.0) | > 10 | 60 (40 to 90) | 3.0 (2.0 to 4.0) |',
    '| softmax | 2 | > 10 | > 10 | not measured | diverged (70 to diverged) |',
    '| gla | 1 | > 10 | > 10 | diverged | diverged |',
  ]
  plot = learning_curves.picture(points)
  assert [panel.key for panel in plot.panels] == [
    'd = 3, transformers',
    'd = 3, other models',
  ]
  assert [line.name for line in plot.panels[0].series] == ['softmax', 'rwkv7']
  assert plot.series('d = 3, transformers', 'softmax').y == pytest.approx([85] * 29)
  lstm = plot.series('d = 3, other models', 'lstm')
  assert lstm.x[0] == pytest.approx(0.5)
  assert lstm.y[0] == 90
  assert lstm.y[-1] == 3
  gru = plot.series('d = 3, other models', 'gru')
  assert gru.x[-1] == pytest.approx(10)
  assert gru.y[-1] == 1


def test_the_page_has_the_tables_and_the_picture_of_the_kept_curves():
  points = learning_curves.points_from(_kept('learning_time.csv'))
  page = (_DOCS / 'learning_time.md').read_text()
  for table in learning_curves.tables(points).values():
    assert table.markdown(right=range(1, 6)) in page
  drawn = learning_curves.picture(points).panels
  kept = plots.from_csv('learning_time', _kept('figure_learning_time.csv')).panels
  assert [panel.key for panel in drawn] == [panel.key for panel in kept]
  for panel, other in zip(drawn, kept, strict=True):
    assert [line.name for line in panel.series] == [line.name for line in other.series]
    for line, again in zip(panel.series, other.series, strict=True):
      # Places on the axis are powers, whose last digit depends on the processor.
      np.testing.assert_allclose(line.x, again.x, rtol=1e-12)
      # The file has four digits of the values.
      np.testing.assert_allclose(line.y, again.y, rtol=1e-3)


def _kept(name):
  return (_DOCS / 'results' / name).read_text()
