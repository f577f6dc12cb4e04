import pytest

from tests.training.runs import share_programs
from zoo.training import loop, run


@pytest.fixture(autouse=True)
def promotion(promotion_that_optax_needs):
  """Every test here may take a step of training."""


@pytest.fixture
def shared_programs(monkeypatch):
  """Runs of one config are compiled once, for tests of what they write."""
  share_programs(monkeypatch)


@pytest.fixture
def no_step(monkeypatch):
  """Call it, and from then on a step of training fails the test."""

  def refuse(*arguments):
    raise AssertionError('it is trained again')

  def patch():
    monkeypatch.setattr(loop, 'next_stop', refuse)

  return patch


@pytest.fixture
def stop_at(monkeypatch):
  """Makes runs end at a step as if a signal had come there; call with None to undo."""
  next_stop = loop.next_stop

  class Stopped(run.Interruption):
    at: int | None = None
    reached: int | None = 0

    def due(self):
      return Stopped.reached == Stopped.at

  def watched(step, config):
    Stopped.reached = next_stop(step, config)
    if Stopped.at is not None:
      Stopped.reached = min(Stopped.reached, Stopped.at)
    return Stopped.reached

  monkeypatch.setattr(run, 'Interruption', Stopped)
  monkeypatch.setattr(loop, 'next_stop', watched)

  def set_step(step):
    Stopped.at, Stopped.reached = step, 0

  return set_step
