"""The ablation: an experiment for each guess and number of examples."""

import os
import pathlib
from typing import Any

from absl import logging

from zoo.core.errors import RunError, UserError
from zoo.host.files import user_path
from zoo.host.interruption import Interruption
from zoo.llm import ablation_report, experiment
from zoo.llm.ablation_results import Cell, Results, results
from zoo.llm.config import KINDS, ORACLE, Config, changed, validate_ablation
from zoo.llm.loaded import Loaded
from zoo.llm.prompts import WITHOUT
from zoo.llm.readouts import Answers
from zoo.storage.workdir import locked

_CELLS = 'cells'  # the folder of all runs
_OWN = {'.lock', *ablation_report.FILES}  # beside it


def run(
  config: Config,
  out: str | os.PathLike[str],
  data: str | os.PathLike[str] | None = None,
) -> Results | None:
  """Completes all cells of an ablation, and writes its table.

  Each cell is a run of `experiment` in its own folder below `out/cells`. Cells that
  differ only in the guess share one arm without guesses. The same call resumes after an
  interruption, and adds cells if given more names; after SIGTERM it returns None.
  `data` is the folder of the files of the benchmark.

  Raises the errors of `experiment.run`; nothing is written before all cells are
  checked.
  """
  planned = plan(config)
  out = user_path(out)
  _check_folder(out)
  loaded = Loaded(config, data)
  prepared = {
    cell: experiment.prepare(of_cell, out / _CELLS / cell.name, loaded)
    for cell, of_cell in planned.items()
  }
  try:
    out.mkdir(parents=True, exist_ok=True)
    with locked(out), Interruption() as interruption:
      for of_cell in prepared.values():
        if of_cell.summary is None:
          experiment.begin(of_cell)  # so that a restart need not make the guesses again
      is_done = _complete_all(prepared, interruption)
      interruption.raise_if_ctrl_c()
      if not is_done:
        return None
      found = results(prepared)
      ablation_report.write(found, out)
  except OSError as error:
    raise RunError(f'{out} could not be written: {error}') from error
  return found


def plan(config: Config) -> dict[Cell, Config]:
  """The cells of an ablation with their configs; raises UserError for bad fields."""
  validate_ablation(config)
  found = {}
  for num_examples in config.ablation.num_examples:
    for guess, fields in _guesses(config).items():
      changes = {'guess': fields, 'prompts': {'num_examples': num_examples}}
      of_cell = changed(config, **changes)
      with of_cell.unlocked():
        del of_cell.ablation
      found[Cell(num_examples, guess)] = of_cell
  return found


def _guesses(config: Config) -> dict[str, dict[str, Any]]:
  """The fields of the config's section `guess` to change, for each guess by name.

  Guesses that are shifted by a number have no meaning for classes, and are left out.
  """
  of_classes = config.benchmark.low is None
  guesses = {}
  for name in config.ablation.guesses:
    fields = {'bias': 0.0, 'noise': 0.0, 'shuffled': False, **KINDS[name]}
    if name == ORACLE:
      for size in config.ablation.noise:
        guesses[f'{ORACLE}_{size:g}'] = {**fields, 'noise': float(size)}
    elif not (of_classes and fields['bias']):
      guesses[name] = fields
  if not guesses:
    raise UserError(
      f'config.ablation.guesses is {config.ablation.guesses}; none of them has a '
      'meaning for labels that are classes'
    )
  return guesses


def _check_folder(out: pathlib.Path) -> None:
  if out.exists() and not out.is_dir():
    raise UserError(f'{out} is not a folder; give another one')
  if not out.is_dir() or (out / _CELLS).is_dir():
    return
  if others := sorted({path.name for path in out.iterdir()} - _OWN):
    raise UserError(
      f'{out} has {others[0]!r}, and is no folder of an ablation; give another folder'
    )


def _complete_all(
  prepared: dict[Cell, experiment.Run], interruption: Interruption
) -> bool:
  """Asks what was not asked yet; returns whether all cells are finished."""
  # The answers without guesses of complete runs, by number of examples.
  shared = {
    cell.num_examples: _without_guess(one)
    for cell, one in prepared.items()
    if one.is_answered
  }
  for number, (cell, one) in enumerate(prepared.items(), start=1):
    logging.info('cell %d of %d: %s', number, len(prepared), cell.name)
    summary = experiment.complete(one, shared.get(cell.num_examples))
    if summary is None or interruption.requested:
      return False
    shared.setdefault(cell.num_examples, _without_guess(one))
  return True


def _without_guess(one: experiment.Run) -> list[Answers]:
  return [line['arms'][WITHOUT] for line in one.ordered()]
