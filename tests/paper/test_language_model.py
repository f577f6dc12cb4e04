"""Figure 6, read from the folder of a run of launch.llm."""

import json

import pytest

from tests.compare import refuses
from tests.paper.settings import figure_6
from zoo.reports.plots import to_csv
from zoo.studies.paper.claim import judge
from zoo.studies.paper.claims import CLAIMS
from zoo.studies.paper.language_model import read_run

PLOT = figure_6(**{'with − without guess': -0.4, 'with guess − guess alone': 1.0})


def _summary():
  return {
    **{'model': 'parrot', 'num_params': 3, 'engine': 'a cage'},
    **{'benchmark': 'stsb', 'data_sha256': '', 'seed': 0, 'seconds': 1.0},
    **{'num_prompts': 12, 'num_examples': 2, 'context_split': 'train'},
    **{'guess': {'model': 'network'}, 'guess_loss_by_split': {}},
    **{'metric': 'mean squared error', 'baselines': {}, 'arms': {}},
    **{'paired': {}, 'against_guess': {}},
  }


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'summary.json').write_text(json.dumps(_summary()))
  (tmp_path / 'figure_6.csv').write_text(to_csv(PLOT))
  return tmp_path


def test_a_run_is_its_figure_with_a_caption(folder):
  found = read_run(folder)
  assert found.plot == PLOT
  assert found.caption.startswith('parrot on 12 prompts of 2 examples (stsb)')


def test_a_folder_without_a_finished_run_is_refused(tmp_path, folder):
  with refuses('~nobody-of-that-name', 'unknown user'):
    read_run('~nobody-of-that-name/run')
  for changes, said in (
    ({'num_prompts': '12'}, 'Expected `int`, got `str`'),
    ({'guess': {}}, "'model'"),
  ):
    (folder / 'summary.json').write_text(json.dumps({**_summary(), **changes}))
    with refuses(f'{folder} holds no finished run of launch.llm', said):
      read_run(folder)
  (folder / 'figure_6.csv').unlink()
  (folder / 'summary.json').write_text(json.dumps(_summary()))
  with refuses('holds no finished run', 'figure_6.csv cannot be read'):
    read_run(folder)


def test_a_figure_without_differences_leaves_the_claims_open(folder):
  text = to_csv(PLOT).replace('\nb,', '\na,')
  (folder / 'figure_6.csv').write_text(text)
  figures = {'6': read_run(folder).plot}
  verdicts = {
    judge(claim, figures)['verdict'] for claim in CLAIMS if claim.figures == ('6',)
  }
  assert verdicts == {None}
