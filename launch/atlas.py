"""Trains architectures × tasks × initial guesses until their losses are final.

  python -m launch.atlas                            # hours; see docs/results.md
  python -m launch.atlas --tasks=prior --guesses=zero,linear,residual --out=runs/guess
  python -m launch.atlas --models=softmax,delta,lstm --tasks=linear --minutes=5
  python -m launch.atlas --tasks=prior --context_lengths=1,10,100 --models=gru
  python -m launch.atlas --scale=gpu                # on an accelerator

The models, tasks and scales are in configs/atlas/__init__.py. For each cell a halving
search finds the learning rate, and the number of steps doubles until the loss is final
(docs/results.md says when), or until the minutes of the cell are spent. With one seed
no loss is final. Rerun the same command to resume after an interruption, with more
--minutes to train cells on that are not final, or with other models, tasks or guesses
to add their cells. N processes divide the cells if each is started with --part=I/N,
I = 1, …, N; afterwards the command without --part writes the report.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from configs import atlas as cells
from launch import cli
from zoo.core.errors import UserError, check_name, check_number

if TYPE_CHECKING:
  from zoo.studies.atlas import Cell, Row, Settings

flags.adopt_module_key_flags(cli)
_SCALE = flags.DEFINE_enum(
  'scale',
  'laptop',
  [*cells.SCALES],
  'laptop, or gpu: the sizes of Garg et al., on an accelerator.',
)
_MODELS = flags.DEFINE_list(
  'models', None, 'Mixers, models of configs/atlas, or your own. Default: 18.'
)
_TASKS = flags.DEFINE_list(
  'tasks', None, 'Tasks of configs/atlas, others, or your own. Default: 7.'
)
_GUESSES = flags.DEFINE_list(
  'guesses',
  None,
  'Initial guesses: zero, linear, network, residual or residual_network. Default: '
  'zero, and more for tasks whose names end in prior.',
)
_LENGTHS = flags.DEFINE_list(
  'context_lengths',
  None,
  'Context lengths at which to train each task, e.g. 1,10,100. Default: its own.',
)
_SEEDS = flags.DEFINE_integer(
  'seeds',
  None,
  'Runs of each cell: seeds 0, 1, … Default: five or three.',
  lower_bound=1,
)
_STEPS = flags.DEFINE_integer(
  'steps',
  None,
  'Steps of the first budget, which doubles. Default: of the scale.',
  lower_bound=200,
)
_SEARCH = flags.DEFINE_integer(
  'search_steps',
  None,
  'Steps of the first round of the search of the learning rate. Default: of the scale.',
  lower_bound=200,
)
_MINUTES = flags.DEFINE_float(
  'minutes',
  None,
  'Minutes of training after which a cell starts no further budget. Default: of the '
  'scale.',
)
_PART = cli.define_part('cells')
_OUT = flags.DEFINE(
  cli.Workdir(),
  'out',
  'checkpoints/runs/atlas',
  'Folder for the runs, report.html, the table and the plots.',
)


def main() -> None:
  models = _names(_MODELS, cells.list_models(), cells.DEFAULT_MODELS)
  tasks = _names(_TASKS, cells.list_tasks(), cells.DEFAULT_TASKS)
  asked = _names(_GUESSES, cells.GUESSES, [])
  lengths = [None] if _LENGTHS.value is None else _lengths(_LENGTHS.value)
  if _MINUTES.value is not None:
    check_number('--minutes', _MINUTES.value, above=0.0)
  from zoo.studies import atlas

  named = [
    atlas.Cell(model, task, guess, length)
    for task in tasks
    for length in lengths
    for model in models
    for guess in cells.guesses_of(model, task, asked)
  ]
  get_config = functools.partial(cells.get_config, scale=_SCALE.value)
  grid = atlas.Grid(named, get_config, _settings_of)
  rows = atlas.run(grid, _OUT.value, _command(), _PART.value)
  where = f'the report is {_OUT.value}/report.html'
  cli.print_results(rows, _table, where, _OUT.value, _PART.value)


def _table(rows: Sequence[Row]) -> str:
  from zoo.studies import atlas

  return '\n\n'.join(table.text() for table in atlas.tables(rows))


def _settings_of(cell: Cell) -> Settings:
  from zoo.studies import atlas

  sizes = cells.SCALES[_SCALE.value]
  return atlas.Settings(
    _SCALE.value,
    _SEEDS.value or cells.num_seeds(cell.task),
    _STEPS.value or sizes.num_steps,
    _SEARCH.value or sizes.search_steps,
    _MINUTES.value or sizes.minutes,
  )


def _names(
  flag: flags.FlagHolder, known: Sequence[str], default: Sequence[str]
) -> list[str]:
  if flag.value is None:
    return [*default]
  names = list(dict.fromkeys(flag.value))
  if not names:
    raise UserError(f'--{flag.name} is empty; known: {", ".join(known)}')
  for name in names:
    check_name(f'name in --{flag.name}:', name, known)
  return names


def _lengths(texts: Sequence[str]) -> list[int]:
  if not texts or not all(text.isdecimal() and int(text) for text in texts):
    text = ','.join(texts)
    raise UserError(f'--context_lengths is {text!r}; it must be whole numbers ≥ 1')
  return sorted({*map(int, texts)})


def _command() -> str:
  """The command for this grid, without the folder and the part."""
  words = [
    f'--{flag.name}={flag.serialize().partition("=")[2]}'
    for flag in flags.FLAGS.get_key_flags_for_module(__name__)
    if flag.present and flag.name not in ('out', 'part')
  ]
  return ' '.join(['python -m launch.atlas', *words])


if __name__ == '__main__':
  cli.run(main)
