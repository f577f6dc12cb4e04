"""The command that lists what there is."""

import pytest

import zoo
from launch.catalog import SHIPPED
from tests.launch.processes import ROOT, launch
from zoo import evaluation_sets


@pytest.mark.slow
def test_everything_is_listed_with_its_figures(cache):
  answer = launch(cache=cache, module='launch.catalog')
  assert answer.returncode == 0, answer.stderr
  lines = answer.stdout.splitlines()
  assert lines[0].split(None, 1) == ['models', ', '.join(zoo.list_models())]
  assert lines[1].split(None, 1) == ['tasks', ', '.join(zoo.list_tasks())]
  for config in ('lsa', 'multi_head_lsa', 'yq_lsa', 'ltb'):
    assert any(line.startswith(f'  configs/{config}.py ') for line in lines)
  figures = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
  assert figures.keys() >= SHIPPED.keys()
  assert figures.keys() >= {one.name for one in evaluation_sets.SETTINGS}
  assert figures['multi_head_lsa_11'][:2] == ['11', '5324']


@pytest.mark.slow
@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--checkpoints=README.md'], 'which is not a folder'),
    (['--checkpoints=nowhere'], 'nowhere, does not exist'),
    (['--train=perhaps'], 'train'),
    (['--export=tabel_1'], "unknown evaluation set 'tabel_1'; known: anisotropic"),
    (['--export=table_1', '--out=set.txt'], 'it must end in .npz'),
    (['--export=table_1', '--out=no/set.npz'], 'its folder does not exist'),
    (['--export=table_1', '--train'], 'are both given'),
    (['--checkpoints='], 'which is not a folder'),
    (['--out=set.npz'], '--export, which is missing'),
    (['--trian'], 'trian'),
  ],
)
def test_a_mistake_is_one_line(cache, arguments, said):
  answer = launch(*arguments, cache=cache, cwd=ROOT, module='launch.catalog')
  assert answer.returncode == 2, answer.stderr
  (line,) = answer.stderr.splitlines()
  assert said in line
