"""What becomes of the terminal, and of the processes that a test starts."""

import logging
import os
import pathlib
import signal
import sys

import pytest
from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

import zoo
from launch import cli
from launch.__main__ import COMMANDS
from launch.compiled import delete_least_used
from tests.launch.processes import ROOT, command, launch, run
from tests.marks import FULL

ARGUMENTS = '--config=configs/yq_lsa.py:smoke', '--config.eval.num_batches=0'


@pytest.mark.slow
@pytest.mark.full
def test_a_terminal_without_unicode_ends_no_training(cache, tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONIOENCODING', 'ascii')
  sampled = '--config.eval.num_batches=1'  # so that the table has ±
  answer = launch(*ARGUMENTS, sampled, f'--workdir={tmp_path}/run', cache=cache)
  assert answer.returncode == 0, answer.stderr
  assert 'Traceback' not in answer.stderr
  assert '\\xb1' in answer.stdout


@pytest.mark.slow
@pytest.mark.full
def test_a_launch_that_compiles_nothing_anew_prints_progress_alone(cache, tmp_path):
  launch(*ARGUMENTS, f'--workdir={tmp_path}/first', cache=cache)
  answer = launch(*ARGUMENTS, f'--workdir={tmp_path}/second', cache=cache)
  assert answer.returncode == 0, answer.stderr
  lines = [line for line in answer.stderr.splitlines() if line]
  others = [line for line in lines if 'yq_lsa: ' not in line]
  assert others == ['checking and compiling yq_lsa']


@pytest.mark.slow
def test_ctrl_c_before_the_training_ends_at_once_without_a_traceback(cache):
  code = 'from launch import cli; cli.run(lambda: signal.raise_signal(signal.SIGINT))'
  answer = run([sys.executable, '-c', f'import signal; {code}'], cache)
  assert (answer.returncode, answer.stderr) == (-signal.SIGINT, '')


@pytest.mark.slow
def test_a_reader_that_has_enough_gives_no_traceback(cache):
  command = f'{sys.executable} -m launch.catalog | (read line; echo "$line")'
  answer = run(['bash', '-c', f'set -o pipefail; {command}'], cache)
  assert (answer.returncode, answer.stderr) == (1, '')
  assert answer.stdout.startswith('models ')


@pytest.mark.slow
def test_what_jax_cannot_use_is_one_line(cache, tmp_path):
  words = command(*ARGUMENTS, f'--workdir={tmp_path}/run')
  answer = run(words, cache, JAX_PLATFORMS='nonsense')
  assert answer.returncode == 2, answer.stderr
  (line,) = answer.stderr.splitlines()
  assert "JAX_PLATFORMS is 'nonsense', and JAX has no device" in line
  assert not list(tmp_path.iterdir())


def test_only_the_libraries_that_we_use_are_kept_from_logging():
  def is_shown(path, level=logging.INFO, raised=None):
    record = logging.LogRecord('', level, str(path), 1, '', None, raised)
    return cli._is_for_users(record)

  orbax = pathlib.Path(ocp.__file__)
  assert not is_shown(orbax)
  assert not is_shown(absl_logging.__file__)
  assert is_shown(orbax, logging.WARNING)
  assert is_shown(orbax, logging.ERROR)
  # An error that it raises as well is the line with which the command ends.
  raised = (OSError, OSError('no space'), None)
  assert not is_shown(orbax, logging.ERROR, raised)
  assert is_shown(zoo.__file__, logging.ERROR, raised)
  for path in zoo.__file__, '/home/me/orbax/my_models.py', 'my_models.py':
    assert is_shown(path)


@pytest.mark.slow
def test_a_model_of_ones_own_logs(cache, tmp_path):
  (tmp_path / 'talks_under_test.py').write_text(
    'import logging, zoo\n'
    'from absl import logging as absl_logging\n'
    'from flax import nnx\n'
    "@zoo.register_model('talks')\n"
    'class Talks(nnx.Module):\n'
    '  def __init__(self, num_features, *, rngs):\n'
    "    logging.getLogger('mine').info('three rows')\n"
    "    absl_logging.info('four columns')\n"
    "    raise zoo.UserError('enough')\n"
  )
  (tmp_path / 'talks.py').write_text(
    'from configs import common\n'
    'def get_config():\n'
    '  config = common.get_config()\n'
    "  config.model.name = 'talks'\n"
    "  return common.with_variant(config, 'smoke')\n"
  )
  answer = launch(
    *('--import=talks_under_test', '--config=talks.py'), cache=cache, cwd=tmp_path
  )
  assert answer.stderr.splitlines() == [
    'three rows',
    'four columns',
    'error: config.model: enough',
  ]


@pytest.mark.slow
def test_only_what_jax_says_of_its_variables_is_called_their_mistake(cache, tmp_path):
  words = [
    sys.executable,
    '-c',
    f'import sys; sys.path.append({str(ROOT)!r}); import launch',
  ]
  answer = run(words, cache, tmp_path, JAX_ENABLE_X64='maybe')
  assert answer.returncode == 2, answer.stderr
  (line,) = answer.stderr.splitlines()
  assert 'an environment variable is invalid' in line
  assert 'JAX_ENABLE_X64' in line
  (tmp_path / 'msgspec.py').write_text("raise ValueError('of a module that hides it')")
  answer = run(words, cache, tmp_path)
  assert answer.returncode == 1
  assert f'File "{tmp_path}/msgspec.py", line 1' in answer.stderr
  assert 'environment variable' not in answer.stderr


def test_each_script_is_a_command():
  files = [*(ROOT / 'launch').glob('[!_]*.py')]
  scripts = [
    path.stem for path in files if "__name__ == '__main__'" in path.read_text()
  ]
  assert sorted(scripts) == sorted(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('arguments', 'code', 'said'),
  [
    (['plot'], 2, 'error: --workdir is missing'),
    pytest.param([], 0, '  catalog ', marks=FULL),
    pytest.param(['mian'], 2, "did you mean 'main'?", marks=FULL),
  ],
)
def test_one_command_has_all_others(cache, arguments, code, said):
  answer = launch(*arguments, cache=cache, module='launch')
  assert answer.returncode == code
  assert said in answer.stdout + answer.stderr


def test_the_cache_of_programs_is_bounded(tmp_path):
  (tmp_path / 'folder').mkdir()
  for number in range(10):
    path = tmp_path / f'{number}-cache'
    path.write_bytes(b'x' * 100)
    os.utime(path, (1e9 + 60 * (number % 7), 1e9))  # when it was read and written
  delete_least_used(tmp_path, 550)
  left = {path.name for path in tmp_path.iterdir()}
  assert left == {'folder', *(f'{number}-cache' for number in (3, 4, 5, 6, 9))}
  delete_least_used(tmp_path / 'missing', 1)


def test_a_program_that_cannot_be_deleted_does_not_keep_others(tmp_path, monkeypatch):
  for name in 'abc':
    (tmp_path / name).write_bytes(b'x' * 100)
    os.utime(tmp_path / name, (1e9 + ord(name), 1e9))
  unlink = os.unlink

  def refuse_a(path):
    if path.endswith('a'):
      raise PermissionError
    unlink(path)

  monkeypatch.setattr(os, 'unlink', refuse_a)
  delete_least_used(tmp_path, 100)
  assert {path.name for path in tmp_path.iterdir()} == {'a', 'c'}
