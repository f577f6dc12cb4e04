"""What --show_config prints."""

import textwrap

from flax.traverse_util import flatten_dict

from zoo.config import schema


def shown(config: schema.Config) -> str:
  """The fields of a config, each with its value, range, default and meaning."""
  given = flatten_dict(config.to_dict(), sep='.')
  known = dict(schema.fields())
  for name in schema.CLASSES:
    own = schema.arguments(name, config[name].name)
    known |= {f'{name}.{field}': each for field, each in own.items()}
  lines = []
  for field, content in given.items():
    lines.append(f'{field}={written(content)}')
    if field in known:
      default, kind = known[field]
      usual = [] if default is schema.EMPTY else [f'default {written(default)}']
      lines.append('    ' + '; '.join([kind.allowed] * bool(kind.allowed) + usual))
      lines += textwrap.wrap(f'    {kind.about}', 88, subsequent_indent='    ')
  return '\n'.join(lines)


def written(content: object) -> str:
  """A value as the command line takes it."""
  return f'{content:g}' if isinstance(content, float) else str(content)
