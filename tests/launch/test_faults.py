"""What a real process leaves behind when it is stopped, at any time and in any way."""

import random
import signal
import time

import pytest

from launch import cli
from tests.checkpoints.states import disk
from tests.launch.processes import command, launch, wait_until
from tests.marks import FULL
from tests.training.runs import assert_same_bits, saved_arrays

# Saves often and long enough to be caught at it.
ARGUMENTS = (
  '--config=configs/multi_head_lsa.py:smoke',
  '--config.train.num_steps=1000000',  # never reached
  '--config.train.log_every=10',
  '--config.checkpoint.every=10',
  '--config.checkpoint.keep=1000000',
  '--config.eval.every=1000',
)


def last_step(workdir):
  """The newest checkpoint; what is not complete has another name."""
  steps = [path.name for path in (workdir / 'checkpoints').glob('[0-9]*')]
  return max((int(name) for name in steps if name.isdecimal()), default=0)


@pytest.fixture
def start_run(start):
  return lambda workdir: start(*command(*ARGUMENTS, f'--workdir={workdir}'))


def wait_for(process, workdir, step):
  """Waits until the run has saved that step, or one after it."""
  wait_until(lambda: last_step(workdir) >= step, [process])


@pytest.fixture
def uninterrupted(tmp_path, start_run):
  """What a run that nothing has stopped has saved at a step."""

  def arrays(step):
    workdir = tmp_path / 'whole'
    process = start_run(workdir)
    wait_for(process, workdir, step)
    process.kill()
    process.communicate()
    return saved_arrays(workdir, step)

  return arrays


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)
def test_killed_at_random_and_stopped_a_run_has_the_same_bits(
  tmp_path, start_run, uninterrupted, full
):
  dice = random.Random(2024)
  workdir = tmp_path / 'run'
  for _ in range(20 if full else 1):
    process = start_run(workdir)
    wait_for(process, workdir, last_step(workdir) + 10)
    time.sleep(dice.uniform(0, 0.4))
    process.send_signal(signal.SIGKILL)
    process.communicate()
  # What was being written when it was killed is cleaned up by the next launch.
  before = last_step(workdir)
  process = start_run(workdir)
  wait_for(process, workdir, before + 10)
  process.send_signal(signal.SIGTERM)
  said, _ = process.communicate(timeout=60)
  assert process.returncode == 143, said
  assert f'step {before} of' in said
  assert 'Traceback' not in said
  assert cli.RESUME in said
  assert not (workdir / 'summary.json').exists()
  step = last_step(workdir) // 10 * 10
  assert step > before  # the last launch has trained it
  assert_same_bits(saved_arrays(workdir, step), uninterrupted(step))
  # No temporary folder is left.
  assert not list(workdir.rglob('*tmp*'))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
  ('number', 'code'), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_signal_saves_and_the_same_command_resumes(
  tmp_path, start_run, uninterrupted, number, code
):
  workdir = tmp_path / 'run'
  process = start_run(workdir)
  wait_for(process, workdir, 10)
  process.send_signal(number)
  said, _ = process.communicate(timeout=60)
  assert process.returncode == code, said
  assert 'Traceback' not in said
  assert cli.RESUME in said
  assert not (workdir / 'summary.json').exists()
  stopped = last_step(workdir)
  process = start_run(workdir)
  wait_for(process, workdir, stopped + 20)
  process.kill()
  assert f'step {stopped} of' in process.communicate()[0]
  expected = uninterrupted(stopped + 20)
  assert_same_bits(saved_arrays(workdir, stopped + 20), expected)


@pytest.mark.slow
@pytest.mark.parametrize('size', ['90k', pytest.param('300k', marks=FULL)])
def test_a_full_disk_ends_a_run_in_one_line(tmp_path, cache, size):
  with disk(tmp_path / 'disk', f'size={size}') as folder:
    answer = launch(
      '--config=configs/yq_lsa.py:smoke',
      '--config.train.num_steps=4000',
      '--config.train.log_every=1',
      '--config.checkpoint.every=4000',
      '--config.eval.every=4000',
      f'--workdir={folder}/run',
      cache=cache,
    )
  assert answer.returncode == 1, answer.stderr
  *_, line = answer.stderr.splitlines()
  assert line.startswith('error: ')
  assert 'No space left' in line
  assert 'Traceback' not in answer.stderr
