"""What all commands share: flags, errors, exit codes and the last lines of output."""

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
from zoo.training.run import NotFiniteError

FLAGS = flags.FLAGS

_COMPILATION_CACHE = flags.DEFINE_bool(
  'compilation_cache',
  True,
  'Keep compiled programs on the disk, so that a second launch starts faster. The '
  'folder is `~/.cache/icl_zoo`; the variable `JAX_COMPILATION_CACHE_DIR` sets '
  'another one.',
)

_IMPORT = flags.DEFINE_list(
  'import',
  [],
  'Modules that register models, tasks, mixers, optimizers, curricula, metrics and '
  'objectives of your own. They stand in the current folder or are installed, and are '
  'imported before the config is read.',
)

RESUME = 'rerun the same command to resume'
# This is the advice if the memory is not enough. A command without a config takes its
# task and its model from a checkpoint, so it does not name fields of a config.
_SMALLER = 'a task with a smaller context_length, or a smaller model, takes less'
# Libraries whose INFO logs are of no use to users.
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
STOPPED = 143  # This is the exit code of a process that SIGTERM ends.
# This is the exit code if another process uses the folder. Launchers then try again.
IN_USE = 75
# This is the exit code if a run is not finite any more. The same command would end at
# the same step again, so launchers need not try. 65 is EX_DATAERR of sysexits.h.
DIVERGED = 65

# Flags that functions of this module define belong to the module that calls them.
flags.disclaim_key_flags()


Main = Callable[..., None]
_Results = TypeVar('_Results')


def run(main: Main, takes_names: bool = False) -> None:
  """Parses the flags, runs `main` and exits.

  What ends the command decides what it prints and its exit code:

  - A UserError prints one line, and the code is 2, or 75 if another process uses the
    folder.
  - A RunError prints one line, and the code is 1, or 65 if a run is not finite any
    more.
  - Ctrl-C in training prints one line, and the code is 130. Before training it ends the
    process silently.
  - A closed pipe ends the process silently with code 1.
  - Any other error is a bug and keeps its traceback.

  If several processes all fail with the same code, only the first prints the line. A
  process that fails alone exits without cleanup: cleanup would wait for the other
  processes, which in turn wait for this one.

  Args:
    main: The function of the command.
    takes_names: Whether `main` takes the list of arguments that are not flags. Without
      it such an argument is a mistake.
  """
  # Frozen objects are not searched by later garbage collections and at the exit.
  gc.freeze()
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Before training Ctrl-C ends the process at once, even during an import.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors='backslashreplace')  # A terminal may lack ±.
  handler = absl_logging.get_absl_handler()
  handler.python_handler.setStream(sys.stderr)
  handler.setFormatter(logging.Formatter('%(message)s'))
  handler.addFilter(_is_for_users)
  # If a folder cannot be created, Orbax leaves this coroutine without awaiting it. The
  # command prints the error itself, in one line.
  warnings.filterwarnings('ignore', "coroutine '_create_paths' was never awaited")
  try:
    app.run(lambda argv: call(main, argv, takes_names), flags_parser=parse)
  except KeyboardInterrupt:  # Training raises it after it has saved everything.
    _print_error(f'interrupted; {RESUME}')
    sys.exit(130)


def parse(argv: list[str]) -> list[str]:
  """Parses the flags, and exits with one line if there is a mistake in them.

  The modules of --import are imported first, wherever the flag stands: absl reads the
  config file as soon as it parses --config, and that file may name models and tasks
  which the modules register. An error of the user's own code is raised as it is.

  Args:
    argv: The command line, its first entry the program.

  Returns:
    The arguments that are not flags, the program included.
  """
  try:
    for name in _modules(FLAGS.read_flags_from_files(argv[1:], force_gnu=False)):
      _import(name)
    argv = config_flag.with_config_file(argv)
    return FLAGS(argv)
  except OwnCodeError as error:
    own = error.__cause__
    assert own is not None
  except SystemExit as error:
    last = traceback.extract_tb(error.__traceback__)[-1]
    if last.filename != app.__file__:  # The config file has called `sys.exit`.
      raise
    sys.exit(0)  # absl exits with code 1 after --help.
  except RunError as error:
    _exit(1, error)
  except (AttributeError, KeyError) as error:
    # ml_collections raises them for unknown fields, in the file or in a flag.
    mistake = config_flag.mistake_in_file(error) or config_flag.unknown_field(argv)
    if mistake:
      _exit(2, mistake)
    raise
  except flags.UnrecognizedFlagError as error:
    _exit(2, config_flag.unknown_flag(error.flagname, argv))
  except (UserError, flags.Error) as error:
    own = config_flag.raised_by_file(error)
    if own is None:
      cause = error.__context__  # absl replaces the message of a UserError.
      _exit(2, cause if isinstance(cause, UserError) else error)
    if isinstance(own, UserError):
      _exit(2, own)
  raise own from own.__cause__  # Raised here, its traceback ends in the user's file.


def call(main: Main, arguments: list[str], takes_names: bool = False) -> None:
  """Runs `main` after the flags are parsed; exits as `run` describes if it fails."""
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
  except BrokenPipeError:  # The reader has closed the pipe, as `head` does.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
  except UserError as error:
    _exit(IN_USE if isinstance(error, InUseError) else 2, error)
  except RunError as error:
    if reason := _no_device():  # Without a device any other error follows from it.
      _exit(2, reason)
    _exit(DIVERGED if isinstance(error, NotFiniteError) else 1, error)
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
  """A parser of flags that name a folder."""

  syntactic_help = 'a folder'

  def parse(self, argument: str) -> pathlib.Path:
    if not argument:
      raise ValueError('it must name a folder')
    return user_path(argument)


class Workdir(flags.ArgumentParser[str | pathlib.Path]):
  """A parser of flags that name a folder, or a bucket's URL, which stays a string."""

  syntactic_help = 'a folder, or gs://bucket/folder'

  def parse(self, argument: str) -> str | pathlib.Path:
    return argument.rstrip('/') if is_url(argument) else Folder().parse(argument)


class File(flags.ArgumentParser[pathlib.Path]):
  """A parser of flags that name a file in a folder that exists."""

  syntactic_help = 'a file in a folder that exists'

  def parse(self, argument: str) -> pathlib.Path:
    path = user_path(argument)
    if not argument or path.is_dir() or not path.parent.is_dir():
      raise ValueError('it must name a file in a folder that exists')
    return path


class _PartParser(flags.ArgumentParser[Part]):
  """A parser of a part, I/N."""

  syntactic_help = 'I/N with 1 ≤ I ≤ N, such as 1/4'

  def parse(self, argument: str) -> Part:
    return parse_part(argument)


def define_part(things: str, verb: str = 'train') -> flags.FlagHolder[Part | None]:
  """Defines --part, with which processes divide the `things` that a command computes.

  Args:
    things: The things, as a plural.
    verb: What the command does to them.
  """
  return flags.DEFINE(
    _PartParser(),
    'part',
    None,
    f'{verb.capitalize()} only the I-th of N parts of the {things}, and write no table '
    f'or report. The parts may be {verb.removesuffix("e")}ed at the same time, by '
    'processes that share only the folder. If a process is stopped or killed, start it '
    'again with the same command. After all parts the command without `--part` writes '
    f'the results. Default: all {things}.',
  )


def define_only(things: str) -> flags.FlagHolder[list[str]]:
  """Defines --only, which names some of the `things` that a command computes."""
  return flags.DEFINE_list('only', [], f'Compute only these {things}. Default: all.')


def define_again() -> flags.FlagHolder[bool]:
  """Defines --again, which recomputes the stale rows of a study."""
  return flags.DEFINE_bool(
    'again',
    False,
    'Recompute stale rows: those that were computed with other settings, or by another '
    'version of the library.',
  )


def folder_of(flag: flags.FlagHolder[pathlib.Path | None]) -> pathlib.Path | None:
  """Returns the folder of a flag, or None if not given; raises UserError for a file."""
  if flag.value is not None and flag.value.is_file():
    raise UserError(f'--{flag.name} is {str(flag.value)!r}, which is not a folder')
  return flag.value


def default_folder(checkpoint: str, words: Sequence[str]) -> pathlib.Path:
  """Returns the default folder of a probe, named by the checkpoint and the words."""
  name = re.sub(r'[^\w.-]+', '_', '-'.join([checkpoint.strip('/'), *words]))
  return user_path(f'checkpoints/probes/{name}')


@contextlib.contextmanager
def writing(out: pathlib.Path) -> Iterator[None]:
  """Turns an OSError of the block, which writes into `out`, into a UserError."""
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
  """Ends a command: prints its results, or that a part is done, or that it was stopped.

  All processes of a run must call this function.

  Args:
    results: The results. None says that SIGTERM has stopped the command, after it has
      saved everything. The process then exits with code 143, which tells a scheduler to
      start the command again.
    table: A function that makes a text of the results.
    where: A sentence that says where the results are.
    out: The folder from which the command resumes.
    part: The part that was computed; None if the command computed all.
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
  """Returns the modules that --import names."""
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
  # `python -P` leaves the current folder out of the path.
  if '' not in sys.path and os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())
  if name.endswith('.py'):
    raise UserError(f'--import={name}: give the name of the module, without .py')
  if importlib.util.find_spec(name.partition('.')[0]) is None:
    raise _no_module(name)
  with own_code():
    try:
      importlib.import_module(name)
    except ModuleNotFoundError as error:
      # The module itself may exist and import one that does not; that error is kept.
      if f'{name}.'.startswith(f'{error.name}.'):
        raise _no_module(name) from error
      raise


def _no_module(name: str) -> UserError:
  near = nearest(name, [path.stem for path in pathlib.Path().glob('*.py')])
  hint = f'; did you mean {near!r}?' if near else ''
  return UserError(f'--import={name}: no module has this name{hint}')


class OwnCodeError(Exception):
  """Wraps an error of the user's own code, so that `parse` does not misread it.

  Without it `parse` would take a KeyError or a SystemExit of a module of --import for a
  mistake in the flags. The error is the cause of this one.
  """


@contextlib.contextmanager
def own_code() -> Iterator[None]:
  """Runs code of the user's own, whose errors keep their tracebacks.

  Only a UserError or a RunError is printed as one line, which says enough.
  """
  try:
    yield
  except (UserError, RunError, KeyboardInterrupt):
    raise
  except BaseException as error:  # It includes SystemExit, which --help also raises.
    raise OwnCodeError from error


def _no_device() -> str | None:
  """Returns why JAX has no device to compute on; None if it has one."""
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    chosen = os.environ.get('JAX_PLATFORMS', '')
    reason = str(error) or 'no backend of that name is installed'
    return f'JAX_PLATFORMS is {chosen!r}, and JAX has no device to use: {reason}'
  return None


def _is_for_users(record: logging.LogRecord) -> bool:
  """Returns whether a log record is shown: warnings, and INFO of our own code.

  Orbax logs 67 lines per save. It also logs each error of its threads with a traceback;
  these are hidden, since Orbax raises the error as well and the command prints it.
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
