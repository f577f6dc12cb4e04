"""Goes through the cells of an atlas, and writes what is known of them."""

import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from absl import logging

from studies.atlas import measure, report
from studies.atlas.cells import CellRun
from studies.atlas.notes import Settings, has_notes, read_notes
from studies.atlas.results import AtlasRow, Cell, from_csv, to_csv
from studies.runner import run_in, version_digest, with_progress, writing
from zoo.config.building import Config
from zoo.config.saved import to_json
from zoo.host.files import read_text, write_atomically
from zoo.host.parts import Part
from zoo.storage.workdir import locked

_ROWS = 'rows.csv'  # in the folder of a cell

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

  After each cell it writes `atlas.csv`, with the cells that the folder has, and at the
  end `report.html` with the pictures. With a `part`, such as `Part(2, 4)`, it trains
  every fourth cell, from the second on, and writes no report; processes that share only
  the folder may have different parts. `command` is the command that trains this grid,
  for the report. Returns None after SIGTERM; the same call then resumes. Raises
  UserError for a folder of other settings, config or version, and the errors of
  `run_in` and `writing`.
  """
  # Made once and when it is needed: the search for a width takes half a second.
  configs = {
    cell: functools.cache(functools.partial(grid.get_config, *cell))
    for cell in grid.cells
  }
  cells = grid.cells if part is None else part.of(grid.cells)
  names = {cell.name: cell for cell in cells}
  with writing(out), run_in(out) as (whole, interruption):
    for cell in grid.cells:  # before anything is trained
      if has_notes(_folder(cell, whole)):
        read_notes(_folder(cell, whole), grid.settings(cell), configs[cell])
    minutes = []
    for done, (_, cell) in enumerate(
      with_progress('cell', names, interruption), start=1
    ):
      folder, settings = _folder(cell, whole), grid.settings(cell)
      folder.mkdir(parents=True, exist_ok=True)
      with locked(folder):
        cell_run = CellRun(cell, settings, configs[cell], folder, interruption)
        rows = cell_run.rows()
        write_atomically(folder / _ROWS, to_csv(rows))
      write_atomically(whole / 'atlas.csv', to_csv(_known(configs, whole)))
      minutes.append(rows[-1].minutes)
      _log(rows[-1], len(names) - done, sum(minutes) / done / 60)
    all_rows = _known(configs, whole)
    if part is None:
      report.write(all_rows, command, whole)
    return all_rows
  return None


def _folder(cell: Cell, out: pathlib.Path) -> pathlib.Path:
  return out / 'cells' / cell.name


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
  configs: Mapping[Cell, Callable[[], Config]], out: pathlib.Path
) -> list[AtlasRow]:
  """The rows of the cells that the folder has, after those of their baselines."""
  baselines: dict[tuple, AtlasRow] = {}
  models: list[AtlasRow] = []
  for cell, get_config in configs.items():
    path = _folder(cell, out) / _ROWS
    if path.is_file():
      kept = from_csv(read_text(path), str(path))
      models += kept
      if any(row.losses for row in kept):
        baselines |= {row.cell: row for row in _baselines(cell, get_config, out)}
  return [*baselines.values(), *models]


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
