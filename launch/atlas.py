"""Trains architectures × tasks × initial guesses, and compares them on one page.

  python -m launch.atlas                                  # 40 minutes on two cores
  python -m launch.atlas --tasks=prior --guesses=zero,linear,residual --out=runs/guess
  python -m launch.atlas --models=softmax,delta,lstm --tasks=linear --seeds=1
  python -m launch.atlas --tasks=prior --context_lengths=1,10,100 --models=yq_lsa,gru
  python -m launch.atlas --scale=full                     # on an accelerator

The models, tasks and scales are in configs/atlas/__init__.py. Rerun the same command to
resume after an interruption, or name more models, tasks or guesses to add their cells.
N processes divide the cells if each is started with --part=I/N, I = 1, …, N; afterwards
the command without --part writes the report.
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
  from zoo.studies.atlas import Grid

flags.adopt_module_key_flags(cli)
_SCALE = flags.DEFINE_string(
  'scale', 'laptop', 'laptop, or full: the sizes of Garg et al., on an accelerator.'
)
_MODELS = flags.DEFINE_list(
  'models',
  None,
  'Mixers, models of configs/atlas, or your own. Default: those of the scale.',
)
_TASKS = flags.DEFINE_list(
  'tasks',
  None,
  'Tasks of configs/atlas, any others, or your own. Default: those of the scale.',
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
  'seeds', None, 'Runs of each cell: seeds 0, 1, … Default: that of the scale.'
)
_RATES = flags.DEFINE_list(
  'learning_rates',
  None,
  'Learning rates to try; the best is chosen on held-out prompts. Default: those of '
  'the scale.',
)
_STEPS = flags.DEFINE_integer(
  'steps', None, 'Training steps. Default: those of the scale.'
)
_PART = cli.define_part('cells')
_OUT = flags.DEFINE_string(
  'out',
  'checkpoints/runs/atlas',
  'Folder for the runs, report.html, the table and the plots.',
)


def main() -> None:
  scale = cells.scales()[check_name('--scale:', _SCALE.value, cells.scales())]
  models = _names(_MODELS, cells.list_models(), scale.models)
  tasks = _names(_TASKS, cells.list_tasks(), scale.tasks)
  asked = _names(_GUESSES, cells.GUESSES, [])
  num_seeds = _count(_SEEDS, scale.num_seeds)
  num_steps = _count(_STEPS, scale.num_steps)
  lengths = [None] if _LENGTHS.value is None else _lengths(_LENGTHS.value)
  rates = scale.learning_rates
  if _RATES.value is not None:
    rates = [_rate(text) for text in _RATES.value]
  part = cli.part_of(_PART)
  out = cli.workdir_of(_OUT, _OUT.default)
  # Imported here so that a mistyped flag is reported at once.
  from zoo.studies import atlas

  named = [
    atlas.Cell(model, task, guess, length)
    for task in tasks
    for length in lengths
    for model in models
    for guess in (
      (asked or scale.guesses.get(task, ['zero'])) if cells.has_guess(model) else [None]
    )
  ]
  get_config = functools.partial(cells.get_config, scale=_SCALE.value)
  grid = atlas.Grid(named, num_seeds, rates, num_steps)
  found = atlas.run(grid, get_config, out, _command(grid), part)
  if found is None:
    cli.end_stopped(out)
  if part is not None:
    return cli.print_part(part)
  print(f'\n{atlas.table(found)}\n\nthe report is {out}/report.html')


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


def _count(flag: flags.FlagHolder, default: int) -> int:
  return default if flag.value is None else check_count(f'--{flag.name}', flag.value)


def _lengths(texts: Sequence[str]) -> list[int]:
  if bad := [text for text in texts if not text.isdecimal() or int(text) < 1]:
    raise UserError(f'--context_lengths has {bad[0]!r}; it must be whole numbers ≥ 1')
  if not texts:
    raise UserError('--context_lengths is empty; it must be whole numbers ≥ 1')
  return sorted({*map(int, texts)})


def _rate(text: str) -> float:
  try:
    return check_number('--learning_rates', float(text), above=0.0)
  except ValueError:
    raise UserError(f'--learning_rates has {text!r}; it must be numbers > 0') from None


def _command(grid: Grid) -> str:
  """The command for this grid, without the names of the cells and the folder."""
  rates = ','.join(f'{rate:g}' for rate in grid.learning_rates)
  own = ','.join(flags.FLAGS['import'].value or ())  # mixers and models
  imports = f'--import={own} ' if own else ''
  return (
    f'python -m launch.atlas {imports}--scale={_SCALE.value} --seeds={grid.num_seeds} '
    f'--steps={grid.num_steps} --learning_rates={rates}'
  )


if __name__ == '__main__':
  cli.run(main)
