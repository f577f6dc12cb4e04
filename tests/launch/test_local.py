"""`launch/cluster/local.sh`: several processes on this machine."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.launch.processes import ROOT, bound, environment
from tests.launch.test_processes import SMALL, wait_for_progress

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
def test_a_signal_is_passed_on_and_no_process_is_left(tmp_path, start):
  workdir = tmp_path / 'run'
  long = '--config.train.num_steps=1000000', '--config.train.log_every=10'
  process = start('2', *SMALL, *long, f'--workdir={workdir}')
  wait_for_progress([process], workdir)
  process.send_signal(signal.SIGTERM)
  said, _ = process.communicate(timeout=60)
  assert process.returncode == 143, said
  assert said.count('stopped before the end; rerun the same command') == 1
  assert [p for p in (workdir / 'checkpoints').iterdir() if p.name.isdecimal()]
  with pytest.raises(ProcessLookupError):
    os.killpg(process.pid, 0)


def test_without_a_number_the_usage_is_shown(start):
  process = start('--config=configs/yq_lsa.py')
  said, _ = process.communicate(timeout=20)
  assert process.returncode == 2
  assert said.startswith('usage: ')
