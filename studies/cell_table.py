"""Tables of studies: named cells, with a row of numbers each, kept in one file.

def compute(parameters, folder):
  return {'square': parameters['number'] ** 2}

cells = {f'number={n}': {'number': n} for n in range(4)}
rows = studies.fill(studies.CellTable(cells, compute), 'runs/squares')
print(rows['number=3']['square'])  # 9
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from absl import logging

from studies.runner import run_in, with_progress, writing
from zoo.core.errors import UserError, check_name, shown
from zoo.host.interruption import Interruption, Stopped
from zoo.host.parts import Part
from zoo.storage.rows import Row, keep_row, read_rows, version_digest
from zoo.storage.workdir import locked

CELLS = 'cells'  # This folder has a folder for each cell.

# Parameters are values that JSON can hold. They say everything that the row of a cell
# depends on, beside the version of the library. A cell without parameters is computed
# by each call.
Parameters = Mapping[str, Any] | None
# The arguments are the parameters of a cell, and a folder for its unfinished work.
Compute = Callable[[Mapping[str, Any], pathlib.Path], Mapping[str, Any] | None]
Draw = Callable[[Mapping[str, Row], pathlib.Path], None]


@dataclasses.dataclass(frozen=True)
class CellTable:
  """A table that a study computes: a row of numbers for each of its cells.

  Attributes:
    cells: The parameters of each cell, by its name. A row belongs to its parameters and
      to the version of the library, and is stale after a change of either. The
      parameters must therefore name everything that the row depends on, such as the
      number of prompts.
    compute: A function that returns the row of a cell, as a dictionary that JSON can
      hold. Its arguments are the parameters of the cell and a folder of its own, in
      which a training can resume. It returns None if SIGTERM has stopped the training,
      as `zoo.train` does.
    draw: A function that writes pictures and tables. Its arguments are the rows by
      cell, and the folder of the study. None draws nothing.

  Raises:
    UserError: If there are no cells, or if a name or parameters are invalid.

  Example:
    >>> cells = {f'number={n}': {'number': n} for n in range(4)}
    >>> square = lambda parameters, folder: {'square': parameters['number'] ** 2}
    >>> len(studies.CellTable(cells, square).cells)
    4
  """

  cells: Mapping[str, Mapping[str, Any]]
  compute: Compute
  draw: Draw | None = None

  def __post_init__(self) -> None:
    """Raises UserError for a table without cells, and for wrong names or parameters."""
    if not self.cells:
      raise UserError('the table of a study has no cells; it must have one or more')
    for name, parameters in self.cells.items():
      if {*name.split('/')} & {'', '.', '..'}:
        raise UserError(
          f'a cell has the name {name!r}; it must be that of a folder, such as '
          "'examples=10'"
        )
      if not isinstance(parameters, Mapping):
        raise UserError(
          f'the cell {name!r} has the parameters {parameters!r}; they must be a '
          'dictionary, such as {"task.context_length": 10}'
        )
      _digest(name, parameters)


def fill(
  table: CellTable,
  out: str | os.PathLike[str],
  part: Part | None = None,
  only: Collection[str] = (),
  *,
  again: bool = False,
) -> dict[str, Row] | None:
  """Computes the rows that a folder lacks, and calls `table.draw` on all of them.

  A row is written to `rows.jsonl` as soon as it is computed, so that the same call
  resumes after an interruption. Processes that share only the folder may fill different
  parts at the same time.

  Args:
    table: The cells, and how to compute and to draw.
    out: The folder of the study. It may be in a bucket: gs://bucket/study.
    part: The part of the cells to compute: every `part.number`-th cell, without
      drawing. When all parts have ended, call it again without a part to draw.
    only: The names of the cells to compute; by default all of them.
    again: Whether stale rows are computed again. A row is stale if its parameters or
      the version of the library changed. Otherwise one line of the log names the stale
      rows, and they are left out.

  Returns:
    The rows by cell, in the order of the cells. Cells that were not computed and those
    with stale rows are missing. The result is None after SIGTERM.

  Raises:
    UserError: If a name in `only` is unknown, if a file is damaged, if `out` cannot be
      the folder, or if another process is filling the folder or the same part (this is
      an InUseError).
    RunError: If the folder cannot be written.
    KeyboardInterrupt: After Ctrl-C; the same call then resumes.

  Example:
    >>> square = lambda parameters, folder: {'square': parameters['number'] ** 2}
    >>> cells = {f'number={n}': {'number': n} for n in (2, 3)}
    >>> studies.fill(studies.CellTable(cells, square), 'runs/squares')
    {'number=2': {'square': 4}, 'number=3': {'square': 9}}
  """
  for name in only:
    check_name('cell', name, table.cells)

  with run_in(out) as (folder, interruption):

    def compute(name: str) -> Mapping[str, Any]:
      cell = folder / CELLS / name
      cell.mkdir(parents=True, exist_ok=True)
      row = table.compute(table.cells[name], cell)
      if row is None:
        raise Stopped
      if not isinstance(row, Mapping):
        raise UserError(
          f'the row of {name!r} has the type {type(row).__name__}; it must be a '
          'dictionary of numbers by name'
        )
      return row

    mine = shared_out([name for name in table.cells if not only or name in only], part)
    rows = complete(table.cells, mine, compute, folder, interruption, part, again=again)
    if part is None and rows and table.draw is not None:
      table.draw(rows, folder)
    return rows
  return None


def shared_out(names: Collection[str], part: Part | None) -> list[str]:
  """Returns the names of the cells that a call computes: all, or those of its part."""
  return [*names] if part is None else part.of([*names])


def complete(
  cells: Mapping[str, Parameters],
  mine: Collection[str],
  compute: Callable[[str], Mapping[str, Any] | None],
  folder: pathlib.Path,
  interruption: Interruption,
  part: Part | None = None,
  *,
  again: bool = False,
) -> dict[str, Row]:
  """Computes the rows of a part that a folder lacks, and returns the rows of all cells.

  `fill` shares this function with studies that check or draw in their own way.

  Args:
    cells: The parameters of each cell, by its name.
    mine: The names of the cells that this call computes.
    compute: A function that returns the row of a cell, by its name; None if the cell
      cannot have a row now.
    folder: The folder of the study.
    interruption: Asks the call to stop.
    part: The part of the work that `mine` is. Another process may have another part.
    again: Whether stale rows are computed again.

  Returns:
    The rows by cell, without those that are missing or stale.

  Raises:
    Stopped: After a signal.
    UserError: If a file is damaged, if parameters are invalid, or if another process is
      filling the folder or the same part.
    RunError: If the folder cannot be written.
  """
  digests = {name: _digest(name, parameters) for name, parameters in cells.items()}
  with contextlib.ExitStack() as stack:
    with writing(folder):
      stack.enter_context(locked(folder, part))
      kept = read_rows(folder)
    stale = [
      name
      for name, parameters in cells.items()
      if parameters is not None
      and name in kept
      and kept[name]['digest'] != digests[name]
    ]
    if stale and not again:
      logging.warning(
        '%s has stale rows, of other parameters or another version, which are left '
        'out until --again (in Python again=True) computes them again: %s',
        folder,
        shown(stale),
      )
    missing = [
      name
      for name in mine
      if name not in kept or cells[name] is None or (again and name in stale)
    ]
    due = {name: cells[name] for name in missing}
    for name, _ in with_progress('cell', due, interruption):
      row = compute(name)
      if row is not None:
        with writing(folder):
          keep_row(folder, name, digests[name], row)
    with writing(folder):
      kept = read_rows(folder)
  return {
    name: kept[name]['row']
    for name in cells
    if name in kept and kept[name]['digest'] == digests[name]
  }


def _digest(name: str, parameters: Parameters) -> str:
  """Returns the digest of the parameters of a cell and of the version, for its row."""
  try:
    return version_digest(json.dumps(parameters, sort_keys=True))
  except (TypeError, ValueError) as error:
    raise UserError(
      f'the cell {name!r} has parameters that JSON cannot hold: {error}; they must be '
      'numbers, texts, booleans, None, and lists or dictionaries of these'
    ) from error
