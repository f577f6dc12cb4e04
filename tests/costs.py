"""What tests compile and how long they compute: a budget, and a report by room.

A model that is called outside of `jax.jit` compiles each of its operations, which takes
more time than all that most tests check. So a quick test compiles at most 40 programs,
with those of its fixtures, or as many as its mark `programs` says, and fails if there
are 20 more. Programs that the cache on the disk holds count as well.
"""

import collections
import os
import pathlib

import jax
import pytest

MOST_PROGRAMS = 40
_SHARED = 20  # more are allowed: the first file of a process compiles what files share
LONG = 3.0  # seconds of CPU time, beyond which a quick test is listed

_START = pytest.StashKey[tuple[int, float]]()  # both counts when a test begins
_compiled = 0


def _count(event: str, duration_secs: float, **kwargs: str | int) -> None:
  del duration_secs, kwargs
  global _compiled
  _compiled += event == '/jax/core/compile/backend_compile_duration'


jax.monitoring.register_event_duration_secs_listener(_count)


def programs() -> int:
  """The programs that this process has compiled."""
  return _compiled


def _seconds() -> float:
  return sum(os.times()[:4])  # of this process, and of those that it has waited for


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
  """Notes what a test compiles, and the CPU time of it and its fixtures."""
  item.stash[_START] = _compiled, _seconds()
  return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
  """Fails a quick test that compiles more than its budget."""
  answer = yield
  count = _compiled - item.stash[_START][0]
  own = item.get_closest_marker('programs')
  most = own.args[0] if own else MOST_PROGRAMS
  if count > most + _SHARED and not item.get_closest_marker('slow'):
    pytest.fail(
      f'{count} programs were compiled, where this quick test has {most}: '
      'compile what it calls as one (tests/compiled.py), or mark it slow',
      pytrace=False,
    )
  return answer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
  """Sends both numbers with the report of the last phase, from xdist's workers too."""
  answer = yield
  before, start = item.stash[_START]
  item.user_properties.append(('programs', _compiled - before))
  item.user_properties.append(('seconds', _seconds() - start))
  return answer


def pytest_terminal_summary(terminalreporter, config):
  """Lists rooms and the longest tests, with --costs."""
  if not config.getoption('--costs'):
    return
  rooms, longest = collections.defaultdict(lambda: [0, 0, 0.0]), []
  for reports in terminalreporter.stats.values():
    for report in reports:
      if getattr(report, 'when', None) != 'teardown':
        continue
      costs = dict(report.user_properties)
      parts = pathlib.PurePosixPath(report.nodeid.split('::')[0]).parts
      room = rooms[parts[1] if len(parts) > 2 else 'tests']
      for place, cost in enumerate((1, costs['programs'], costs['seconds'])):
        room[place] += cost
      longest.append((costs['seconds'], costs['programs'], report.nodeid))
  write = terminalreporter.write_line
  terminalreporter.section('costs: tests, programs, CPU seconds')
  for name, (tests, programs, seconds) in sorted(rooms.items()):
    write(f'{name:20} {tests:6} {programs:8} {seconds:9.1f}')
  totals = [sum(room[place] for room in rooms.values()) for place in range(3)]
  write('{:20} {:6} {:8} {:9.1f}'.format('all', *totals))
  for seconds, programs, name in sorted(longest, reverse=True):
    if seconds > LONG or programs > MOST_PROGRAMS:
      write(f'{seconds:6.1f} s {programs:5} programs  {name}')
