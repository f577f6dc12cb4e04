"""Goes through the cells of an atlas, and writes what is known of them."""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from studies.atlas import measure, report
from studies.atlas.cells import CellRun
from studies.atlas.notes import Settings, has_notes, read_notes
from studies.atlas.results import AtlasRow, Cell, from_csv, to_csv
from studies.rows import CELLS, complete, shared_out
from studies.runner import run_in, writing
from zoo.config.building import Config
from zoo.config.saved import to_json
from zoo.host.files import read_text, write_atomically
from zoo.host.parts import Part
from zoo.storage.rows import Row, read_rows, version_digest

# The config for the fields of a cell: model, task, guess and context length.
GetCellConfig = Callable[[str, str, str | None, int | None], Config]


class Grid(NamedTuple):
  """The cells to train, and the settings of each."""

  cells: Sequence[Cell]
  get_config: GetCellConfig
  settings: Callable[[Cell], Settings]


def run(
  grid: Grid, out: str | os.PathLike[str], command: str, part: Part | None = None
) -> list[AtlasRow] | None:
  """Trains the cells that the folder `out` lacks, and returns the rows of all.

  A cell goes on from its notes, which keep what its search has tried; they say whether
  anything is missing, such as a larger budget, so each call goes through all cells.
  After each cell it writes the row of the cell into `rows.jsonl`, and `atlas.csv` with
  the cells that the folder has; at the end `report.html` with the pictures. With a
  `part`, such as `Part(2, 4)`, it trains every fourth cell, from the second on, and
  writes no report; processes that share only the folder may have different parts.
  `command` is the command that trains this grid, for the report. Returns None after
  SIGTERM; the same call then resumes. Raises UserError for a folder of other settings,
  config or version, InUseError if another process trains in the folder or the same
  part, and the errors of `run_in` and `writing`.
  """
  # Made once and when it is needed: the search for a width takes half a second.
  configs = {
    cell: functools.cache(functools.partial(grid.get_config, *cell))
    for cell in grid.cells
  }
  names = {cell.name: cell for cell in grid.cells}
  number = len(names if part is None else part.of([*names]))
  with writing(out), run_in(out) as (whole, interruption):
    for cell in grid.cells:  # before anything is trained
      if has_notes(_folder(cell, whole)):
        read_notes(_folder(cell, whole), grid.settings(cell), configs[cell])
    minutes: list[float] = []

    def compute(name: str) -> dict[str, Any]:
      cell = names[name]
      folder, settings = _folder(cell, whole), grid.settings(cell)
      folder.mkdir(parents=True, exist_ok=True)
      cell_run = CellRun(cell, settings, configs[cell], folder, interruption)
      # The digits of atlas.csv, so that what follows from a row is the same from both.
      rows = from_csv(to_csv(cell_run.rows()), name)
      row = {'budgets': [dataclasses.asdict(row) for row in rows]}
      kept = _kept_rows(whole) | {name: row}
      write_atomically(whole / 'atlas.csv', to_csv(_known(configs, kept, whole)))
      minutes.append(rows[-1].minutes)
      hours = sum(minutes) / len(minutes) / 60
      _log(rows[-1], number - len(minutes), hours)
      return row

    cells = dict.fromkeys(names)
    complete(cells, shared_out(cells, part), compute, whole, interruption, part)
    all_rows = _known(configs, _kept_rows(whole), whole)
    if part is None:
      report.write(all_rows, command, whole)
    return all_rows
  return None


def _folder(cell: Cell, out: pathlib.Path) -> pathlib.Path:
  return out / CELLS / cell.name


def _kept_rows(out: pathlib.Path) -> dict[str, Row]:
  """The rows of cells that the folder has, by cell."""
  return {name: kept['row'] for name, kept in read_rows(out).items()}


def _baselines(
  cell: Cell, get_config: Callable[[], Config], out: pathlib.Path
) -> list[AtlasRow]:
  """The rows of the baselines of a cell's task, measured if they are not kept.

  They belong to the fields of the task, the numbers of prompts and the version.
  """
  name = cell._replace(model='baselines', guess=None).name
  config = get_config()
  digest = version_digest(to_json(config.task) + json.dumps(measure.key()))
  path = out / 'baselines' / f'{name}-{digest}.csv'
  if not path.is_file():
    rows = measure.baselines(config, cell.task)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, to_csv(rows))
  return from_csv(read_text(path), str(path))


def _known(
  configs: Mapping[Cell, Callable[[], Config]],
  kept: Mapping[str, Row],
  out: pathlib.Path,
) -> list[AtlasRow]:
  """The rows of the cells that are kept, after those of their baselines."""
  baselines: dict[tuple, AtlasRow] = {}
  models: list[AtlasRow] = []
  for cell, get_config in configs.items():
    if cell.name in kept:
      rows = [_atlas_row(fields) for fields in kept[cell.name]['budgets']]
      models += rows
      if any(row.losses for row in rows):
        baselines |= {row.cell: row for row in _baselines(cell, get_config, out)}
  return [*baselines.values(), *models]


def _atlas_row(fields: Mapping[str, Any]) -> AtlasRow:
  """A row from its fields as JSON holds them, which has no tuples."""
  values: dict[str, Any] = {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in fields.items()
  }
  return AtlasRow(**values)


def _log(row: AtlasRow, left: int, hours: float) -> None:
  """Logs the loss of a finished cell, and how long the cells that are left may take.

  A cell has taken so many hours in the mean.
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
