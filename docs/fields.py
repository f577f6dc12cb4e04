"""Writes docs/fields.md, the page of all fields, from their descriptions.

python docs/fields.py
"""

import pathlib
from collections.abc import Iterable, Mapping

from flax.traverse_util import flatten_dict

import configs
from launch.fields import written
from zoo.config import schema
from zoo.core import registry
from zoo.core.classes import from_zoo
from zoo.mixers.mixer import GIVEN

_HEAD = """# Fields of a config

A field is set on the command line, `--config.train.num_steps=200`, or in a config file;
`None` turns an optional one off. `python docs/fields.py` writes this page from
the descriptions in the code, which are also what is checked."""
_MODELS = """Each model has a config of its name, `--config=configs/NAME.py`, with the
defaults of the constructor and the fields that are given here."""


def page() -> str:
  """The page, in Markdown."""
  parts = [_HEAD, '', *_table(schema.described(schema.Top))]
  for name, cls in schema.SECTIONS.items():
    parts += ['', f'## {name}', '', cls.__doc__ or '', '']
    parts += _table(schema.described(cls), f'{name}.')
  parts += ['', '## model', '', _MODELS]
  for name in _ours(registry.models):
    parts += ['', f'### {name}', '', *_of_config(name), '']
    parts += _table(schema.arguments('model', name), 'model.')
  parts += ['', '### mixer_options', '', 'Those of each mixer that has any.']
  for name in _ours(registry.mixers):
    own = schema.described(registry.mixers.get(name))
    if options := {key: one for key, one in own.items() if key not in GIVEN}:
      parts += ['', f'`{name}`', '', *_table(options, 'model.mixer_options.')]
  parts += ['', '## task', '', 'The variant `task=NAME` of a config chooses the task.']
  for name in _ours(registry.tasks):
    summary = (registry.tasks.get(name).__doc__ or '\n').splitlines()[0]
    parts += ['', f'### {name}', '', summary, '']
    parts += _table(schema.arguments('task', name), 'task.')
  return '\n'.join(parts) + '\n'


def _ours(entries: registry.Registry) -> list[str]:
  """The names of the classes of the library, without those of a user."""
  names = entries.names()
  return [name for name in names if from_zoo(entries.get(name))]


def _of_config(name: str) -> Iterable[str]:
  """What the config of a model trains, and where it differs from the defaults."""
  config = configs.get_config(name).to_dict()
  del config['model']['name']
  usual = schema.default_config()
  usual.task = schema.section('task', config['task']['name'])
  usual.model = schema.section('model', name)
  known = flatten_dict(usual.to_dict(), sep='.')
  changed = {
    field: content
    for field, content in flatten_dict(config, sep='.').items()
    if content != known[field]
  }
  yield configs.about(name).rstrip()
  if changed:
    listed = (f'`{field}={written(content)}`' for field, content in changed.items())
    yield f'\nIts config has {", ".join(listed)}.'


def _table(fields: Mapping[str, schema.Field], prefix: str = '') -> Iterable[str]:
  yield '| field | default | allowed | |'
  yield '|---|---|---|---|'
  for name, (default, kind) in fields.items():
    shown = '' if default is schema.EMPTY else f'`{written(default)}`'
    yield f'| `{prefix}{name}` | {shown} | {kind.allowed} | {kind.about} |'


if __name__ == '__main__':
  path = pathlib.Path(__file__).with_suffix('.md')
  path.write_text(page(), encoding='utf-8')
