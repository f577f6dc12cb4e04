"""Writes docs/fields.md, the table of the fields of a training run.

python docs/fields.py
"""

import pathlib
from inspect import signature

from zoo.config.read import FIELDS, Field
from zoo.training.optimizers import OPTIMIZERS, OPTIONS

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
- *what it may be*: All values that are allowed, besides the default.
- *may change in a resumed run*: Whether you may change the field when a run is
  [resumed](scaling.md#resume). *With more steps* means that you may change it only
  together with a larger `train.num_steps`.

Two sections have more fields than are listed here: `model` has the fields of each
architecture, and `task` has the fields of each task.
[Fields of models and tasks](model_and_task_fields.md) lists these.
[Some values exclude each other](#rules-between-fields).

This page is generated from [zoo/config/run.py](../zoo/config/run.py), by
`python docs/fields.py`.
"""
_RULES = """
## Rules between fields

A run is refused if its fields break one of these rules. The error message names a field
and the rule. `zoo.training.validate(config)` checks the rules without a run.

- **Batches.** `train.batch_size` must be a multiple of the number of devices of the
  mesh axis `data` times `train.num_parts`.
- **Objective.** On a task whose labels are numbers, `nll` needs a model that predicts a
  distribution, and `sampled` needs a model that predicts a number alone. `exact` needs
  linear regression, a model that theory covers, `train.num_parts = 1` and
  `train.compute_dtype = 'float32'`.
- **Labels.** `objective.labels = 'observed'` excludes the objective `exact`. With
  `observed`, `nll` or `rows`, a task with noisy labels must be able to draw labels from
  its targets. A task of your own then needs the method `sample_labels`.
- **Positions.** `objective.positions = 'every'` and `objective.min_examples` exclude
  each other. Each of them needs the objective `sampled` or `nll`, and a model that
  predicts all examples in one pass. `min_examples` must be at most
  `task.context_length`.
- **Curriculum.** It needs the objective `sampled` or `nll`. The sizes of the first
  stage must be at most the sizes of the task and the model. `curriculum.examples` needs
  `objective.positions = 'every'`, `curriculum.features` needs a task that is a
  `zoo.tasks.FunctionClass`, and `curriculum.loops` needs `model.num_trained_loops > 1`.
  With a curriculum of your own, these three fields must be None.
- **Schedule.** The warm-up must be at most `train.num_steps` long. With `wsd`,
  the warm-up and the decay together must be at most `train.num_steps`. With `constant`,
  `optimizer.final_share` must be 0.
- **Options of an optimizer.** `optimizer.beta1`, `beta2`, `weight_decay` and `decay`
  must keep their defaults if the optimizer does not read them. [The table
  below](#options-of-the-optimizers) says which optimizer reads which.
- **Averages.** `schedule_free` needs `optimizer.schedule = 'constant'` and
  `optimizer.ema_decay = None`.
- **Weights.** Each pattern of `optimizer.decay` and `optimizer.scales` must match a
  weight of the model. With `weight_decay` above 0, `decay` must name at least one
  weight. `scales` must leave at least one weight to train.
- **Mesh.** With `mesh.model` above 1, the sizes of the model that are split over this
  axis must be multiples of it.

### Options of the optimizers

This table says which optimizers read `optimizer.beta1`, `beta2` and `weight_decay`. A
cell has the number that `None`, the default of these fields, stands for. A dash means
that the optimizer does not read the field, and refuses any other value than `None`.

"""
_DECAY = """
`optimizer.decay` chooses the weights on which `weight_decay` acts. An optimizer that
does not read `weight_decay` refuses any other value of `decay` than `'hidden'`. An
[optimizer of your own](own_parts.md#an-optimizer) reads the fields that are arguments
of its function, and reads `decay` if it has the argument `decayed`.
"""
_COLUMNS = (
  '| field | default | meaning | what it may be | may change in a resumed run |'
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
  return '\n'.join(lines) + '\n' + _RULES + _options() + _DECAY


def _options() -> str:
  """Returns the table of the options that only some optimizers read."""
  rows = [('optimizer', *(f'`{option}`' for option in OPTIONS))]
  rows.append(('---',) * len(rows[0]))
  for name, make in OPTIMIZERS.items():
    taken = signature(make).parameters
    if ('weight_decay' in taken) != ('decayed' in taken):
      raise ValueError(f'the text below the table does not hold for {name!r}')
    cells = [_number(taken[o].default) if o in taken else '–' for o in OPTIONS]
    rows.append((f'`{name}`', *cells))
  return ''.join(f'| {" | ".join(row)} |\n' for row in rows)


def _number(default: float | None) -> str:
  return 'no momentum' if default is None else f'{default:g}'


def _row(name: str, field: Field) -> str:
  cells = (
    f'`{name}`',
    f'`{field.default!r}`',
    field.description,
    field.words,
    _MAY_CHANGE[field.may_change],
  )
  return f'| {" | ".join(cells)} |'


if __name__ == '__main__':
  (_FOLDER / 'fields.md').write_text(page(), encoding='utf-8')
