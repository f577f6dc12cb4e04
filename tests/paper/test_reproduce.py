"""The whole paper, with twenty steps of training: one file, as they share the run."""

import json

import numpy as np
import pytest

from studies.paper import FIGURES
from studies.paper.claim import judge
from studies.paper.claims import CLAIMS
from studies.paper.training import Runs, train_all
from studies.runner import Trainer
from tests.paper.browser import CHROMIUM, opened
from tests.paper.settings import get_config
from tests.test_plots import assert_drawn
from zoo.reports.plots import Plot, from_csv

# Of each figure whether it, and all of its panels, have an extent and a drawing.
_FIGURES = """
[...document.querySelectorAll('figure')].map(figure => ({
  name: figure.id,
  panels: [...figure.querySelectorAll('svg')].map(svg => {
    const box = svg.getBoundingClientRect();
    return box.width > 200 && box.height > 150 && svg.checkVisibility()
      && svg.querySelectorAll('path').length > 10;
  }),
}))
"""
_UNFOLD = '[...document.querySelectorAll("details")].map(one => one.open = true).length'
# What reaches beyond the screen, inner parts of drawings aside.
_OVERFLOWING = """
[...document.querySelectorAll('body, body *:not(svg *)')]
  .filter(node => node.getBoundingClientRect().right > innerWidth + 0.5)
  .map(node => node.outerHTML.slice(0, 100))
"""


def plot(name, runs):
  return Plot(name, FIGURES[name].plot(runs))


def plot_made_up(name, folder):
  """A figure of models that all have the risk 7 after their training."""
  line = {'step': 5, 'loss': 9.0, 'exact_risk': 7.0, 'eval_risk': 7.0, 'wall_time': 0}
  (folder / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
  row = {'workdir': folder, 'exact_risk': 7.0}
  return plot(name, Runs({at: [row] for at in FIGURES[name].points}))


def read(out, name):
  return from_csv(name, (out / f'figure_{name}.csv').read_text())


@pytest.mark.slow
def test_each_figure_is_drawn_from_what_its_csv_holds(made):
  out, _, names = made
  for name in names:
    assert_drawn(read(out, name))
    assert (out / f'figure_{name}.png').read_bytes().startswith(b'\x89PNG')
    assert '<svg' in (out / f'figure_{name}.svg').read_text()


@pytest.mark.slow
def test_exact_lines_are_those_of_the_formulas(tmp_path):
  # The lowest known risks by number of heads, as docs/theory_heads.md has them.
  lowest = plot_made_up('2', tmp_path).series('b', 'lowest known risk').y
  np.testing.assert_allclose(lowest[0], 14.430617331, rtol=1e-9)
  np.testing.assert_allclose(lowest[8], 6.137873828, rtol=1e-9)
  np.testing.assert_allclose(lowest[9:], 110 / 21 + 40 / 51, rtol=1e-12)
  for name, panel, label in [
    ('3', 'b', '11 heads, infimum'),
    ('4', 'b', 'infimum'),
    ('4', 'd', 'infimum'),
  ]:
    line = plot_made_up(name, tmp_path).series(panel, label)
    np.testing.assert_allclose(line.y, 110 / 21 + np.array(line.x) / 51, rtol=1e-12)
  # Features of equal variance: the matrix step is a number.
  covariance = plot_made_up('covariance', tmp_path)
  for name in 'GD, best step size', 'optimum: GD with a matrix step':
    np.testing.assert_allclose(covariance.at('a', name, 1), 110 / 21, rtol=1e-12)


@pytest.mark.slow
def test_the_gap_of_longer_contexts_is_that_of_the_formula(tmp_path):
  context = plot_made_up('context', tmp_path)
  gap = context.series('b', '11 heads, infimum')
  np.testing.assert_allclose(gap.y, 80 / (10 * np.array(gap.x) + 2), rtol=1e-11)
  gd = context.series('a', 'one step of gradient descent')
  np.testing.assert_allclose(gd.y, 110 / (np.array(gd.x) + 11), rtol=1e-12)
  dots = context.at('b', 'LSA, 11 heads, trained', 20)
  np.testing.assert_allclose(dots, 7 - 110 / 31, rtol=1e-12)


@pytest.mark.slow
def test_claims_judged_from_the_files_are_those_that_are_written(made):
  out, judged, names = made
  written = json.loads((out / 'claims.json').read_text())['claims']
  assert written == judged
  assert [claim['key'] for claim in written] == [claim.key for claim in CLAIMS]
  figures = {name: read(out, name) for name in names}
  for claim, listed in zip(CLAIMS, written, strict=True):
    of = set(listed['figures'])
    assert bool(listed['measured']) == bool(of & set(names))
    assert (listed['verdict'] is None) == (not of <= set(names))
    assert judge(claim, figures) == listed


def test_trained_on_samples_figure_1_shows_loss_and_exact_risk(tmp_path):
  lines = [
    {'step': step, 'loss': loss, 'exact_risk': risk, 'eval_risk': risk, 'wall_time': 0}
    for step, loss, risk in ((5, 9.0, 8.0), (10, 7.0, 6.0))
  ]
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (tmp_path / 'metrics.jsonl').write_text(text)
  (at,) = FIGURES['1'].points
  for objective, shown in ('sampled', True), ('exact', False):
    figure = plot('1', Runs({at: [{'workdir': tmp_path}]}, objective))
    names = [series.name for series in figure.panels[0].series]
    assert ('training loss' in names) == shown
    assert figure.series('a', 'exact risk').y == (8.0, 6.0)
  assert plot('1', Runs({at: [{'workdir': tmp_path}]})).end('a', 'training loss') == 7.0


@pytest.mark.slow
def test_what_is_trained_is_not_trained_again(made):
  out, _, names = made
  points = [at for name in names for at in FIGURES[name].points]
  before = {path: path.stat().st_mtime_ns for path in out.glob('**/metrics.jsonl')}
  assert len(before) == len(set(points))
  train = Trainer(out / 'runs' / 'exact', get_config)
  again = train_all(points, 1, 'exact', train)
  assert {path: path.stat().st_mtime_ns for path in before} == before
  assert plot(names[-1], again) == read(out, names[-1])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium is installed')
def test_the_report_reads_on_a_laptop_and_on_a_phone_light_and_dark(made):
  out, _, names = made
  address = (out / 'report.html').as_uri()
  with opened(address) as page:
    for width in 1280, 390:
      for dark in False, True:
        page.resize(width, dark)
        shown = {figure['name']: figure['panels'] for figure in page.evaluate(_FIGURES)}
        assert list(shown) == [f'figure_{name}' for name in names]
        assert all(all(panels) and panels for panels in shown.values()), shown
        assert page.evaluate('document.documentElement.scrollWidth') <= width
        page.evaluate(_UNFOLD)
        assert page.evaluate(_OVERFLOWING) == []
        background = page.evaluate('getComputedStyle(document.body).backgroundColor')
        assert background == ('rgb(13, 17, 23)' if dark else 'rgb(255, 255, 255)')
  messages = [
    event
    for event in page.events
    if event['method']
    in ('Runtime.consoleAPICalled', 'Runtime.exceptionThrown', 'Log.entryAdded')
  ]
  assert messages == []
  requests = [
    event['params']['request']['url']
    for event in page.events
    if event['method'] == 'Network.requestWillBeSent'
  ]
  assert [url for url in requests if not url.startswith('data:')] == [address]
