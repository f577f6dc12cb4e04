"""Studies: models to train, numbers to measure, and the ranges that they must be in."""

import dataclasses
import math
import os
import pathlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from studies.rows import complete, shared_out
from studies.runner import (
  GetConfig,
  Trainer,
  UntrainedError,
  facts,
  run_in,
  sections_of,
  write_report,
  writing,
)
from zoo import reports
from zoo.core.errors import UserError
from zoo.core.tables import format_table
from zoo.host.parts import Part
from zoo.measure.statistics import estimate_of_few
from zoo.reports.plots import Panel, Plot, write_plot
from zoo.storage.rows import read_rows

HOLDS, FAILS, MEASURED = 'holds', 'fails', 'measured'
NOT_RUN = 'not run here'

_Number = int | float
# What a study measures: a number, or one of each seed.
Measured = _Number | Sequence[_Number]


class Expected(NamedTuple):
  """The range that a number must be in, ends included, and the source of the range."""

  low: float
  high: float
  source: str

  def __str__(self) -> str:
    if self.high == math.inf:
      return f'≥ {self.low:.5g}'
    if self.low == -math.inf:
      return f'≤ {self.high:.5g}'
    if self.low == self.high:
      return f'{self.low:.5g}'
    return f'{self.low:.5g} … {self.high:.5g}'

  def holds(self, measured: Measured) -> bool:
    """Whether a number, or that of every seed, is in the range; NaN is in no range."""
    return all(self.low <= number <= self.high for number in _by_seed(measured))


def near(value: _Number, tolerance: _Number, source: str) -> Expected:
  """The range `value ± tolerance`."""
  return Expected(float(value - tolerance), float(value + tolerance), source)


def at_least(bound: _Number, source: str) -> Expected:
  """The range of all numbers ≥ `bound`."""
  return Expected(float(bound), math.inf, source)


def at_most(bound: _Number, source: str) -> Expected:
  """The range of all numbers ≤ `bound`."""
  return Expected(-math.inf, float(bound), source)


class Measurement(NamedTuple):
  """The measured numbers of a study, and the panels of a picture of them, if any.

  What is measured for several seeds is a sequence with a number of each.
  """

  numbers: Mapping[str, Measured]
  panels: tuple[Panel, ...] = ()


@dataclasses.dataclass(frozen=True)
class Study:
  """What to train and to measure, and what to expect of the numbers.

  A study holds if every number with an expected range is in it, and a number that is
  measured for several seeds is in it for every one of them. Expected ranges are
  written down before anything is measured, and do not change if they are missed.
  """

  name: str  # letters, digits and underscores
  statement: str
  measure: Callable[[Trainer], Measurement]  # trains what it needs with the trainer
  setting: str = ''  # in a sentence: the task, the model, and what the numbers are
  source: str = ''
  expected: Mapping[str, Expected] = dataclasses.field(default_factory=dict)
  minutes: _Number | None = None  # about, on 2 CPU cores

  def __post_init__(self) -> None:
    """Raises UserError for a name that is no name of a file, and for no ranges."""
    if not re.fullmatch(r'\w+', self.name):
      raise UserError(
        f'the name of a study is {self.name!r}; it must have letters, digits and '
        'underscores'
      )
    for name, range_ in self.expected.items():
      if not (isinstance(range_, Expected) and range_.low <= range_.high):
        raise UserError(
          f'the study {self.name} expects {name} in {range_}; it must be a range, as '
          'studies.near, at_least and at_most return'
        )


class StudyResult(NamedTuple):
  """A study and its measured numbers, which are None if it was not run here."""

  study: Study
  numbers: Mapping[str, Measured] | None = None
  minutes: float | None = None  # of this call
  plot: Plot | None = None

  @property
  def verdict(self) -> str:
    """Whether all numbers are in their ranges, in words."""
    if self.numbers is None:
      return NOT_RUN
    expected = self.study.expected
    if not expected:
      return MEASURED
    held = [range_.holds(self.numbers[name]) for name, range_ in expected.items()]
    return HOLDS if all(held) else FAILS


class About(NamedTuple):
  """What a report says of its studies, and the name of the file of their numbers."""

  title: str = 'Studies'
  lead: str = 'Trained and measured by ICL Zoo.'
  file: str = 'studies.json'


def run(
  wanted: Sequence[Study],
  get_config: GetConfig,
  out: str | os.PathLike[str],
  part: Part | None = None,
  *,
  known: Sequence[Study] | None = None,
  about: About | None = None,
) -> list[StudyResult] | None:
  """Measures the `wanted` studies in the folder `out`.

  What the folder keeps are finished runs, which belong to the configs and the points
  that a study trains with: a run with other settings is trained anew, and all numbers
  are measured again by each call, since they depend on the code of `measure`, too.
  Writes the numbers of each study, and the folders of its runs, as a row of
  `rows.jsonl`; its runs into a folder, and a figure (CSV, SVG, PNG) if it has panels;
  and, for all `known` studies (None: those that are wanted), the numbers in one file
  and `report.html`. Known studies that an earlier call measured in the folder are
  measured again, too, unless something would have to be trained. With a `part`, such as
  `Part(2, 4)`, it measures only every fourth of the wanted studies, from the second on,
  and writes only their rows and figures.

  Returns None after SIGTERM, and raises KeyboardInterrupt after Ctrl-C; the same call
  then resumes. Raises the errors of `run_in`, of `zoo.training.sweep`, and of a
  study's own `measure`; RunError if the folder cannot be written; InUseError if another
  process measures in the folder, or the same part.
  """
  known = wanted if known is None else known
  about = about or About()

  with run_in(out) as (folder, interruption):
    named = {study.name: study for study in wanted}
    with writing(out):
      kept = read_rows(folder) if part is None else {}
    earlier = {study.name: study for study in known if study.name in kept}
    studies = {**named, **earlier}
    measured: dict[str, StudyResult] = {}

    def compute(name: str) -> dict[str, Any] | None:
      runs = folder / name / 'runs'
      train = Trainer(runs, get_config, trains=name in named)
      try:
        measured[name] = _measure(studies[name], train, folder)
      except UntrainedError:
        logging.warning(
          '%s would have to be trained again, since its settings or the version have '
          'changed, or its runs are gone; the report has no number of it until it is '
          'named',
          name,
        )
        return None
      numbers, minutes = measured[name].numbers, measured[name].minutes
      return {'numbers': numbers, 'minutes': minutes, 'runs': train.asked}

    cells = dict.fromkeys(studies)
    complete(cells, shared_out(cells, part), compute, folder, interruption, part)
    results = [measured.get(study.name, StudyResult(study)) for study in known]
    if part is None:
      data = [_as_json(result) for result in results]
      with writing(out):
        write_report(folder, about.file, data, report_page(results, about))
    return results
  return None


def table(results: Sequence[StudyResult]) -> str:
  """The numbers as a table for a terminal, one per row."""
  rows = [
    ['', *row, ''] if number else [result.study.name, *row, result.verdict]
    for result in results
    for number, row in enumerate(_rows(result))
  ]
  return format_table(rows, ('study', 'number', 'expected', 'measured', 'verdict'))


def report_page(results: Sequence[StudyResult], about: About) -> str:
  """The HTML report: pictures, if any, then all numbers, their ranges and sources."""
  verdicts = [result.verdict for result in results]
  counts = [
    f'{verdict}: {verdicts.count(verdict)}' for verdict in dict.fromkeys(verdicts)
  ]
  figures = {
    f'figure_{result.study.name}': reports.figure_of(
      result.plot,
      result.study.statement,
      f'{result.study.name}. {result.study.setting}'.strip(),
    )
    for result in results
    if result.plot is not None
  }
  verdict_section = reports.Section(
    'Verdicts',
    'A study holds if all of its numbers are in their ranges, for every seed. Numbers '
    'of several seeds are the mean ± half of its 95 % t interval, then the smallest '
    'and the largest.',
    {about.file: about.file},
    tables=[_numbers(result) for result in results],
  )
  sections = [verdict_section, *sections_of(facts())]
  if figures:
    sections = [reports.Section('Pictures', figures=figures), *sections]
  lead = f'{about.lead} Verdicts: ' + '; '.join(counts)
  return reports.render(about.title, lead, sections)


def _measure(study: Study, train: Trainer, out: pathlib.Path) -> StudyResult:
  start = time.monotonic()
  measurement = study.measure(train)
  if not isinstance(measurement, Measurement):
    raise UserError(
      f'the measure of {study.name} returns the type {type(measurement).__name__}; it '
      'must be studies.Measurement'
    )
  if missing := study.expected.keys() - measurement.numbers.keys():
    raise UserError(
      f'the study {study.name} expects {", ".join(sorted(missing))}, which its measure '
      f'does not return; it returns {", ".join(measurement.numbers)}'
    )
  names = dict.fromkeys([*study.expected, *measurement.numbers])
  numbers = {name: _as_floats(measurement.numbers[name]) for name in names}
  minutes = (time.monotonic() - start) / 60
  plot = Plot(study.name, measurement.panels) if measurement.panels else None
  if plot is not None:
    with writing(out):
      write_plot(plot, out)
  return StudyResult(study, numbers, minutes, plot)


def _by_seed(measured: Measured) -> Sequence[float]:
  return measured if isinstance(measured, Sequence) else [measured]


def _as_floats(measured: Any) -> Measured:
  """What a study measured in the types that JSON has."""
  if np.ndim(measured) == 0:
    return float(measured)
  return [float(number) for number in measured]


def _text(measured: Measured) -> str:
  """A number, or the mean over seeds with its interval, and the range of the seeds."""
  numbers = _by_seed(measured)
  if len(numbers) == 1:
    return f'{numbers[0]:.5g}'
  mean = estimate_of_few(numbers)
  ends = f'{min(numbers):.4g} to {max(numbers):.4g}'
  return f'{mean.mean:.4g} ± {mean.half:.2g} ({ends})'


def _rows(result: StudyResult) -> list[list[str]]:
  """The name, the expected range and the measured value of each number."""
  numbers, expected = result.numbers or {}, result.study.expected
  return [
    [
      name,
      str(expected.get(name, '')),
      _text(numbers[name]) if name in numbers else NOT_RUN,
    ]
    for name in dict.fromkeys([*expected, *numbers])
  ]


def _numbers(result: StudyResult) -> reports.Table:
  study = result.study
  rows = [
    [*row, study.expected[row[0]].source if row[0] in study.expected else '']
    for row in _rows(result)
  ]
  source = study.source and f'From {study.source}.'
  words = study.statement, source, study.setting
  note = ' '.join(filter(None, words))
  if study.minutes is not None:
    note += f' About {study.minutes:g} minutes on 2 CPU cores.'
  if result.minutes is not None:
    note += f' Here it took {result.minutes:.1f}, without runs that were there before.'
  header = 'number', 'expected', 'measured', 'from'
  return reports.Table(rows, header, title=f'{study.name}: {result.verdict}', note=note)


def _as_json(result: StudyResult) -> Mapping[str, Any]:
  study = result.study
  ranges = {
    name: {'expected': str(range_), 'from': range_.source}
    for name, range_ in study.expected.items()
  }
  return {
    'name': study.name,
    'statement': study.statement,
    'setting': study.setting,
    'source': study.source,
    'expected': ranges,
    'measured': result.numbers,
    'verdict': result.verdict,
    'minutes': result.minutes,
  }
