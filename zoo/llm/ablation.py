"""The ablation: an experiment for each guess, number of examples and benchmark."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import logging

from zoo.core.errors import RunError, UserError
from zoo.host.files import user_path
from zoo.host.interruption import Interruption
from zoo.llm import ablation_report, experiment
from zoo.llm.ablation_results import Cell, Results, results
from zoo.llm.benchmarks import PUBLISHED
from zoo.llm.config import KINDS, ORACLE, Config, changed, validate_ablation
from zoo.llm.loaded import Loaded
from zoo.llm.prompts import WITHOUT
from zoo.llm.readouts import Answers
from zoo.storage.workdir import locked

_CELLS = 'cells'  # the folder of all runs
_OWN = {_CELLS, '.lock', *ablation_report.FILES}


class _Planned(NamedTuple):
  cell: Cell
  config: Config


def run(
  config: Config,
  out: str | os.PathLike[str],
  data: str | os.PathLike[str] | None = None,
) -> Results | None:
  """Completes all cells of an ablation, and writes its table and page.

  Each cell is a run of `experiment` in its own folder below `out/cells`. Cells that
  differ only in the guess share one arm without guesses. The same call resumes after an
  interruption, and adds cells if given more names; after SIGTERM it returns None.
  `data` has a folder for each source: stsb, sick, trec_qa.

  Raises the errors of `experiment.run`; nothing is written before all cells are
  checked.
  """
  planned = [*plan(config)]
  out = user_path(out)
  _check_folder(out)
  loaded = Loaded()
  prepared = {}
  for cell, of_cell in planned:
    folder = None if data is None else _data_folder(user_path(data), cell.benchmark)
    at = out / _CELLS / cell.name
    prepared[cell] = experiment.prepare(of_cell, at, folder, loaded)
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
      found = results(prepared, config.seed)
      ablation_report.write(found, out)
  except OSError as error:
    raise RunError(f'{out} could not be written: {error}') from error
  return found


def plan(config: Config) -> Iterator[_Planned]:
  """The cells of an ablation, each with its config; raises UserError for bad fields."""
  validate_ablation(config)
  for name in config.ablation.benchmarks:
    benchmark = config.benchmarks[name]
    guesses = _guesses(config.ablation, of_classes=benchmark.low is None)
    if not guesses:
      raise UserError(
        f'config.ablation.guesses is {config.ablation.guesses}; none of them has a '
        f'meaning for {name}, whose labels are classes'
      )
    for num_examples in config.ablation.num_examples:
      for guess, fields in guesses.items():
        of_cell = changed(
          config,
          benchmark=benchmark,
          guess=fields,
          prompts={'num_examples': num_examples},
        )
        with of_cell.unlocked():
          del of_cell.benchmarks, of_cell.ablation
        yield _Planned(Cell(name, num_examples, guess, fields['noise']), of_cell)


def _guesses(section: Config, of_classes: bool) -> dict[str, dict[str, Any]]:
  """The fields of the config's section `guess` to change, for each guess by name."""
  guesses = {}
  for name in section.guesses:
    fields = {'bias': 0.0, 'noise': 0.0, 'shuffled': False, **KINDS[name]}
    if name == ORACLE:
      for size in section.class_noise if of_classes else section.noise:
        guesses[f'{ORACLE}_{size:g}'] = {**fields, 'noise': float(size)}
    elif not (of_classes and fields['bias']):
      guesses[name] = fields
  return guesses


def _data_folder(data: pathlib.Path, benchmark: str) -> pathlib.Path:
  """The folder of a benchmark's files; raises UserError if there is none."""
  name = PUBLISHED[benchmark].folder if benchmark in PUBLISHED else benchmark
  if not (data / name).is_dir():
    raise UserError(
      f'--data is {data}, which has no folder {name}; for the ablation it must have '
      'one for each source of its benchmarks, such as stsb, sick and trec_qa'
    )
  return data / name


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
  # The answers without guesses of complete runs, by benchmark and number of examples.
  shared = {
    cell[:2]: _without_guess(one) for cell, one in prepared.items() if one.is_answered
  }
  for number, (cell, one) in enumerate(prepared.items(), start=1):
    logging.info('cell %d of %d: %s', number, len(prepared), cell.name)
    summary = experiment.complete(one, shared.get(cell[:2]))
    if summary is None or interruption.requested:
      return False
    shared.setdefault(cell[:2], _without_guess(one))
  return True


def _without_guess(one: experiment.Run) -> list[Answers]:
  return [line['arms'][WITHOUT] for line in one.ordered()]
