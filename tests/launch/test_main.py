"""Training from the command line, as a user meets it."""

import ast
import importlib
import json
import pathlib
import sys

import pytest

from launch import cli
from tests import fuzz
from tests.launch.processes import ROOT, launch
from tests.training.runs import small_config
from zoo.storage.workdir import locked, make_workdir

YQ = '--config=configs/yq_lsa.py'
SMOKE = '--config=configs/yq_lsa.py:smoke'


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_too_long_a_context_is_refused_before_anything_is_written(
  call, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  length = 10**6  # the scores of a batch take 10¹⁴ bytes, more than can be addressed
  answer = call(
    *('main', '--config=configs/deep_lsa.py:smoke', '--config.task.num_features=2'),
    *('--config.train.batch_size=8', f'--config.task.context_length={length}'),
    *('--config.eval.num_batches=0', '--config.mesh.data=1', '--workdir=run'),
  )
  assert answer.code == 2, answer.err
  (line,) = answer.err.splitlines()
  assert line.startswith('error: the memory is not enough: ')
  assert 'reduce config.train.batch_size (8), config.task' in line
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow  # processes, as JAX must not have been used before
@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['--distributed'], ['no cluster was found', 'SLURM']),
    (
      [
        *('--coordinator=127.0.0.1:1', '--num_processes=2', '--process_id=1'),
        '--config.mesh.start_timeout=1',
      ],
      ['process 1 of 2 could not join the others at 127.0.0.1:1 in at most 1 s'],
    ),
  ],
  ids=['no cluster', 'no coordinator'],
)
def test_processes_that_cannot_join_are_told_so(cache, tmp_path, arguments, said):
  answer = launch(YQ, *arguments, cache=cache, cwd=tmp_path)
  assert answer.returncode == 2, answer.stderr
  (line,) = answer.stderr.splitlines()
  for part in said:
    assert part in line
  assert not list(tmp_path.iterdir())


def test_a_config_is_run_once(call, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'counts.py').write_text(
    'from configs import yq_lsa\n'
    'def get_config():\n'
    "  with open('runs', 'a') as file:\n"
    "    file.write('x')\n"
    '  return yq_lsa.get_config()\n'
  )
  answer = call('main', '--config=counts.py', '--config.train.num_steps=0')
  assert 'num_steps is 0' in answer.err
  assert pathlib.Path('runs').read_text() == 'x'
  # Beside it nothing is left but what Python has compiled.
  left = {path.name for path in tmp_path.iterdir()} - {'__pycache__'}
  assert left == {'counts.py', 'runs'}


def test_a_folder_in_use_has_an_exit_code_of_its_own(call, tmp_path):
  """Launchers try again after it, and not after a mistake."""
  from configs import yq_lsa

  make_workdir(tmp_path / 'run', yq_lsa.get_config('smoke'))
  with locked(tmp_path / 'run'):
    answer = call('main', SMOKE, f'--workdir={tmp_path}/run')
  assert answer.code == 75, answer.err
  (message,) = [text for text in answer.err.splitlines() if text.startswith('error')]
  assert f'{tmp_path}/run is in use: another process is training in it' in message


def test_ctrl_c_in_a_config_passes(call, tmp_path):
  path = tmp_path / 'interrupted.py'
  path.write_text('def get_config():\n  raise KeyboardInterrupt')
  with pytest.raises(KeyboardInterrupt):
    call('main', f'--config={path}')


def test_help_shows_an_example(call, monkeypatch):
  text = importlib.import_module('launch.main').__doc__
  monkeypatch.setattr(sys.modules['__main__'], '__doc__', text)  # what --help shows
  answer = call('main', '--help')
  assert answer.code == 0
  assert 'python -m launch.main --config=configs/yq_lsa.py' in answer.out
  for flag in '--workdir', '--config', '--[no]compilation_cache':
    assert f'  {flag}: ' in answer.out


def test_absl_shows_the_description_of_a_command_as_it_is():
  for path in ROOT.glob('launch/*.py'):  # absl formats what contains a percent sign
    assert '%' not in (ast.get_docstring(ast.parse(path.read_text())) or ''), path


@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_a_run_from_start_to_end_and_once_more(call, tmp_path, monkeypatch):
  """In another folder: the config is an installed one, and the workdir's name its."""
  monkeypatch.chdir(tmp_path)
  arguments = 'main', SMOKE, '--config.eval.num_compared=0'
  answer = call(*arguments)
  assert answer.code == 0, answer.err
  assert '\nyq_lsa ' in answer.out
  assert 'one step of GD from the prior mean' in answer.out
  workdir = tmp_path / 'checkpoints/runs/yq_lsa-smoke'
  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary['step'] == 20
  assert f'{summary["exact_risk"]:.6f}' in answer.out
  # A second call has nothing to do, and shows the same table.
  again = call(*arguments)
  assert again.code == 0
  assert again.out == answer.out


@pytest.mark.slow
def test_a_corrupted_config_in_a_workdir_is_refused_in_one_line(tmp_path):
  config, workdir = small_config(), tmp_path / 'run'
  make_workdir(workdir, config)
  fuzz.check_all(
    workdir / 'config.json', lambda: make_workdir(workdir, config), fuzz.mutate_json
  )


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_a_loss_that_is_not_finite_is_one_line_and_exit_code_65(call, tmp_path):
  rate = '--config.optimizer.learning_rate=1e30'
  answer = call('main', SMOKE, f'--workdir={tmp_path}/run', rate)
  assert answer.code == cli.DIVERGED == 65
  (line,) = (line for line in answer.err.splitlines() if line.startswith('error: '))
  assert line.startswith('error: step 2 is not finite')
  assert 'no checkpoint yet' in line
  assert 'Traceback' not in answer.err
