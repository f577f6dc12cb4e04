"""The probe's command line."""

import dataclasses
import importlib
import json
from typing import Any

import numpy as np
import pytest

import zoo
from tests.launch.processes import launch
from tests.settings import isotropic
from zoo.probing.report import Report
from zoo.theory import constructions

SHIPPED = 'checkpoints/yq_lsa'


@pytest.fixture
def checkpoint(tmp_path):
  model = constructions.gd_transformer(np.full(3, 0.5), 0.5)
  zoo.save(model, tmp_path / 'gd', isotropic(3, 4, prior_mean=0.5))
  return tmp_path / 'gd'


@pytest.mark.full
@pytest.mark.slow
def test_a_folder_is_answered_in_words_numbers_and_pictures(checkpoint, cache):
  out, numbers = checkpoint.parent / 'out', checkpoint.parent / 'numbers.json'
  answer = launch(
    f'--checkpoint={checkpoint}',
    f'--against={checkpoint}',
    f'--out={out}',
    f'--json={numbers}',
    cache=cache,
    module='launch.probe',
  )
  assert answer.returncode == 0, answer.stderr
  assert 'Is it doing gradient descent? Yes: one step of size 0.5000' in answer.stdout
  found = json.loads(numbers.read_text())
  assert found['is_gradient_descent'] is True
  assert found['against'] == 'gd'
  assert found['risks']['risk'] == found['risks']['other_risk']  # it is itself
  pictures = {path.name: path.read_bytes()[:4] for path in out.glob('*.png')}
  names = 'alignment', 'examples', 'heads', 'out_of_distribution'
  names += ('step_matrix',)
  assert pictures == {f'{name}.png': b'\x89PNG' for name in names}
  assert {path.name for path in out.iterdir()} == {*pictures, 'report.html'}
  page = (out / 'report.html').read_text()
  assert 'Is it doing gradient descent? Yes: one step of size 0.5000' in page
  assert page.count('<svg') == len(names)


def test_checkpoints_of_one_name_have_reports_of_their_own(call):

  def folder(checkpoint, *words):
    return _command().default_folder(checkpoint, [*words, '5'])

  assert str(folder('checkpoints/yq_lsa')) == 'checkpoints/probes/checkpoints/yq_lsa/5'
  assert folder('runs/a', '../b').name == '.._b-5'
  names = 'checkpoints/yq_lsa', 'checkpoints/runs/yq_lsa', 'runs/a', 'runs/a/', '/a'
  names += 'runs/a/checkpoints', '../a', '.', 'gs://b/a', 'gs://c/a', 'runs/../runs/a/.'
  folders = {name: folder(name) for name in names}
  assert folders['runs/a'] == folders['runs/a/'] == folders['runs/../runs/a/.']
  assert len({*folders.values()}) == len(names) - 2
  assert not any('..' in one.parts or one.is_absolute() for one in folders.values())


def test_what_failed_is_left_out_of_the_report_and_said(call, tmp_path, monkeypatch):
  parts: Any = dict.fromkeys(field.name for field in dataclasses.fields(Report)) | {
    'is_gradient_descent': False,
    'verdict': 'Unknown: it was not measured.',
    'task_shifts': [],
    'failures': {'risks': 'RuntimeError: it is broken'},
  }
  monkeypatch.setattr(zoo.probing, 'probe', lambda *a, **k: Report(**parts))
  out = tmp_path / 'out'
  answer = call('probe', f'--checkpoint={SHIPPED}', f'--out={out}')
  assert answer.code == 0, answer.err
  again = call('probe', f'--checkpoint={SHIPPED}', f'--out={out}')
  assert again.out == answer.out
  other = call('probe', f'--checkpoint={SHIPPED}', f'--out={out}', '--against=bayes')
  assert other.code == 2
  assert f'{out}/report.html is the report of something else' in other.err
  found = json.loads((out / 'probe.json').read_text())
  assert found['risks'] is None
  assert found['failures']['risks'] == 'RuntimeError: it is broken'
  assert 'it is broken' in (out / 'report.html').read_text()
  assert 'left out of this report' in answer.out


def _command():
  return importlib.import_module('launch.probe')
