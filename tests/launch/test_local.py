"""`launch/cluster/local.sh`: several processes on this machine."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.launch.processes import ROOT, bound, environment
from tests.launch.test_processes import SMALL, errors_in, wait_for_progress
from tests.marks import FULL
from tests.training.runs import small_config
from zoo.storage.workdir import open_workdir

SCRIPT = str(ROOT / 'launch' / 'cluster' / 'local.sh')


@pytest.fixture
def start(cache):
  processes = []

  def start(*arguments):
    # The script finds the Python of the tests.
    path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
    process = subprocess.Popen(
      bound([SCRIPT, *arguments], 'TERM'),
      cwd=ROOT,
      env={**environment(cache), 'PATH': path},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      start_new_session=True,
    )
    processes.append(process)
    return process

  yield start
  for process in processes:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('number', 'code'),
  [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=FULL)],
)
def test_a_signal_is_passed_on_and_no_process_is_left(tmp_path, start, number, code):
  workdir = tmp_path / 'run'
  long = '--config.train.num_steps=1000000', '--config.train.log_every=10'
  process = start('2', *SMALL, *long, f'--workdir={workdir}')
  wait_for_progress([process], workdir)
  process.send_signal(number)
  said, _ = process.communicate(timeout=60)
  assert process.returncode == code, said
  assert said.count('stopped before the end; rerun the same command') == 1
  assert [p for p in (workdir / 'checkpoints').iterdir() if p.name.isdecimal()]
  with pytest.raises(ProcessLookupError):
    os.killpg(process.pid, 0)


@pytest.mark.full
@pytest.mark.slow
def test_the_exit_code_is_that_of_the_processes(tmp_path, start):
  open_workdir(tmp_path / 'run', small_config())
  (tmp_path / 'run' / 'checkpoints' / '4').mkdir(parents=True)
  process = start('2', *SMALL, f'--workdir={tmp_path}/run')
  said, _ = process.communicate(timeout=120)
  assert process.returncode == 2, said
  (line,) = errors_in([(2, said)])
  assert 'belongs to another config' in line


def test_without_a_number_the_usage_is_shown(start):
  process = start('--config=configs/yq_lsa.py')
  said, _ = process.communicate(timeout=20)
  assert process.returncode == 2
  assert said.startswith('usage: ')
