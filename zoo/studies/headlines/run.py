"""Measures headlines, judges them by their rules, and writes the report."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from absl import logging

from zoo import reports
from zoo.core.errors import RunError, UserError
from zoo.core.tables import format_table
from zoo.host.files import (
  UnreadableFile,
  is_finite_number,
  read_json,
  read_text,
  workdir_path,
  write_atomically,
)
from zoo.host.parts import Part
from zoo.reports.plots import Plot, from_csv, write_plot
from zoo.studies.headlines.headline import NOT_RUN, Headline, rule, verdict
from zoo.studies.headlines.trainer import GetConfig, Stopped, Trainer
from zoo.studies.paper.reproduce import machine, versions

_RESULT = 'result.json'


class Result(NamedTuple):
  """A headline and its measured numbers, which are None if it was not run here."""

  headline: Headline
  numbers: dict[str, float] | None
  minutes: float | None  # that measuring it took
  plot: Plot | None

  @property
  def verdict(self) -> str:
    """Whether all numbers are in their ranges, in words."""
    return verdict(self.headline, self.numbers)


def run(
  wanted: Sequence[Headline],
  known: Sequence[Headline],
  get_config: GetConfig,
  out: str | os.PathLike[str],
  part: Part | None = None,
) -> list[Result] | None:
  """Measures the `wanted` headlines that the folder `out` does not have yet.

  Headlines that need an accelerator are measured only where there is one. Writes, for
  each headline, a folder with its runs and `result.json`, and a figure (CSV, SVG, PNG);
  and, for all `known` headlines, `headlines.json` and `report.html`. With a `part`,
  such as `Part(2, 4)`, it measures only every fourth of the `wanted` headlines, from
  the second on, and writes only their results and figures. Returns None after
  SIGTERM, and raises KeyboardInterrupt after Ctrl-C; the same call then resumes. Raises
  UserError, before anything is written, for an `out` that cannot be a folder; RunError
  if it cannot be written; and otherwise the errors of `zoo.training.sweep`. `out` may
  be in a bucket, such as gs://bucket/headlines.
  """
  out = workdir_path(out)
  try:
    out.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f'{out} cannot be the output folder: {error.strerror}') from error
  accelerated = jax.default_backend() != 'cpu'
  due = [*wanted] if part is None else part.of(wanted)
  due = [one for one in due if accelerated or not one.needs_accelerator]
  due = [one for one in due if _read(one, out).numbers is None]
  try:
    for count, headline in enumerate(due, start=1):
      shown = f'{headline.name}: about {headline.minutes:g} min'
      logging.info('headline %d of %d, %s', count, len(due), shown)
      _measure(headline, get_config, out)
    results = [_read(one, out) for one in known]
    if part is None:
      table = [_as_json(one) for one in results]
      write_atomically(out / 'headlines.json', json.dumps(table, indent=2) + '\n')
      write_atomically(out / 'report.html', page(results))
  except Stopped:
    return None
  except OSError as error:
    raise RunError(f'{out} could not be written: {error}') from error
  return results


def table(results: Sequence[Result]) -> str:
  """The numbers as a table for a terminal, one per row."""
  rows = [
    [one.headline.name if first else '', *row, one.verdict if first else '']
    for one in results
    for first, row in zip([True, *[False] * 99], _rows(one), strict=False)
  ]
  return format_table(rows, ('headline', 'number', 'expected', 'measured', 'verdict'))


def page(results: Sequence[Result]) -> str:
  """The HTML report: pictures first, then verdicts, then all numbers and sources."""
  verdicts = [one.verdict for one in results]
  counts = [f'{one}: {verdicts.count(one)}' for one in dict.fromkeys(verdicts)]
  figures = {
    f'figure_{one.headline.name}': reports.figure_of(
      one.plot, one.headline.statement, f'{one.headline.name}. {one.headline.caption}'
    )
    for one in results
    if one.plot is not None
  }
  facts = {'Versions': versions(), 'Machine': machine()}
  return reports.render(
    'Numbers that in-context learning must reproduce',
    'Results of the literature, measured again by ICL Zoo, with the ranges in which '
    'they were expected before they were measured. Verdicts: ' + '; '.join(counts),
    [
      reports.Section('Pictures', figures=figures),
      reports.Section(
        'Verdicts',
        'A headline holds if all of its numbers are in their ranges.',
        {'headlines.json': 'headlines.json'},
        [_claim(one) for one in results],
      ),
      reports.Section('Numbers', tables=[_numbers(one) for one in results]),
      *(
        reports.Section(heading, tables=[reports.Table(list(fact.items()))])
        for heading, fact in facts.items()
      ),
    ],
  )


def _measure(headline: Headline, get_config: GetConfig, out: pathlib.Path) -> None:
  start = time.monotonic()
  folder = out / headline.name
  found = headline.measure(Trainer(folder / 'runs', get_config))
  numbers = {name: float(found.numbers[name]) for name in headline.expected}
  folder.mkdir(parents=True, exist_ok=True)
  write_plot(Plot(headline.name, found.panels), out)
  minutes = (time.monotonic() - start) / 60
  # Last, since a headline with a result file is not measured again.
  result = {'numbers': numbers, 'minutes': minutes}
  write_atomically(folder / _RESULT, json.dumps(result, indent=2) + '\n')


def _read(headline: Headline, out: pathlib.Path) -> Result:
  """The result of a headline in a folder; empty if there is none for these numbers."""
  nothing = Result(headline, None, None, None)
  try:
    found = read_json(out / headline.name / _RESULT)
    text = read_text(out / f'figure_{headline.name}.csv')
    plot = from_csv(headline.name, text)
  except (UnreadableFile, UserError):
    return nothing
  if not isinstance(found, dict):
    return nothing
  numbers, minutes = (found.get(key) for key in ('numbers', 'minutes'))
  if not isinstance(numbers, dict) or numbers.keys() != headline.expected.keys():
    return nothing
  if not all(map(is_finite_number, [*numbers.values(), minutes])):
    return nothing
  return Result(headline, numbers, minutes, plot)


def _rows(one: Result) -> list[list[str]]:
  """The name, the expected range and the measured value of each number."""
  return [
    [name, str(range_), NOT_RUN if one.numbers is None else f'{one.numbers[name]:.5g}']
    for name, range_ in one.headline.expected.items()
  ]


def _numbers(one: Result) -> reports.Table:
  sources = [range_.source for range_ in one.headline.expected.values()]
  rows = [[*row, source] for row, source in zip(_rows(one), sources, strict=True)]
  where = 'an accelerator' if one.headline.needs_accelerator else '2 CPU cores'
  took = '' if one.minutes is None else f' Here it took {one.minutes:.1f}.'
  return reports.Table(
    rows,
    ('number', 'expected', 'measured', 'from'),
    title=f'{one.headline.name}: {one.verdict}',
    note=f'{one.headline.setting} About {one.headline.minutes:g} minutes on {where}.'
    + took,
  )


def _claim(one: Result) -> reports.Claim:
  headline = one.headline
  return {
    'key': headline.name,
    'source': headline.source,
    'statement': headline.statement,
    'verdict': one.verdict,
    'exact': {},
    'measured': {**(one.numbers or {})},  # the table of numbers has the others
    'calls': {},
    'holds_if': rule(headline),
    'sharp_if': 'True',
    'figures': [headline.name],
    'note': headline.note,
  }


def _as_json(one: Result) -> Mapping[str, Any]:
  headline = one.headline
  ranges = {
    name: {'expected': str(range_), 'from': range_.source}
    for name, range_ in headline.expected.items()
  }
  return {
    'name': headline.name,
    'statement': headline.statement,
    'setting': headline.setting,
    'source': headline.source,
    'needs_accelerator': headline.needs_accelerator,
    'expected': ranges,
    'rule': rule(headline),
    'measured': one.numbers,
    'verdict': one.verdict,
    'minutes': one.minutes,
    'note': headline.note,
  }
