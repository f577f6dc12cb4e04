"""The training of all cells of an atlas, and the files that it writes."""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from studies.atlas import measure, report
from studies.atlas.cells import CellRun
from studies.atlas.notes import Settings, has_notes, read_notes
from studies.atlas.results import AtlasRow, Cell, from_csv, to_csv
from studies.cell_table import CELLS, complete, shared_out
from studies.runner import run_in, writing
from zoo.config.read import Readable, read
from zoo.config.run import Run
from zoo.host.files import read_text, write_atomically
from zoo.host.parts import Part
from zoo.storage.rows import Row, read_rows, version_digest

# Returns the config of a cell from its model, task, guess and context length.
GetCellConfig = Callable[[str, str, str | None, int | None], Readable]


class Grid(NamedTuple):
  """The cells of an atlas and how each is trained.

  Attributes:
    cells: The cells to train.
    get_config: Returns the config for the model, task, guess and context length of a
      cell.
    settings: Returns the scale, the seeds and the budgets of a cell.
  """

  cells: Sequence[Cell]
  get_config: GetCellConfig
  settings: Callable[[Cell], Settings]


def run(
  grid: Grid, out: str | os.PathLike[str], command: str, part: Part | None = None
) -> list[AtlasRow] | None:
  """Trains the cells that a folder lacks, and returns the rows of all cells.

  The notes of a cell keep what its search for a learning rate has tried and what was
  trained, so a cell resumes where it stopped, and a larger budget can be added later.
  After each cell its row is added to `rows.jsonl`, and `atlas.csv` is written with all
  cells that the folder has. At the end `report.html` is written with the pictures.

  Args:
    grid: The cells, their configs and their settings.
    out: The folder of the atlas.
    command: The command that trains this grid, which the report shows.
    part: Trains only a part of the cells and writes no report. `Part(2, 4)` is every
      fourth cell, from the second on. Processes that share only the folder may train
      different parts at the same time.

  Returns:
    The rows of the baselines and of all cells that the folder has. None after SIGTERM;
    the same call then resumes.

  Raises:
    UserError: If the folder was trained with other settings, another config or another
      version of the library, or cannot be the folder of a study. It is an InUseError if
      another process trains in the folder, or trains the same part.
    RunError: If the folder cannot be written.
    KeyboardInterrupt: After Ctrl-C; the same call then resumes.
  """
  # A config is made when it is needed, and once: some search for a width, which takes
  # half a second.
  get_config = functools.cache(lambda *cell: read(grid.get_config(*cell)))
  names = {cell.name: cell for cell in grid.cells}
  number = len(names if part is None else part.of([*names]))
  with writing(out), run_in(out) as (whole, interruption):
    # A folder of other settings is refused before anything is trained.
    for cell in grid.cells:
      if has_notes(_folder(cell, whole)):
        of_cell = functools.partial(get_config, *cell)
        read_notes(_folder(cell, whole), grid.settings(cell), of_cell)
    minutes: list[float] = []

    def compute(name: str) -> dict[str, Any]:
      cell = names[name]
      folder, settings = _folder(cell, whole), grid.settings(cell)
      folder.mkdir(parents=True, exist_ok=True)
      of_cell = functools.partial(get_config, *cell)
      cell_run = CellRun(cell, settings, of_cell, folder, interruption)
      # Rows are rounded to the digits of atlas.csv, so that both files give the same
      # statistics.
      rows = from_csv(to_csv(cell_run.rows()), name)
      before = _kept_rows(whole)
      by_budget = {row.budget: dataclasses.asdict(row) for row in rows}
      if 0 not in by_budget:  # An earlier call may have trained with other budgets.
        for fields in before.get(name, {}).get('budgets', []):
          if fields['budget']:
            by_budget.setdefault(fields['budget'], fields)
      row = {'budgets': [by_budget[budget] for budget in sorted(by_budget)]}
      kept = before | {name: row}
      write_atomically(
        whole / 'atlas.csv', to_csv(_known(get_config, names, kept, whole))
      )
      minutes.append(rows[-1].minutes)
      hours = sum(minutes) / len(minutes) / 60
      _log(rows[-1], number - len(minutes), hours)
      return row

    cells = dict.fromkeys(names)
    complete(cells, shared_out(cells, part), compute, whole, interruption, part)
    all_rows = _known(get_config, names, _kept_rows(whole), whole)
    if part is None:
      report.write(all_rows, command, whole)
    return all_rows
  return None


def _folder(cell: Cell, out: pathlib.Path) -> pathlib.Path:
  return out / CELLS / cell.name


def _kept_rows(out: pathlib.Path) -> dict[str, Row]:
  """Returns the rows of the cells that the folder has, by name of the cell."""
  return {name: kept['row'] for name, kept in read_rows(out).items()}


def _baselines(
  cell: Cell, get_config: Callable[[], Run], out: pathlib.Path
) -> list[AtlasRow]:
  """Returns the rows of the baselines of a cell's task.

  They are measured once and kept in a file, whose name has a digest of what they depend
  on: the fields of the task, the numbers of prompts and the version of the library.
  """
  name = cell._replace(model='baselines', guess=None).name
  config = get_config()
  digest = version_digest(config.task.text() + json.dumps(measure.key()))
  path = out / 'baselines' / f'{name}-{digest}.csv'
  if not path.is_file():
    rows = measure.baselines(config, cell.task)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, to_csv(rows))
  return from_csv(read_text(path), str(path))


def _known(
  get_config: Callable[..., Run],
  names: Iterable[str],
  kept: Mapping[str, Row],
  out: pathlib.Path,
) -> list[AtlasRow]:
  """Returns the rows of the baselines, and then those of all cells that are kept.

  The named cells come first, in their order; then come those of earlier calls with the
  same folder.
  """
  baselines: dict[tuple, AtlasRow] = {}
  models: list[AtlasRow] = []
  for name in dict.fromkeys([*names, *kept]):
    if name not in kept:
      continue
    cell = _cell_of(name)
    rows = [_atlas_row(fields) for fields in kept[name]['budgets']]
    models += rows
    if any(row.losses for row in rows):
      of_cell = functools.partial(get_config, *cell)
      baselines |= {row.cell: row for row in _baselines(cell, of_cell, out)}
  return [*baselines.values(), *models]


def _cell_of(name: str) -> Cell:
  """Returns the cell of a name, as `Cell.name` makes it."""
  model, task, *rest = name.split(',')
  lengths = [int(part) for part in rest if part.isdigit()]
  guesses = [part for part in rest if not part.isdigit()]
  return Cell(model, task, next(iter(guesses), None), next(iter(lengths), None))


def _atlas_row(fields: Mapping[str, Any]) -> AtlasRow:
  """Returns a row from its fields in JSON, where tuples have become lists."""
  values: dict[str, Any] = {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in fields.items()
  }
  return AtlasRow(**values)


def _log(row: AtlasRow, left: int, hours: float) -> None:
  """Logs the loss of a finished cell, and an estimate of the time that is left.

  Args:
    row: The row of the finished cell with its largest budget.
    left: The number of cells that are left.
    hours: The mean hours of the cells finished by this call.
  """
  said = f'left out, since {row.reason}'
  if row.losses:
    said = f'{", ".join(f"{loss:.4g}" for loss in row.losses)} after {row.steps} steps'
  logging.info(
    '%s: %s; %d cells are left, about %.1f h',
    ','.join(filter(None, row.cell[:3])),
    said,
    left,
    left * hours,
  )
