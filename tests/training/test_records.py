"""What a run reports as it trains; tests/test_workdir.py has its log."""

import time

import numpy as np
import pytest

from tests.training.runs import lines_of, small_config
from zoo.storage.checkpoints import Checkpoints
from zoo.training import many, records, run, sweeps
from zoo.training.records import Progress


class _Result:
  """A result that is on the devices until a time."""

  def __init__(self, clock, at):
    self._clock, self._at = clock, at

  def copy_to_host_async(self):
    pass

  def block_until_ready(self):
    self._clock.wall = max(self._clock.wall, self._at)

  def __array__(self, dtype=None, copy=None):
    self.block_until_ready()
    return np.zeros((), dtype)


class _Clock:
  wall, cpu = 600.0, 300.0

  def monotonic(self):
    return self.wall

  def process_time(self):
    return self.cpu


def test_the_speed_counts_the_time_of_steps_alone(monkeypatch):
  clock = _Clock()
  monkeypatch.setattr(records, 'time', clock)
  with Progress('label', 5, 1000) as progress:
    assert progress.speed(5) == (None, None)
    # 25 s of steps and 10 s of evaluation, which are called at once.
    called = clock.wall
    progress.fetch(called, _Result(clock, 625.0), _Result(clock, 635.0))
    clock.cpu += 40.0
    assert progress.speed(105) == (4.0, 400.0)  # steps a second, CPU-ms a step
    # A caller who takes 65 s, and 25 s of steps that are called after them.
    clock.wall = 700.0
    progress.fetch(700.0, _Result(clock, 725.0), _Result(clock, 730.0))
    assert progress.speed(205)[0] == 4.0
    # Side by side the next steps are called while the devices still evaluate.
    progress.fetch(710.0, _Result(clock, 755.0), _Result(clock, 756.0))
    assert progress.speed(305)[0] == 4.0


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.parametrize(
  ('module', 'slow'),
  [
    (run, 'caller'),
    (run, 'evaluation'),
    (many, 'evaluation'),
    pytest.param(run, 'save', marks=pytest.mark.slow),
    pytest.param(many, 'save', marks=pytest.mark.slow),
  ],
)
def test_what_is_beside_the_steps_of_a_run_does_not_slow_them(
  tmp_path, monkeypatch, module, slow
):
  save, config = Checkpoints.save, small_config()
  if slow == 'evaluation':  # which takes some tenths of a second
    config = small_config(eval__num_batches=20_000)
  if slow == 'save':
    monkeypatch.setattr(
      Checkpoints, 'save', lambda *args: (time.sleep(0.3), save(*args))
    )
  if module is run:
    folder, summary = tmp_path, None
    for event in run.training_run(config, folder):
      summary = event.summary
      if slow == 'caller':
        time.sleep(0.3)
  else:
    rows = sweeps.sweep(config, [{'seed': 0}, {'seed': 1}], tmp_path)
    assert rows is not None
    folder, summary = rows[0]['workdir'], rows[0]
  assert summary is not None
  # The twelve steps take some milliseconds, and the run nearly a second or more.
  speed = summary['steps_per_second']
  assert speed is not None
  assert 12 / speed < 0.2 * lines_of(folder)[-1]['wall_time']
