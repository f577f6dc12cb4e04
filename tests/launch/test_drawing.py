"""The flags of commands that draw: what they do, and how a wrong one is refused."""

import pathlib

import numpy as np
import pytest
from matplotlib.image import imread

from tests.launch.test_plot import run, swept  # noqa: F401
from zoo.reports.plots import from_csv
from zoo.reports.style import LEGENDS, SIZES, Figure


@pytest.fixture
def figures(monkeypatch):
  """The figures that are saved, by the name of their file."""
  saved = {}
  save = Figure.savefig

  def keep(self, fname, **options):
    if isinstance(fname, pathlib.Path):
      saved[fname.name] = self
    save(self, fname, **options)

  monkeypatch.setattr(Figure, 'savefig', keep)
  return saved


def _plot(call, run, *flags):  # noqa: F811
  answer = call('plot', f'--workdir={run}', *flags)
  assert answer.code == 0, answer.err
  return answer


def test_texts_are_set_and_the_csv_has_what_is_shown(call, run, figures):  # noqa: F811
  names = '--rename=yq_lsa:ours', '--rename=gd:one step'
  _plot(call, run, '--title=My $', '--xlabel=step', '--ylabel=risk', *names)
  (axes,) = figures['risk.png'].axes
  texts = axes.get_title(), axes.get_xlabel(), axes.get_ylabel()
  assert texts == ('My $', 'step', 'risk')
  (panel,) = from_csv('risk', (run / 'risk.csv').read_text()).panels
  assert (panel.key, panel.x_axis, panel.y_axis) == texts
  shown = [line.get_label() for line in axes.lines]
  assert shown == ['ours: 0.750', 'one step: 1.500'] == [s.name for s in panel.series]
  answer = call('plot', f'--workdir={run}', '--rename=yq:ours')
  assert answer.code == 2
  assert "the legend has no line 'yq'; it has 'yq_lsa: 0.750'" in answer.err
  (curve, *_) = panel.series
  assert (curve.x, curve.y) == ((4.0, 8.0, 12.0), (9 / 4, 9 / 8, 9 / 12))


def test_a_picture_can_be_drawn_again_from_its_csv(call, run, figures):  # noqa: F811
  _plot(call, run)
  (run / 'metrics.jsonl').unlink()  # only the CSV is needed
  first = imread(run / 'risk.png')
  (run / 'risk.png').unlink()
  answer = call('plot', f'--csv={run / "risk.csv"}')
  assert (answer.code, answer.out) == (0, f'{run}/risk.png\n')
  np.testing.assert_array_equal(imread(run / 'risk.png'), first)
  out = run / 'small.pdf'
  again = call('plot', f'--csv={run / "risk.csv"}', f'--out={out}', '--size=column')
  assert again.code == 0, again.err
  assert out.read_bytes().startswith(b'%PDF')
  assert again.err == ''  # without what is logged about fonts
  assert figures['small.pdf'].get_figwidth() == 3.3


@pytest.mark.parametrize(
  ('size', 'inches'), [('column', 3.3), ('page', 6.75), ('5x2.5', 5.0)]
)
def test_a_size_is_that_of_the_figure(call, run, figures, size, inches):  # noqa: F811
  _plot(call, run, f'--size={size}')
  figure = figures['risk.png']
  assert figure.get_figwidth() == inches
  if size == '5x2.5':
    assert figure.get_figheight() == 2.5
  # Letters of a column are smaller, but not under 7 points.
  (axes,) = figure.axes
  sizes = {label.get_fontsize() for label in axes.get_xticklabels()}
  assert sizes == ({7.0} if size == 'column' else {9.0})


def _box(legend, figure):
  figure.draw_without_rendering()
  return legend.get_window_extent()


@pytest.mark.parametrize('place', LEGENDS)
def test_a_legend_stands_where_it_is_wanted(call, run, figures, place):  # noqa: F811
  _plot(call, run, f'--legend={place}')
  figure = figures['risk.png']
  (axes,) = figure.axes
  legends = [*figure.legends, *filter(None, [axes.get_legend()])]
  assert len(legends) == (place != 'none')
  if place in ('above', 'below', 'right'):
    box, panel = _box(legends[0], figure), axes.get_window_extent()
    assert {
      'above': box.y0 >= panel.y1,
      'below': box.y1 <= panel.y0,
      'right': box.x0 >= panel.x1,
    }[place]


def test_a_style_file_comes_after_the_house_style(call, run, figures, tmp_path):  # noqa: F811
  style = tmp_path / 'own.mplstyle'
  style.write_text('axes.facecolor: ivory\nxtick.labelsize: 13\n')
  _plot(call, run, f'--style={style}')
  (axes,) = figures['risk.png'].axes
  assert axes.get_facecolor()[2] < 1
  assert {label.get_fontsize() for label in axes.get_xticklabels()} == {13.0}
  assert axes.xaxis.get_gridlines()[0].get_color() == '#e4e4e4'  # of the house


_WRONG = {
  '--size=small': ('small', 'it must be column, page, or WIDTHxHEIGHT'),
  '--size=0.5x3': ('0.5x3', 'from 1 to 50'),
  '--legend=left': ('left', f'it must be one of {", ".join(LEGENDS)}'),
  '--style=none.mplstyle': ('none.mplstyle', 'it must be a style file of matplotlib'),
  '--style=bad.mplstyle': ('lines.linewidht', 'of which matplotlib says'),
}


@pytest.mark.parametrize('flag', _WRONG)
@pytest.mark.parametrize('command', ['plot', 'strategies', 'probe'])
def test_a_wrong_value_is_one_line_and_nothing_is_written(
  call, tmp_path, monkeypatch, command, flag
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'bad.mplstyle').write_text('lines.linewidht: 3\n')
  of_command = {
    'plot': ['--workdir=checkpoints/runs/yq_lsa', '--out=a.png'],
    'strategies': ['--checkpoint=checkpoints/yq_lsa', '--out=a'],
    'probe': ['--checkpoint=checkpoints/yq_lsa', '--out=a'],
  }
  answer = call(command, *of_command[command], flag)
  assert answer.code == 2
  (message,) = answer.err.splitlines()
  for words in _WRONG[flag]:
    assert words in message
  assert [path.name for path in tmp_path.iterdir()] == ['bad.mplstyle']


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (('probe', '--checkpoint=checkpoints/yq_lsa', '--title=a'), '--title belongs to'),
    (
      ('probe', '--checkpoint=checkpoints/yq_lsa', '--format=png,eps'),
      'it must name some of png, svg, pdf',
    ),
    (('plot', '--csv=none.csv'), "--csv is 'none.csv', which does not exist"),
    (('plot', '--csv=other.csv'), 'is damaged'),
    (('plot', '--csv=other.csv', '--x=a'), '--x cannot stand beside --csv'),
    (
      ('plot', '--workdir=checkpoints/runs/yq_lsa', '--out=other.png'),
      'is another table; give another --out',
    ),
  ],
)
def test_what_does_not_fit_is_one_line(call, tmp_path, monkeypatch, arguments, said):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'other.csv').write_text('a,b\n1,2\n')
  answer = call(*arguments)
  assert answer.code == 2
  (message,) = answer.err.splitlines()
  assert said in message
  assert [path.name for path in tmp_path.iterdir()] == ['other.csv']


def test_the_help_has_the_places_and_sizes_of_the_library():
  from launch import drawing

  assert drawing._LEGENDS == LEGENDS
  assert SIZES == ('column', 'page')


@pytest.mark.slow
@pytest.mark.full
def test_a_probe_has_its_pictures_in_each_format_with_their_numbers(call, tmp_path):
  flags = '--only=heads', '--format=png,pdf', '--title=Both', '--size=page'
  checkpoint = '--checkpoint=checkpoints/multi_head_lsa_2'
  answer = call('probe', checkpoint, f'--out={tmp_path}', *flags)
  assert answer.code == 0, answer.err
  names = {path.name for path in tmp_path.iterdir()}
  assert {'heads.png', 'heads.pdf', 'heads.csv', 'report.html'} <= names
  lines = (tmp_path / 'heads.csv').read_text().splitlines()
  assert lines[0] == 'map,title,row,column,row_name,column_name,value'
  assert len(lines) > 2 * 5 * 5
  assert 'href="heads.pdf"' in (tmp_path / 'report.html').read_text()
