"""What a real process leaves behind when it is stopped, at any time and in any way."""

import random
import signal
import subprocess
import time

import pytest

from tests.launch.processes import ROOT, command, environment, launch
from tests.training.runs import assert_same_bits, saved_arrays

# Saves often and long enough to be caught at it.
ARGUMENTS = (
  '--config=configs/multi_head_lsa.py:smoke',
  '--config.train.num_steps=1500',
  '--config.train.log_every=10',
  '--config.checkpoint.every=10',
  '--config.eval.every=100',
)


def steps_of(workdir):
  """Numbers in the run's log: how far it came."""
  log = workdir / 'metrics.jsonl'
  return log.read_text().count('\n') if log.is_file() else 0


@pytest.fixture
def start(cache):
  processes = []

  def start(workdir):
    process = subprocess.Popen(
      command(*ARGUMENTS, f'--workdir={workdir}'),
      cwd=ROOT,
      env=environment(cache),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    processes.append(process)
    return process

  yield start
  for process in processes:
    process.kill()
    process.communicate()


def wait_for_progress(process, workdir):
  """Waits until the run has logged a step that it had not logged before."""
  seen, deadline = steps_of(workdir), time.monotonic() + 120
  while steps_of(workdir) == seen and process.poll() is None:
    assert time.monotonic() < deadline, 'no progress in two minutes'
    time.sleep(0.02)


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory, cache):
  workdir = tmp_path_factory.mktemp('whole')
  answer = launch(*ARGUMENTS, f'--workdir={workdir}/run', cache=cache)
  assert answer.returncode == 0, answer.stderr
  return saved_arrays(workdir / 'run', 1500)


@pytest.mark.slow
def test_killed_twenty_times_at_random_a_run_ends_at_the_same_bits(
  tmp_path, cache, start, uninterrupted
):
  dice = random.Random(2024)
  workdir = tmp_path / 'run'
  kills = 0
  while kills < 20:
    process = start(workdir)
    wait_for_progress(process, workdir)
    time.sleep(dice.uniform(0, 0.4))
    assert process.poll() is None, f'the run ended after {kills} kills already'
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kills += 1
  answer = launch(*ARGUMENTS, f'--workdir={workdir}', cache=cache)
  assert answer.returncode == 0, answer.stderr
  assert 'going on from step' in answer.stderr
  assert_same_bits(saved_arrays(workdir, 1500), uninterrupted)
  # Nothing was damaged, so nothing was set aside, and no temporary folder is left.
  assert not (workdir / 'damaged').exists()
  assert not list(workdir.rglob('*tmp*'))


@pytest.mark.slow
@pytest.mark.parametrize(
  ('number', 'code'), [(signal.SIGTERM, 0), (signal.SIGINT, 130)]
)
def test_a_signal_saves_and_the_same_command_goes_on(
  tmp_path, cache, start, uninterrupted, number, code
):
  workdir = tmp_path / 'run'
  process = start(workdir)
  wait_for_progress(process, workdir)
  process.send_signal(number)
  stdout, stderr = process.communicate(timeout=60)
  assert process.returncode == code, stderr
  assert 'Traceback' not in stderr
  said = stdout if code == 0 else stderr
  assert 'the same command goes on from what is saved' in said
  steps = [p.name for p in (workdir / 'checkpoints').iterdir() if p.name.isdecimal()]
  assert max(map(int, steps)) < 1500
  assert not (workdir / 'summary.json').exists()
  answer = launch(*ARGUMENTS, f'--workdir={workdir}', cache=cache)
  assert answer.returncode == 0, answer.stderr
  assert f'going on from step {max(map(int, steps))}' in answer.stderr
  assert_same_bits(saved_arrays(workdir, 1500), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize('size', ['90k', '300k'])
def test_a_full_disk_ends_a_run_in_one_line(tmp_path, cache, size):
  disk = tmp_path / 'disk'
  disk.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(disk)]
  made = subprocess.run(mount, capture_output=True, text=True, check=False)
  if made.returncode:
    pytest.skip(f'no tmpfs can be mounted here: {made.stderr.strip()}')
  try:
    answer = launch(
      '--config=configs/yq_lsa.py:smoke',
      '--config.train.num_steps=4000',
      '--config.train.log_every=1',
      '--config.checkpoint.every=4000',
      '--config.eval.every=4000',
      f'--workdir={disk}/run',
      cache=cache,
    )
  finally:
    subprocess.run(['umount', '--lazy', str(disk)], check=True)
  assert answer.returncode == 1, answer.stderr
  *_, line = answer.stderr.splitlines()
  assert line.startswith('error: ')
  assert 'No space left' in line
  assert 'Traceback' not in answer.stderr


@pytest.mark.slow
def test_a_second_run_in_the_same_workdir_is_refused(tmp_path, cache, start):
  workdir = tmp_path / 'run'
  process = start(workdir)
  wait_for_progress(process, workdir)
  second = launch(*ARGUMENTS, f'--workdir={workdir}', cache=cache)
  assert second.returncode == 2
  assert 'another process is training in it' in second.stderr
  assert process.poll() is None
