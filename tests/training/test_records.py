"""What a run reports as it trains; tests/test_workdir.py has its log."""

from zoo.training import records
from zoo.training.records import Progress


def test_speed_counts_from_the_start_of_the_bar(monkeypatch):
  wall, cpu = 600.0, 300.0

  class Clock:
    monotonic = staticmethod(lambda: wall)
    process_time = staticmethod(lambda: cpu)

  monkeypatch.setattr(records, 'time', Clock)
  with Progress('label', 5, 1000) as progress:
    assert progress.speed(5) == (None, None)
    wall, cpu = wall + 25.0, cpu + 40.0
    assert progress.speed(105) == (4.0, 400.0)  # steps a second, CPU-ms a step
