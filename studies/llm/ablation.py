"""The ablation: one experiment for each kind of guess and each number of examples."""

import copy
import json
import os
import pathlib
from collections.abc import Collection
from typing import Any

from studies.cell_table import CELLS, complete, shared_out
from studies.llm import experiment
from studies.llm.ablation_table import AblationCell, flat, results, row_of
from studies.llm.config import KINDS, ORACLE, Config, validate_ablation
from studies.llm.prompts import WITHOUT
from studies.runner import run_in, writing
from zoo.config.read import to_json
from zoo.core.errors import UserError, check_name
from zoo.core.tables import to_csv
from zoo.host.files import user_path, write_atomically
from zoo.host.interruption import Stopped
from zoo.host.parts import Part


def run(
  config: Config,
  out: str | os.PathLike[str],
  data: str | os.PathLike[str] | None = None,
  part: Part | None = None,
  only: Collection[str] = (),
  *,
  again: bool = False,
) -> dict[str, Any] | None:
  """Completes the cells of an ablation, and writes its table.

  Each cell is one kind of guess with one number of examples. It is a run of
  `experiment` in its own folder below `out/cells`, and a row of `out/rows.jsonl`. Cells
  that differ only in the guess have the same prompts without guesses, which each part
  asks once. The same call resumes after an interruption, and a
  config with further guesses or numbers of examples adds cells.

  Args:
    config: The config of an ablation, such as that of `configs/llm/ablation.py`.
    out: The folder of the ablation, on this machine.
    data: The folder of the files of the benchmark.
    part: Completes only every `part.number`-th cell, and writes no table.
    only: The names of the cells to complete, such as `0_examples/wrong`. By default all
      cells are completed. The table has all rows that the folder has.
    again: Whether rows of another version of the library are made again from the
      answers that are kept.

  Returns:
    The content of `ablation.json`. An empty dictionary for a part. None after SIGTERM.

  Raises:
    UserError: For a mistake in the config, the data or the weights, for prompts that
      are too long for the model, for an `out` that is damaged or has other content, for
      an unknown name in `only`, and if all rows are of another version. All cells are
      checked before anything is written.
    RunError: If `out` cannot be written.
    KeyboardInterrupt: After Ctrl-C; the same call then resumes.
  """
  configs = plan(config)
  for name in only:
    check_name('cell', name, [cell.name for cell in configs])
  out = user_path(out)
  _check_folder(out)
  sources = experiment.Sources(config, data)
  cells = {
    cell: experiment.prepare(of_cell, out / CELLS / cell.name, sources)
    for cell, of_cell in configs.items()
  }
  # The answers to prompts without guesses, from complete runs, by number of examples.
  shared = {
    cell.num_examples: [line['arms'][WITHOUT] for line in prepared.ordered()]
    for cell, prepared in cells.items()
    if prepared.is_answered
  }
  named = {cell.name: cell for cell in cells}

  def compute(name: str) -> dict[str, Any]:
    cell = named[name]
    prepared = cells[cell]
    if experiment.complete(prepared, shared.get(cell.num_examples)) is None:
      raise Stopped
    arm = [line['arms'][WITHOUT] for line in prepared.ordered()]
    shared.setdefault(cell.num_examples, arm)
    return row_of(prepared)

  parameters = {
    cell.name: {'config': to_json(prepared.config)} for cell, prepared in cells.items()
  }
  with run_in(out) as (folder, interruption):
    mine = shared_out([name for name in named if not only or name in only], part)
    rows = complete(parameters, mine, compute, folder, interruption, part, again=again)
    if part is not None:
      return {}
    if not rows:
      raise UserError(f'all rows of {out} are stale; ask for them again with --again')
    scale = next(iter(cells.values())).wording.scale
    table = results({named[name]: row for name, row in rows.items()}, scale)
    with writing(out):
      write_atomically(out / 'ablation.json', json.dumps(table, indent=2) + '\n')
      flat_rows = [flat(row) for row in table['rows']]
      write_atomically(out / 'table.csv', to_csv([*flat_rows[0]], flat_rows))
    return table
  return None


def plan(config: Config) -> dict[AblationCell, Config]:
  """Returns the config of each cell; raises UserError for a mistake in `ablation`."""
  validate_ablation(config)
  guesses: dict[str, dict[str, Any]] = {}
  for name in config.ablation.guesses:
    fields = {'bias': 0.0, 'noise': 0.0, 'shuffled': False, **KINDS[name]}
    if name == ORACLE:
      for size in config.ablation.noise:
        guesses[f'{ORACLE}_{size:g}'] = {**fields, 'noise': float(size)}
    else:
      guesses[name] = fields
  configs = {}
  for num_examples in config.ablation.num_examples:
    for name, fields in guesses.items():
      of_cell = copy.deepcopy(config)
      with of_cell.unlocked():
        of_cell.guess.update(fields)
        of_cell.prompts.num_examples = num_examples
        del of_cell.ablation
      configs[AblationCell(num_examples, name)] = of_cell
  return configs


def _check_folder(out: pathlib.Path) -> None:
  if out.exists() and not out.is_dir():
    raise UserError(f'{out} is not a folder; give another one')
  names = os.listdir(out) if out.is_dir() else []
  others = [name for name in names if not name.startswith('.')]  # locks have a dot
  if others and CELLS not in names:
    raise UserError(
      f'{out} has {min(others)!r}, and is no folder of an ablation; give another folder'
    )
