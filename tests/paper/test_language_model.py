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
  pair = {'num': 12, 'difference': -1.0, 'stderr': 0.3, 'low': -1.6, 'high': -0.4}
  arm = {'num_parsed': 12, 'parse_rate': 0.5, 'loss': 2.0, 'stderr': None}
  arm |= {'low': None, 'high': None}
  readouts = 'free', 'forced', 'expected'
  return {
    **{'model': 'parrot', 'num_params': 3, 'engine': 'a cage'},
    **{'data_sha256': '', 'seed': 0, 'seconds': 1.0},
    **{'context_split': 'train', 'guess_loss_by_split': {}, 'log_losses': None},
    'context_guess_loss': None,
    'num_prompts': 12,
    'num_examples': 2,
    'benchmark': 'stsb',
    'guess': {'model': 'network', 'bias': 0.0, 'shuffled': False},
    'metric': 'mean squared error',
    'baselines': {
      'guess': {'loss': 1.5, 'stderr': 0.2},
      'constant': {'loss': None, 'stderr': None},
    },
    'arms': {
      'without_guess': dict.fromkeys(readouts, arm),
      'with_guess': {
        'free': {**arm, 'copied_share': 0.25},
        'forced': {**arm, 'copied_share': None},
        'expected': arm,
      },
    },
    'paired': dict.fromkeys(readouts, pair),
    'against_guess': {key: {**pair, 'low': None, 'high': None} for key in readouts},
  }


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'summary.json').write_text(json.dumps(_summary()))
  (tmp_path / 'figure_6.csv').write_text(to_csv(PLOT))
  return tmp_path


def test_a_run_is_its_figure_and_its_numbers_in_words(folder):
  found = read_run(folder)
  assert found.plot == PLOT
  assert found.caption.startswith('parrot on 12 prompts of 2 examples (stsb)')
  assert found.facts == {
    'mean squared error, guess': '1.500',
    'mean squared error, constant': '-',
    'free, without guess': '2.000 ± -, 50% parsed',
    'free, with guess': '2.000 ± -, 50% parsed, 25% of these copy the guess',
    'free, with − without guess': '-1.000 [-1.600, -0.400] on 12 prompts',
    'free, with guess − guess alone': '-1.000 [-, -] on 12 prompts',
    'forced, without guess': '2.000 ± -, 50% parsed',
    'forced, with guess': '2.000 ± -, 50% parsed',
    'forced, with − without guess': '-1.000 [-1.600, -0.400] on 12 prompts',
    'forced, with guess − guess alone': '-1.000 [-, -] on 12 prompts',
    'expected, without guess': '2.000 ± -, 50% parsed',
    'expected, with guess': '2.000 ± -, 50% parsed',
    'expected, with − without guess': '-1.000 [-1.600, -0.400] on 12 prompts',
    'expected, with guess − guess alone': '-1.000 [-, -] on 12 prompts',
  }


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
