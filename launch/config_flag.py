"""The flag --config: a config file, with a flag for each field of its config.

ml_collections defines the flag. `--config=FILE:VARIANT` calls `get_config(VARIANT)` of
the file, and `--config.train.num_steps=200` sets a field of the config that the
function returns.
"""

import pathlib
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, config_flags
from ml_collections.config_dict import config_dict

from zoo.config.read import FIELDS, Field
from zoo.core.errors import UserError, nearest
from zoo.host.files import typed_path

FLAGS = flags.FLAGS
# Fields whose value is a dictionary, each with an example. Any other field that looks
# like a dictionary is a section.
_DICTIONARIES = {
  'model.mixer_options': "{'state_size': 32}",
  'optimizer.scales': "{'layers/*/value': 10.0}",
}
_DOT = (
  'a key of the dictionary has a dot, which no config can hold; paths of weights are '
  'written with slashes, such as layers/0/mixer'
)
# The flag is listed in --help as one of the module that calls `define`.
flags.disclaim_key_flags()

_HOME = pathlib.Path(__file__).resolve().parents[1]  # It has the folder configs/.


class _OrNone(flags.ArgumentParser):
  """A parser that also accepts None, which turns an optional field off."""

  def __init__(self, parser: flags.ArgumentParser):
    self._parser = parser

  def parse(self, argument: Any) -> Any:
    if argument == 'None':
      return None
    try:
      return self._parser.parse(argument)
    except ValueError:
      raise ValueError(f'it must be of the type {self._parser.flag_type()}') from None


config_flags.register_flag_parser_for_type(bool, _OrNone(flags.BooleanParser()))
config_flags.register_flag_parser_for_type(int, _OrNone(flags.IntegerParser()))
config_flags.register_flag_parser_for_type(float, _OrNone(flags.FloatParser()))
config_flags.register_flag_parser_for_type(str, _OrNone(flags.ArgumentParser()))


def define(
  help_text: str, fields: Mapping[str, Field] = FIELDS
) -> flags.FlagHolder[ConfigDict]:
  """Defines --config, with a flag for each field: --config.section.field=value.

  Args:
    help_text: What the config is for.
    fields: The fields that --help lists; by default those of a training run.

  Returns:
    The flag, whose config `get` returns.
  """
  return config_flags.DEFINE_config_file(
    'config',
    help_string=f'{help_text} `--config.SECTION.FIELD=VALUE` sets a field, and the '
    f'value None turns an optional field off.{help_of(fields)}',
  )


def help_of(fields: Mapping[str, Field]) -> str:
  """Returns a line for each field: its flag, meaning, possible values and default."""
  return ''.join(
    f'\n--config.{name}: {field.description} It may be {field.words}. '
    f'(default: {field.default!r})'
    for name, field in fields.items()
  )


def get(flag: flags.FlagHolder[ConfigDict]) -> Any:
  """Returns the config of the flag, whose fields depend on the command.

  Raises:
    UserError: If the flag is missing, if its file returns anything but a ConfigDict, if
      a flag replaces a whole section, or if one names a model with a config file of its
      own.
  """
  if not flag.present:
    raise UserError(f'--{flag.name} is missing; try --{flag.name}=configs/yq_lsa.py')
  config = flag.value
  if not isinstance(config, ConfigDict):
    path = config_flags.get_config_filename(FLAGS[flag.name])
    raise UserError(
      f'get_config() of {path} returned {config!r}; it must return a ConfigDict'
    )
  overrides = config_flags.get_override_values(FLAGS[flag.name])
  if 'model.name' in overrides:
    _check_model(FLAGS[flag.name], overrides['model.name'])
  for field, value in overrides.items():
    if isinstance(value, ConfigDict) and field not in _DICTIONARIES:
      raise UserError(
        f'--config.{field} is a section; set its fields one by one, such as '
        f'--config.{field}.FIELD=VALUE'
      )
  return config


def _check_model(flag: flags.Flag, name: object) -> None:
  """Checks that a flag does not give the config of one model to another.

  The other fields of the config, such as the initial scale, are those of the model that
  its file names. The file is read once more, since the flag has replaced this name.

  Raises:
    UserError: If the other model has a config file that ships with the library.
  """
  own = pathlib.Path('configs', f'{name}.py')
  if not (_HOME / own).is_file():
    return
  path = config_flags.get_config_filename(flag)
  config: Any = flag.parser.parse(path)
  before = config.model.name
  if before not in (name, None):  # The file may leave the name to the flag.
    raise UserError(
      f'config.model.name is {name!r}; it must be {before!r}, since the fields of '
      f'{path} are for this model; choose the other model by --config={own}'
    )


def run_name(flag: flags.FlagHolder[ConfigDict]) -> str:
  """Returns a folder name for runs of the config, made of its file and variant."""
  path, *variant = config_flags.get_config_filename(FLAGS[flag.name]).split(':', 1)
  return '-'.join([pathlib.Path(path).stem, *variant])


def with_config_file(argv: Sequence[str]) -> list[str]:
  """Returns the arguments with the path of the config file in --config.

  `configs/yq_lsa.py` names the file that ships, whatever the current folder is, unless
  that folder has such a file itself. The two arguments `--config FILE` become one,
  `--config=FILE`.

  Raises:
    UserError: If there is no such file.
  """
  arguments, rest = [], list(argv)
  while rest:
    argument = rest.pop(0)
    if argument in ('--config', '-config') and rest:
      argument = f'{argument}={rest.pop(0)}'
    if match := re.fullmatch('(--?config=)(.*)', argument, re.DOTALL):
      argument = match[1] + _existing(match[2])
    arguments.append(argument)
  return arguments


def _existing(text: str) -> str:
  """Returns `FILE` or `FILE:VARIANT` with the path of an existing file."""
  if not text:
    raise UserError('--config is empty; try --config=configs/yq_lsa.py')
  name, colon, variant = text.partition(':')
  path = typed_path(name)
  for place in path, _HOME / path:
    if place.is_file():
      if place.suffix != '.py':
        raise UserError(f'the config file {path} is no Python file, NAME.py')
      return f'{place}{colon}{variant}'
  shipped = [path.relative_to(_HOME) for path in _HOME.glob('configs/**/*.py')]
  by_name = {path.stem: str(path) for path in shipped}
  near = by_name.get(path.stem) or nearest(
    str(path), [*map(str, path.parent.glob('*.py')), *by_name.values()]
  )
  what = 'is not a file' if path.exists() else 'does not exist'
  hint = f'; did you mean {near}?' if near else ''
  raise UserError(f'the config file {path} {what}{hint}')


def unknown_field(argv: Sequence[str]) -> UserError | None:
  """Returns the error for the first flag of an unknown field; None if there is none."""
  arguments = FLAGS.read_flags_from_files(list(argv[1:]), force_gnu=False)
  try:
    known = _flags_of_fields(arguments)
  except UserError as error:
    return error
  if not known:
    return None
  for argument in arguments:
    match = re.match(r'--?(?:no)?(config\.[^=]*)', argument)
    if match is None or any(f'{field}.'.startswith(f'{match[1]}.') for field in known):
      continue
    for field, example in _DICTIONARIES.items():
      if match[1].startswith(f'config.{field}.'):
        return UserError(
          f'unknown field {match[1]!r}; give a dictionary, --config.{field}="{example}"'
        )
    return _unknown(match[1], known)
  return None


def unknown_flag(name: str, argv: Sequence[str]) -> UserError:
  """Returns the error for an unknown flag, with the nearest name of all flags."""
  arguments = FLAGS.read_flags_from_files(list(argv[1:]), force_gnu=False)
  fields = _flags_of_fields(arguments) if 'config' in FLAGS else []
  near = nearest(name, [*FLAGS, *fields])
  hint = f'; did you mean --{near}?' if near else ''
  return UserError(f'unknown flag --{name}{hint}')


def _flags_of_fields(arguments: Sequence[str]) -> list[str]:
  """Returns the flags of all fields of the config that the arguments name, if any.

  The config file is read once more: ml_collections defines only the flags that are
  given, and drops the config when one does not fit it.

  Raises:
    UserError: If the file defines no `get_config`.
  """
  files = [
    match[1]
    for argument in arguments
    if (match := re.match('--?config=(.*)', argument))
  ]
  try:
    config = FLAGS['config'].parser.parse(files[-1]) if files else None
  except AttributeError as error:
    if not _in_flags(error):
      raise
    path = files[-1].partition(':')[0]
    raise UserError(f'the config file {path} defines no get_config()') from error
  if not isinstance(config, ConfigDict):
    return []
  return [f'config.{field}' for field in flatten_dict(config.to_dict(), True, sep='.')]


def _unknown(field: str, known: Sequence[str]) -> UserError:
  """Returns the error for an unknown field, which lists the fields of its section."""
  holder = field
  while not any(entry.startswith(f'{holder}.') for entry in known):
    holder = holder.rpartition('.')[0]
  fields = {
    entry.removeprefix(f'{holder}.').split('.')[0]
    for entry in known
    if entry.startswith(f'{holder}.')
  }
  near = nearest(field, known)
  hint = f'; did you mean {near!r}?' if near else ''
  return UserError(
    f'unknown field {field!r}; {holder} has {", ".join(sorted(fields))}{hint}'
  )


def mistake_in_file(error: BaseException) -> UserError | None:
  """Returns the mistake if an error is about a field that a config file sets or reads.

  ml_collections raises an AttributeError or KeyError for a field that does not exist,
  and a TypeError for a value of another type. All other errors give None.
  """
  frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
  files = [frame.f_code.co_filename for frame in frames]
  if not files or files[-1] != config_dict.__file__:
    return None
  setter = max(i for i, file in enumerate(files) if file != config_dict.__file__)
  if pathlib.Path(files[setter]).parent == pathlib.Path(config_flags.__file__).parent:
    return None  # A flag sets the field.
  line = traceback.extract_tb(error.__traceback__)[setter].lineno
  place, said = f'{files[setter]}, line {line}', str(error)
  names = frames[-1].f_locals
  read = {'__getattr__': 'attribute', '__getitem__': 'key'}.get(
    frames[-1].f_code.co_name
  )
  field = names.get(read) if read else None  # Such as a section that is misspelt.
  if match := re.match('[\'"]?Key "(.+?)" does not exist', said):
    field = match[1]
  if isinstance(field, str):
    section = names.get('self')
    known = sorted(section.keys()) if isinstance(section, ConfigDict) else []
    near = nearest(field, known)
    hint = f'; did you mean {near!r}?' if near else ''
    return UserError(
      f'{place}: unknown field {field!r}; its section has {", ".join(known)}{hint}'
    )
  if match := re.match(
    r"Could not override field '(\w+)'.*?\. (.*) is of original type "
    r"<class '([\w.]+)'> and cannot be casted to type <class '([\w.]+)'>",
    said,
    re.DOTALL,
  ):
    field, value, given, wanted = match.groups()
    return UserError(
      f'{place}: the field {field!r} cannot be {value:.100}, of the type {given}; it '
      f'must be of the type {wanted}'
    )
  if 'does not accept dots' in said:
    return UserError(f'{place}: {_DOT}')
  return None


def raised_by_file(error: BaseException) -> BaseException | None:
  """Returns the error that the config file raised; None if the file did not fail.

  ml_collections and absl raise other errors in its place, of which it is the context.
  """
  raised, cause = None, error.__context__
  while cause is not None:
    places = traceback.extract_tb(cause.__traceback__)
    if any(place.filename == config_flags.config_flags.__file__ for place in places):
      raised = cause
    cause = cause.__context__
  if raised is not None and (mistake := mistake_in_file(raised)):
    return mistake
  if isinstance(raised, TypeError) and _in_flags(raised):
    hint = ''
    if 'takes 0 positional' in str(raised):
      hint = '; leave out the colon and what follows it'
    elif 'missing 1 required' in str(raised):
      hint = '; name a variant, --config=FILE:VARIANT'
    return UserError(f'--config does not fit its get_config(): {raised}{hint}')
  if isinstance(raised, ValueError | SyntaxError) and _in_flags(raised):
    flag = str(error).partition(': ')[0]
    if traceback.extract_tb(raised.__traceback__)[-1].filename == config_dict.__file__:
      return UserError(f'{flag.partition("=")[0]}: {_DOT}')
    return UserError(
      f'{flag}: it must be a dictionary; the fields of a section are set one by one, '
      'such as --config.train.num_steps=200'
    )
  return raised


def _in_flags(error: BaseException) -> bool:
  """Returns whether ml_collections raised an error, rather than the config file."""
  files = [place.filename for place in traceback.extract_tb(error.__traceback__)]
  # ml_collections reads values with ast.literal_eval of the standard library.
  literals = str(pathlib.Path(traceback.__file__).with_name('ast.py'))
  last = [file for file in files if file not in (literals, config_dict.__file__)][-1]
  return last == config_flags.config_flags.__file__
