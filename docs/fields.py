"""Writes docs/fields.md, the table of the fields of a training run.

python docs/fields.py
"""

import pathlib

from zoo.config.fields import FIELDS, Field

_FOLDER = pathlib.Path(__file__).resolve().parent
_HEAD = """# The fields of a config

A config of a training run has these fields. Set one in the file of a config,
`config.train.num_steps = 200`, or by a flag, `--config.train.num_steps=200`. A field
whose default is `None` may be set back to `None`.

The last column says whether the same command may have another value when it goes on
with a run that was interrupted or has ended ([resume](scaling.md#resume)).

[zoo/config/fields.py](../zoo/config/fields.py) has the list, from which
`python docs/fields.py` writes this page. Rules that concern several fields stand in
`validate` of [zoo/config/validation.py](../zoo/config/validation.py). The section
`model` of each [architecture](architectures.md) has fields of its own, and so has the
section `task` of each [task](tasks.md).
"""
_COLUMNS = (
  '| field | default | meaning | what it may be | may change when a run goes on |'
)
_MAY_CHANGE = {'never': 'no', 'always': 'yes', 'with more steps': 'with more steps'}


def page() -> str:
  """Returns the page, in Markdown."""
  lines, last = [_HEAD.rstrip()], ''
  for name, field in FIELDS.items():
    section = name.rpartition('.')[0]
    if section != last or len(lines) == 1:
      title = f'## `{section}`' if section else '## Of the whole run'
      lines += ['', title, '', _COLUMNS, '|---' * 5 + '|']
    lines.append(_row(name, field))
    last = section
  return '\n'.join(lines) + '\n'


def _row(name: str, field: Field) -> str:
  cells = (
    f'`{name}`',
    f'`{field.default!r}`',
    field.comment.replace('docs/parameters.md', '[This page](parameters.md)'),
    field.check.words(),
    _MAY_CHANGE[field.may_change],
  )
  return f'| {" | ".join(cells)} |'


if __name__ == '__main__':
  (_FOLDER / 'fields.md').write_text(page(), encoding='utf-8')
