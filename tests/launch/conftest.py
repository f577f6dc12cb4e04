"""Commands called in the process of the tests, which saves the time of imports."""

import functools
import importlib
import sys
from typing import NamedTuple

import pytest
from absl import app, flags
from absl import logging as absl_logging

from launch import cli


class Answer(NamedTuple):
  """What a command said before it ended with an exit code."""

  code: int
  out: str
  err: str


@pytest.fixture
def call(monkeypatch, capsys, unchecked):
  """Calls a command, of `launch` if no package is named, with its flags alone."""
  verbosity = absl_logging.get_verbosity()

  def call(name: str, *arguments: str) -> Answer:
    _forget_commands()
    command = importlib.import_module(name if '.' in name else f'launch.{name}')
    # The tests have their own cache of programs.
    argv = [f'launch.{name}', '--nocompilation_cache', *arguments]
    monkeypatch.setattr(sys, 'argv', argv)
    capsys.readouterr()
    code: object = 0
    try:
      app.run(functools.partial(cli.call, command.main), flags_parser=cli.parse)
    except SystemExit as ended:
      code = ended.code or 0
    assert isinstance(code, int), code
    return Answer(code, *capsys.readouterr())

  yield call
  _forget_commands()
  absl_logging.set_verbosity(verbosity)


def _forget_commands() -> None:
  """Lets the next command define its flags, as in a process of its own."""
  for name, defined in flags.FLAGS.flags_by_module_dict().items():
    if name.startswith(('launch.', 'benchmarks.')) and name != 'launch.cli':
      sys.modules.pop(name, None)
      for flag in [*defined]:
        delattr(flags.FLAGS, flag.name)
  # Fields of a config, which belong to no module.
  for name in [name for name in flags.FLAGS if name.startswith('config')]:
    delattr(flags.FLAGS, name)
