"""All figures are in the house style, and their files are the same in each run."""

import io
import shutil
import subprocess

import matplotlib.image
import matplotlib.style
import numpy as np
import pytest
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.text import Text

import zoo
from benchmarks.deviations import plot_deviations
from studies.atlas import comparisons, pictures
from tests import pages
from tests.atlas.rows import rows_of_all_kinds
from tests.settings import isotropic
from tests.test_plots import example
from zoo.measure.comparison import Measured
from zoo.probing.inside.attention_heads import Head
from zoo.probing.report.pictures import (
  plot_alignment,
  plot_attention,
  plot_heads,
)
from zoo.reports.comparison_plots import plot_by_examples
from zoo.reports.plots import Panel, render_figure, series
from zoo.reports.style import (
  BASELINES,
  BLACK,
  BLUE,
  FIGURE_INCHES,
  PALETTE,
  Figure,
  drawing_of,
)

_README = 830  # pixels, the width of its text on GitHub


def _panels():
  lines = [
    series(f'line {i}', 'line', c, [0, 1], [0, i]) for i, c in enumerate(PALETTE)
  ]
  lines += [series(f'd{i}', 'dashed', BLACK, [0, 1], [1, i]) for i in range(2)]
  points = series('points', 'dots', BLUE, [0, 1], [[1, 2], [2, 3]])
  names = 'free generation', 'forced prefix'
  return render_figure(
    [*example().panels, Panel('c', 'x', 'y', (*lines, points), x_names=names)]
  )


def _measured() -> Measured:
  return {
    'num_prompts': 4,
    'num_examples': [0, 1, 2],
    'mean': [3.0, 2.0, 1.0],
    'standard_error': [0.1, 0.1, 0.9],
    'median': [3.0, 2.0, 1.0],
    'difference': None,
    'difference_stderr': None,
    'exact': None,
  }


_NAMES = 'gd', 'gd_beta', 'ridge', 'ols', 'bayes', 'averaging', 'nearest_neighbours'


def test_a_legend_of_many_entries_is_whole_and_its_lines_differ():
  measured = _measured()
  names = ['model', *_NAMES, 'zero', 'w' * 30]
  unstable: Measured = {
    **measured,
    'mean': [3.0, None, 900.0],
    'standard_error': [0.1, None, 500.0],
  }
  comparison = dict.fromkeys(names, measured) | {'ols': unstable}
  figure = drawing_of(plot_by_examples({'multi_head_lsa, 11': [comparison]}))
  figure.canvas.draw()
  (legend,) = figure.legends
  page, box = figure.bbox, legend.get_window_extent()
  assert page.x0 <= box.x0 < box.x1 <= page.x1
  assert page.y0 <= box.y0 < box.y1 <= page.y1
  *lines, arrow = legend.get_lines()
  assert legend.get_texts()[-1].get_text() == 'mean above the scale, or not finite'
  assert arrow.get_color() == BASELINES['ols']
  looks = [(line.get_color(), line.get_marker()) for line in lines]
  assert len(set(looks)) == len(lines) == len(names)


def _heads(tmp_path):
  head = Head(np.ones(3), np.eye(3), 0.5, 1.0)
  return plot_heads([head] * 5)


def _attention(tmp_path):
  maps = {f'layers.{i}': np.tril(np.ones((5, 41, 41))) for i in range(2)}
  return plot_attention(maps, [f'x_{i}' for i in range(41)])


def _alignment(tmp_path):
  task = isotropic(2, 4)
  gd = zoo.estimators.gradient_descent(task)
  return plot_alignment(gd, gd, task, 'gd')


def _atlas(draw):
  return lambda tmp_path: draw(rows_of_all_kinds())


def _diagram(tmp_path):
  return pages.module('diagrams').draw()


# Some have as many and as long texts as there may be.
_EXAMPLES = {
  'render_figure': lambda tmp_path: _panels(),
  'plot_alignment': _alignment,
  'plot_deviations': lambda tmp_path: plot_deviations([-3.5, -0.2, 0.0, 0.1, 2.0]),
  'plot_heat_maps': _atlas(pictures.heat_map),
  'plot_rows': _atlas(lambda rows: pictures.effects(comparisons.changes(rows))),
  'plot_panels': _atlas(pictures.by_context),
  'draw': _diagram,
  'examples': _atlas(pictures.by_examples),
  'heads': _heads,
  'attention': _attention,
}


_QUICK = 'render_figure', 'plot_heat_maps'


def _figure(name, tmp_path):
  drawn = _EXAMPLES[name](tmp_path)
  return drawn if isinstance(drawn, Figure) else drawing_of(drawn)


@pytest.mark.parametrize(
  'name',
  [
    name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in _EXAMPLES
  ],
)
def test_a_picture_is_whole_and_legible_whatever_the_readers_style(name, tmp_path):
  with matplotlib.style.context(['dark_background', {'font.size': 4}]):
    figure = _figure(name, tmp_path)
    figure.draw_without_rendering()
  assert isinstance(figure, Figure)
  assert figure.get_facecolor() == (1, 1, 1, 1)
  assert all(axes.get_facecolor() == (1, 1, 1, 1) for axes in figure.axes)
  width, height = figure.get_size_inches()
  assert width <= FIGURE_INCHES
  box = figure.get_tightbbox()
  # Nothing is cut off; a hundredth of an inch is 1.5 pixels of a PNG.
  assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.01
  scale = min(_README / width, 150)  # pixels in an inch
  shown = [text for text in figure.findobj(Text) if text.get_text().strip()]
  assert shown
  assert min(float(text.get_fontsize()) for text in shown) / 72 * scale >= 10
  assert {text.get_fontname() for text in shown} == {'DejaVu Sans'}


@pytest.mark.parametrize(
  'name',
  [
    name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in _EXAMPLES
  ],
)
def test_a_pdf_has_no_type_3_font(name, tmp_path):
  """Conferences refuse them. Fonts are objects that matplotlib does not compress."""
  figure = _figure(name, tmp_path)
  pdf, control = io.BytesIO(), io.BytesIO()
  figure.savefig(pdf, format='pdf')
  assert b'/TrueType' in pdf.getvalue() or b'/CIDFontType2' in pdf.getvalue()
  assert b'/Type3' not in pdf.getvalue()
  # As the base class saves it, with matplotlib's own settings, the test would fail.
  with matplotlib.style.context('default'):
    canvas = FigureCanvasPdf(figure)
    canvas.print_pdf(control)
  assert b'/Type3' in control.getvalue()
  if shutil.which('pdffonts'):
    (tmp_path / 'picture.pdf').write_bytes(pdf.getvalue())
    found = subprocess.run(
      ['pdffonts', tmp_path / 'picture.pdf'], capture_output=True, text=True, check=True
    ).stdout
    assert 'TrueType' in found
    assert 'Type 3' not in found


def _svg(figure):
  text = io.StringIO()
  figure.savefig(text, format='svg')
  return text.getvalue()


def test_an_svg_is_white_and_the_same_when_drawn_again_and_leaves_the_readers_style():
  before = dict(matplotlib.rcParams)
  panels = example().panels[1:]
  svg = _svg(render_figure(panels))
  assert dict(matplotlib.rcParams) == before
  with matplotlib.style.context('dark_background'):
    assert _svg(render_figure(panels)) == svg
  # The first path is the background, of the whole picture.
  background = svg[svg.index('id="patch_1"') : svg.index('id="axes_1"')]
  assert 'style="fill: #ffffff"' in background
  assert '<dc:date>' not in svg
  assert '<text' not in svg  # letters are paths
