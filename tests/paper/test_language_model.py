"""Figure 6, read from the folder of a run of launch.llm."""

import pytest

from studies.paper.claim import judge
from studies.paper.claims import CLAIMS
from studies.paper.reproduce import read_figure_6
from tests.compare import refuses
from tests.paper.settings import figure_6
from zoo.reports.plots import to_csv

PLOT = figure_6(**{'with − without guess': -0.4, 'with guess − guess alone': 1.0})


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'figure_6.csv').write_text(to_csv(PLOT))
  return tmp_path


def test_a_folder_without_a_finished_run_is_refused(folder):
  assert read_figure_6(folder) == PLOT
  with refuses('~nobody-of-that-name', 'unknown user'):
    read_figure_6('~nobody-of-that-name/run')
  (folder / 'figure_6.csv').unlink()
  with refuses('holds no finished run', 'figure_6.csv cannot be read'):
    read_figure_6(folder)


def test_a_figure_without_differences_leaves_the_claims_open(folder):
  text = to_csv(PLOT).replace('\nb,', '\na,')
  (folder / 'figure_6.csv').write_text(text)
  figures = {'6': read_figure_6(folder)}
  verdicts = {
    judge(claim, figures)['verdict'] for claim in CLAIMS if claim.figures == ('6',)
  }
  assert verdicts == {None}
