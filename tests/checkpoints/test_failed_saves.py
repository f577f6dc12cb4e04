"""A save that fails is one line, nothing else, and leaves the earlier steps as good."""

import contextlib
import errno
import os
import pathlib
import resource
import shutil
import signal
import threading
import time

import jax
import numpy as np
import pytest

from tests.checkpoints.states import (
  CONTENT,
  disk,
  let_others_in,
  load_latest,
  not_root,
  save,
  state_at,
)
from tests.marks import mostly_full
from zoo.core.errors import RunError, UserError
from zoo.storage.checkpoints import Checkpoints
from zoo.storage.steps import damage_of


def fill(workdir: pathlib.Path) -> tuple[list[int], Exception | None]:
  """Saves steps until it fails; the steps that were saved, and the error."""
  # Large enough to be stored in a file of its own: numbers that do not compress.
  numbers = np.random.default_rng(0).normal(size=5_000).astype(np.float32)
  state = {
    'model': {'w': jax.device_put(numbers)},
    'optimizer': {'count': jax.device_put(np.ones(1))},
  }
  saved = []
  try:
    with Checkpoints(workdir, 100, CONTENT) as checkpoints:
      for step in range(1, 4):
        checkpoints.save(step, state)
        checkpoints.wait()
        saved.append(step)
  except (RunError, OSError) as error:
    return saved, error
  return saved, None


# Some of the files and folders of a save that a full disk refuses.
DISKS = mostly_full(
  ['size=80k', 'size=10m,nr_inodes=4'], ['size=16k', 'size=10m,nr_inodes=40']
)


@pytest.mark.parametrize('options', DISKS)
def test_a_full_disk_is_one_line_at_whatever_write_it_comes(tmp_path, capfd, options):
  before = threading.active_count()
  with disk(tmp_path / 'disk', options) as folder:
    saved, error = fill(folder)
    assert isinstance(error, RunError)
    assert '\n' not in str(error)
    assert 'No space left' in str(error)
    steps = f'there are good ones at steps {saved}' if saved else 'there is none yet'
    assert steps in str(error)
    for step in saved:
      assert damage_of(folder / 'checkpoints' / str(step)) is None
    assert capfd.readouterr() == ('', '')
    deadline = time.monotonic() + 60
    while threading.active_count() > before:  # of Orbax, which end by themselves
      assert time.monotonic() < deadline
      time.sleep(0.05)


def may_not_be_written(workdir, stack):
  let_others_in(workdir)
  (workdir / 'checkpoints').chmod(0o555)
  stack.enter_context(not_root())


def has_gone(workdir, stack):
  shutil.rmtree(workdir)


def has_no_quota(method):
  """For the checksums, which get their name when they are written."""

  def prepare(workdir, stack):
    def fail(self, *arguments, **options):
      raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(self))

    patch = stack.enter_context(pytest.MonkeyPatch.context())
    patch.setattr(pathlib.Path, method, fail)

  return prepare


def has_a_limit_of_size(workdir, stack):
  """That of a process is met where arrays are written, in C++."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  stack.callback(signal.signal, signal.SIGXFSZ, handler)
  stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))


FAULTS = [
  (may_not_be_written, 'Permission denied'),
  (has_gone, 'was deleted while this program was working in it'),
  (has_no_quota('replace'), 'quota exceeded'),
  (has_a_limit_of_size, 'File too large'),
]


@pytest.mark.parametrize(('prepare', 'said'), FAULTS)
def test_whatever_a_folder_refuses_is_one_line(steps_123, prepare, said):
  state = state_at(4)  # compiled while the cache of programs may be written

  def fail():
    with (
      Checkpoints(steps_123, 5, CONTENT) as checkpoints,
      contextlib.ExitStack() as stack,
    ):
      prepare(steps_123, stack)
      checkpoints.save(4, state)
      checkpoints.wait()

  with pytest.raises(RunError, match='could not be written to') as info:
    fail()
  assert '\n' not in str(info.value)
  assert said in str(info.value)
  if prepare is has_gone:
    assert 'there is none yet' in str(info.value)
    assert not steps_123.exists()
    return
  assert 'there are good ones at steps [1, 2, 3' in str(info.value)
  assert damage_of(steps_123 / 'checkpoints' / '3') is None
  (steps_123 / 'checkpoints').chmod(0o755)
  assert load_latest(steps_123) == 3
  save(steps_123, 4)
  names = sorted(path.name for path in (steps_123 / 'checkpoints').iterdir())
  assert names == ['1', '2', '3', '4']


def test_the_clock_may_be_set_during_a_save(tmp_path, monkeypatch):
  """By a suspended laptop, or by NTP; Orbax measures its timeouts by that clock."""
  clock = time.time
  with Checkpoints(tmp_path, 5, CONTENT) as checkpoints:
    for step in (1, 2):
      checkpoints.save(step, state_at(step))
      monkeypatch.setattr(time, 'time', lambda step=step: clock() + 3600 * step)
  monkeypatch.undo()
  assert load_latest(tmp_path) == 2


def test_the_error_of_the_block_is_not_hidden_by_a_save_that_fails(tmp_path):
  def fail_late():
    raise OSError('the bucket is away')

  def fail():
    with Checkpoints(tmp_path, 5, CONTENT) as checkpoints:
      checkpoints.save(2, state_at(2), before_commit=fail_late)
      raise UserError('the news')

  with pytest.raises(UserError, match='the news'):
    fail()
