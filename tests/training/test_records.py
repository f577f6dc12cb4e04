"""What a run reports as it trains; tests/test_workdir.py has its log."""

from zoo.training import records
from zoo.training.records import Progress


def test_speed_leaves_out_what_came_before_the_clock(monkeypatch):
  wall, cpu = 600.0, 300.0

  class Clock:
    monotonic = staticmethod(lambda: wall)
    process_time = staticmethod(lambda: cpu)

  with Progress('label', 0, 1000) as progress:
    monkeypatch.setattr(records, 'time', Clock)
    assert progress.speed(5) == (None, None)
    progress.start_clock(5)
    assert progress.speed(5) == (None, None)
    wall, cpu = wall + 25.0, cpu + 40.0
    assert progress.speed(105) == (4.0, 400.0)  # steps a second, CPU-ms a step
