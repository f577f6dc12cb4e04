"""`launch/cluster/local.sh`: several processes on this machine."""

import os
import pathlib
import signal
import sys

import pytest

from tests.launch.processes import ROOT, bound
from tests.launch.test_processes import SMALL, wait_for_progress

SCRIPT = str(ROOT / 'launch' / 'cluster' / 'local.sh')


@pytest.fixture(autouse=True)
def python(monkeypatch):
  """The script finds the Python of the tests."""
  folder = pathlib.Path(sys.executable).parent
  monkeypatch.setenv('PATH', f'{folder}:{os.environ["PATH"]}')


@pytest.mark.slow
def test_a_signal_is_passed_on_and_no_process_is_left(tmp_path, start):
  workdir = tmp_path / 'run'
  long = '--config.train.num_steps=1000000', '--config.train.log_every=10'
  words = [SCRIPT, '2', *SMALL, *long, f'--workdir={workdir}']
  process = start(*bound(words, 'TERM'))
  wait_for_progress([process], workdir)
  process.send_signal(signal.SIGTERM)
  said, _ = process.communicate(timeout=60)
  assert process.returncode == 143, said
  assert said.count('stopped before the end; rerun the same command') == 1
  assert [p for p in (workdir / 'checkpoints').iterdir() if p.name.isdecimal()]
  with pytest.raises(ProcessLookupError):
    os.killpg(process.pid, 0)


def test_without_a_number_the_usage_is_shown(start):
  process = start(*bound([SCRIPT, '--config=configs/yq_lsa.py'], 'TERM'))
  said, _ = process.communicate(timeout=20)
  assert process.returncode == 2
  assert said.startswith('usage: ')
