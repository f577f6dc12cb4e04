"""What the command lines share: a user's mistake is one line and exit code 2."""

import logging
import os
import pathlib
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from absl import app, flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags

import zoo
from zoo import processes
from zoo.errors import RunError, UserError, unknown_name

FLAGS = flags.FLAGS

_COMPILATION_CACHE = flags.DEFINE_bool(
  'compilation_cache',
  True,
  'Keep compiled programs in the user cache folder, so that a second launch starts '
  'faster. JAX_COMPILATION_CACHE_DIR names another folder.',
)


def run(main: Callable[[], None]) -> None:
  """Parses the flags, runs `main` and exits.

  A UserError is answered in one line with exit code 2, a RunError in one with code 1,
  Ctrl-C with 130. All else is a mistake of ours, and keeps its traceback. Of several
  processes the first speaks for all that fail alike; one that fails alone ends hard,
  since in good order it would wait for the others, and they for it.
  """

  def guarded(argv: list[str]) -> None:
    try:
      if argv[1:]:
        raise UserError(f'unexpected argument {argv[1]!r}; every flag begins with --')
      if FLAGS['verbosity'].using_default_value:
        absl_logging.set_verbosity(absl_logging.INFO)
      if _COMPILATION_CACHE.value:
        _keep_compiled_programs()
      main()
    except UserError as error:
      _exit(2, error)
    except RunError as error:
      _exit(1, error)
    except KeyboardInterrupt:
      _say('interrupted; the same command goes on from what is saved')
      if processes.count() > 1:  # a second Ctrl-C, or too early a first
        _end_hard(130)
      sys.exit(130)
    except Exception:
      if processes.count() == 1:
        raise
      traceback.print_exc()
      _say(
        f'process {processes.index()} of {processes.count()} ends by this; the same '
        'command, in all of them, goes on from what is saved'
      )
      _end_hard(1)

  handler = absl_logging.get_absl_handler()
  handler.setFormatter(logging.Formatter('%(message)s'))
  handler.addFilter(_is_for_users)
  app.run(guarded, flags_parser=_parse)


def config_of(flag: flags.FlagHolder) -> ConfigDict:
  """The config that a flag names; raises UserError if there is none."""
  if not flag.present:
    raise UserError(f'--{flag.name} is missing; try --{flag.name}=configs/yq_lsa.py')
  path, _ = _path_and_variant(flag)
  if not path.is_file():
    raise UserError(_no_file(path))
  if not isinstance(flag.value, ConfigDict):
    raise UserError(
      f'get_config() of {path} returned {flag.value!r}; it must return a ConfigDict'
    )
  return flag.value


def run_name(flag: flags.FlagHolder) -> str:
  """A folder name for runs of the flag's config: its file and variant."""
  path, variant = _path_and_variant(flag)
  return '-'.join([path.stem, *variant])


def folder_of(flag: flags.FlagHolder, default: str | pathlib.Path) -> pathlib.Path:
  """The folder that a flag names, or the default; UserError for an empty name."""
  if flag.value is None:
    return pathlib.Path(default)
  if not flag.value:
    raise UserError(f'--{flag.name} is empty; it must name a folder')
  return pathlib.Path(flag.value).expanduser()


def _path_and_variant(flag: flags.FlagHolder) -> tuple[pathlib.Path, list[str]]:
  path, *variant = config_flags.get_config_filename(FLAGS[flag.name]).split(':', 1)
  return pathlib.Path(path), variant


def _keep_compiled_programs() -> None:
  """Points JAX to a cache on disk, unless the user has pointed it to one."""
  if not jax.config.values['jax_compilation_cache_dir']:
    caches = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
    jax.config.update('jax_compilation_cache_dir', str(pathlib.Path(caches, 'icl_zoo')))
  if 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS' not in os.environ:
    # Most of our programs compile faster than JAX's default of a second.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.05)


def _is_for_users(record: logging.LogRecord) -> bool:
  """Whether a log record is ours or a warning: Orbax tells 67 things a save."""
  ours = pathlib.Path(zoo.__file__).parent
  return (
    record.levelno >= logging.WARNING or ours in pathlib.Path(record.pathname).parents
  )


def _parse(argv: list[str]) -> list[str]:
  try:
    return FLAGS(argv)
  except SystemExit:
    # --help was asked for and given; absl would call that a failure.
    if any(arg.lstrip('-').startswith('help') for arg in argv[1:]):
      sys.exit(0)
    _exit(2, 'the config file ended the program by sys.exit(); it must only return')
  except Exception as error:
    _exit(2, _explain(argv, error))


def _explain(argv: list[str], error: Exception) -> object:
  """Says in the config's words why flags could not be parsed.

  ml_collections answers a mistyped field with a bare AttributeError, and a mistake in
  the config file with its traceback.
  """
  given = _flags_in(argv)
  if 'config' not in given:
    return error
  path, *variant = given.pop('config').split(':', 1)
  if not pathlib.Path(path).is_file():
    return _no_file(pathlib.Path(path))
  try:
    config = runpy.run_path(path, run_name='config_config')['get_config'](*variant)
  except UserError as mistake:
    return mistake
  except Exception as mistake:
    return f'the config file {path} failed: {type(mistake).__name__}: {mistake}'
  for name, value in given.items():
    if name.startswith('config.'):
      field_type = _field_type(config, name)
      if isinstance(field_type, UserError):
        return field_type
      if f'--{name}={value}' in str(error):
        return (
          f'{name} is {value!r}; it must be of type {field_type.__name__}, or be left '
          "out for the config's own value"
        )
  return error


def _flags_in(argv: list[str]) -> dict[str, str]:
  """The flags of a command line as written, `--name=value` or `--name value`."""
  given = {}
  for arg, following in zip(argv[1:], [*argv[2:], ''], strict=True):
    if arg.startswith('-'):
      name, equals, value = arg.lstrip('-').partition('=')
      given[name] = value if equals else following
  return given


def _field_type(config: ConfigDict, name: str) -> type | UserError:
  """The type of the field `config.section.field`, or what is wrong with the name."""
  field_type, prefix = type(config), 'config'
  node: Any = config
  for part in name.split('.')[1:]:
    if not isinstance(node, ConfigDict) or part not in node:
      known = node.keys() if isinstance(node, ConfigDict) else ()
      return unknown_name('field', name, (f'{prefix}.{key}' for key in known))
    field_type, node, prefix = node.get_type(part), node[part], f'{prefix}.{part}'
  return field_type


def _no_file(path: pathlib.Path) -> str:
  near = path.with_name(f'{path.name}.py')
  hint = f'; did you mean {near}?' if near.is_file() else ''
  return f'the config file {path} does not exist{hint}'


def _exit(code: int, message: object) -> NoReturn:
  alike = processes.end_together(code)
  if not alike or processes.index() == 0:
    _say(message)
  if not alike:
    _end_hard(code)
  sys.exit(code)


def _say(message: object) -> None:
  print('error:', ' '.join(str(message).split()), file=sys.stderr)


def _end_hard(code: int) -> NoReturn:
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)
