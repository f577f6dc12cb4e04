"""Studies: models to train, numbers to measure, and the ranges expected of them."""

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

from studies.cell_table import complete, shared_out
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
from zoo.measure.intervals import estimate
from zoo.reports.plots import Panel, Plot, write_plot
from zoo.storage.rows import read_rows

HOLDS, FAILS, MEASURED = 'holds', 'fails', 'measured'
NOT_RUN = 'not run here'

_Number = int | float
# A study measures a number, or one number for each seed.
Measured = _Number | Sequence[_Number]


class Expected(NamedTuple):
  """The range in which a number is expected, and where the expectation comes from.

  Attributes:
    low: The lower end, which belongs to the range.
    high: The upper end, which belongs to the range.
    source: The source of the range, in words, such as a figure of a paper.

  Example:
    >>> studies.Expected(0.0, 1.0, 'a probability').holds([0.2, 0.9])
    True
  """

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
    """Returns whether a number, or the number of every seed, is in the range.

    NaN is in no range.
    """
    return all(self.low <= number <= self.high for number in by_seed(measured))


def near(value: _Number, tolerance: _Number, source: str) -> Expected:
  """Returns the range `value ± tolerance`.

  Args:
    value: The middle of the range.
    tolerance: Half of the width of the range, ≥ 0.
    source: The source of the range, in words.

  Returns:
    The range from `value − tolerance` to `value + tolerance`.

  Example:
    >>> str(studies.near(0.5, 0.1, 'Table 1'))
    '0.4 … 0.6'
  """
  return Expected(float(value - tolerance), float(value + tolerance), source)


def at_least(bound: _Number, source: str) -> Expected:
  """Returns the range of all numbers ≥ `bound`.

  Args:
    bound: The lower end, which belongs to the range.
    source: The source of the range, in words.

  Returns:
    The range from `bound` to ∞.

  Example:
    >>> str(studies.at_least(0.5, 'Table 1'))
    '≥ 0.5'
  """
  return Expected(float(bound), math.inf, source)


def at_most(bound: _Number, source: str) -> Expected:
  """Returns the range of all numbers ≤ `bound`.

  Args:
    bound: The upper end, which belongs to the range.
    source: The source of the range, in words.

  Returns:
    The range from −∞ to `bound`.

  Example:
    >>> str(studies.at_most(0.5, 'Table 1'))
    '≤ 0.5'
  """
  return Expected(-math.inf, float(bound), source)


class Measurement(NamedTuple):
  """The measured numbers of a study, and the panels of a picture of them.

  Attributes:
    numbers: The numbers by name. A number that is measured for several seeds is a
      sequence with one number for each seed.
    panels: The panels of the picture; none for no picture.

  Example:
    >>> studies.Measurement({'risk': [5.2, 5.3]}).numbers['risk']
    [5.2, 5.3]
  """

  numbers: Mapping[str, Measured]
  panels: tuple[Panel, ...] = ()


@dataclasses.dataclass(frozen=True)
class Study:
  """A study: what to train and to measure, and what to expect of the numbers.

  A study holds if every number with an expected range is in it. A number that is
  measured for several seeds must be in the range for every seed. Expected ranges are
  written down before anything is measured, and do not change if they are missed.

  Attributes:
    name: The name, of letters, digits and underscores.
    statement: What the study shows, in a sentence.
    measure: A function that trains what it needs with its argument, a `Trainer`, and
      returns the numbers.
    setting: The task, the model, and what the numbers are, in a sentence.
    source: The paper that the study follows.
    expected: The expected ranges, by the name of the number.
    minutes: About how many minutes the study takes on 2 CPU cores.

  Raises:
    UserError: If the name is invalid, or if an expected range is not an `Expected`.

  Example:
    >>> study = studies.Study(
    ...   'half',
    ...   'A half is 0.5.',
    ...   lambda train: studies.Measurement({'half': 1 / 2}),
    ...   expected={'half': studies.near(0.5, 0.01, 'arithmetic')},
    ... )
    >>> study.expected['half'].holds(0.495)
    True
  """

  name: str
  statement: str
  measure: Callable[[Trainer], Measurement]
  setting: str = ''
  source: str = ''
  expected: Mapping[str, Expected] = dataclasses.field(default_factory=dict)
  minutes: _Number | None = None

  def __post_init__(self) -> None:
    """Raises UserError for an invalid name, and for an invalid range."""
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
  """A study and its measured numbers.

  Attributes:
    study: The study.
    numbers: The numbers by name; None if the study was not measured by this call.
    minutes: The minutes that this call took.
    plot: The picture; None without panels.
    verdict: Whether all numbers are in their ranges, in words.
  """

  study: Study
  numbers: Mapping[str, Measured] | None = None
  minutes: float | None = None
  plot: Plot | None = None

  @property
  def verdict(self) -> str:
    """Whether all numbers are in their ranges, in words.

    It is `holds`, `fails`, `measured` without expected ranges, or `not run here`.
    """
    if self.numbers is None:
      return NOT_RUN
    expected = self.study.expected
    if not expected:
      return MEASURED
    held = [range_.holds(self.numbers[name]) for name, range_ in expected.items()]
    return HOLDS if all(held) else FAILS


class About(NamedTuple):
  """The texts of a report, and the name of the file with its numbers.

  Attributes:
    title: The title of the page.
    lead: The paragraph below the title; the verdicts follow.
    file: The name of the JSON file with the numbers.
  """

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
  """Trains and measures studies in a folder, and writes a report.

  The folder keeps finished runs. They belong to the configs and the points that a study
  trains with: a run with other settings is trained anew. Each call measures all numbers
  again, since they also depend on the code of `measure`. An error of this code ends the
  call unchanged.

  The folder gets a row of `rows.jsonl` for each study, with its numbers and the folders
  of its runs; its runs; a figure (CSV, SVG, PNG) if it has panels; and, for all known
  studies, the numbers in one file and `report.html`.

  Args:
    wanted: The studies to train and to measure.
    get_config: A function from the name of a file in configs/ and a variant to a
      config.
    out: The folder. It may be in a bucket: gs://bucket/studies.
    part: The part of the wanted studies to measure. `Part(2, 4)` measures every fourth
      study from the second on, and writes only their rows and figures, no report.
    known: The studies of the report; None means the wanted ones. Known studies that an
      earlier call measured in the folder are measured again, unless something would
      have to be trained.
    about: The texts of the report; None has the default texts.

  Returns:
    A result for each known study. The result is None after SIGTERM, and the same call
    then resumes.

  Raises:
    UserError: If a study or a config is invalid, if `out` cannot be the folder, or if
      another process measures in the folder or the same part (this is an InUseError).
    RunError: If a run is not finite, or if the folder cannot be written.
    KeyboardInterrupt: After Ctrl-C; the same call then resumes.

  Example:
    >>> study = studies.Study(
    ...   'half', 'A half is 0.5.', lambda train: studies.Measurement({'half': 1 / 2})
    ... )
    >>> results = studies.run([study], lambda file, variant: None, 'runs/half')
    >>> results[0].verdict, results[0].numbers
    ('measured', {'half': 0.5})
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
  """Returns the numbers of studies as a table for a terminal, one number in a row.

  Args:
    results: The results that `run` returns.

  Returns:
    The lines of the table, with a header. A column in which all cells are empty is left
    out.

  Example:
    >>> study = studies.Study('half', 'A half is 0.5.', lambda train: None)
    >>> print(studies.table([StudyResult(study, {'half': 0.5})]))
    study  number  measured   verdict
    half     half       0.5  measured
  """
  rows = [
    ['', *row, ''] if number else [result.study.name, *row, result.verdict]
    for result in results
    for number, row in enumerate(_rows(result))
  ]
  return format_table(rows, ('study', 'number', 'expected', 'measured', 'verdict'))


def report_page(results: Sequence[StudyResult], about: About) -> str:
  """Returns the HTML report: pictures, if any, then all numbers, ranges and sources."""
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


def by_seed(measured: Measured) -> Sequence[_Number]:
  """Returns what was measured as a sequence, with one number for each seed."""
  return measured if isinstance(measured, Sequence) else [measured]


def _as_floats(measured: Any) -> Measured:
  """Returns what a study measured, in the types that JSON has."""
  if np.ndim(measured) == 0:
    return float(measured)
  return [float(number) for number in measured]


def _text(measured: Measured) -> str:
  """Returns a number, or the mean over seeds with its interval and range, as text."""
  numbers = by_seed(measured)
  if len(numbers) == 1:
    return f'{numbers[0]:.5g}'
  mean = estimate(numbers)
  ends = f'{min(numbers):.4g} to {max(numbers):.4g}'
  return f'{mean.mean:.4g} ± {mean.half:.2g} ({ends})'


def _rows(result: StudyResult) -> list[list[str]]:
  """Returns the name, the expected range and the measured value of each number."""
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
