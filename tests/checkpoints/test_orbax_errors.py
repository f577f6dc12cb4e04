"""What Orbax raises is one line, and what it leaves behind is not printed."""

import asyncio
import gc
import logging
import pathlib
import sys

import orbax.checkpoint
import pytest

from zoo.core.errors import RunError
from zoo.storage.orbax_errors import one_line, quiet_orbax, reading

pytestmark = pytest.mark.usefixtures('few_to_collect')

PACKAGE = pathlib.Path(orbax.checkpoint.__file__).parent
OURS, ORBAXS = str(pathlib.Path(__file__)), str(PACKAGE / 'some' / 'file.py')

# One fails; one fails when it is thrown away while it waits.
SOURCE = """
class Wait:
  def __await__(self):
    yield
async def fail():
  raise ValueError('it failed')
async def fail_at_the_end():
  try:
    await Wait()
  except BaseException:
    raise ValueError('it was thrown away')
"""


def functions_in(file: str) -> dict:
  names: dict = {}
  exec(compile(SOURCE, file, 'exec'), names)
  return names


def test_a_task_that_failed_unseen_is_logged_unless_orbax_works(caplog):
  def leave_behind():
    loop = asyncio.new_event_loop()
    task = loop.create_task(functions_in(ORBAXS)['fail']())
    loop.run_until_complete(asyncio.sleep(0))
    assert task.done()
    del task
    gc.collect()
    loop.close()

  with quiet_orbax():
    leave_behind()
  assert 'never retrieved' not in caplog.text
  leave_behind()
  assert 'never retrieved' in caplog.text


@pytest.mark.parametrize('file', [OURS, ORBAXS], ids=['ours', 'orbaxs'])
def test_a_coroutine_that_fails_when_collected_is_told_unless_it_is_orbaxs(
  file, monkeypatch
):
  told = []
  monkeypatch.setattr(sys, 'unraisablehook', told.append)

  def throw_away():
    coroutine = functions_in(file)['fail_at_the_end']()
    coroutine.send(None)
    del coroutine
    gc.collect()

  with quiet_orbax():
    throw_away()
  assert bool(told) == (file == OURS)
  told.clear()
  throw_away()
  assert told


def test_what_python_prints_is_as_before_when_the_last_block_has_ended(monkeypatch):
  before = [].append
  monkeypatch.setattr(sys, 'unraisablehook', before)
  logger = logging.getLogger('asyncio')
  filters = [*logger.filters]
  first, second = quiet_orbax(), quiet_orbax()
  first.__enter__()
  second.__enter__()
  first.__exit__(None, None, None)  # in threads blocks may end in any order
  assert sys.unraisablehook is not before
  second.__exit__(None, None, None)
  assert sys.unraisablehook is before
  assert logger.filters == filters


def test_an_import_changes_nothing_of_pythons():
  """This file has imported all of it; pytest has set its own hook since then."""
  assert not logging.getLogger('asyncio').filters
  assert 'zoo' not in getattr(sys.unraisablehook, '__module__', '')


def test_errors_of_orbax_are_not_logged_meanwhile(caplog):
  caplog.set_level(logging.INFO)
  logger = logging.getLogger('absl')

  def log(file, level):
    logger.handle(
      logger.makeRecord('absl', level, file, 1, f'{file} {level}', (), None)
    )

  with quiet_orbax():
    for level in (logging.INFO, logging.ERROR):
      log(OURS, level)
      log(ORBAXS, level)
  log(ORBAXS, logging.ERROR)
  assert [record.getMessage() for record in caplog.records] == [
    f'{OURS} {logging.INFO}',
    f'{ORBAXS} {logging.INFO}',
    f'{OURS} {logging.ERROR}',
    f'{ORBAXS} {logging.ERROR}',
  ]


def test_the_reason_is_said_in_one_line():
  said = (
    'NOT_FOUND: Error opening "zarr3" driver:\\n  it does not exist '
    '[tensorstore_spec=\'{"driver":"zarr3"}\'] [source locations=\'driver.cc:114\']'
  ).replace('\\n', '\n')
  expected = 'ValueError: NOT_FOUND: Error opening "zarr3" driver: it does not exist'
  assert one_line(ValueError(said)) == expected
  long = one_line(OSError('x' * 1000 + ' No space left'))
  assert long.endswith('No space left')
  assert len(long) < 320

  def fail():
    with reading(pathlib.Path('folder')):
      try:
        raise ValueError(said)
      except ValueError as error:
        raise KeyError('incompatible handler') from error

  with pytest.raises(RunError) as info:
    fail()
  assert str(info.value) == f'folder cannot be read: {expected}'
