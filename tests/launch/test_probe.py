"""The probe's command line."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest

import zoo
from launch import cli
from tests.marks import FULL, SLOW
from zoo.probing.report import Report
from zoo.reports.style import Figure

SHIPPED = 'checkpoints/yq_lsa'


def test_checkpoints_of_one_name_have_reports_of_their_own():
  folder = cli.default_folder
  names = 'checkpoints/yq_lsa', 'runs/yq_lsa', '../a', '.', 'gs://b/a', 'gs://c/a'
  folders = [folder(name, ['5']) for name in names]
  probes = pathlib.Path('checkpoints/probes').absolute()
  assert folders[0] == probes / 'checkpoints_yq_lsa-5'
  assert len({*folders}) == len(names)
  assert {path.parent for path in folders} == {probes}
  assert folder('runs/a/', ['5', '../b']).name == 'runs_a-5-.._b'


def test_a_report_is_written_without_what_failed(call, tmp_path, monkeypatch):
  parts: Any = dict.fromkeys(field.name for field in dataclasses.fields(Report)) | {
    'is_gradient_descent': False,
    'verdict': 'Unknown: it was not measured.',
    'nearest': '',
    'task_shifts': [],
    'failures': {'risks': 'RuntimeError: it is broken'},
  }
  asked = []

  def probe(model, task, other, name, only):
    asked.append((model, other, name))
    return Report(**parts)

  monkeypatch.setattr(zoo.probing, 'probe', probe)
  drawn = {'examples': Figure(1.0)}
  monkeypatch.setattr('zoo.reports.probe.pictures.pictures', lambda *_: drawn)
  out = tmp_path / 'out'
  answer = call('probe', f'--checkpoint={SHIPPED}', f'--out={out}')
  assert answer.code == 0, answer.err
  again = call('probe', f'--checkpoint={SHIPPED}', f'--out={out}')
  assert again.out == answer.out
  other = call('probe', f'--checkpoint={SHIPPED}', f'--out={out}', '--against=bayes')
  assert other.code == 2
  assert f'{out}/report.html is the report of something else' in other.err
  report = json.loads((out / 'probe.json').read_text())
  assert report['risks'] is None
  assert report['failures']['risks'] == 'RuntimeError: it is broken'
  assert 'it is broken' in (out / 'report.html').read_text()
  assert 'left out of this report' in answer.out
  assert (out / 'examples.png').read_bytes().startswith(b'\x89PNG')
  numbers, against = tmp_path / 'numbers.json', '--against=checkpoints/ltb'
  arguments = f'--out={tmp_path / "other"}', f'--json={numbers}', against
  assert call('probe', f'--checkpoint={SHIPPED}', *arguments).code == 0
  assert json.loads(numbers.read_text()) == report
  model, other, name = asked[-1]
  assert (type(model), type(other), name) == (zoo.models.YqLSA, zoo.models.LTB, 'ltb')


def test_a_predictor_that_no_part_compares_with_is_refused(call, tmp_path):
  out = tmp_path / 'out'
  flags = f'--checkpoint={SHIPPED}', f'--out={out}', '--only=comparison,lens'
  answer = call('probe', *flags, '--against=bayes')
  assert answer.code == 2
  said = '--against is for the parts risks, alignment, task_shifts, and --only is '
  assert said + 'comparison, lens' in answer.err
  assert not out.exists()


@pytest.mark.parametrize(
  ('only', 'said'),
  [
    pytest.param(
      'heads',
      ['only heads', 'Unknown: its algorithm was not asked for'],
      marks=SLOW,
    ),
    pytest.param(
      'heads,algorithm',
      ['The nearest algorithm is one step of gradient descent', 'implicit algorithm'],
      marks=FULL,
    ),
  ],
)
def test_one_part_can_be_asked_for(call, tmp_path, only, said):
  arguments = f'--checkpoint={SHIPPED}', f'--out={tmp_path / "out"}'
  answer = call('probe', *arguments, f'--only={only}')
  assert answer.code == 0, answer.err
  assert all(text in answer.out for text in said)
  assert 'out of distribution' not in answer.out
  assert 'on the same' not in answer.out
  report = json.loads((tmp_path / 'out/probe.json').read_text())
  assert report['heads'] is not None
  assert (report['algorithm'] is not None) == ('algorithm' in only)
  assert report['risks'] is report['comparison'] is None
  # It is the report of these parts alone.
  other = call('probe', *arguments)
  assert other.code == 2
  assert 'is the report of something else' in other.err
  unknown = call('probe', *arguments, '--only=algoritm')
  assert unknown.code == 2
  assert unknown.err.startswith("error: unknown section 'algoritm'; known: algorithm, ")
  assert unknown.err.rstrip().endswith("did you mean 'algorithm'?")
  assert unknown.err.count('\n') == 1
