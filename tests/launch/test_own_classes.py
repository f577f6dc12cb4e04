"""Models and tasks of one's own by --import: a mistake is one line and exit code 2."""

import sys

import pytest

import launch
from zoo.studies import atlas

_MODULE = """
import jax.numpy as jnp
from flax import nnx
import zoo

@zoo.register_model('own_model')
class OwnModel(nnx.Module):
  def __init__(self, num_features, *, rngs):
    self.w = nnx.Param(jnp.ones(num_features))
  def __call__(self, prompt):
    return prompt.x_query @ self.w[...]

@zoo.register_task('two_outputs')
class TwoOutputs(zoo.tasks.FunctionClass):
  num_features: int = 3
  context_length: int = 4
  num_outputs = 2
  def sample_function(self, key):
    return jnp.ones(())
  def evaluate(self, function, x):
    return x[:, :2]

"""
_CONFIG = """
from configs import defaults

def get_config(variant=''):
  config = defaults.get_config(variant)
  config.model.name = 'own_model'
  return config
"""
_OWN = '--import=own_classes_under_test'
_EVERY = '--config.objective.positions=every'

MISTAKES = {
  'two outputs for a model of one': (
    [_OWN, '--config=own_model.py:smoke,task=two_outputs'],
    ["'own_model' predicts one number", "'two_outputs' has 2 outputs", 'num_outputs'],
  ),
  'every example without predictions': (
    [_OWN, '--config=own_model.py:smoke', _EVERY],
    ["positions is 'every'", "'own_model', which has no method predictions"],
  ),
  'exact on a task without theory': (
    [
      '--config=configs/yq_lsa.py:smoke,task=parity',
      '--config.objective.name=exact',
    ],
    ['the task is of type Parity', 'LinearRegression'],
  ),
  'a field of another task': (
    ['--config=configs/yq_lsa.py:smoke,task=parity', '--config.task.noise_std=1'],
    ["unknown field 'config.task.noise_std'"],
  ),
  'a name of a task with the fields of another': (
    ['--config=configs/yq_lsa.py:smoke', '--config.task.name=parity'],
    ["config.task: unknown hyper-parameter of task 'parity', 'feature_covariance'"],
  ),
  'no module': (
    ['--import=no_such_module_here', '--config=configs/yq_lsa.py:smoke'],
    ['--import=no_such_module_here: there is no module of this name'],
  ),
  'no config file': (
    [
      *('--import=own_classes_under_test', '--config=own_model:smoke'),
      '--config.train.num_steps=0',
    ],
    ['config.train.num_steps is 0'],
  ),
  'a broken module': (
    ['--import=broken_under_test', '--config=configs/yq_lsa.py:smoke'],
    ['--import=broken_under_test failed: ZeroDivisionError'],
  ),
  'a module that lacks another': (
    ['--import=lacks_under_test', '--config=configs/yq_lsa.py:smoke'],
    ['--import=lacks_under_test failed: ModuleNotFoundError', 'no_such_module_here'],
  ),
  'an empty name': (
    ['--import=', '--config=configs/yq_lsa.py:smoke'],
    ['--import is empty'],
  ),
  'a name that is taken': (
    ['--import=taken_under_test', '--config=configs/yq_lsa.py:smoke'],
    ["model 'yq_lsa' is already registered"],
  ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch, register):
  files = {
    'own_classes_under_test': _MODULE,
    'broken_under_test': '1 / 0',
    'lacks_under_test': 'import no_such_module_here',
    'taken_under_test': _MODULE.replace('own_model', 'yq_lsa'),
    'own_model': _CONFIG,
  }
  for name, text in files.items():
    (tmp_path / f'{name}.py').write_text(text)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  yield tmp_path
  for name in files:
    sys.modules.pop(name, None)


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(call, folder, mistake):
  before = sorted(folder.rglob('*'))
  arguments, said = MISTAKES[mistake]
  answer = call('main', *arguments)
  assert answer.code == 2, answer
  (line,) = answer.err.splitlines()
  assert line.startswith('error: ')
  assert answer.out == ''
  for part in said:
    assert part in line
  assert sorted(folder.rglob('*')) == before


def test_the_atlas_has_cells_of_own_classes(call, folder, monkeypatch):
  calls = []
  monkeypatch.setattr(atlas, 'run', lambda *given: calls.append(given))
  tasks = '--tasks=two_outputs,sparse_regression'
  call('atlas', _OWN, '--models=own_model,relu', tasks, '--out=atlas')
  ((grid, _, command, _),) = calls
  assert command.startswith('python -m launch.atlas ')
  assert '--import=own_classes_under_test' in command
  assert [cell.name for cell in grid.cells] == [
    *('own_model,two_outputs', 'relu,two_outputs,zero'),
    *('own_model,sparse_regression', 'relu,sparse_regression,zero'),
  ]
  config = grid.get_config(*grid.cells[0])
  assert (config.model.name, config.task.name) == ('own_model', 'two_outputs')
  assert grid.get_config(*grid.cells[3]).task.num_nonzero == 3


@pytest.mark.parametrize(
  ('file', 'hides'),
  [('zoo.py', True), ('configs/__init__.py', True), ('configs/own.py', False)],
)
def test_a_file_that_hides_a_package_is_named(
  tmp_path, monkeypatch, capsys, file, hides
):
  (tmp_path / file).parent.mkdir(exist_ok=True)
  (tmp_path / file).write_text('')
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, file.partition('/')[0].removesuffix('.py'))
  if not hides:
    return launch.refuse_shadows()
  with pytest.raises(SystemExit, match='2'):
    launch.refuse_shadows()
  (line,) = capsys.readouterr().err.splitlines()
  assert f'{tmp_path / file} hides the package' in line
