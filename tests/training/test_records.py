"""What a run reports as it trains; tests/test_workdir.py has its log."""

from zoo.training.records import Progress


def test_the_bar_estimates_from_when_everything_is_compiled():
  now = 100.0
  with Progress('label', 0, 1000) as progress:
    bar = progress._bar
    bar._time = lambda: now
    bar.start_t = bar.last_print_t = now
    now += 600.0  # compiling
    progress.start_clock(0)
    now += 20.0
    progress.advance(10)
    assert bar.format_dict['elapsed'] == 20.0
    assert bar.n == 10


def test_speed_leaves_out_what_came_before_the_clock():
  with Progress('label', 0, 1000) as progress:
    assert progress.speed(5) == (None, None)
    progress.start_clock(5)
    assert progress.speed(5) == (None, None)
    rate, cpu = progress.speed(105)
    assert rate is not None and rate > 0
    assert cpu is not None and cpu >= 0
