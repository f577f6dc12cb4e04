"""Real processes that share only a bucket, killed, stopped and cut off from it."""

import json
import random
import signal
import time

import pytest

from tests.launch.processes import finish, start_together
from tests.launch.test_processes import SMALL
from tests.marks import FULL
from tests.training.runs import assert_same_bits, bucket_arrays, saved_arrays
from zoo.host.files import workdir_path
from zoo.storage.steps import step_folders, step_of

pytestmark = [*FULL, pytest.mark.timeout(1500)]

LONG = (
  *SMALL,
  '--config.train.log_every=10',
  '--config.checkpoint.every=100',
  '--config.checkpoint.keep=3',
  '--config.eval.every=1000',
)


def start(url, cache, number, *flags):
  return start_together(
    *(*LONG, *flags, f'--workdir={url}'),
    number=number,
    cache=cache,
    module='tests.launch.short_lease',
  )


def steps_in(folder):
  """The complete steps, the newest first."""
  return [*map(step_of, step_folders(folder / 'checkpoints'))]


def wait_for_save(processes, folder):
  """Waits until the run that was started has saved a step."""
  before, deadline = steps_in(folder)[:1], time.monotonic() + 240
  while steps_in(folder)[:1] == before:
    assert all(process.poll() is None for process in processes), finish(processes)
    assert time.monotonic() < deadline, 'no progress in four minutes'
    time.sleep(0.05)


def lines_in(text):
  return [
    {name: line[name] for name in ('step', 'loss', 'exact_risk', 'eval_risk')}
    for line in map(json.loads, text.splitlines())
  ]


def assert_ended_as(url, whole, num_steps):
  """Fails unless the run has the bits and the lines of an uninterrupted local one."""
  expected = lines_in((whole / 'metrics.jsonl').read_text())
  lines = lines_in((workdir_path(url) / 'metrics.jsonl').read_text())
  # Where a run was stopped it has logged one step more, if that is no multiple of 10.
  assert [line for line in lines if line['step'] % 10 == 0] == expected
  steps = [line['step'] for line in lines]
  assert steps == sorted(set(steps))
  assert_same_bits(bucket_arrays(url, num_steps), saved_arrays(whole, num_steps))


def pytest_generate_tests(metafunc):
  if 'many' in metafunc.fixturenames:
    full = metafunc.config.getoption('--full')
    metafunc.parametrize('many', [1, 2, 4] if full else [2])


def test_killed_and_stopped_at_random_it_ends_as_a_local_run(
  tmp_path, bucket, cache, full, many
):
  kills, stops = (20, 10) if full else (1, 1)
  num_steps = f'--config.train.num_steps={8000 if full else 1500}'
  dice = random.Random(many)
  faults = [signal.SIGKILL] * kills + [signal.SIGTERM] * stops
  dice.shuffle(faults)
  folder = workdir_path(bucket)
  for number in faults:
    processes = start(bucket, cache, many, num_steps)
    try:
      wait_for_save(processes, folder)
      time.sleep(dice.uniform(0, 0.5))
      before = steps_in(folder)
      processes[dice.randrange(many)].send_signal(number)
      for process in processes:
        process.wait(timeout=90)
    finally:
      ended = finish(processes)
    print(number.name, before, steps_in(folder), ended)
    codes = [code for code, _ in ended]
    assert codes == [143] * many if number == signal.SIGTERM else all(codes), ended
    assert steps_in(folder)[0] >= before[0]
  ended = finish(start(bucket, cache, many, num_steps))
  assert [code for code, _ in ended] == [0] * many, ended
  assert 'damaged' not in str(ended)
  whole = tmp_path / 'whole'
  ended = finish(start(whole, cache, many, num_steps))
  assert [code for code, _ in ended] == [0] * many, ended
  assert_ended_as(bucket, whole, int(num_steps.partition('=')[2]))


def test_an_outage_of_the_bucket_changes_nothing(
  tmp_path, bucket, cache, emulator, faults, full
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
    time.sleep(180 if full else 20)
  finally:
    emulator.send_signal(signal.SIGCONT)
    ended = finish(processes)
  assert [code for code, _ in ended] == [0], ended
  assert 'lock was not renewed' in ended[0][1]
  ended = finish(start(tmp_path / 'whole', cache, 1, num_steps))
  assert [code for code, _ in ended] == [0], ended
  assert_ended_as(bucket, tmp_path / 'whole', 1500)
