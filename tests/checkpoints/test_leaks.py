"""However often a checkpoint is saved or opened, as many files and threads are open."""

import gc
import os
import pathlib
import threading
import time

import pytest

import zoo
from tests.checkpoints.states import CONTENT, state_at
from tests.launch.processes import ROOT
from zoo.storage.checkpoints import Checkpoints

pytestmark = [
  pytest.mark.skipif(
    not pathlib.Path('/proc/self/fd').is_dir(),
    reason='open files cannot be counted here',
  ),
  pytest.mark.usefixtures('few_to_collect'),
]


def count() -> tuple[int, int]:
  """The numbers of open files and of threads."""
  gc.collect()
  return len(os.listdir('/proc/self/fd')), threading.active_count()


def check_flat(action, times: int) -> None:
  for _ in range(3):  # what is opened once and for all
    action()
  # What leaks does so each time, and stays; threads of the last calls may be about
  # to end, for which they get ten seconds.
  before = count()
  for _ in range(times):
    action()
  end = time.monotonic() + 10
  while not flat(before, times) and time.monotonic() < end:
    time.sleep(0.1)
  assert flat(before, times), f'{before} before, {count()} after {times} times'


def flat(before: tuple[int, int], times: int) -> bool:
  return all(now < then + times / 2 for now, then in zip(count(), before, strict=True))


def test_saves(tmp_path):
  step = 0
  with Checkpoints(tmp_path, 2, CONTENT) as checkpoints:

    def save_one():
      nonlocal step
      step += 1
      checkpoints.save(step, state_at(1))
      checkpoints.wait()

    check_flat(save_one, 6)
  assert checkpoints.latest == step == 9


@pytest.mark.slow
def test_models_that_are_opened():
  check_flat(lambda: zoo.load(ROOT / 'checkpoints' / 'lsa'), 6)
