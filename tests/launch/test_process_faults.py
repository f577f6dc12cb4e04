"""Real processes that share only a folder, killed, stopped and cut off from it."""

import random
import signal
import time

import pytest

from tests.launch.processes import finish, start_together, wait_until
from tests.launch.test_processes import LONG
from tests.marks import FULL, mostly_full
from tests.training.runs import (
  assert_same_bits,
  lines_of,
  of_each_launch,
  saved_arrays,
)
from zoo.host.files import workdir_path
from zoo.storage import steps

# With --full four processes are started 31 times, half an hour on two cores.
pytestmark = [*FULL, pytest.mark.timeout(3000)]


def start(url, cache, number, *flags):
  return start_together(
    *(*LONG, '--config.checkpoint.keep=3', *flags, f'--workdir={url}'),
    number=number,
    cache=cache,
  )


def steps_in(folder):
  """The complete steps, the newest first."""
  return steps.steps_in(folder / 'checkpoints')[::-1]


def wait_for_save(processes, folder):
  """Waits until the run that was started has saved a step."""
  before = steps_in(folder)[:1]
  wait_until(lambda: steps_in(folder)[:1] != before, processes)


def assert_ended_as(url, whole, num_steps):
  """Fails unless the run has the bits and the lines of an uninterrupted local one."""
  expected, lines = (
    [*map(of_each_launch, lines_of(workdir))] for workdir in (whole, workdir_path(url))
  )
  # Where a run was stopped it has logged one step more, if that is no multiple of 10.
  assert [line for line in lines if line['step'] % 10 == 0] == expected
  logged = [line['step'] for line in lines]
  assert logged == sorted(set(logged))
  assert_same_bits(saved_arrays(url, num_steps), saved_arrays(whole, num_steps))


@pytest.mark.parametrize(
  ('place', 'many'),
  mostly_full([('folder', 3), ('bucket', 2)], [('bucket', 1), ('bucket', 4)]),
)
def test_killed_and_stopped_at_random_it_ends_as_one_that_was_not(
  tmp_path, cache, full, place, many, request
):
  """Some of the processes is lost, or gets SIGTERM; the last launch ends the run."""
  kills, stops = (20, 10) if full else (1, 1)
  num_steps = f'--config.train.num_steps={8000 if full else 1500}'
  dice = random.Random(many)
  faults = [signal.SIGKILL] * kills + [signal.SIGTERM] * stops
  dice.shuffle(faults)
  url = tmp_path / 'run' if place == 'folder' else request.getfixturevalue('bucket')
  folder = workdir_path(url)
  after: list[int] = []
  for number in faults:
    processes = start(url, cache, many, num_steps)
    try:
      wait_for_save(processes, folder)
      time.sleep(dice.uniform(0, 0.5))
      before = steps_in(folder)
      processes[dice.randrange(many)].send_signal(number)
      for process in processes:
        process.wait(timeout=90)
    finally:
      ended = finish(processes)
    said = ''.join(text for _, text in ended)
    if after:
      assert said.count(f'resuming at step {after[0]} of') == 1, said
    after = steps_in(folder)
    print(number.name, before, after, ended)
    assert after[0] >= before[0]
    codes = [code for code, _ in ended]
    if number == signal.SIGTERM:
      assert codes == [143] * many, ended
      assert said.count('rerun the same command') == 1
    else:
      assert all(codes), ended
  whole = tmp_path / 'whole'
  for workdir in url, whole:
    ended = finish(start(workdir, cache, many, num_steps))
    assert [code for code, _ in ended] == [0] * many, ended
    assert 'damaged' not in str(ended)
  assert_ended_as(url, whole, int(num_steps.partition('=')[2]))
  if place == 'folder':
    assert not list(folder.rglob('*tmp*'))


def test_a_short_outage_of_the_bucket_changes_nothing(
  tmp_path, bucket, cache, emulator, faults
):
  num_steps = '--config.train.num_steps=1500'
  folder = workdir_path(bucket)
  processes = start(bucket, cache, 1, num_steps)
  try:
    wait_for_save(processes, folder)
    faults(0.2)
    wait_for_save(processes, folder)
    faults(0.0)
    emulator.send_signal(signal.SIGSTOP)
    time.sleep(20)
  finally:
    emulator.send_signal(signal.SIGCONT)
    ended = finish(processes)
  assert [code for code, _ in ended] == [0], ended
  ended = finish(start(tmp_path / 'whole', cache, 1, num_steps))
  assert [code for code, _ in ended] == [0], ended
  assert_ended_as(bucket, tmp_path / 'whole', 1500)
