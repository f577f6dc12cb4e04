"""Figure 6, read from a folder that may be anybody's."""

import copy
import json

import pytest

from tests import fuzz
from tests.compare import refuses
from tests.paper.settings import figure_6
from zoo.reports.plots import render_figure, to_csv
from zoo.studies.paper.claims import CLAIMS, judge
from zoo.studies.paper.language_model import read_run
from zoo.studies.paper.report import page

PLOT = figure_6(**{'with − without guess': -0.4, 'with guess − guess alone': 1.0})


def _summary():
  pair = {'num': 12, 'difference': -1.0, 'stderr': 0.3, 'low': -1.6, 'high': -0.4}
  arm = {'num_parsed': 12, 'parse_rate': 0.5, 'loss': 2.0, 'stderr': None}
  readouts = 'free', 'forced', 'expected'
  return {
    'model': 'parrot',
    'num_prompts': 12,
    'num_examples': 2,
    'benchmark': 'stsb',
    'guess': {'model': 'network', 'bias': 0.0, 'shuffled': False},
    'metric': 'mean squared error',
    'baselines': {'guess': {'loss': 1.5, 'stderr': 0.2}, 'constant': {'loss': None}},
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


@pytest.mark.parametrize(
  ('path', 'value', 'said'),
  [
    (('model',), 3, "model is 3; it must be at most 200 printable characters"),
    (('model',), 'a\nb', 'model is'),
    (('benchmark',), 'x' * 201, 'benchmark is'),
    (('num_prompts',), -1, 'num_prompts is -1; it must be an integer ≥ 0'),
    (('num_prompts',), True, 'num_prompts is True'),
    (('guess',), 'network', "guess is 'network'; it must be an object"),
    (('baselines', 'guess', 'loss'), '1', "loss is '1'; it must be a finite number"),
    (('baselines', 'guess', 'loss'), 1e308, '1e+308; its absolute value must be at'),
    (('baselines', 'guess', 'loss'), float('nan'), 'loss is nan'),
    (('arms', 'with_guess'), [], 'with_guess is []; it must be an object'),
    (('arms', 'with_guess', 'free', 'parse_rate'), [0.5], 'parse_rate is [0.5]'),
    (('arms', 'x\0'), {}, 'with printable names'),
    (('paired', 'free', 'num'), None, 'num is None'),
    (('paired', 'free'), None, "paired: free is None; it must be an object"),
    ((), [], 'summary.json is []; it must be an object'),
  ],
)  # fmt: skip
def test_a_summary_with_another_type_is_refused(folder, path, value, said):
  changed = {'': copy.deepcopy(_summary())}
  node, key = changed, ''
  for name in path:
    node, key = node[key], name
  node[key] = value
  (folder / 'summary.json').write_text(json.dumps(changed['']))
  with refuses(f'{folder} holds no finished run of launch.llm', said):
    read_run(folder)


@pytest.mark.parametrize('name', sorted(_summary()))
def test_a_summary_without_a_field_is_refused(folder, name):
  summary = _summary()
  del summary[name]
  (folder / 'summary.json').write_text(json.dumps(summary))
  with refuses('holds no finished run', f'has no field {name!r}'):
    read_run(folder)


def test_a_folder_without_a_run_is_refused(tmp_path, folder):
  with refuses('holds no finished run', 'cannot be read'):
    read_run(tmp_path / 'nowhere')
  with refuses('~nobody-of-that-name', 'unknown user'):
    read_run('~nobody-of-that-name/run')
  (folder / 'figure_6.csv').unlink()
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


def shown(folder):
  """The page of a run, with the claims on it."""
  found = read_run(folder)
  figures = {'6': found.plot}
  claims = [judge(claim, figures) for claim in CLAIMS if claim.figures == ('6',)]
  return page([('Figure 6', found.caption, found.plot)], claims, {'6': found.facts})


@pytest.mark.filterwarnings('ignore:Glyph')
def test_no_script_gets_into_the_page(folder):
  script = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
  summary = _summary()
  for name in ('model', 'benchmark', 'metric'):
    summary[name] = script
  summary['guess']['model'] = script
  summary['baselines'][script] = {'loss': 1.0}
  text = to_csv(PLOT).replace(
    'readout,linear', '"' + script.replace('"', '""') + '",linear'
  )
  assert script.replace('"', '""') in text
  (folder / 'summary.json').write_text(json.dumps(summary))
  (folder / 'figure_6.csv').write_text(text)
  html = shown(folder)
  assert '&lt;script&gt;' in html
  assert '<script' not in html
  assert '<img' not in html
  # In the panel's key, which was part of an id, it is refused.
  bad = to_csv(PLOT).replace('\nb,', '\n"b""><script>",')
  (folder / 'figure_6.csv').write_text(bad)
  with refuses('panel is', 'a letter from a to z'):
    read_run(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings('ignore:Glyph')  # of characters that the font has not
@pytest.mark.parametrize(
  ('name', 'mutate'),
  [('figure_6.csv', fuzz.mutate_bytes), ('summary.json', fuzz.mutate_json)],
)
def test_corrupted_files_are_shown_or_refused(folder, name, mutate):
  def read():
    found = read_run(folder)
    for claim in CLAIMS:
      if claim.figures == ('6',):
        judge(claim, {'6': found.plot})
    if name == 'figure_6.csv':
      render_figure(found.plot.panels)

  assert 0.2 < fuzz.check_all(folder / name, read, mutate) < 1
