"""The ablation: an experiment for each guess, number of examples and benchmark."""

from __future__ import annotations

import copy
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from absl import logging
from flax.traverse_util import flatten_dict

from zoo.core.errors import RunError, UserError, check_count, check_name, check_number
from zoo.host.files import user_path
from zoo.host.interruption import Interruption
from zoo.llm import ablation_report, experiment
from zoo.llm.ablation_results import Cell, Measured, Results, results
from zoo.llm.config import Config
from zoo.llm.loaded import Loaded
from zoo.llm.published import PUBLISHED
from zoo.llm.readouts import Answers
from zoo.storage.workdir import locked

ORACLE = 'oracle'  # becomes one guess for each size of its noise
# The fields of the section `guess`; a bias makes sense only for numbers.
GUESSES: dict[str, dict[str, Any]] = {
  'network': {'model': 'network'},
  'cosine': {'model': 'cosine'},
  'constant': {'model': 'constant'},
  'shuffled': {'model': 'cosine', 'shuffled': True},
  'plus_1': {'model': 'cosine', 'bias': 1.0},
  'minus_1': {'model': 'cosine', 'bias': -1.0},
  'wrong': {'model': 'wrong'},
  ORACLE: {'model': 'oracle'},
}
FIELDS = 'benchmarks', 'guesses', 'noise', 'class_noise', 'num_examples'
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
        if of_cell.finished is None:
          experiment.begin(of_cell)  # so that a restart need not make the guesses again
      measured = _complete_all(prepared, interruption)
      interruption.raise_if_ctrl_c()
      if measured is None:
        return None
      found = results(measured, config.seed)
      ablation_report.write(found, out)
  except OSError as error:
    raise RunError(f'{out} could not be written: {error}') from error
  return found


def plan(config: Config) -> Iterator[_Planned]:
  """The cells of an ablation, each with its config; raises UserError for bad fields."""
  _validate(config)
  section = config.ablation
  for benchmark in section.benchmarks:
    fields = guess_fields(config, benchmark)
    if not fields:
      raise UserError(
        f'config.ablation.guesses is {section.guesses}; none of them has a meaning for '
        f'{benchmark}, whose labels are classes'
      )
    for num_examples in section.num_examples:
      for guess, of_guess in fields.items():
        cell = Cell(benchmark, num_examples, guess, of_guess['noise'])
        yield _Planned(cell, _config_of(config, cell, of_guess))


def guess_fields(config: Config, benchmark: str) -> dict[str, dict[str, Any]]:
  """The fields of the config section `guess` to change, for each guess by name."""
  section = config.ablation
  of_classes = config.benchmarks[benchmark].low is None
  fields = {}
  for name in section.guesses:
    rest = {'bias': 0.0, 'noise': 0.0, 'shuffled': False, **GUESSES[name]}
    if name == ORACLE:
      for size in section.class_noise if of_classes else section.noise:
        fields[f'{ORACLE}_{size:g}'] = {**rest, 'noise': float(size)}
    elif not (of_classes and rest['bias']):
      fields[name] = rest
  return fields


def _validate(config: Config) -> None:
  if not hasattr(config, 'benchmarks'):
    raise UserError(
      "the config has no section 'benchmarks'; an ablation needs the wording of each"
    )
  fields = flatten_dict(config.ablation.to_dict())
  for (field,) in fields:
    check_name('field of config.ablation:', field, FIELDS)
  for field in FIELDS:
    values = fields.get((field,))
    if not isinstance(values, tuple | list) or not values:
      raise UserError(
        f'config.ablation.{field} is {values!r}; it must be a tuple of at least one '
        'value'
      )
    if len(set(map(repr, values))) < len(values):
      raise UserError(f'config.ablation.{field} is {values!r}; it repeats a value')
  section = config.ablation
  for name in section.benchmarks:
    check_name('name in config.ablation.benchmarks:', name, config.benchmarks)
  for name in section.guesses:
    check_name('name in config.ablation.guesses:', name, GUESSES)
  for size in section.noise:
    check_number('a value of config.ablation.noise', size, minimum=0.0)
  for size in section.class_noise:
    if check_number('a value of config.ablation.class_noise', size, minimum=0.0) > 1:
      raise UserError(
        f'config.ablation.class_noise has {size:g}; it must be probabilities'
      )
  for number in section.num_examples:
    if check_count('a value of config.ablation.num_examples', number, minimum=0) > 20:
      raise UserError(f'config.ablation.num_examples has {number}; it must be ≤ 20')


def _config_of(config: Config, cell: Cell, of_guess: dict[str, Any]) -> Config:
  """The config of one experiment."""
  changed: Any = copy.deepcopy(config)
  with changed.unlocked():
    changed.benchmark = changed.benchmarks[cell.benchmark]
    del changed.benchmarks, changed.ablation
    for field, value in of_guess.items():
      changed.guess[field] = value
    changed.prompts.num_examples = cell.num_examples
  return changed


def _data_folder(data: pathlib.Path, benchmark: str) -> pathlib.Path:
  """The folder of a benchmark's files; raises UserError if there is none."""
  name = PUBLISHED[benchmark].source.name if benchmark in PUBLISHED else benchmark
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
) -> list[Measured] | None:
  """The lines of all cells; None after an interruption."""
  measured = []
  for number, (cell, of_cell) in enumerate(prepared.items(), start=1):
    logging.info('cell %d of %d: %s', number, len(prepared), cell.name)
    shared = [
      other
      for known, other in prepared.items()
      if (known.benchmark, known.num_examples) == (cell.benchmark, cell.num_examples)
    ]
    summary = experiment.complete(of_cell, _without_guess(shared))
    lines = of_cell.lines()
    if summary is None or lines is None or interruption.requested:
      return None
    scale = of_cell.prompts.wording.scale
    measured.append(Measured(cell, lines, scale, summary))
  return measured


def _without_guess(shared: Sequence[experiment.Run]) -> list[Answers] | None:
  """The answers without guesses, if one of these runs is complete."""
  for one in shared:
    if (lines := one.lines()) is not None:
      return [line['arms']['without_guess'] for line in lines]
  return None
