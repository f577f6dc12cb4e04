"""What a figure holds is what is drawn, and what its CSV gives back."""

import dataclasses
import math
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize

from tests.compare import refuses
from zoo.reports.heat_maps import HeatMap, plot_heat_maps
from zoo.reports.plots import (
  Panel,
  Plot,
  from_csv,
  render_figure,
  series,
  to_csv,
  write_plot,
)
from zoo.reports.rows import RowPoint, plot_rows
from zoo.reports.style import BLACK, BLUE, VERMILION, drawing_of


def example():
  dots = series('trained', 'dots', VERMILION, [1, 2, 5], [[3, 2, 1], [4, 2, 1.5]])
  curve = series(
    '|w*|², "exact"', 'curve', BLUE, [1, 2, 5], np.array([1 / 3, 0.2, 0.1])
  )
  level = series('GD', 'dashed', '#000000', [1, 5], [0.1, 0.1])
  return Plot(
    'x',
    (
      Panel('a', 'heads, H', 'risk', (dots, curve), 'log', 'log'),
      Panel('b', 'C', 'risk', (dots, level)),
    ),
  )


def test_a_csv_gives_back_the_figure_bit_for_bit():
  plot = example()
  assert from_csv('x', to_csv(plot)) == plot


def test_what_is_drawn_is_what_the_figure_holds():
  assert_drawn(example())


def assert_drawn(plot):
  """By matplotlib's own account of it."""
  figure = render_figure(plot.panels)
  assert len(figure.axes) == len(plot.panels)
  for axes, panel in zip(figure.axes, plot.panels, strict=True):
    assert (axes.get_xlabel(), axes.get_xscale()) == (panel.x_axis, panel.x_scale)
    assert (axes.get_ylabel(), axes.get_yscale()) == (panel.y_axis, panel.y_scale)
    lines = {
      line.get_label(): np.transpose(line.get_xydata()).tolist() for line in axes.lines
    }
    bars = [
      [[x, low, high] for (x, low), (_, high) in collection.get_segments()]
      for collection in axes.collections
      if isinstance(collection, LineCollection)
    ]
    for shown in panel.series:
      assert lines.pop(shown.name) == [list(shown.x), list(shown.y)]
      if shown.kind == 'dots' and shown.low != shown.high:
        ends = zip(shown.x, shown.low, shown.high, strict=True)
        assert bars.pop(0) == [list(end) for end in ends]
    assert not lines
    assert not bars


def test_repeats_are_told_by_median_and_range():
  dots = series('a', 'dots', BLUE, [0, 1], [[1, 5], [2, 4], [9, 0]])
  assert (dots.low, dots.y, dots.high) == ((1, 0), (2, 4), (9, 5))


def test_values_are_found_by_name():
  plot = example()
  assert plot.at('a', 'trained', 1) == 3.5
  assert plot.end('a', 'trained') == 1.25
  assert abs(plot.slope('b', 'GD')) < 1e-12
  line = series('line', 'line', BLUE, [0, 1, 2], [1, 3, 5])
  straight = Plot('y', (Panel('a', 'x', 'y', (line,)),))
  np.testing.assert_allclose(straight.slope('a', 'line'), 2, rtol=1e-12)
  np.testing.assert_allclose(straight.correlation('a', 'line'), 1, rtol=1e-12)


def test_what_is_no_csv_of_a_figure_is_refused():
  text = to_csv(example())
  for damaged in ('', text.replace('panel', 'pane', 1), text[:-30]):
    with refuses('figure_x.csv is damaged'):
      from_csv('x', damaged)


def test_points_stand_in_the_rows_of_their_names():
  points = [RowPoint('lstm', 'a', 2.0, 0.5), RowPoint('gru', 'b', 3.0, math.inf)]
  axes, other = plot_rows(
    {'$t': points, 'u': points[:1]}, 'x', {'b': BLUE, 'a': VERMILION}
  )
  assert [label.get_text() for label in axes.get_yticklabels()] == ['lstm', 'gru']
  drawn: dict[str, Any] = {str(box.get_label()): box for box in axes.containers}
  line, _, (bars,) = drawn['a'].lines
  assert line.get_color() == VERMILION
  drawn_at = np.array(line.get_data(), np.float64)
  np.testing.assert_allclose(drawn_at[:, 0], [2.0, 0.08])
  np.testing.assert_allclose(bars.get_segments()[0][:, 0], [1.5, 2.5])
  assert len(other.containers) == 1


def test_a_heat_map_shows_its_numbers():
  scale = Normalize(0, 1)
  heat_map = HeatMap(np.array([[0.0, 1.0]]), scale, rows={0: 'a'}, texts=[['0', '1']])
  figure = drawing_of(plot_heat_maps([[heat_map, heat_map], [heat_map]], 4.0))
  first, _, _, empty, bar = figure.axes
  assert [text.get_text() for text in first.texts] == ['0', '1']
  assert [text.get_color() for text in first.texts] == ['white', BLACK]
  np.testing.assert_array_equal(first.images[0].get_array(), heat_map.values)
  assert [text.get_text() for text in first.get_yticklabels()] == ['a']
  assert not empty.axison
  assert bar is figure.axes[-1]


def test_names_are_drawn_as_they_are(tmp_path):
  """A dollar begins no formula, wherever it stands, and what it begins is not TeX."""
  odd = '$\\frac{ <script> & $'
  plot = example()
  dots = dataclasses.replace(plot.panels[0].series[0], name=odd)
  panel = Panel('a', odd, odd, (dots,), x_names=(odd, odd))
  plot = from_csv('x', to_csv(Plot('x', (panel,))))
  assert plot.panels == (panel,)
  write_plot(plot, tmp_path)
  assert '<script' not in (tmp_path / 'figure_x.svg').read_text()
