"""The flag --config: a file or a config of the library, and a flag for each field."""

import functools
import inspect
import pathlib
import re
import runpy
import sys
from collections.abc import Callable
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, config_flags
from ml_collections.config_dict import placeholder

import configs
from launch import cli
from zoo.core import registry
from zoo.core.classes import from_zoo
from zoo.core.errors import UserError, nearest, unknown_name
from zoo.host.files import user_path

FLAGS = flags.FLAGS
# The flag belongs to the module that calls `define`.
flags.disclaim_key_flags()


def define(help_text: str) -> flags.FlagHolder[ConfigDict]:
  """Defines --config, with a flag for each field: --config.section.field=value."""
  holder = config_flags.DEFINE_config_file(
    'config',
    help_string=f'{help_text} Set a field with --config.section.field=value; the value '
    'None turns an optional one off.',
  )
  FLAGS['config'].parser = cli.Parser(config_file)
  return holder


def get(flag: flags.FlagHolder[ConfigDict]) -> Any:
  """The config that the flag names; which fields it has depends on the command.

  Raises UserError if the flag is missing.
  """
  if not flag.present:
    raise UserError(f'--{flag.name} is missing; try --{flag.name}=configs/yq_lsa.py')
  return flag.value


def run_name(flag: flags.FlagHolder[ConfigDict]) -> str:
  """A folder name for runs of the flag's config, made of its file and variant."""
  path, *variant = config_flags.get_config_filename(FLAGS[flag.name]).split(':', 1)
  return '-'.join([pathlib.Path(path).stem, *variant])


def _or_none(parser: flags.ArgumentParser) -> cli.Parser:
  """A parser of fields that also takes None, which turns an optional field off."""

  def parse(text: Any) -> Any:
    if text == 'None':
      return None
    try:
      return parser.parse(text)
    except ValueError:
      raise ValueError(f'it must be of the type {parser.flag_type()}') from None

  return cli.Parser(parse)


config_flags.register_flag_parser_for_type(bool, _or_none(flags.BooleanParser()))
config_flags.register_flag_parser_for_type(int, _or_none(flags.IntegerParser()))
config_flags.register_flag_parser_for_type(float, _or_none(flags.FloatParser()))


def config_file(argument: str) -> ConfigDict:
  """Loads `FILE` or `FILE:VARIANT`, and locks the result of its `get_config`."""
  name, *variant = argument.split(':', 1)
  get_config = _found(name)
  with cli.own_code():
    config = get_config(*variant)
  if not isinstance(config, ConfigDict):
    raise UserError(
      f'get_config() of {name} returned {config!r}; it must return a ConfigDict'
    )
  config.lock()
  for argument in FLAGS.read_flags_from_files(sys.argv[1:], force_gnu=False):
    if found := re.match(r'--?(?:no)?(config\.[^=]*)', argument):
      _check_field(config, found[1])
  return config


def _check_field(config: ConfigDict, field: str) -> None:
  """Raises UserError for a field that a config lacks, and adds an option of mixers."""
  node: Any = config
  _, *names = field.split('.')
  for i, name in enumerate(names):
    holder = '.'.join(('config', *names[:i]))
    if not isinstance(node, ConfigDict):
      raise UserError(f'unknown field {field!r}: {holder} has no fields')
    if name not in node:
      if holder != 'config.model.mixer_options':
        every = flatten_dict(config.to_dict(), sep='.')
        raise unknown_name(
          *('field', field, [f'{holder}.{key}' for key in node]),
          [f'config.{key}' for key in every],
        )
      with node.unlocked():
        node[name] = placeholder(object)
    node = node[name]
  if isinstance(node, ConfigDict) and field != 'config.model.mixer_options':
    raise UserError(
      f'--{field} is a section; set its fields one by one, such as '
      f'--{field}.{next(iter(node), "field")}=…'
    )


def _found(name: str) -> Callable[..., object]:
  """The `get_config` of a file, or of a config of the library by its name or path."""
  if not name:
    raise UserError('--config is empty; try --config=configs/yq_lsa.py')
  path = user_path(name)
  if path.is_file():
    return functools.partial(_run_file, path)
  known = {one: one for one in configs.names()}
  known |= {f'configs/{one}.py': one for one in known}
  # Also a path of the library, from another folder.
  home, whole = pathlib.Path(configs.__file__).resolve().parents[1], path.resolve()
  inside = whole.relative_to(home) if whole.is_relative_to(home) else path
  for spelled in path.as_posix(), inside.as_posix():
    if spelled in known:
      return functools.partial(configs.get_config, known[spelled])
  files = path.parent.glob('*.py') if inside is path else ()
  near = nearest(inside.as_posix(), [*known, *map(str, files)])
  hint = f'; did you mean {near}?' if near else ''
  models, tasks = registry.models, registry.tasks
  if name in tasks.names():
    hint = (
      f', but a task has this name; try --config=configs/transformer.py:task={name}'
    )
  elif own := [one for one in models.names() if not from_zoo(models.get(one))]:
    hint += f'; the models of --import are {", ".join(own)}'
  what = 'is not a file' if path.exists() else 'does not exist'
  raise UserError(f'the config file {path} {what}{hint}')


def _run_file(path: pathlib.Path, *variant: str) -> object:
  """Runs a file, of which nothing is left in the folder, and its `get_config`."""
  defined = runpy.run_path(str(path), run_name='config')
  if 'get_config' not in defined:
    raise UserError(f'the config file {path} defines no get_config()')
  get_config = defined['get_config']
  try:
    inspect.signature(get_config).bind(*variant)
  except TypeError as error:
    chosen = ':'.join([str(path), *variant])
    raise UserError(
      f'--config={chosen} does not fit its get_config(): {error}'
    ) from error
  return get_config(*variant)
