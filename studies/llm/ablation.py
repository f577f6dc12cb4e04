"""The ablation: an experiment for each guess and number of examples."""

import copy
import json
import os
import pathlib
from typing import Any

from absl import logging

from studies.llm import experiment
from studies.llm.ablation_table import AblationCell, flat, results
from studies.llm.config import KINDS, ORACLE, Config, validate_ablation
from studies.llm.prompts import WITHOUT
from zoo.core.errors import RunError, UserError
from zoo.core.tables import to_csv
from zoo.host.files import user_path, write_atomically

_CELLS = 'cells'  # the folder of all runs


def run(
  config: Config,
  out: str | os.PathLike[str],
  data: str | os.PathLike[str] | None = None,
) -> dict[str, Any] | None:
  """Completes all cells of an ablation, and writes its table.

  Each cell is a run of `experiment` in its own folder below `out/cells`. Cells that
  differ only in the guess share one arm without guesses. The same call resumes after an
  interruption, and adds cells if it has more names; after SIGTERM it returns None.
  `data` is the folder of the files of the benchmark.

  Raises the errors of `experiment.run`; nothing is written before all cells are
  checked.
  """
  configs = plan(config)
  out = user_path(out)
  _check_folder(out)
  sources = experiment.Sources(config, data)
  cells = {
    cell: experiment.prepare(of_cell, out / _CELLS / cell.name, sources)
    for cell, of_cell in configs.items()
  }
  # The answers without guesses of complete runs, by number of examples.
  shared = {
    cell.num_examples: [line['arms'][WITHOUT] for line in prepared.ordered()]
    for cell, prepared in cells.items()
    if prepared.is_answered
  }
  for number, (cell, prepared) in enumerate(cells.items(), start=1):
    logging.info('cell %d of %d: %s', number, len(cells), cell.name)
    if experiment.complete(prepared, shared.get(cell.num_examples)) is None:
      return None
    arm = [line['arms'][WITHOUT] for line in prepared.ordered()]
    shared.setdefault(cell.num_examples, arm)
  table = results(cells)
  try:
    write_atomically(out / 'ablation.json', json.dumps(table, indent=2) + '\n')
    rows = [flat(row) for row in table['rows']]
    write_atomically(out / 'table.csv', to_csv([*rows[0]], rows))
  except OSError as error:
    raise RunError(f'{out} could not be written: {error}') from error
  return table


def plan(config: Config) -> dict[AblationCell, Config]:
  """The cells of an ablation with their configs; raises UserError for bad fields."""
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
  if out.is_dir() and not (out / _CELLS).is_dir() and (names := os.listdir(out)):
    raise UserError(
      f'{out} has {min(names)!r}, and is no folder of an ablation; give another folder'
    )
