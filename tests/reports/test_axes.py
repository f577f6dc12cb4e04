"""Every function that draws takes axes, and returns those in which it has drawn."""

import inspect

import matplotlib.figure
import matplotlib.style
import numpy as np
import pytest
from flax import nnx
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgba
from matplotlib.text import Text

import zoo
from benchmarks import deviations, linear
from benchmarks.deviations import plot_deviations
from studies.atlas import comparisons, pictures
from studies.strategies import pictures as of_strategies
from studies.strategies.phases import diagrams, rows_of
from tests.atlas.rows import rows_of_all_kinds
from tests.compare import refuses
from tests.launch.test_plot import line as logged_line
from tests.launch.test_plot import run, swept, write_lines, write_table  # noqa: F401
from tests.marks import mostly_slow
from tests.probing.test_by_layer import _readout
from tests.probing.test_interventions import _effects
from tests.settings import isotropic
from tests.strategies.test_series import POINTS, RUNS
from tests.test_plots import example
from zoo.measure.comparison import Measured
from zoo.measure.intervals import Estimate
from zoo.probing.attention_heads import Head, HeadScore
from zoo.probing.compare import TaskShift
from zoo.probing.latents import LatentScore
from zoo.probing.nearest.mixtures import NearestMixture, Strategies
from zoo.reports import comparison_plots, head_tables, heat_maps, interval_plots, plots
from zoo.reports.probe import (
  algorithm_pictures,
  intervention_pictures,
)
from zoo.reports.probe import pictures as of_probes
from zoo.reports.probe.interventions import HeadMeasurements
from zoo.reports.style import BLUE, Figure, drawing_of
from zoo.training import run_plots

_SHARE = Estimate(0.1, 0.01)
_MAP = heat_maps.HeatMap(np.eye(2), Normalize(0, 1), 'share', 'a')


def _measured() -> Measured:
  return {
    'num_prompts': 4,
    'num_examples': [0, 1, 2],
    'mean': [3.0, 2.0, 1.0],
    'stderr': [0.1, 0.1, 0.9],
    'median': [3.0, 2.0, 1.0],
    'difference': None,
    'difference_stderr': None,
    'exact': None,
    'accuracy': None,
  }


def _plot_attention_on(ax=None):
  task = isotropic(2, 3)
  model = zoo.models.Transformer(
    2, 3, num_layers=1, width=8, num_heads=2, rngs=nnx.Rngs(0)
  )
  return of_probes.plot_attention_on(model, task, ax=ax)


def _plot_alignment(ax=None):
  task = isotropic(2, 4)
  gd = zoo.estimators.gradient_descent(task)
  return of_probes.plot_alignment(gd, gd, task, 'gd', ax=ax)


def _plot_step_matrix(ax=None):
  model = zoo.models.YqLSA(2, rngs=nnx.Rngs(0))
  found = zoo.probing.implicit_algorithm(model, isotropic(2, 3))
  return of_probes.plot_step_matrix(found, ax=ax)


def _plot_strategies(ax=None):
  weights, errors = {'bayes': 0.4, 'ridge': 0.6}, {'bayes': 0.1, 'ridge': 0.1}
  by_length = (NearestMixture(weights, errors, _SHARE, _SHARE),) * 2
  whole = Strategies(weights, errors, _SHARE, _SHARE, 8, by_length, None)
  return of_strategies.plot_strategies(whole, ax=ax)


def _plot_heads(ax=None):
  heads = [Head(np.ones(2), np.eye(2), 0.5, 1.0)] * 2
  return of_probes.plot_heads(heads, ax=ax)


def _plot_effects(ax=None):
  found = _effects((1.0, 0.1), (0.9, 0.05))
  return intervention_pictures.plot_effects(found, None, 2, ax=ax)


def _plot_scores(ax=None):
  found = HeadMeasurements([], _effects((1.0, 0.1), (0.9, 0.05)))
  return intervention_pictures.plot_scores(found, ax=ax)


def _plot_latents(ax=None):
  scores = [LatentScore('site', 'w', _SHARE, _SHARE)]
  return intervention_pictures.plot_latents(scores, ax=ax)


def _plot_layer_algorithms(ax=None):
  readout = _readout(([0, 1, 2], [0, 1, 2], [0, 1, 2]), [['ridge']] * 3)
  return algorithm_pictures.plot_layer_algorithms(readout, ax=ax)


def _plot_head_table(ax=None):
  scores = [HeadScore('layers.0', head, 0.5, None, None, None, {}) for head in range(2)]
  return head_tables.plot_head_table(scores, 'previous', ax=ax)


def _plot_rows(ax=None):
  points = {'a': [interval_plots.RowPoint('lstm', 'b', 2.0, 0.5)]}
  return interval_plots.plot_rows(points, 'x', {'b': BLUE}, ax=ax)


def _plot_scaling(ax=None):
  measured = {'sizes': [1, 2], 'ms_per_step': [1.0, 2.0], 'exponent': 1.0}
  return linear.plot_scaling({'C': measured}, ax=ax)


# By the name of the function, with the number of axes that it draws in.
_FUNCTIONS = {
  'plot_panel': (1, lambda ax=None: plots.plot_panel(example().panels[0], ax)),
  'plot_panels': (
    2,
    lambda ax=None: plots.plot_panels(example().panels, 2, 2.0, ax=ax),
  ),
  'plot_heat_maps': (
    2,
    lambda ax=None: heat_maps.plot_heat_maps([[_MAP], [_MAP]], 4.0, ax=ax),
  ),
  'plot_head_table': (1, _plot_head_table),
  'plot_rows': (1, _plot_rows),
  'plot_by_examples': (
    1,
    lambda ax=None: comparison_plots.plot_by_examples(
      {'a': [{'model': _measured()}]}, ax=ax
    ),
  ),
  'plot_deviations': (
    1,
    lambda ax=None: plot_deviations([0.1, 1.0], ax=ax),
  ),
  'plot_alignment': (3, _plot_alignment),
  'plot_task_shifts': (
    1,
    lambda ax=None: of_probes.plot_task_shifts(
      [TaskShift('a', 9, _SHARE, _SHARE)], 'gd', ax=ax
    ),
  ),
  'plot_step_matrix': (3, _plot_step_matrix),
  'plot_heads': (2, _plot_heads),
  'plot_attention': (
    2,
    lambda ax=None: of_probes.plot_attention(
      {'layers.0': np.ones((2, 2, 2))}, ['x_1', 'y_1'], ax=ax
    ),
  ),
  'plot_attention_on': (2, _plot_attention_on),
  'plot_layer_algorithms': (2, _plot_layer_algorithms),
  'plot_effects': (1, _plot_effects),
  'plot_scores': (1, _plot_scores),
  'plot_latents': (1, _plot_latents),
  'plot_strategies': (2, _plot_strategies),
  'plot_series': (2, lambda ax=None: of_strategies.plot_series(RUNS[0], ax=ax)),
  'plot_diagrams': (
    1,
    lambda ax=None: of_strategies.plot_diagrams(diagrams(rows_of(POINTS, RUNS)), ax=ax),
  ),
  'plot_lines': (
    3,
    lambda ax=None: of_strategies.plot_lines(diagrams(rows_of(POINTS, RUNS)), ax=ax),
  ),
  'heat_map': (1, lambda ax=None: pictures.heat_map(rows_of_all_kinds(), ax=ax)),
  'slopes': (
    1,
    lambda ax=None: pictures.slopes(pictures.slope_ratios(rows_of_all_kinds()), ax=ax),
  ),
  'effects': (
    2,
    lambda ax=None: pictures.effects(comparisons.changes(rows_of_all_kinds()), ax=ax),
  ),
  'by_context': (
    6,
    lambda ax=None: pictures.by_context(rows_of_all_kinds(), ax=ax),
  ),
  'plot_scaling': (1, _plot_scaling),
}
_OF_RUNS = {
  'plot_risk': lambda one, many, ax=None: run_plots.plot_risk([one], ax=ax),
  'plot_metric': lambda one, many, ax=None: run_plots.plot_metric([one], 'loss', ax=ax),
  'plot_sweep': lambda one, many, ax=None: run_plots.plot_sweep(many, ax=ax),
  'plot_examples': lambda one, many, ax=None: run_plots.plot_examples([one], ax=ax),
  'plot_sweep_examples': lambda one, many, ax=None: run_plots.plot_sweep_examples(
    many, ax=ax
  ),
}


def test_all_functions_that_draw_are_tried():
  modules = (
    *(plots, heat_maps, interval_plots, comparison_plots, run_plots, of_probes),
    *(algorithm_pictures, intervention_pictures, of_strategies, head_tables),
    *(pictures, linear, deviations),
  )
  found = {
    name: function
    for module in modules
    for name, function in vars(module).items()
    if inspect.isfunction(function)
    and function.__module__ == module.__name__
    and not name.startswith('_')
    and 'Axes' in str(inspect.signature(function).return_annotation)
  }
  assert {*found} == {*_FUNCTIONS, *_OF_RUNS}
  for function in found.values():
    assert inspect.signature(function).parameters['ax'].default is None


def _check(draw, number):
  """Draws in a figure of its own, in given axes, and in too many of them."""
  drawn = draw()
  every = [drawn] if isinstance(drawn, Axes) else drawn
  assert len(every) == number
  assert all(isinstance(axes, Axes) for axes in every)
  own = drawing_of(drawn)
  assert isinstance(own, Figure)
  assert own.numbers.count('\n') > 1 or draw is _FUNCTIONS['plot_diagrams'][1]
  with matplotlib.style.context({'axes.facecolor': 'ivory', 'legend.fontsize': 3}):
    figure = matplotlib.figure.Figure(layout='constrained')
    grid = [*figure.subplots(1, number + 1, squeeze=False).flat]
    given = grid[0] if number == 1 else grid[:number]
    again = draw(ax=given)
    figure.draw_without_rendering()
  returned = [again] if isinstance(again, Axes) else again
  assert returned == grid[:number]
  assert not grid[-1].has_data()  # the other axes of the caller are untouched
  # What the caller has set stays.
  assert grid[0].get_facecolor() == to_rgba('ivory')
  for axes in grid:
    if axes.get_legend() is not None:
      texts = axes.get_legend().findobj(Text)
      assert {text.get_fontsize() for text in texts if text.get_text()} == {3.0}
  if not isinstance(drawn, Axes):
    with refuses(f'ax is {number + 1} axes', f'{number} panel'):
      draw(ax=grid)


@pytest.mark.parametrize('name', mostly_slow(['plot_panel', 'plot_heads'], _FUNCTIONS))
def test_a_function_draws_in_given_axes(name):
  number, draw = _FUNCTIONS[name]
  _check(draw, number)


@pytest.mark.parametrize('name', _OF_RUNS)
def test_a_picture_of_runs_is_drawn_in_given_axes(name, run, swept):  # noqa: F811
  write_lines(run, [logged_line(4, curve=[3.0, 2.0]), logged_line(8)])
  if name == 'plot_sweep':
    write_table(swept, {(1,): 5.0, (2,): 4.0}, ['model.num_heads'], (0, 1))
  _check(lambda ax=None: _OF_RUNS[name](run, swept, ax=ax), 1)
