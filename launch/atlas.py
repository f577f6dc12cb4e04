"""Trains many architectures on many tasks with equal compute, and compares them.

  python -m launch.atlas              # many hours; see studies/atlas/README.md
  python -m launch.atlas --tasks=prior --guesses=zero,linear,residual --out=runs/guess
  python -m launch.atlas --models=softmax,delta,lstm --tasks=linear --budgets=1e10,1e11
  python -m launch.atlas --tasks=prior --context_lengths=1,10,100 --models=gru
  python -m launch.atlas --scale=gpu                # on an accelerator

A cell of the atlas is a model, a task, an initial guess and a context length.
configs/atlas/__init__.py has the models, the tasks and the scales.

Each cell is trained once for each budget. A budget is a number of operations: those of
the matrix products of training, forward and backward. Each cell has its own learning
rate. At the smallest budget a search finds it: first all rates are tried briefly, or
with few seeds, and then the best of them with more. At each larger budget half and
twice the rate are tried, too.

Rerun the same command to resume after an interruption. Rerun it with other models,
tasks or guesses to add their cells. Rerun it with more and larger --budgets to train
the cells on; the smallest budget has to stay.

N processes divide the cells if each is started with --part=I/N, I = 1, …, N; afterwards
the command without --part writes the report.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from configs import atlas as cells
from launch import cli
from launch.drawing import Drawing
from zoo.core.errors import UserError, check_name

if TYPE_CHECKING:
  from studies.atlas import AtlasRow, Cell, Settings

flags.adopt_module_key_flags(cli)
_SCALE = flags.DEFINE_enum(
  'scale',
  'laptop',
  [*cells.SCALES],
  'Size of the models: `laptop` for a CPU, or `gpu` for the sizes of Garg et al. '
  '(arXiv 2208.01066).',
)
_MODELS = flags.DEFINE_list(
  'models',
  None,
  'Models to train, of the library or your own. The name of a mixer stands for a '
  'transformer with this mixer. Default: the 23 of `DEFAULT_MODELS` in '
  '`configs/atlas/__init__.py`.',
)
_TASKS = flags.DEFINE_list(
  'tasks',
  None,
  'Tasks to train on: those of `configs/atlas/__init__.py`, other tasks, or your own. '
  'Default: the 10 of `DEFAULT_TASKS` in `configs/atlas/__init__.py`.',
)
_GUESSES = flags.DEFINE_list(
  'guesses',
  None,
  'Initial guesses to train with: `zero`, `linear`, `network`, `residual` or '
  '`residual_network`. Default: `zero`; for `prior` also `linear` and `residual`; for '
  '`logistic_prior` also `residual`; for `quadratic_prior`, `relu_network_prior` and '
  '`sinusoid_prior` also `network` and `residual_network`.',
)
_LENGTHS = flags.DEFINE_list(
  'context_lengths',
  None,
  'Numbers of examples in a prompt with which to train each task, such as `1,10,100`. '
  'Default: the context length of each task.',
)
_SEEDS = flags.DEFINE_string(
  'seeds',
  None,
  'Seeds with which each cell is trained, such as `0..4` or `0,1,2`. Default: `0..4` '
  'or `0..2`, by the task.',
)
_BUDGETS = flags.DEFINE_list(
  'budgets',
  None,
  'Numbers of operations with which each seed is trained, in increasing order, such as '
  '`1e11,1e12`. Default: the budgets of `--scale`.',
)
_SEARCH_SEEDS = flags.DEFINE_integer(
  'search_seeds',
  1,
  'Number of seeds with which the last round of the search tries each learning rate. '
  'The rate with the lowest mean loss is chosen. With more than one seed, no round has '
  'short runs, which can prefer high rates: all rates are tried with one seed and all '
  'steps, and the best third of them with all seeds. This flag takes a number, while '
  '`--seeds` lists seeds. The number cannot change for a cell that a folder of `--out` '
  'has already.',
  lower_bound=1,
)
_LAST_SEED = 9999  # The search has the seeds from 10⁶ on, which no cell may have.
_PART = cli.define_part('cells')
_OUT = flags.DEFINE(
  cli.Workdir(),
  'out',
  'checkpoints/runs/atlas',
  'Folder for the runs, `report.html`, the table and the pictures. It may be '
  '`gs://bucket/folder`.',
)
_DRAWING = Drawing(has_texts=False)


def main() -> None:
  models = _names(_MODELS, cells.list_models(), cells.DEFAULT_MODELS)
  tasks = _names(_TASKS, cells.list_tasks(), cells.DEFAULT_TASKS)
  asked = _names(_GUESSES, cells.CELL_GUESSES, [])
  lengths = [None] if _LENGTHS.value is None else _lengths(_LENGTHS.value)
  seeds = None if _SEEDS.value is None else _seeds(_SEEDS.value)
  budgets = cells.SCALES[_SCALE.value].budgets
  if _BUDGETS.value is not None:
    budgets = _budgets(_BUDGETS.value)
  from studies import atlas

  named = [
    atlas.Cell(model, task, guess, length)
    for task in tasks
    for length in lengths
    for model in models
    for guess in cells.guesses_of(model, task, asked)
  ]
  get_config = functools.partial(cells.get_config, scale=_SCALE.value)

  def settings_of(cell: Cell) -> Settings:
    chosen = tuple(seeds or cells.seeds_of(cell.task))
    return atlas.Settings(_SCALE.value, chosen, budgets, _SEARCH_SEEDS.value)

  grid = atlas.Grid(named, get_config, settings_of)
  with _DRAWING.wishes():
    rows = atlas.run(grid, _OUT.value, _command(), _PART.value)
  where = f'the report is {_OUT.value}/report.html'
  cli.print_results(rows, _table, where, _OUT.value, _PART.value)


def _table(rows: Sequence[AtlasRow]) -> str:
  from studies import atlas

  return '\n\n'.join(table.text() for table in atlas.tables(rows))


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
    listed = ','.join(texts)
    raise UserError(f'--context_lengths is {listed!r}; it must be whole numbers ≥ 1')
  return sorted({*map(int, texts)})


def _seeds(text: str) -> Sequence[int]:
  first, dots, last = text.partition('..')
  seeds: Sequence[int] = []
  if dots and first.isdecimal() and last.isdecimal():
    seeds = range(int(first), min(int(last), _LAST_SEED + 1) + 1)
  elif all(map(str.isdecimal, text.split(','))):
    seeds = [*dict.fromkeys(map(int, text.split(',')))]
  if not seeds or max(seeds) > _LAST_SEED:
    raise UserError(
      f'--seeds is {text!r}; it must be as 0..4 or 0,1,2, up to {_LAST_SEED}'
    )
  return seeds


def _budgets(texts: Sequence[str]) -> tuple[float, ...]:
  try:
    budgets = tuple(map(float, texts))
  except ValueError:
    budgets = ()
  are_finite = all(1 <= budget < math.inf for budget in budgets)
  if not budgets or not are_finite or sorted({*budgets}) != [*budgets]:
    listed = ','.join(texts)
    raise UserError(f'--budgets is {listed!r}; it must be increasing numbers ≥ 1')
  return budgets


def _command() -> str:
  """Returns the command for this grid, without the folder and the part."""
  chosen = [
    f'--{flag.name}={flag.serialize().partition("=")[2]}'
    for flag in flags.FLAGS.get_key_flags_for_module(__name__)
    if flag.present and flag.name not in ('out', 'part')
  ]
  return ' '.join(['python -m launch.atlas', *chosen])


if __name__ == '__main__':
  cli.run(main)
