"""Writes docs/model_and_task_fields.md, the fields of models, mixers and tasks.

python docs/model_and_task_fields.py
"""

import importlib
import inspect
import pathlib
import re
import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

_FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(_FOLDER.parent))  # It has the package `configs`.

import zoo  # noqa: E402
from zoo.config.defaults import FROM_THE_TASK  # noqa: E402
from zoo.core.registry import (  # noqa: E402
  MIXERS,
  MODELS,
  TASKS,
  fields_of_mixture,
  parameters,
)
from zoo.mixers.mixer import GIVEN  # noqa: E402

_HEAD = """# Fields of models and tasks

This page lists the fields of every model, mixer and task of the library, each with its
default, its meaning and its range. It is for readers who have chosen a model or a task
and want to change it. [Fields of a config](fields.md) has all other fields of a run.

In a config, the fields of a model are in the section `model`, the options of a mixer in
the field `model.mixer_options`, and the fields of a task in the section `task`:

```sh
python -m launch.main --config=configs/transformer.py:smoke,task=sparse_regression \\
    --config.task.num_nonzero=2 --config.model.width=32 --config.model.mixer=mamba2 \\
    --config.model.mixer_options="{'state_size': 16}"
```

In Python, they are the arguments of `zoo.create_model` and `zoo.create_task`:

```python
from flax import nnx

import zoo

task = zoo.create_task('sparse_regression', context_length=12, num_nonzero=2)
model = zoo.create_model(
  'transformer',
  num_features=task.num_features,
  context_length=task.context_length,
  width=32,
  mixer='mamba2',
  mixer_options={'state_size': 16},
  rngs=nnx.Rngs(0),
)
print(task.num_features, task.context_length, model.num_loops)
```

```
20 12 1
```

Each model, mixer and task has a section with a table. Its columns are:

- *default*: The value that holds if nothing sets the field. *Must be given* means that
  there is none. *Given by the task* means that a config takes the value from its task,
  so that no flag sets the field.
- *meaning*: What the field sets, and which values it may have. `[d]` is an array with
  one number for each feature, and `[d, d]` a matrix.

Each section names a class. The docstring of the class has the equations, whose symbols
the tables use, and the references. `python docs/model_and_task_fields.py` writes this
page from these docstrings.
"""
_MODELS = """
## Models

A config file `configs/NAME.py` has all fields of its model.
[Architectures](architectures.md) compares the models. In Python every model also has
the argument `rngs`, the random keys of its initial weights; a config draws them from
its field `seed`.
"""
_MIXERS = """
## Options of mixers

The fields `mixer` and `mixer_options` of the [transformer](#model-transformer) choose
mixers and their options. [Mixers](mixers.md) compares them.

The fields `causal` and `positions` of the transformer set two arguments of mixers. A
mixer whose table has no row `causal` is always causal. A mixer whose table has no row
`rotary` cannot be used with `positions='rotary'`.
"""
_TASKS = """
## Tasks

The variant `task=NAME` of a config chooses a task, with the defaults of these tables.
[Tasks and their baselines](tasks.md) compares the tasks. The task of most config files
is linear regression with the values in [Fields of a config](fields.md#task).
"""
_COLUMNS = '| field | default | meaning |\n|---|---|---|'
# What a docstring says to readers of the code, and what this page says instead.
_LINKS = {
  '`zoo.models.initial_guess.GUESSES` explains': (
    '[this table](architectures.md#the-initial-guess) explains'
  ),
  '`zoo.models.tokens.LAYOUTS` shows the tokens of each': (
    '[this table](architectures.md#tokens) shows the tokens of each'
  ),
  'A name of `zoo.list_mixers()`': 'The name of [a mixer](#options-of-mixers)',
  '(zoo/models/read_in.py)': '([how](../zoo/models/read_in.py))',
}
_SET_BY_THE_MODEL = {'causal': 'model.causal', 'rotary': 'model.positions'}


class Row(NamedTuple):
  """One row of a table: a field, its default in words, and its meaning."""

  field: str
  default: str
  meaning: str


def page() -> str:
  """Returns the page, in Markdown."""
  parts = [_HEAD]
  for head, kind, rows_of in (
    (_MODELS, 'model', rows_of_model),
    (_MIXERS, 'mixer', rows_of_mixer),
    (_TASKS, 'task', rows_of_task),
  ):
    sections = (_section(kind, name, rows_of(name)) for name in names(kind))
    parts += [head, *sections]
  return ''.join(parts)


def names(kind: str) -> list[str]:
  """Returns the names of the library's own models, mixers or tasks, sorted."""
  listed = {
    'model': zoo.list_models,
    'mixer': zoo.list_mixers,
    'task': zoo.list_tasks,
  }
  classes = _classes(kind)
  return [name for name in listed[kind]() if classes[name].__module__[:4] == 'zoo.']


def rows_of_model(name: str) -> list[Row]:
  """Returns the rows of a model: all arguments of its constructor but `rngs`."""
  given = dict.fromkeys(FROM_THE_TASK, 'given by the task')
  rows = _rows(MODELS[name], given, skipped=['rngs'])
  in_config = importlib.import_module(f'configs.{name}').get_config().model
  for i, row in enumerate(rows):
    if row.default == 'must be given':
      default = f'must be given; `{in_config[row.field]!r}` in `configs/{name}.py`'
      rows[i] = row._replace(default=default)
  return rows


def rows_of_mixer(name: str) -> list[Row]:
  """Returns the rows of a mixer: its options, and what fields of a model set."""
  given = {key: f'set by `{field}`' for key, field in _SET_BY_THE_MODEL.items()}
  return _rows(MIXERS[name], given, skipped={*GIVEN} - {*given})


def rows_of_task(name: str) -> list[Row]:
  """Returns the rows of a task: its fields, and for a mixture those of configs."""
  if name != 'mixture':
    return _rows(TASKS[name])
  (tasks,) = _rows(TASKS[name], skipped=['weights'])
  return [*_rows(fields_of_mixture), tasks._replace(default='only in Python')]


def _classes(kind: str) -> dict[str, type]:
  return {'model': MODELS, 'mixer': MIXERS, 'task': TASKS}[kind]


def _rows(
  taken: Callable[..., Any], given: Any = MappingProxyType({}), skipped: Any = ()
) -> list[Row]:
  """The rows of a class or a function.

  Args:
    taken: The class or the function.
    given: What the column of defaults says of arguments that something else gives.
    skipped: Arguments that have no row.
  """
  is_class = isinstance(taken, type)
  known = parameters(taken) if is_class else inspect.signature(taken).parameters
  meanings, rows = arguments_of(taken), []
  for name, parameter in known.items():
    if name in skipped:
      continue
    default, meaning = parameter.default, meanings.get(name, '')
    if default is parameter.empty:
      words = 'must be given'
    else:
      words, meaning = f'`{default!r}`', _without_default(meaning, default)
    for said, link in _LINKS.items():
      meaning = meaning.replace(said, link)
    rows.append(Row(name, given.get(name, words), meaning))
  return rows


def arguments_of(documented: Any) -> dict[str, str]:
  """Returns what the section `Args` of a docstring says of each argument."""
  text = inspect.getdoc(documented) or ''
  section = re.search(r'^Args:\n((?:  .*\n|\n)*)', f'{text}\n', re.MULTILINE)
  found = re.findall(
    r'^  (\w+): (.*(?:\n    .*)*)', section[1] if section else '', re.MULTILINE
  )
  return {name: ' '.join(words.split()) for name, words in found}


def _without_default(meaning: str, default: object) -> str:
  """The meaning without the default at its end, which has a column of its own."""
  shown = f'{default:g}' if isinstance(default, float) else repr(default)
  return meaning.replace(f'; {shown} by default.', '.')


def _section(kind: str, name: str, rows: list[Row]) -> str:
  cls = _classes(kind)[name]
  first = (inspect.getdoc(cls) or '').partition('\n')[0]
  room = f'zoo.{kind}s.{cls.__name__}'
  text = f'\n### {kind.capitalize()} `{name}`\n\n{first} The class is `{room}`.\n'
  if not rows:
    return text.rstrip() + ' The mixer has no options.\n'
  lines = (f'| `{row.field}` | {row.default} | {row.meaning} |' for row in rows)
  return '\n'.join([text, _COLUMNS, *lines, ''])


if __name__ == '__main__':
  (_FOLDER / 'model_and_task_fields.md').write_text(page(), encoding='utf-8')
