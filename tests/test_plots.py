"""What a figure holds is what is drawn, and what its CSV gives back."""

import dataclasses

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from tests import fuzz
from tests.compare import refuses
from zoo.host.files import read_text
from zoo.reports import plots
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


def changed(**cells):
  """The CSV of the example with cells of its second line changed."""
  header, first, second, *rest = to_csv(example()).splitlines()
  names, row = header.split(','), second.split(',')
  for name, value in cells.items():
    row[names.index(name) - len(names)] = value  # the x axis has a comma
  return '\n'.join([header, first, ','.join(row), *rest])


@pytest.mark.parametrize(
  ('cells', 'said'),
  [
    ({'colour': 'red'}, "line 3: colour is 'red'; it must be like #0072B2"),
    ({'colour': '#12345'}, "colour is '#12345'"),
    ({'kind': 'pie'}, "kind is 'pie'; it must be one of dots, curve, line, dashed"),
    ({'y_scale': 'symlog'}, "y_scale is 'symlog'; it must be linear or log"),
    ({'series': '_hidden'}, 'series is'),
    ({'series': ''}, 'series is'),
    ({'series': 'a\x1b[0m'}, 'series is'),
    ({'series': 'a' * 201}, 'it must be 1 to 200 printable characters'),
    ({'y': 'nan'}, "y is 'nan'; it must be a number of at most 1e+100"),
    ({'y': '1e308', 'high': '1e308'}, 'it must be a number of at most'),
    ({'x': 'two'}, "x is 'two'"),
    ({'low': '9'}, 'y is 2.0; it must be between low, 9.0, and high, 2.0'),
    ({'y': '-1', 'low': '-1'}, '-1.0 is on a log scale of y; it must be > 0'),
    ({'x': '0'}, '0.0 is on a log scale of x; it must be > 0'),
    ({'colour': BLUE}, "series 'trained' occurs in two styles"),
    ({'y_axis': 'error'}, "panel 'a' occurs in two styles"),
  ],
)
def test_a_csv_that_cannot_be_drawn_is_refused(cells, said):
  with refuses('figure_x.csv', said):
    from_csv('x', changed(**cells))


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    ('', 'begins with None'),
    ('panel,x\n', "begins with ['panel', 'x']"),
    (to_csv(example()).splitlines()[0], 'has no points'),
    (to_csv(example()) + 'a,b\n', 'has 2 cells; it must have 13'),
    (to_csv(example()) + 200_000 * 'a', 'field larger than field limit'),
    (to_csv(example()) + '"', 'cells'),
  ],
)
def test_what_is_no_csv_of_a_figure_is_refused(text, said):
  with refuses('figure_x.csv', said):
    from_csv('x', text)


@pytest.mark.parametrize('key', ['ab', '', '1', 'A', 'é', 'a\n', '"><script>'])
def test_a_panel_key_is_a_letter(key):
  quoted = key.replace('"', '""')
  text = to_csv(example()).replace('\na,', f'\n"{quoted}",')
  with refuses('panel is', 'it must be a letter from a to z'):
    from_csv('x', text)


def test_too_many_points_are_refused(monkeypatch):
  monkeypatch.setattr(plots, 'MAX_POINTS', 7)
  assert from_csv('x', to_csv(straight(7))) == straight(7)
  with refuses('has more than 7 points'):
    from_csv('x', to_csv(straight(8)))


def straight(count):
  line = series('line', 'line', BLUE, range(count), range(count))
  return Plot('x', (Panel('a', 'x', 'y', (line,)),))


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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings('ignore:Glyph')  # of characters that the font has not
def test_a_corrupted_csv_is_drawn_or_refused(tmp_path):
  path = tmp_path / 'figure_x.csv'
  path.write_text(to_csv(example()))
  opened = 0

  def read():
    nonlocal opened
    plot = from_csv('x', read_text(path))
    opened += 1
    if opened % 20 == 0:  # drawing is slow; what can be drawn is what is read
      render_figure(plot.panels).canvas.draw()

  refused = fuzz.check_all(path, read, fuzz.mutate_bytes)
  assert 0.5 < refused < 1
