"""Code that all commands share: a user's mistake gives one line and exit code 2."""

import contextlib
import gc
import importlib
import importlib.util
import io
import itertools
import logging
import os
import pathlib
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeVar

import jax
from absl import app, flags
from absl import logging as absl_logging

from launch import config_flag
from launch.compiled import keep_compiled_programs
from zoo.core.errors import (
  InUseError,
  RunError,
  UserError,
  in_one_line,
  is_exhausted,
  nearest,
  printable,
)
from zoo.host import processes
from zoo.host.files import is_url, user_path
from zoo.host.parts import Part, parse_part

FLAGS = flags.FLAGS

_COMPILATION_CACHE = flags.DEFINE_bool(
  'compilation_cache',
  True,
  'Keep compiled programs in the user cache folder, so that a second launch starts '
  'faster. JAX_COMPILATION_CACHE_DIR sets another folder.',
)

_IMPORT = flags.DEFINE_list(
  'import',
  [],
  'Modules that register models, tasks, mixers, optimizers, metrics and objectives of '
  'your own, in the current folder or installed. They are imported before the config '
  'is read.',
)

RESUME = 'rerun the same command to resume'
# To a command without a config, whose task and model are those of a checkpoint.
_SMALLER = 'a task with a smaller context_length, or a smaller model, takes less'
# Libraries whose logs of INFO say nothing to users.
_TALKATIVE = (
  'absl',
  'fontTools',
  'fsspec',
  'gcsfs',
  'google',
  'httpx',
  'jax',
  'matplotlib',
  'orbax',
  'tensorflow_datasets',
)
STOPPED = 143  # the exit code of a process that SIGTERM ends
IN_USE = 75  # the exit code if another process uses the folder; launchers try again

# Flags that functions of this module define belong to the module that calls them.
flags.disclaim_key_flags()


Main = Callable[..., None]
_Results = TypeVar('_Results')


def run(main: Main, takes_names: bool = False) -> None:
  """Parses the flags, runs `main` and exits.

  `main` is given the arguments that are not flags if it `takes_names`.

  A UserError gives one line and exit code 2, or 75 if another process uses the folder,
  a RunError one line and code 1, Ctrl-C in training one line and code 130; before
  training it ends the process silently, as a closed pipe does with code 1. Anything
  else is a bug, and keeps its traceback. If several processes all fail with the same
  code, only the first prints the line. A process that fails alone exits without
  cleanup: cleanup would wait for the other processes, which in turn wait for this one.
  """
  gc.freeze()  # what is imported stays; else collections and the exit search it
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Before training Ctrl-C ends the process, also while it computes or imports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors='backslashreplace')  # a terminal may lack ±
  handler = absl_logging.get_absl_handler()
  handler.python_handler.setStream(sys.stderr)
  handler.setFormatter(logging.Formatter('%(message)s'))
  handler.addFilter(_is_for_users)
  # Where a folder cannot be created, Orbax forgets what it would have done there, and
  # the error is said in one line.
  warnings.filterwarnings('ignore', "coroutine '_create_paths' was never awaited")
  try:
    app.run(lambda argv: call(main, argv, takes_names), flags_parser=parse)
  except KeyboardInterrupt:  # raised by training after saving everything
    _print_error(f'interrupted; {RESUME}')
    sys.exit(130)


def parse(argv: list[str]) -> list[str]:
  """Parses the flags and returns the other arguments; exits at a mistake in them.

  Modules of --import are imported first, wherever the flag stands: the config file,
  which is read as soon as --config is parsed, may name models and tasks that they
  register. An error of the user's own code is raised as it is.
  """
  try:
    for name in _modules(FLAGS.read_flags_from_files(argv[1:], force_gnu=False)):
      _import(name)
    argv = config_flag.with_config_file(argv)
    return FLAGS(argv)
  except OwnCodeError as error:
    own = error.__cause__
    assert own is not None
  except SystemExit:  # absl treats --help as a failure
    sys.exit(0)
  except RunError as error:
    _exit(1, error)
  except (AttributeError, KeyError):  # as ml_collections says that a field is unknown
    if mistake := config_flag.unknown_field(argv):
      _exit(2, mistake)
    raise
  except (UserError, flags.Error) as error:
    own = config_flag.raised_by_file(error)
    if own is None:
      cause = error.__context__  # absl replaces the message
      _exit(2, cause if isinstance(cause, UserError) else error)
    if isinstance(own, UserError):
      _exit(2, own)
  raise own from own.__cause__  # here, so that its traceback ends in the user's file


def call(main: Main, arguments: list[str], takes_names: bool = False) -> None:
  """Runs `main` after the flags are parsed; if `main` fails, exits as `run` does."""
  try:
    if arguments[1:] and not takes_names:
      raise UserError(
        f'unexpected argument {arguments[1]!r}; every flag begins with --'
      )
    if FLAGS['verbosity'].using_default_value:
      absl_logging.set_verbosity(absl_logging.INFO)
    if _COMPILATION_CACHE.value:
      keep_compiled_programs()
    main(*([arguments[1:]] if takes_names else []))
    sys.stdout.flush()
  except BrokenPipeError:  # the reader has enough, as `head` does
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
  except UserError as error:
    _exit(IN_USE if isinstance(error, InUseError) else 2, error)
  except RunError as error:
    if reason := _no_device():  # the cause of any other error
      _exit(2, reason)
    _exit(1, error)
  except Exception as error:
    if processes.count() > 1:
      traceback.print_exc()
      _print_error(
        f'process {processes.index()} of {processes.count()} failed; rerun the same '
        'command in all processes to resume'
      )
      _end_hard(1)
    if reason := _no_device():
      _exit(2, reason)
    if is_exhausted(error):
      _exit(1, f'the memory is not enough: {in_one_line(error)}; {_SMALLER}')
    raise


class Folder(flags.ArgumentParser[pathlib.Path]):
  """Parses the folder that a flag names."""

  def parse(self, argument: str) -> pathlib.Path:
    if not argument:
      raise ValueError('it must name a folder')
    return user_path(argument)


class Workdir(flags.ArgumentParser[str | pathlib.Path]):
  """Parses a folder, or a bucket's URL, which stays text, without a final slash."""

  def parse(self, argument: str) -> str | pathlib.Path:
    return argument.rstrip('/') if is_url(argument) else Folder().parse(argument)


class File(flags.ArgumentParser[pathlib.Path]):
  """Parses the file that a flag names, which need not exist."""

  def parse(self, argument: str) -> pathlib.Path:
    path = user_path(argument)
    if not argument or path.is_dir() or not path.absolute().parent.is_dir():
      raise ValueError('it must name a file in a folder that exists')
    return path


class _PartParser(flags.ArgumentParser[Part]):
  def parse(self, argument: str) -> Part:
    return parse_part(argument)


def define_part(things: str) -> flags.FlagHolder[Part | None]:
  """Defines --part, by which processes divide the `things` that a command trains."""
  return flags.DEFINE(
    _PartParser(),
    'part',
    None,
    f'I/N: train only the I-th of N parts of the {things}, and write no table or '
    'report. The parts may be trained at the same time, by processes that share only '
    'the folder; one that was stopped or killed is started again with the same '
    'command. After all parts the command without --part writes the results.',
  )


def define_only(things: str) -> flags.FlagHolder[list[str]]:
  """Defines --only, which names some of the `things` that a command computes."""
  return flags.DEFINE_list(
    'only', [], f'Names of {things}: compute these alone. Default: all.'
  )


def define_again() -> flags.FlagHolder[bool]:
  """Defines --again, which computes stale rows of a study again."""
  return flags.DEFINE_bool(
    'again',
    False,
    'Compute rows again that are stale, which are of other settings or of another '
    'version of the library.',
  )


def folder_of(flag: flags.FlagHolder[pathlib.Path | None]) -> pathlib.Path | None:
  """The folder of a flag, None if it is not given; raises UserError for a file."""
  if flag.value is not None and flag.value.is_file():
    raise UserError(f'--{flag.name} is {str(flag.value)!r}, which is not a folder')
  return flag.value


def default_folder(checkpoint: str, words: Sequence[str]) -> pathlib.Path:
  """A folder of what is probed: the checkpoint as it was given, and these words."""
  name = '-'.join([checkpoint.strip('/'), *words])
  return pathlib.Path('checkpoints/probes', re.sub(r'[^\w.-]+', '_', name))


@contextlib.contextmanager
def writing(out: pathlib.Path) -> Iterator[None]:
  """Raises UserError in place of an OSError of the block, which writes into `out`."""
  try:
    yield
  except OSError as error:
    raise UserError(
      f'{error.filename or out} cannot be written: {error.strerror}'
    ) from error


def print_results(
  results: _Results | None,
  table: Callable[[_Results], str],
  where: str,
  out: str | pathlib.Path,
  part: Part | None = None,
) -> None:
  """Ends a command: it was stopped, a part is done, or there are results to show.

  Where SIGTERM has stopped it, and there are no `results`, everything is saved, and the
  exit code 143 tells a scheduler to start the command again. All processes of a run
  must call this function.
  """
  if results is None:
    together = processes.end_together(STOPPED)
    if processes.index() == 0:
      print(f'stopped before the end; {RESUME} from {out}')
    if not together:
      _end_hard(STOPPED)
    sys.exit(STOPPED)
  if part is not None:
    print(
      f'part {part.index} of {part.number} is done; after all parts the same command '
      'without --part writes the results'
    )
  elif jax.process_index() == 0:
    print(f'\n{table(results)}\n\n{where}')


def _modules(arguments: list[str]) -> list[str]:
  """The modules that --import names."""
  names = []
  for argument, following in itertools.zip_longest(
    arguments, arguments[1:], fillvalue=''
  ):
    flag, equals, value = argument.partition('=')
    if flag in ('--import', '-import'):
      names += (value if equals else following).split(',')
  return [name.strip() for name in names]


def _import(name: str) -> None:
  """Imports a module of the user; raises UserError for one that does not exist."""
  if not name:
    raise UserError('--import is empty; it must name a module, such as my_models')
  if '' not in sys.path and os.getcwd() not in sys.path:  # started with -P
    sys.path.insert(0, os.getcwd())
  if name.endswith('.py'):
    raise UserError(f'--import={name}: give the name of the module, without .py')
  if importlib.util.find_spec(name.partition('.')[0]) is None:
    raise _no_module(name)
  with own_code():
    try:
      importlib.import_module(name)
    except ModuleNotFoundError as error:
      if f'{name}.'.startswith(f'{error.name}.'):  # not one that the module imports
        raise _no_module(name) from error
      raise


def _no_module(name: str) -> UserError:
  near = nearest(name, [path.stem for path in pathlib.Path().glob('*.py')])
  hint = f'; did you mean {near!r}?' if near else ''
  return UserError(f'--import={name}: no module has this name{hint}')


class OwnCodeError(Exception):
  """Carries an error of a module of --import, its cause, past the checks of `parse`.

  These would take a KeyError or a SystemExit of the module for one of the flags.
  """


@contextlib.contextmanager
def own_code() -> Iterator[None]:
  """Runs code of the user's own, whose errors keep their tracebacks.

  Only a UserError or a RunError, which say it all, will be one line.
  """
  try:
    yield
  except (UserError, RunError, KeyboardInterrupt):
    raise
  except BaseException as error:  # also SystemExit, which --help raises, too
    raise OwnCodeError from error


def _no_device() -> str | None:
  """Why JAX has no device to compute on; None if it has one."""
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    chosen = os.environ.get('JAX_PLATFORMS', '')
    reason = str(error) or 'no backend of that name is installed'
    return f'JAX_PLATFORMS is {chosen!r}, and JAX has no device to use: {reason}'
  return None


def _is_for_users(record: logging.LogRecord) -> bool:
  """Whether a log record is a warning, or not of the libraries that we use.

  Orbax logs 67 lines per save. It logs an error of its threads with a traceback, and
  raises it as well, so that the command ends with one line that says it.
  """
  installed, path = pathlib.Path(jax.__file__).parents[1], pathlib.Path(record.pathname)
  has_traceback = record.levelno >= logging.ERROR and record.exc_info
  if has_traceback and path.is_relative_to(installed / 'orbax'):
    return False
  return record.levelno >= logging.WARNING or not any(
    path.is_relative_to(installed / name) for name in _TALKATIVE
  )


def _exit(code: int, message: object) -> NoReturn:
  together = processes.end_together(code)
  if not together or processes.index() == 0:
    _print_error(message)
  if not together:
    _end_hard(code)
  sys.exit(code)


def _print_error(message: object) -> None:
  print('error:', printable(in_one_line(message, None)), file=sys.stderr)


def _end_hard(code: int) -> NoReturn:
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)
