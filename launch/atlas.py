"""Trains architectures × tasks × initial guesses until their losses are flat.

  python -m launch.atlas                            # hours; see docs/results.md
  python -m launch.atlas --tasks=prior --guesses=zero,linear,residual --out=runs/guess
  python -m launch.atlas --models=softmax,delta,lstm --tasks=linear --minutes=5
  python -m launch.atlas --tasks=prior --context_lengths=1,10,100 --models=gru
  python -m launch.atlas --scale=gpu                # on an accelerator

The models, tasks and scales are in configs/atlas/__init__.py. For each cell a halving
search finds the learning rate, and the number of steps doubles until the last doubling
changes the loss by less than 3 % and less than its interval over seeds, or until the
minutes of the cell are spent. Rerun the same command to resume after an interruption,
with more --minutes to train cells on that are not flat, or with other models, tasks or
guesses to add their cells. N processes divide the cells if each is started with
--part=I/N, I = 1, …, N; afterwards the command without --part writes the report.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from configs import atlas as cells
from launch import cli
from zoo.core.errors import UserError, check_count, check_name, check_number

if TYPE_CHECKING:
  from zoo.studies.atlas import Cell, Row, Settings

flags.adopt_module_key_flags(cli)
_SCALE = flags.DEFINE_string(
  'scale', 'laptop', 'laptop, or gpu: the sizes of Garg et al., on an accelerator.'
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
  'seeds', None, 'Runs of each cell: seeds 0, 1, … Default: five or three.'
)
_STEPS = flags.DEFINE_integer(
  'steps', None, 'Steps of the first budget, which doubles. Default: of the scale.'
)
_SEARCH = flags.DEFINE_integer(
  'search_steps',
  None,
  'Steps of the first round of the search of the learning rate. Default: of the scale.',
)
_MINUTES = flags.DEFINE_float(
  'minutes',
  None,
  'Minutes of training after which a cell starts no further budget. Default: of the '
  'scale.',
)
_PART = cli.define_part('cells')
_OUT = flags.DEFINE_string(
  'out',
  'checkpoints/runs/atlas',
  'Folder for the runs, report.html, the table and the plots.',
)


def main() -> None:
  check_name('--scale:', _SCALE.value, cells.SCALES)
  models = _names(_MODELS, cells.list_models(), cells.DEFAULT_MODELS)
  tasks = _names(_TASKS, cells.list_tasks(), cells.default_tasks())
  asked = _names(_GUESSES, cells.GUESSES, [])
  lengths = [None] if _LENGTHS.value is None else _lengths(_LENGTHS.value)
  _settings('linear')  # so that a mistyped flag is reported at once
  part = cli.part_of(_PART)
  out = cli.workdir_of(_OUT, _OUT.default)
  from zoo.studies import atlas

  named = [
    atlas.Cell(model, task, guess, length)
    for task in tasks
    for length in lengths
    for model in models
    for guess in (
      (asked or cells.guesses_of(task)) if cells.has_guess(model) else [None]
    )
  ]
  get_config = functools.partial(cells.get_config, scale=_SCALE.value)
  grid = atlas.Grid(named, get_config, _settings_of)
  found = atlas.run(grid, out, _command(), part)
  where = f'the report is {out}/report.html'
  cli.print_results(found, _table, where, out, part)


def _table(rows: Sequence[Row]) -> str:
  from zoo.studies import atlas

  return '\n\n'.join(table.text() for table in atlas.tables(rows))


def _settings(task: str) -> tuple[str, int, int, int, float]:
  """The fields of `atlas.Settings` for a task; raises UserError."""
  sizes = cells.SCALES[_SCALE.value]
  minutes = sizes.minutes if _MINUTES.value is None else _MINUTES.value
  return (
    _SCALE.value,
    _count(_SEEDS, cells.num_seeds(task)),
    _count(_STEPS, sizes.num_steps, 200),
    _count(_SEARCH, sizes.search_steps, 200),
    check_number('--minutes', minutes, above=0.0),
  )


def _settings_of(cell: Cell) -> Settings:
  from zoo.studies import atlas

  return atlas.Settings(*_settings(cell.task))


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


def _count(flag: flags.FlagHolder, default: int, minimum: int = 1) -> int:
  return check_count(
    f'--{flag.name}', default if flag.value is None else flag.value, minimum=minimum
  )


def _lengths(texts: Sequence[str]) -> list[int]:
  if bad := [text for text in texts if not text.isdecimal() or int(text) < 1]:
    raise UserError(f'--context_lengths has {bad[0]!r}; it must be whole numbers ≥ 1')
  if not texts:
    raise UserError('--context_lengths is empty; it must be whole numbers ≥ 1')
  return sorted({*map(int, texts)})


def _command() -> str:
  """The command for this grid, without the folder and the part."""
  given = [
    f'--{flag.name}={flag.serialize().partition("=")[2]}'
    for flag in flags.FLAGS.get_key_flags_for_module(__name__)
    if flag.present and flag.name not in ('out', 'part')
  ]
  return ' '.join(['python -m launch.atlas', *given])


if __name__ == '__main__':
  cli.run(main)
