"""Fits of a run step by step, which are kept, and phase diagrams of many runs."""

import json
import math
from typing import Any

import numpy as np
import pytest
from flax import nnx
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

import zoo
from studies.strategies.phases import (
  diagrams,
  from_csv,
  rows_of,
  sentences,
  series_table,
  summary,
  table,
)
from studies.strategies.pictures import (
  plot_diagrams,
  plot_lines,
  plot_series,
  plot_strategies,
)
from studies.strategies.series import Fit, FittedRun, Fitter, named
from tests.built import task_of
from tests.compare import refuses
from tests.training.runs import small_config
from zoo.core.tables import to_csv
from zoo.measure.intervals import Estimate
from zoo.probing import NearestMixture, Strategies, strategies
from zoo.reports.style import BLUE, drawing_of


def _fit(weight: float, left: float) -> Fit:
  weights = {'bayes': weight, 'ridge': 1 - weight}
  share = Estimate(left, 0.01)
  return Fit(weights, dict.fromkeys(weights, 0.02), share, share)


def _run(weights, left=0.25) -> FittedRun:
  fits = {10**i: _fit(weight, left) for i, weight in enumerate(weights)}
  losses = {'bayes': Estimate(0.5, 0.01), 'ridge': Estimate(0.75, 0.01)}
  return FittedRun(fits, losses, nats_per_step=80.0)


POINTS = [{'task.num_tasks': n, 'seed': seed} for n in (4, 64) for seed in (0, 1, 2)]
RUNS = [
  *(_run([0.4, 0.8 + spread, 0.9 + spread]) for spread in (-0.01, 0.0, 0.01)),
  *(_run([0.6, 0.4, last]) for last in (0.2, 0.4, 0.7)),
]


def test_a_diagram_has_means_over_seeds_and_says_what_their_intervals_tell():
  (diagram,) = diagrams(rows_of(POINTS, RUNS))
  assert diagram.values == (4, 64)
  assert diagram.steps == (1, 10, 100)
  assert diagram.names == ('bayes', 'ridge')
  np.testing.assert_allclose(diagram.weights.mean(axis=0)[0, 0], [0.4, 0.8, 0.9])
  assert diagram.winners.tolist() == [[1, 0, 0], [0, 1, 1]]
  # 80 labels a step, in nats, at a difference of 0.25.
  np.testing.assert_allclose(diagram.odds, [[20, 200, 2000]] * 2)
  told, untold = sentences(diagram)
  assert told == (
    'After 100 steps bayes has the largest weight for task.num_tasks = 4.'
  )
  assert untold == 'For task.num_tasks = 64 3 seeds do not tell.'
  lines = table(diagram).splitlines()
  # Student's t for three seeds: 4.303 · 0.01/√3.
  assert lines[1].split()[:4] == ['4', '0.900', '±', '0.025']
  assert lines[1].split()[-1] == '10'
  assert summary([diagram]).startswith(lines[0])


def test_a_diagram_can_be_drawn_from_its_table():
  rows = rows_of(POINTS, RUNS)
  (diagram,), (again,) = (
    diagrams(table) for table in (rows, from_csv(to_csv(rows[0], rows)))
  )
  for name, value in vars(diagram).items():
    np.testing.assert_array_equal(vars(again)[name], value)


def test_other_fields_have_diagrams_of_their_own():
  points = [{'task.num_tasks': n, 'model.mixer': m} for m in 'ab' for n in (4, 64)]
  both = diagrams(rows_of(points, [_run([0.1, 0.2])] * 4))
  assert [diagram.title for diagram in both] == ['model.mixer=a', 'model.mixer=b']
  assert sentences(both[0]) == ['One seed has no interval: sweep the seed, too.']
  figure = drawing_of(plot_diagrams(both))
  assert len(figure.axes) == 2
  labels = [text.get_text() for text in figure.legends[0].get_texts()]
  assert labels == ['bayes', 'ridge', 'log odds of bayes, nats']


def test_predictors_of_one_weight_share_it():
  share = Estimate(0.5, 0.1)
  fit = Fit({'bayes, ridge': 1.0}, {'bayes, ridge': 0.0}, share, None)
  run = FittedRun({1: fit}, _run([0.5]).losses, 1.0)
  (diagram,) = diagrams(rows_of([{'seed': 0}], [run]))
  assert diagram.weights[0, :, 0, 0].tolist() == [1, 0]
  assert diagram.is_tied.tolist() == [[True]]
  assert 'together' in table(diagram)
  (row,) = rows_of([{}], [run])
  assert (row['weight of bayes'], row['together']) == (1, 'bayes, ridge')
  points = [{'task.num_tasks': 4, 'seed': seed} for seed in (0, 1)]
  (diagram,) = diagrams(rows_of(points, [run, run]))
  assert sentences(diagram) == ['For task.num_tasks = 4 2 seeds do not tell.']
  assert 'bayes, ridge 1.00' in series_table(run)


def test_a_weight_of_1_with_every_seed_is_told_apart():
  share = Estimate(0.5, 0.1)
  fit = Fit({'bayes': 1.0, 'ridge': 0.0}, {'bayes': 0.1, 'ridge': 0.1}, share, None)
  run = FittedRun({1: fit}, _run([0.5]).losses, 1.0)
  points = [{'task.num_tasks': 4, 'seed': seed} for seed in (0, 1)]
  (diagram,) = diagrams(rows_of(points, [run, run]))
  (said,) = sentences(diagram)
  assert said.startswith('After 1 steps bayes has the largest weight')


def test_predictors_of_one_weight_are_printed_as_one_without_an_error():
  share = Estimate(0.5, 0.1)
  alone = Fit({'bayes, ridge': 1.0}, {'bayes, ridge': math.nan}, share, None)
  points = [{'task.num_tasks': 4, 'seed': seed} for seed in (0, 1)]
  run = FittedRun({1: alone}, _run([0.5]).losses, 1.0)
  rows = rows_of(points, [run, run])
  assert {row['error of bayes'] for row in rows} == {None}
  assert {row['error of ridge'] for row in rows} == {None}
  (diagram,) = diagrams(from_csv(to_csv(rows[0], rows)))
  row = ' '.join(table(diagram).splitlines()[1].split())
  assert row == '4 1.000 ± – = bayes 0.500 ± 0.000 together 1'
  # Beside a third predictor the weight of both has an error. In one seed alone they
  # are told apart.
  names: Any = ('bayes', 'ridge', 'zero')
  fits = [
    Fit(
      {'bayes, ridge': 0.8, 'zero': 0.2},
      {'bayes, ridge': 0.1, 'zero': 0.1},
      share,
      None,
    ),
    Fit(
      {'bayes': 0.3, 'ridge': 0.3, 'zero': 0.4}, dict.fromkeys(names, 0.1), share, None
    ),
  ]
  losses = dict.fromkeys(names, share)
  runs = [FittedRun({1: fit}, losses, 1.0) for fit in fits]
  (diagram,) = diagrams(rows_of(points, runs))
  # Student's t for the two sums 0.8 and 0.6: 12.706 · 0.1414/√2.
  assert '0.700 ± 1.271  = bayes' in table(diagram)


def test_a_point_that_is_lost_and_a_list_are_drawn():
  points = [{'task.prior_mean': [1, 2], 'seed': 0}, {'task.prior_mean': 3, 'seed': 1}]
  (diagram,) = diagrams(rows_of(points, [_run([0.9, 0.8])] * 2))
  assert diagram.values == ('[1, 2]', 3)
  assert np.isnan(diagram.weights).sum() == 2 * 2 * 2  # each has one seed
  assert 'do not tell' in sentences(diagram)[0]
  assert plot_diagrams([diagram])[0].collections


def test_the_colour_is_paler_the_more_is_unexplained():
  pale, solid = ([_run([1.0, 1.0], left)] for left in (1.0, 0.0))
  images = [
    plot_diagrams(diagrams(rows_of([{'seed': 0}], runs)))[0].collections[0].get_array()
    for runs in (pale, solid)
  ]
  assert np.all(images[0] == 1)  # white
  solid = np.asarray(images[1])
  np.testing.assert_allclose(solid, np.broadcast_to(to_rgb(BLUE), (1, 2, 3)))


def test_a_series_is_drawn_by_step():
  of_weights, of_shares = plot_series(_run([0.1, 0.6, 0.9]))
  curves = {line.get_label(): np.asarray(line.get_ydata()) for line in of_weights.lines}
  np.testing.assert_allclose(curves['bayes'], [0.1, 0.6, 0.9])
  assert [*np.asarray(of_weights.lines[0].get_xdata())] == [1, 10, 100]
  assert of_weights.get_xscale() == 'log'
  assert len(of_shares.lines) == 2


def test_a_picture_leaves_out_weights_that_are_not_known():
  share = Estimate(0.1, 0.01)
  by_length = (
    NearestMixture({'bayes, ridge': 1.0}, {'bayes, ridge': 0.0}, share, None),
    NearestMixture(
      {'bayes': 0.25, 'ridge': 0.75}, {'bayes': 0.1, 'ridge': 0.1}, share, share
    ),
  )
  weights, errors = {'bayes': 0.4, 'ridge': 0.6}, {'bayes': 0.0, 'ridge': 0.0}
  of_weights, of_shares = plot_strategies(
    Strategies(weights, errors, share, share, 8, by_length, None)
  )
  curves = {line.get_label(): line.get_ydata() for line in of_weights.lines}
  assert [*curves] == ['bayes', 'ridge']
  np.testing.assert_array_equal(curves['bayes'], [np.nan, 0.25])
  np.testing.assert_array_equal(curves['ridge'], [np.nan, 0.75])
  np.testing.assert_array_equal(of_shares.lines[0].get_ydata(), [np.nan, 0.1])
  together, error = {'bayes, ridge': 1.0}, {'bayes, ridge': 0.0}
  whole = Strategies(together, error, share, share, 8, by_length, None)
  (line,) = plot_strategies(whole)[0].lines
  np.testing.assert_array_equal(line.get_ydata(), [1, 1])


def test_lines_over_training_have_bands_over_seeds():
  first, second, left = plot_lines(diagrams(rows_of(POINTS, RUNS)))
  titles = [axes.get_title() for axes in (first, second, left)]
  assert titles == ['task.num_tasks = 4', 'task.num_tasks = 64', 'what they leave']
  curves = {line.get_label(): np.asarray(line.get_ydata()) for line in first.lines}
  np.testing.assert_allclose(curves['mixture weight of bayes'], [0.4, 0.8, 0.9])
  (band,) = first.collections[0].get_paths()
  ends = np.asarray(band.vertices)
  # Student's t for three seeds, 4.303, and a standard error of 0.01/√3.
  half = 4.303 * 0.01 / np.sqrt(3)
  at_end = ends[ends[:, 0] == 100][:, 1]
  expected = 0.9 - half, 0.9 + half
  np.testing.assert_allclose([at_end.min(), at_end.max()], expected, 1e-4)
  assert {line.get_label() for line in left.lines} == {
    'unexplained, task.num_tasks = 4',
    'unexplained, task.num_tasks = 64',
  }


def test_lines_of_a_sweep_over_seeds_are_one_panel_and_leave_out_shared_weights():
  share = Estimate(0.5, 0.1)
  together = Fit({'bayes, ridge': 1.0}, {'bayes, ridge': 0.0}, share, None)
  runs = [_run([0.2, 0.4]), _run([0.2, 0.6]), _run([0.2, 0.8])]
  runs[1].fits[1] = together  # in one seed, at the first step
  made = diagrams(rows_of([{'seed': seed} for seed in range(3)], runs))
  weights, left = plot_lines(made)
  (bayes, _), (whole,) = weights.lines, left.lines
  np.testing.assert_allclose(np.asarray(bayes.get_ydata(), float), [np.nan, 0.6])
  np.testing.assert_allclose(np.asarray(whole.get_ydata(), float), [1 / 3, 0.25])


def test_cells_have_the_widths_of_their_steps_and_hatches_say_what_is_not_known():
  share = Estimate(0.5, 0.1)
  fits = {
    1: Fit({'bayes, ridge': 1.0}, {'bayes, ridge': 0.0}, share, None),  # together
    10: _fit(0.9, 2.0),  # which explains nothing
    1000: Fit({'bayes': 0.9, 'ridge': 0.1}, {'bayes': 0.1, 'ridge': 0.1}, None, None),
  }
  run = FittedRun(fits, _run([0.5]).losses, 1.0)
  (axes,) = plot_diagrams(diagrams(rows_of([{'seed': 0}], [run])))
  assert axes.get_xscale() == 'log'
  (mesh,) = (made for made in axes.collections if isinstance(made, QuadMesh))
  corners = np.asarray(mesh.get_coordinates())[0, :, 0]
  # The middles on the log axis between 1, 10 and 1000.
  np.testing.assert_allclose(corners, [10**-0.5, 10**0.5, 100, 10000])
  cells = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
  hatches = {cell.get_x(): cell.get_hatch() for cell in cells}
  assert [hatches.get(corner) for corner in corners[:3]] == ['xxxx', None, '////']
  labels = [text.get_text() for text in drawing_of(axes).legends[0].get_texts()]
  assert labels == [
    *('bayes', 'ridge'),
    *('not told apart', 'nothing explained', 'nothing measured'),
  ]


@pytest.fixture(scope='module')
def model():
  return zoo.models.YqLSA(3, rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_fits_are_kept_and_are_those_of_the_probe(model):
  config = small_config('yq_lsa', task__noise_std=0.5)
  fitter = Fitter(config, ['zero', 'bayes'], 64)
  row = json.loads(json.dumps(fitter.row(model)))
  run = fitter.fitted({3: row})
  task = task_of(config)
  expected = strategies(model, task, named(task, ['zero', 'bayes']), 64).by_length[-1]
  assert run.fits[3].weights == expected.weights
  assert run.fits[3].stderrs == expected.stderrs
  assert [*expected.weights] == ['zero', 'bayes']  # which are told apart
  assert run.fits[3].unexplained == expected.unexplained
  assert [*fitter.fitted({5: row, 3: row}).fits] == [3, 5]
  # The query of each of 16 prompts.
  assert run.nats_per_step == 16 / (2 * 0.25)
  # A row of any of these is another one.
  other_task = small_config('yq_lsa', task__noise_std=0.6)
  every = [
    fitter.parameters(3),
    fitter.parameters(4),
    Fitter(config, ['zero'], 64).parameters(3),
    Fitter(config, ['zero', 'bayes'], 32).parameters(3),
    Fitter(config, ['zero', 'bayes'], 64, by_prompt=False).parameters(3),
    Fitter(other_task, ['zero', 'bayes'], 64).parameters(3),
  ]
  assert len({json.dumps(parameters) for parameters in every}) == len(every)


def test_predictors_are_baselines_of_the_task():
  task = zoo.create_task('task_pool', num_features=2, context_length=3)
  assert [*named(task, None)] == ['bayes', 'ridge', 'ols']  # dmmse is bayes
  assert [*named(task, ['zero'])] == ['zero']
  with refuses("unknown predictor 'rigde'", "did you mean 'ridge'"):
    named(task, ['rigde'])
