"""What a figure holds is what is drawn, and what its CSV gives back."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize

from tests.compare import refuses
from zoo.reports.heat_maps import HeatMap, plot_heat_maps
from zoo.reports.interval_plots import RowPoint, plot_rows
from zoo.reports.plots import (
  BELOW,
  Panel,
  Plot,
  Series,
  from_csv,
  plot_panel,
  plot_panels,
  render_figure,
  series,
  to_csv,
  write_plot,
)
from zoo.reports.style import BLACK, BLUE, SIGNED, VERMILION, drawing_of


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
    with refuses('the CSV of the figure x is damaged'):
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


def _bars(low):
  return Series('a', 'bars', BLUE, (1.0, 2.0), (1.0, 2.0), low, (3.0, 3.0))


def test_an_interval_that_reaches_0_goes_to_the_edge_of_a_log_axis_with_an_arrow():
  for low in (-1.0, 0.0, 1e-9):
    axes = plot_panel(Panel('', 'x', 'y', (_bars((low, 1.5)),), y_scale='log'))
    bottom, top = axes.get_ylim()
    # The means stay visible, and the bar is not cut at a share of its mean.
    assert 0.05 < bottom <= 0.1 < 3 <= top
    segments = axes.collections[0].get_segments()  # type: ignore[attr-defined]
    assert [segment[0, 1] for segment in segments] == [low, 1.5]
    (arrow,) = [line for line in axes.lines if line.get_gid() == BELOW]
    assert np.asarray(arrow.get_xdata()).tolist() == [1.0]
  axes = plot_panel(Panel('', 'x', 'y', (_bars((0.5, 1.5)),), y_scale='log'))
  assert not [line for line in axes.lines if line.get_gid() == BELOW]


def test_a_band_that_reaches_0_goes_to_the_edge_of_a_log_axis():
  band = Series('a', 'curve', BLUE, (1.0, 2.0), (1.0, 2.0), (-1.0, 1.5), (3.0, 3.0))
  axes = plot_panel(Panel('', 'x', 'y', (band,), y_scale='log'))
  assert 0.05 < axes.get_ylim()[0] <= 0.1
  (path,) = axes.collections[0].get_paths()
  assert np.asarray(path.vertices)[:, 1].min() == -1.0  # beyond the edge: it is open


def test_a_row_whose_interval_reaches_0_has_an_arrow_on_a_log_axis():
  points = [RowPoint('a', 'm', 1.0, 2.0), RowPoint('b', 'm', 2.0, 0.5)]
  (axes,) = plot_rows({'': points}, 'x', {'m': BLUE}, x_scale='log')
  assert 0.05 < axes.get_xlim()[0] <= 0.1
  arrows = [line for line in axes.lines if line.get_marker() == '<']
  assert [np.asarray(line.get_ydata()).tolist() for line in arrows] == [[0.0]]


def test_a_colour_bar_has_an_arrow_where_values_are_beyond_it():
  for values, extend in (
    ([0.0, 1.0], 'neither'),
    ([-0.1, 0.5], 'min'),
    ([0.5, 1.5], 'max'),
    ([-1.0, 2.0], 'both'),
  ):
    heat_map = HeatMap(np.array([values]), Normalize(0, 1))
    (axes,) = plot_heat_maps([[heat_map]], 3.0)
    bar = axes.images[0].colorbar
    assert bar is not None
    assert bar.extend == extend


def test_ticks_of_a_log_axis_are_numbers_or_powers_of_ten_and_do_not_overlap():
  line = series('a', 'line', BLUE, [1, 150], [1e-7, 1e7])
  panels = [Panel('', 'x', 'y', (line,), 'log', 'log')] * 4
  drawn = plot_panels(panels, 4, 2.0)
  figure = drawing_of(drawn)
  figure.draw_without_rendering()
  texts = {text.get_text() for text in drawn[0].get_yticklabels()}
  assert {'$10^{-6}$', '0.01', '100'} <= texts
  assert not any('e' in text for text in texts)
  for axes in drawn:
    low, high = axes.get_xlim()
    boxes = [
      text.get_window_extent()
      for text in axes.get_xticklabels()
      if low <= text.get_position()[0] <= high
    ]
    assert len(boxes) > 1
    for box, following in itertools.pairwise(boxes):
      assert box.x1 < following.x0


def test_a_panel_alone_has_no_letter():
  both = render_figure(example().panels)
  assert [axes.get_title(loc='left') for axes in both.axes] == ['a', 'b']
  (alone,) = render_figure(example().panels[:1]).axes
  assert alone.get_title(loc='left') == ''
  (part,) = render_figure(example().panels[:1], is_part=True).axes
  assert part.get_title(loc='left') == 'a'


def test_a_negative_entry_has_a_minus_that_does_not_need_colours():
  heat_map = HeatMap(np.array([[-1.0, -0.05, 0.5]]), Normalize(-1, 1))
  (axes,) = plot_heat_maps([[heat_map]], 3.0, colours=SIGNED)
  assert [(text.get_text(), text.get_position()) for text in axes.texts] == [
    ('−', (0, 0))
  ]


def test_names_of_columns_do_not_overlap():
  for number, name in (3, 'a'), (12, 'a longer name'), (60, 'x'):
    columns = {i: f'{name} {i}' for i in range(number)}
    heat_map = HeatMap(np.ones((2, number)), Normalize(0, 1), columns=columns)
    (axes,) = plot_heat_maps([[heat_map]], 4.0)
    figure = drawing_of(axes)
    figure.draw_without_rendering()
    labels = axes.get_xticklabels()
    angle = labels[0].get_rotation()
    boxes = [label.get_window_extent() for label in labels]
    for box, following in itertools.pairwise(boxes):
      apart = following.x1 - box.x1
      if angle == 0:
        assert box.x1 < following.x0
      else:  # turned: the distance across the letters is at least their height
        height = float(labels[0].get_fontsize()) / 72 * figure.dpi
        assert apart * np.sin(np.radians(angle)) > 0.7 * height
