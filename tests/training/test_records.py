"""What a run reports as it trains; tests/test_workdir.py has its log."""

from zoo.training import records
from zoo.training.records import Progress


def test_the_bar_estimates_from_when_everything_is_compiled(monkeypatch):
  now = 100.0
  with Progress('label', 0, 1000) as progress:
    bar = progress._bar
    monkeypatch.setattr(bar, '_time', lambda: now)
    bar.start_t = bar.last_print_t = now
    now += 600.0  # compiling
    progress.start_clock(0)
    now += 20.0
    progress.advance(10)
    assert bar.format_dict['elapsed'] == 20.0
    assert bar.n == 10


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
