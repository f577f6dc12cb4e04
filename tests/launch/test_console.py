"""What becomes of the terminal, and of the processes that a test starts."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from launch.__main__ import COMMANDS
from launch.compiled import delete_least_used
from tests.launch.processes import ROOT, bound, command, environment, launch, run
from tests.marks import FULL

ARGUMENTS = '--config=configs/yq_lsa.py:smoke', '--config.eval.num_batches=0'


def shell(line, cache, cwd):
  words = ['bash', '-c', f'set -o pipefail; {line}', 'bash']
  env = {**environment(cache), 'PYTHONPATH': str(ROOT)}
  return subprocess.run(
    bound([*words, *command(*ARGUMENTS)]),
    cwd=cwd,
    env=env,
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )


@pytest.mark.slow
def test_a_terminal_without_unicode_ends_no_training(cache, tmp_path):
  answer = shell('PYTHONIOENCODING=ascii "$@"', cache, tmp_path)
  assert answer.returncode == 0, answer.stderr
  assert 'Traceback' not in answer.stderr
  assert '\\xb1' in answer.stdout


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGHUP, signal.SIGINT])
def test_nohup_and_background_jobs_are_not_stopped(number, cache, tmp_path):
  name = signal.Signals(number).name
  steps = '--config.train.num_steps=2000 --config.train.log_every=500'
  answer = shell(
    f'trap \'\' {name}; "$@" {steps} & sleep 1; '
    f'for _ in 1 2 3 4; do kill -{name} $!; sleep 1; done; wait $!',
    cache,
    tmp_path,
  )
  assert answer.returncode == 0, answer.stderr
  assert 'after step 2000' in answer.stdout


@pytest.mark.slow
def test_ctrl_c_before_the_training_ends_at_once_without_a_traceback(cache):
  code = 'from launch import cli; cli.run(lambda: signal.raise_signal(signal.SIGINT))'
  answer = run([sys.executable, '-c', f'import signal; {code}'], cache)
  assert (answer.returncode, answer.stderr) == (-signal.SIGINT, '')


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'value', 'said'),
  [
    pytest.param(
      'JAX_NUM_CPU_DEVICES',
      'x',
      'an environment variable is invalid: Invalid value "x"',
      marks=FULL,
    ),
    ('JAX_PLATFORMS', 'nonsense', "JAX_PLATFORMS is 'nonsense', and JAX has no device"),
    pytest.param(*('JAX_PLATFORMS', 'cuda', "JAX_PLATFORMS is 'cuda'"), marks=FULL),
  ],
)
def test_what_jax_cannot_use_is_one_line(
  cache, tmp_path, monkeypatch, name, value, said
):
  env = {**environment(cache), name: value}
  answer = subprocess.run(
    command(*ARGUMENTS, f'--workdir={tmp_path}/run'),
    cwd=ROOT,
    env=env,
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  assert answer.returncode == 2, answer.stderr
  (line,) = answer.stderr.splitlines()
  assert said in line
  assert not list(tmp_path.iterdir())


def test_each_script_is_a_command():
  files = [*(ROOT / 'launch').glob('[!_]*.py')]
  scripts = [
    path.stem for path in files if "__name__ == '__main__'" in path.read_text()
  ]
  assert sorted(scripts) == sorted(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    'main',
    *(pytest.param(name, marks=FULL) for name in COMMANDS if name != 'main'),
  ],
)
def test_a_command_can_be_run_as_a_file(name, cache, tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  script = [sys.executable, str(ROOT / 'launch' / f'{name}.py'), '--help']
  answer = run(script, cache, tmp_path)
  assert answer.returncode == 0, answer.stderr
  assert f'python -m launch.{name}' in answer.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
  ('arguments', 'code', 'said'),
  [
    (['plot'], 2, 'error: --workdir is missing'),
    pytest.param(['--help'], 0, '  catalog ', marks=FULL),
    pytest.param([], 0, '  catalog ', marks=FULL),
    pytest.param(['mian'], 2, "did you mean 'main'?", marks=FULL),
  ],
)
def test_one_command_has_all_others(cache, arguments, code, said):
  answer = launch(*arguments, cache=cache, module='launch')
  assert answer.returncode == code
  assert said in answer.stdout + answer.stderr


# The child says that it runs, and so that it has asked for the signal.
PARENT = """
import subprocess, time
from tests.launch.processes import bound
subprocess.Popen(bound(['sh', '-c', 'echo $$; exec sleep 600']))
time.sleep(600)
"""


@pytest.mark.skipif(
  shutil.which('setpriv') is None, reason='there is no setpriv, which is of Linux'
)
def test_what_a_test_starts_ends_with_it():
  parent = subprocess.Popen(
    [sys.executable, '-c', PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True
  )
  assert parent.stdout is not None
  child = int(parent.stdout.readline())
  parent.kill()
  parent.communicate()
  deadline = time.monotonic() + 30
  while True:
    try:
      os.kill(child, 0)
    except ProcessLookupError:
      break
    assert time.monotonic() < deadline, 'the child is left behind'
    time.sleep(0.01)


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
