"""What Orbax raises is one line, and what it leaves behind is not printed."""

import asyncio
import gc
import logging
import pathlib
import sys

import orbax.checkpoint
import pytest

from zoo.checkpoints import orbax_errors
from zoo.checkpoints.orbax_errors import one_line, quiet_orbax, reading
from zoo.errors import RunError

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


@pytest.mark.parametrize('file', [OURS, ORBAXS], ids=['ours', 'orbaxs'])
def test_a_task_that_failed_unseen_is_logged_unless_it_is_orbaxs(file, caplog):
  loop = asyncio.new_event_loop()
  task = loop.create_task(functions_in(file)['fail']())
  loop.run_until_complete(asyncio.sleep(0))
  assert task.done()
  del task
  gc.collect()
  loop.close()
  assert ('never retrieved' in caplog.text) == (file == OURS)


@pytest.mark.parametrize('file', [OURS, ORBAXS], ids=['ours', 'orbaxs'])
def test_a_coroutine_that_fails_when_collected_is_told_unless_it_is_orbaxs(
  file, monkeypatch
):
  told = []
  monkeypatch.setattr(orbax_errors, '_print_unraisable', told.append)
  # As the import has set it; other libraries and pytest set theirs.
  monkeypatch.setattr(sys, 'unraisablehook', orbax_errors._print_unless_abandoned)
  coroutine = functions_in(file)['fail_at_the_end']()
  coroutine.send(None)
  del coroutine
  gc.collect()
  assert bool(told) == (file == OURS)


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
