"""Headlines are judged by their ranges, measured by each call, and reported whole."""

import functools
import json
import math
import re
import sys
from importlib import metadata
from typing import Any

import numpy as np
import pytest

import configs
from studies import headlines
from studies.runner import best, history, load
from studies.study import (
  FAILS,
  HOLDS,
  MEASURED,
  NOT_RUN,
  About,
  Measurement,
  Study,
  StudyResult,
  at_least,
  at_most,
  near,
  report_page,
  run,
  table,
)
from tests.compare import refuses
from tests.launch.processes import ROOT
from zoo.host.interruption import Stopped
from zoo.host.parts import Part
from zoo.reports.plots import Panel, series, to_csv
from zoo.reports.style import BLUE
from zoo.storage.rows import read_rows
from zoo.training import sweeps
from zoo.training.sweeps import run as sweep_run

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def headline(name='tiny', measure=None, **expected):
  """A headline that measures 2.0 and calls nothing, unless told otherwise."""

  def constant(train):
    return Measurement(dict.fromkeys(expected, 2.0), picture())

  return Study(
    name=name,
    statement=f'Two is <2 & {name}.',
    setting='None.',
    source='a book',
    expected=expected,
    minutes=1,
    measure=measure or constant,
  )


def picture():
  line = series('line', 'line', BLUE, [1, 2], [1.0, 2.0])
  return (Panel('a', 'x, s', 'y, m', (line,)),)


def test_a_verdict_follows_from_the_range():
  for expected, number, said in (
    (near(2, 0.5, ''), 2.5, HOLDS),
    (near(2, 0.5, ''), 1.49, FAILS),
    (at_least(2, ''), 2.0, HOLDS),
    (at_least(2, ''), 1.99, FAILS),
    (at_most(2, ''), 2.01, FAILS),
    (at_least(2, ''), math.nan, FAILS),
  ):
    assert StudyResult(headline(n=expected), {'n': number}).verdict == said
  # A headline holds if all its numbers do.
  both = headline(a=at_most(1, ''), b=near(2, 0.25, ''), c=near(3, 0, ''))
  held = {'a': 1.0, 'b': 2.0, 'c': 3.0}
  assert StudyResult(both, held).verdict == HOLDS
  assert StudyResult(both, {**held, 'a': 1.1}).verdict == FAILS
  assert StudyResult(both).verdict == NOT_RUN
  assert StudyResult(headline(), {'n': 1.5}).verdict == MEASURED  # without expectations


def test_a_number_of_several_seeds_holds_if_it_does_for_every_one(tmp_path):
  expected = near(2, 0.5, '')
  assert StudyResult(headline(n=expected), {'n': [1.5, 2.5]}).verdict == HOLDS
  assert StudyResult(headline(n=expected), {'n': [2.0, 2.0, 2.6]}).verdict == FAILS
  assert StudyResult(headline(n=expected), {'n': [2.0, math.nan]}).verdict == FAILS

  def by_seed(train):
    numbers: Any = {'n': np.array([1.0, 2.0, 3.0]), 'm': (2, 2)}
    return Measurement(numbers)

  result = judged(headline(measure=by_seed, n=near(2, 1, '')), tmp_path)
  # The interval of three seeds is 4.303 / √3 wide to each side.
  assert '2 ± 2.5 (1 to 3)' in table([result])
  assert '2 ± 0 (2 to 2)' in table([result])
  (saved,) = json.loads((tmp_path / 'studies.json').read_text())
  assert saved['measured'] == {'n': [1.0, 2.0, 3.0], 'm': [2.0, 2.0]}


def names_in(folder):
  """What a folder holds beside locks."""
  return {path.name for path in folder.iterdir() if not path.name.startswith('.')}


def no_config(file, variant):
  raise AssertionError('nothing is trained')


def judged(study, out, get_config=no_config):
  """The only headline, measured and judged."""
  results = run([study], get_config, out)
  assert results is not None
  return results[0]


def test_what_was_not_run_has_no_number(tmp_path):
  ran, left = (
    headline('ran', n=near(2, 0, 'theory')),
    headline('left', n=at_most(1, '')),
  )
  results = run([ran], no_config, tmp_path, known=[ran, left])
  assert results is not None
  assert [result.verdict for result in results] == [HOLDS, NOT_RUN]
  first, second = json.loads((tmp_path / 'studies.json').read_text())
  assert first['measured'] == {'n': 2.0}
  assert first['expected'] == {'n': {'expected': '2', 'from': 'theory'}}
  assert (second['measured'], second['minutes'], second['verdict']) == (
    *(None, None),
    NOT_RUN,
  )
  (line,) = [line for line in table(results).splitlines() if line.startswith('left')]
  assert re.fullmatch(r'left +n +≤ 1 +not run here +not run here', line)
  report = (tmp_path / 'report.html').read_text()
  assert 'Two is &lt;2 &amp; ran.' in report
  assert report.count('<figure') == 1
  assert report.index('<figure') < report.index('<table')
  assert 'not run here: 1' in report
  assert names_in(tmp_path) == {
    *('studies.json', 'report.html', 'rows.jsonl'),
    *(f'figure_ran.{suffix}' for suffix in ('csv', 'png', 'svg')),
  }


@pytest.fixture
def no_pictures(monkeypatch):
  """Writes the numbers of figures alone, since pictures take long."""

  def write(plot, out):
    (out / f'figure_{plot.name}.csv').write_text(to_csv(plot))

  module = sys.modules['studies.study']
  monkeypatch.setattr(module, 'write_plot', write)
  monkeypatch.setattr(module, 'report_page', lambda results, about: '')


def test_numbers_are_measured_by_each_call(tmp_path, no_pictures):
  numbers = {'n': 1.0}

  def measure(train):
    return Measurement(numbers, picture())

  study = headline(measure=measure, n=at_most(1, ''))
  assert judged(study, tmp_path).verdict == HOLDS
  numbers['n'] = 4.0
  assert judged(study, tmp_path).numbers == {'n': 4.0}
  stricter = headline(measure=measure, n=at_most(0.5, ''))
  assert judged(stricter, tmp_path).verdict == FAILS
  # A row that is not whole is written again.
  file = tmp_path / 'rows.jsonl'
  (line,) = file.read_text().splitlines()
  file.write_text(line[:-20])
  assert judged(study, tmp_path).verdict == FAILS
  (line,) = file.read_text().splitlines()
  assert json.loads(line)['row']['numbers'] == {'n': 4.0}


WIDTHS = [2]  # a setting that is not in the text of `measure_widths`


def _fields():
  return {'train.num_steps': 4, 'model.width': WIDTHS[0]}


def measure_widths(train, seeds=1):
  points = [{'seed': seed} for seed in range(seeds)]
  rows = train('models', 'deep_set', _fields(), points)
  return Measurement({'n': rows[-1]['eval_risk']}, picture())


@pytest.fixture
def trained(monkeypatch):
  """The width and the seed of each model that is trained."""
  trained, train = [], sweep_run._train_missing

  def note(members, *rest):
    for experiment, folder in members:
      if not (folder / 'summary.json').exists():
        config = experiment.config
        trained.append((config.model.arguments['width'], config.seed))
    return train(members, *rest)

  monkeypatch.setattr(sweep_run, '_train_missing', note)
  return trained


@pytest.mark.slow
def test_a_study_belongs_to_what_it_trains_not_to_its_text(
  tmp_path, monkeypatch, no_pictures, trained
):
  first = judged(headline(measure=measure_widths), tmp_path, small)
  again = judged(headline(measure=lambda train: measure_widths(train)), tmp_path, small)
  assert trained == [(2, 0)]
  assert again.numbers == first.numbers
  # A constant that a helper reads, and arguments bound to a function.
  monkeypatch.setitem(globals(), 'WIDTHS', [3])
  judged(headline(measure=measure_widths), tmp_path, small)
  assert trained == [(2, 0), (3, 0)]
  pair = functools.partial(measure_widths, seeds=2)
  judged(headline(measure=pair), tmp_path, small)
  assert trained == [(2, 0), (3, 0), (3, 1)]
  # The report has what this measures only with settings that were trained.
  for width, verdict in (3, MEASURED), (4, NOT_RUN):
    monkeypatch.setitem(globals(), 'WIDTHS', [width])
    known = [headline(measure=measure_widths), headline('other')]
    results = run(known[1:], small, tmp_path, known=known)
    assert results is not None
    assert [result.verdict for result in results] == [verdict, MEASURED]
  assert len(trained) == 3
  monkeypatch.setitem(globals(), 'WIDTHS', [3])
  monkeypatch.setattr(metadata, 'version', lambda name: '9.9')
  judged(headline(measure=measure_widths), tmp_path, small)
  assert trained[3:] == [(3, 0)]


def test_the_report_has_no_number_of_other_settings(
  tmp_path, monkeypatch, no_pictures, caplog
):
  """What an earlier call measured stays in the report while it is true."""
  trained = set()

  def sweep(config, points, folder, part):
    trained.add(folder)
    return [{'eval_risk': 1.0}]

  monkeypatch.setattr(sweeps, 'sweep', sweep)
  monkeypatch.setattr(sweeps, 'is_finished', lambda *args: args[2] in trained)
  kept, other = headline('kept', measure_widths), headline('other')
  run([kept], small, tmp_path)
  results = run([other], small, tmp_path, known=[kept, other])
  assert results is not None
  assert [result.verdict for result in results] == [MEASURED] * 2
  monkeypatch.setitem(globals(), 'WIDTHS', [3])
  results = run([other], small, tmp_path, known=[kept, other])
  assert results is not None
  assert [result.verdict for result in results] == [NOT_RUN, MEASURED]
  assert len(trained) == 1
  assert 'kept would have to be trained again' in caplog.text


def test_a_measure_that_does_not_fit_its_study_is_one_line(tmp_path, unchecked):
  bad = headline(
    measure=lambda train: Measurement({'m': 1.0}, picture()), n=near(2, 1, '')
  )
  with refuses('the study tiny expects n, which its measure does not return; it ret'):
    run([bad], no_config, tmp_path)
  bad = headline(measure=lambda train: {'n': 1.0}, n=near(2, 1, ''))
  with refuses('the measure of tiny returns the type dict; it must be studies.M'):
    run([bad], no_config, tmp_path)
  assert names_in(tmp_path) == set()
  with refuses("the name of a study is 'a/b'"):
    headline('a/b')
  for wrong in near(1, -2, ''), (0, 1):
    with refuses('the study tiny expects n in', 'it must be a range'):
      headline(n=wrong)


def test_a_study_without_panels_has_numbers_and_no_picture(tmp_path):
  bare = headline(measure=lambda train: Measurement({'n': 2.0}), n=near(2, 1, ''))
  assert judged(bare, tmp_path).verdict == HOLDS
  (listed,) = json.loads((tmp_path / 'studies.json').read_text())
  assert listed['measured'] == {'n': 2.0}
  report = (tmp_path / 'report.html').read_text()
  assert '<figure' not in report
  assert 'Pictures' not in report
  assert names_in(tmp_path) == {'studies.json', 'report.html', 'rows.jsonl'}


def test_each_part_measures_its_own_and_the_whole_reports(tmp_path, no_pictures):
  studies = [headline(name, n=at_most(2, '')) for name in ('one', 'two')]
  for i in 1, 2:
    run(studies, no_config, tmp_path, Part(i, 2))
    assert not (tmp_path / 'report.html').exists()
  assert [*read_rows(tmp_path)] == ['one', 'two']
  results = run(studies, no_config, tmp_path)
  assert results is not None
  assert [result.verdict for result in results] == [HOLDS] * 2


def test_what_stops_in_training_has_no_result(tmp_path, monkeypatch):
  """A sweep that SIGTERM ends returns None; then nothing is judged."""

  def measure(train):
    train('models', 'deep_set', {'train.num_steps': 4})
    raise AssertionError('it went on')

  study = headline(measure=measure, n=at_most(1, ''))
  monkeypatch.setattr(sweeps, 'sweep', lambda *_: None)
  assert run([study], small, tmp_path) is None
  assert names_in(tmp_path) == set()


def small(file, variant):
  assert file == 'deep_set'
  config = configs.get_config('deep_set', 'smoke')
  config.task.num_features, config.task.context_length = 2, 3
  config.model.num_layers, config.objective.positions = 1, 'query'
  config.train.batch_size, config.train.log_every = 8, 2
  config.eval.num_batches, config.eval.num_compared = 2, 0
  config.eval.every = config.checkpoint.every = 2
  return config


@pytest.mark.slow
def test_an_interrupted_headline_goes_on(tmp_path, monkeypatch):
  """SIGTERM in the second training: the first is not trained again."""
  fields = {'train.num_steps': 4, 'checkpoint.keep': 2}

  def measure(train):
    (first,) = train('first', 'deep_set', fields)
    pair = train('second', 'deep_set', fields, [{'seed': 0}, {'seed': 1}])
    assert history(first)[0] == [2, 4]
    assert load(first, 2) is not load(first)
    return Measurement(
      {'risk': pair[0]['eval_risk'], 'num': float(len(pair))}, picture()
    )

  study = headline(measure=measure, risk=at_least(0, ''), num=near(2, 0, ''))
  stacked = sweep_run._train_stacked

  def stop(*arguments):
    raise Stopped

  monkeypatch.setattr(sweep_run, '_train_stacked', stop)
  assert run([study], small, tmp_path) is None
  assert not (tmp_path / 'report.html').exists()
  monkeypatch.setattr(sweep_run, '_train_stacked', stacked)
  monkeypatch.setattr(sweep_run, 'run_to_end', lambda *_, **__: pytest.fail('again'))
  assert judged(study, tmp_path, small).verdict == HOLDS


def test_the_best_run_has_the_least_loss_of_those_that_are_known():
  rows = [{'eval_risk': risk} for risk in (None, 2.0, 0.5, 1.0)]
  assert best(rows) is rows[2]
  assert best(rows[:1]) is rows[0]


def test_every_headline_says_what_it_expects_and_why():
  for study in headlines.HEADLINES.values():
    assert re.fullmatch(r'\w+', study.name, re.ASCII)
    assert study.expected
    assert 'arXiv' in study.source
    for name, expected in study.expected.items():
      assert name.isidentifier()
      assert expected.low <= expected.high
      assert expected.source
  results = [*map(StudyResult, headlines.HEADLINES.values())]
  assert f'not run here: {len(results)}' in report_page(results, About())


@pytest.mark.slow
def test_the_study_of_the_page_runs(tmp_path, monkeypatch, capsys):
  text = (ROOT / 'docs' / 'own_parts.md').read_text()
  _, _, text = text.partition('### A claim with a range')
  (code,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  monkeypatch.chdir(tmp_path)
  exec(compile(code, 'own_parts.md', 'exec'), {})
  assert re.search(
    r'^heads +risk_of_4 +≤ 50 +[0-9.]+ +holds', capsys.readouterr().out, re.M
  )
  names = {path.name for path in (tmp_path / 'runs' / 'heads_study').iterdir()}
  assert names >= {'figure_heads.csv', 'studies.json', 'report.html', 'heads'}
