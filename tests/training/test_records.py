"""What a run reports as it trains; tests/test_workdir.py has its log."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.marks import FULL
from tests.training.runs import small_config
from zoo.config.read import read
from zoo.host.interruption import Interruption
from zoo.storage.checkpoints import Checkpoints
from zoo.training import loop, run, sweeps
from zoo.training.compilation import make_training
from zoo.training.evaluation import HeldOut
from zoo.training.experiment import build
from zoo.training.loop import Loop, _Call
from zoo.training.records import Records, TensorBoard
from zoo.training.sweeps import many


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
  training = make_training(build(config))
  steps = Loop(training, {}, 5, lambda step: False, Interruption(), looks_ahead=True)

  def fetch(started, step, *seconds):
    results: list[Any] = [_Result(clock, second) for second in seconds]
    metrics, measured = results
    held_out = HeldOut({}, {'norm': measured})
    steps._fetch(_Call(started, step, {'loss': metrics}, (held_out, None)))

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
    pytest.param(many, 'evaluation', marks=pytest.mark.slow),
    pytest.param(run, 'save', marks=FULL),
    pytest.param(many, 'save', marks=FULL),
  ],
)
def test_what_is_beside_the_steps_of_a_run_does_not_slow_them(
  tmp_path, monkeypatch, module, slow
):
  # On the clock of the loop, what is slow takes 1000 seconds, and a group of steps one.
  clock, device_get, save = _Clock(), jax.device_get, Checkpoints.save
  monkeypatch.setattr(loop, 'time', clock)
  taken = []

  def take():
    clock.wall += 1000.0
    taken.append(slow)

  if slow == 'evaluation':  # The results of the steps are there; those of it are not.
    monkeypatch.setattr(jax, 'device_get', lambda tree: (take(), device_get(tree))[1])
  if slow == 'save':
    monkeypatch.setattr(Checkpoints, 'save', lambda *args: (take(), save(*args))[1])
  # The loop waits for each group of steps once, and the second passes then.
  monkeypatch.setattr(
    jax, 'block_until_ready', lambda tree: setattr(clock, 'wall', clock.wall + 1.0)
  )
  config = small_config()
  if module is run:
    summary = None
    for event in run.training_run(config, tmp_path):
      summary = event.summary
      if slow == 'caller':
        take()
  else:
    rows = sweeps.sweep(config, [{'seed': 0}, {'seed': 1}], tmp_path)
    assert rows is not None
    summary = rows[0]
  assert summary is not None
  assert len(taken) >= 3
  # Four groups end at the steps 4, 6, 8 and 12.
  assert summary['steps_per_second'] == 12 / 4.0


def test_two_launches_in_one_second_have_files_of_their_own(tmp_path, monkeypatch):
  monkeypatch.setattr('time.time', lambda: 1.8e9)
  config = small_config()
  for step in 0, 4:
    with Records(tmp_path, step, read(config)) as records, TensorBoard(records, step):
      pass
  assert len([*(tmp_path / 'tensorboard').iterdir()]) == 2
