"""What Orbax raises is one line, and what it leaves behind is not printed."""

import logging
import pathlib

import orbax.checkpoint
import pytest

from zoo.core.errors import RunError
from zoo.storage import orbax_folders
from zoo.storage.orbax_folders import one_line

PACKAGE = pathlib.Path(orbax.checkpoint.__file__).parent
OURS, ORBAXS = str(pathlib.Path(__file__)), str(PACKAGE / 'some' / 'file.py')


def test_errors_of_orbax_are_not_logged_meanwhile(caplog):
  caplog.set_level(logging.INFO)
  logger = logging.getLogger('absl')

  def log(file, level):
    logger.handle(
      logger.makeRecord('absl', level, file, 1, f'{file} {level}', (), None)
    )

  with orbax_folders._quiet():
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


def test_the_reason_is_said_in_one_line(monkeypatch):
  said = (
    'NOT_FOUND: Error opening "zarr3" driver:\\n  it does not exist '
    '[tensorstore_spec=\'{"driver":"zarr3"}\'] [source locations=\'driver.cc:114\']'
  ).replace('\\n', '\n')
  expected = 'ValueError: NOT_FOUND: Error opening "zarr3" driver: it does not exist'
  assert one_line(ValueError(said)) == expected
  long = one_line(OSError('x' * 1000 + ' No space left'))
  assert long.endswith('No space left')
  assert len(long) < 320

  def fail(*_):
    try:
      raise ValueError(said)
    except ValueError as error:
      raise KeyError('incompatible handler') from error

  monkeypatch.setattr(orbax_folders.ocp, 'load_checkpointables', fail)
  with pytest.raises(RunError) as info:
    orbax_folders.load_arrays(pathlib.Path('folder'), {})
  assert str(info.value) == f'folder cannot be read: {expected}'
