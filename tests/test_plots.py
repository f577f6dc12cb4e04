"""What a figure holds is what is drawn, and what its CSV gives back."""

import dataclasses

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from tests.compare import refuses
from zoo.reports.plots import (
  Panel,
  Plot,
  from_csv,
  render_figure,
  series,
  to_csv,
  write_plot,
)
from zoo.reports.style import BLUE, VERMILION


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
      [[x, low, high] for (x, low), (_, high) in one.get_segments()]
      for one in axes.collections
      if isinstance(one, LineCollection)
    ]
    for one in panel.series:
      assert lines.pop(one.name) == [list(one.x), list(one.y)]
      if one.kind == 'dots' and one.low != one.high:
        ends = zip(one.x, one.low, one.high, strict=True)
        assert bars.pop(0) == [list(end) for end in ends]
    assert not lines
    assert not bars


def test_a_csv_gives_back_the_figure_bit_for_bit():
  plot = example()
  assert from_csv('x', to_csv(plot)) == plot


def test_what_is_drawn_is_what_the_figure_holds():
  assert_drawn(example())


def test_repeats_are_told_by_median_and_range():
  one = series('a', 'dots', BLUE, [0, 1], [[1, 5], [2, 4], [9, 0]])
  assert (one.low, one.y, one.high) == ((1, 0), (2, 4), (9, 5))


def test_values_are_found_by_name():
  plot = example()
  assert plot.at('a', 'trained', 1) == 3.5
  assert plot.end('a', 'trained') == 1.25
  assert abs(plot.slope('b', 'GD')) < 1e-12
  line = series('line', 'line', BLUE, [0, 1, 2], [1, 3, 5])
  straight = Plot('y', (Panel('a', 'x', 'y', (line,)),))
  np.testing.assert_allclose(straight.slope('a', 'line'), 2, rtol=1e-12)
  np.testing.assert_allclose(straight.correlation('a', 'line'), 1, rtol=1e-12)


@pytest.mark.parametrize(
  'damage',
  [
    lambda text: '',
    lambda text: text.splitlines()[0],
    lambda text: text.replace('panel', 'pane', 1),
    lambda text: text[:-30],
    lambda text: text.replace('1.5', 'one'),
  ],
)
def test_what_is_no_csv_of_a_figure_is_refused(damage):
  text = to_csv(example())
  assert damage(text) != text
  with refuses('figure_x.csv is damaged'):
    from_csv('x', damage(text))


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
