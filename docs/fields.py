"""Writes docs/fields.md, the table of the fields of a training run.

python docs/fields.py
"""

import pathlib

from zoo.config.fields import FIELDS, Field

_FOLDER = pathlib.Path(__file__).resolve().parent
_HEAD = """# The fields of a config

This page lists every field of the config of a training run, with its default, its
meaning and its range. A field can be set in the file of a config, by
`config.train.num_steps = 200`, or by a flag:

```sh
python -m launch.main --config=configs/yq_lsa.py --config.train.num_steps=200
```

Each section of the config has a table. Its columns are:

- *default*: The value that a config has if neither its file nor a flag sets the field.
  Many files in `configs/` set other values. A field whose default is `None` may be set
  back to `None`.
- *what it may be*: The range of other values.
- *may change when a run goes on*: Whether the same command may have another value when
  it continues a run that was interrupted or has ended ([resume](scaling.md#resume)).
  *With more steps* means: only together with a larger `train.num_steps`.

Two sections have more fields than stand here: `model` has the fields of each
architecture, and `task` those of each task.
[Fields of models and tasks](model_and_task_fields.md) lists them. Rules that concern
several fields are in `validate` of
[zoo/config/validation.py](../zoo/config/validation.py). `python docs/fields.py` writes
this page from [zoo/config/fields.py](../zoo/config/fields.py).
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
      title = f'## `{section}`' if section else '## The whole run'
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
