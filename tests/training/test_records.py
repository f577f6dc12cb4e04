"""What a run reports as it trains; tests/test_workdir.py has its log."""

import time
from typing import Any

import numpy as np
import pytest

from tests.training.runs import lines_of, small_config
from zoo.config.sharding import make_mesh
from zoo.host.interruption import Interruption
from zoo.storage.checkpoints import Checkpoints
from zoo.training import loop, many, run, sweeps
from zoo.training.compilation import make_training
from zoo.training.loop import Loop, _Call


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
  monkeypatch.setattr(loop, 'time', clock)
  config = small_config()
  training = make_training(config, make_mesh(config))
  steps = Loop(training, {}, 5, lambda step: False, Interruption(), looks_ahead=True)

  def fetch(started, step, *seconds):
    results: list[Any] = [_Result(clock, second) for second in seconds]
    metrics, measured = results
    steps._fetch(_Call(started, step, {'loss': metrics}, (measured, None)))

  assert steps.speed() == (None, None)
  # 25 s of steps and 10 s of evaluation, which are called at once.
  fetch(clock.wall, 105, 625.0, 635.0)
  clock.cpu += 40.0
  assert steps.speed() == (4.0, 400.0)  # steps a second, CPU-ms a step
  # A caller who takes 65 s, and 25 s of steps that are called after them.
  clock.wall = 700.0
  fetch(700.0, 205, 725.0, 730.0)
  assert steps.speed()[0] == 4.0
  # A loop that looks ahead calls the next steps while the devices still evaluate.
  fetch(710.0, 305, 755.0, 756.0)
  assert steps.speed()[0] == 4.0


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
