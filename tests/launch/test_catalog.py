"""The commands that list what there is."""

import re

import zoo
from tests.launch.processes import ROOT


def test_everything_is_listed_with_its_figures(call, tmp_path, monkeypatch):
  """From another folder, in which a run has left a folder of checkpoints."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'checkpoints' / 'runs').mkdir(parents=True)
  answer = call('catalog')
  assert answer.code == 0, answer.err
  lines = answer.out.splitlines()
  assert lines[0].split(None, 1) == ['models', ', '.join(zoo.list_models())]
  assert lines[1].split(None, 1) == ['mixers', ', '.join(zoo.list_mixers())]
  assert lines[2].startswith('tasks')
  tasks = [line.split()[0] for line in lines[3 : 3 + len(zoo.list_tasks())]]
  assert tasks == zoo.list_tasks()
  for config in ('lsa', 'multi_head_lsa', 'yq_lsa', 'ltb'):
    assert any(line.startswith(f'  configs/{config}.py ') for line in lines)
  assert f'checkpoints in {ROOT}/checkpoints' in lines
  figures = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
  heads = (f'multi_head_lsa_{h}' for h in (2, 5, 10, 11))
  for name in 'lsa', 'ltb', 'yq_lsa', 'transformer', *heads:
    assert name in figures
  assert figures['multi_head_lsa_11'][:2] == ['11', '5324']


def test_headlines_are_listed_with_their_minutes(call, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  answer = call('headlines', '--list')
  assert answer.code == 0, answer.err
  assert re.search(r'^garg_toy +6 min  One seed: a small', answer.out, re.MULTILINE)
  assert not [*tmp_path.iterdir()]
