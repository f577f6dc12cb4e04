"""What the documents tell people to type does what they say."""

import importlib.util
import re
import shutil
import sys
import types

import pytest

import zoo
from tests.launch.processes import ROOT, launch
from tests.training.runs import assert_same_bits, saved_arrays


def test_the_readme_opens_with_the_two_commands():
  first_screen = (ROOT / 'README.md').read_text().splitlines()[:40]
  assert (
    'pip install -c constraints.txt -e . && python -m launch.main '
    '--config=configs/yq_lsa.py'
  ) in first_screen
  assert "pip install -c constraints.txt -e '.[test]' && pytest" in first_screen


@pytest.mark.parametrize('name', ['lsa', 'multi_head_lsa', 'yq_lsa', 'ltb'])
def test_each_config_tells_its_command(name):
  text = (ROOT / 'configs' / f'{name}.py').read_text()
  assert f'python -m launch.main --config=configs/{name}.py' in text.split('"""')[1]


def test_links_in_documents_lead_somewhere():
  for document in [*ROOT.glob('*.md'), *ROOT.glob('docs/*.md')]:
    for target in re.findall(r'\]\(([^)#]+)', document.read_text()):
      if '://' not in target:
        assert (document.parent / target).exists(), (document.name, target)


def code_on_probing(place):
  text = (ROOT / 'docs' / 'probing.md').read_text()
  return re.findall(r'```python\n(.*?)```', text, re.DOTALL)[place]


@pytest.mark.slow
def test_the_code_on_probing_runs_as_it_stands(tmp_path, monkeypatch, unchecked):
  monkeypatch.chdir(tmp_path)
  exec(compile(code_on_probing(0), 'probing.md', 'exec'), {})


def test_the_code_for_pytorch_prints_what_it_says(tmp_path, monkeypatch, capsys):
  code = code_on_probing(1)
  assert len([line for line in code.splitlines() if line.strip()]) <= 15
  if importlib.util.find_spec('torch') is None:
    # What the example does with tensors arrays can do as well.
    monkeypatch.setitem(
      sys.modules, 'torch', types.SimpleNamespace(from_numpy=lambda array: array)
    )
  zoo.evaluation_sets.export('table_1', tmp_path / 'table_1.npz', tmp_path)
  monkeypatch.chdir(tmp_path)
  exec(compile(code, 'probing.md', 'exec'), {})
  said = code.rpartition('  # ')[2]
  assert capsys.readouterr().out == said
  # And it is what the library says.
  found = zoo.evaluation_sets.load('table_1', tmp_path)
  gd = zoo.estimators.gradient_descent(found.task)
  risk = zoo.probing.score(gd, gd, found).risk
  assert f'{risk.mean:.4f} ± {risk.stderr:.4f}\n' == said


@pytest.fixture
def outside(tmp_path):
  """A folder with the two files of docs/adding_an_architecture.md."""
  text = (ROOT / 'docs' / 'adding_an_architecture.md').read_text()
  files = re.findall(r'`(\w+\.py)`\n\n```python\n(.*?)```', text, re.DOTALL)
  assert [name for name, _ in files] == ['softmax_attention.py', 'softmax_config.py']
  for name, code in files:
    (tmp_path / name).write_text(code)
  return tmp_path


@pytest.mark.slow
def test_an_architecture_outside_the_package_trains_and_resumes(outside, cache):
  arguments = ('--config=softmax_config.py:smoke',)
  answer = launch(*arguments, cache=cache, cwd=outside)
  assert answer.returncode == 0, answer.stderr
  assert re.search(r'softmax_attention +\d+\.\d+ ± \d+\.\d+ +-\n', answer.stdout)
  workdir = outside / 'checkpoints' / 'runs' / 'softmax_config-smoke'
  whole = saved_arrays(workdir, 20)
  # As if it had been killed behind its first checkpoint.
  shutil.rmtree(workdir / 'checkpoints' / '20')
  (workdir / 'summary.json').unlink()
  again = launch(*arguments, cache=cache, cwd=outside)
  assert again.returncode == 0, again.stderr
  assert 'going on from step 10 of 20' in again.stderr
  assert_same_bits(saved_arrays(workdir, 20), whole)
