"""The table and the page of an ablation."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
from flax.traverse_util import flatten_dict

from zoo import reports
from zoo.core.tables import to_csv
from zoo.host.files import write_atomically
from zoo.llm.ablation_results import LEVEL, Results, Row
from zoo.llm.config import ORACLE
from zoo.llm.readouts import READOUTS, ReadoutName
from zoo.llm.report import number, with_interval
from zoo.reports import plots
from zoo.reports.style import BLACK, GREY, PALETTE

TABLE, PAGE, NUMBERS = 'table.csv', 'report.html', 'ablation.json'
FILES = TABLE, PAGE, NUMBERS
_Column = tuple[str, Callable[[Row], str]]  # its header, and what it shows of a row
_COLUMNS: list[_Column] = [
  ('guess', lambda row: row['guess']),
  ('examples', lambda row: str(row['num_examples'])),
  ('answers', lambda row: f'{row["num_parsed"]}/{row["num_prompts"]}'),
  ('without guess', lambda row: number(row['without_guess'])),
  ('with guess', lambda row: number(row['with_guess'])),
  ('guess alone', lambda row: number(row['guess_alone'])),
  ('copied', lambda row: _share(row['copied_share'])),
  (
    'weight of guess',
    lambda row: _weight(row['guess_weight'], row['guess_weight_stderr']),
  ),
  (
    'weight of own answer',
    lambda row: _weight(row['own_weight'], row['own_weight_stderr']),
  ),
  ('with − without', lambda row: _difference(row['with_minus_without'])),
  ('p', lambda row: _p(row['with_minus_without']['p'])),
  ('with − guess alone', lambda row: _difference(row['with_minus_guess'])),
  ('p', lambda row: _p(row['with_minus_guess']['p'])),
]
_LOG_LOSSES: list[_Column] = [
  ('log loss without', lambda row: number(row['log_loss_without'])),
  ('log loss with', lambda row: number(row['log_loss_with'])),
]
_CROSSING = 'benchmark', 'readout', 'examples', 'crosses at', '95 %', 'resamples'
_SIDES = {
  'nowhere below': 'none: nowhere better than the guess',
  'begins below': 'none: better than the least noisy guess already',
  'no answers': 'no answers',
}
_HOW_TO_READ = (
  'The weights are coefficients of a least-squares fit of the answer to the guess '
  'and to the model’s own answer without the guess, with standard errors. Copying '
  'is a weight of 1 for the guess and 0 for the own answer; a dash means that the '
  'two cannot be told apart, as for a constant guess. Intervals of differences '
  'are simultaneous, with 95 % for all comparisons of a readout; p is from the '
  'paired t test, with classes McNemar’s exact test, with Holm’s correction over '
  'all comparisons of a readout. Answers that equal the guess '
  'count as copied; with classes the model may have said the same by itself.'
)
_ABOUT_CROSSINGS = (
  'The error of the guess above which the answer is better than the guess. '
  'A model that ignores the guess crosses at its own error, so compare with the '
  'error without guess. The interval is from 2000 bootstrap resamples of the '
  'prompts; an open end is beyond the curve. The last column is the share of '
  'resamples that cross.'
)


def write(found: Results, out: pathlib.Path) -> None:
  """Writes `ablation.json`, `table.csv`, `report.html` and its figures into a folder.

  Raises OSError.
  """
  write_atomically(out / NUMBERS, json.dumps(found, indent=2) + '\n')
  flat = [flatten_dict(row, sep='_') for row in found['rows']]
  write_atomically(out / TABLE, to_csv([*flat[0]], flat))
  sections = [_overview(found)]
  for benchmark, metric in found['metrics'].items():
    for readout, name in READOUTS.items():
      rows, figures = _rows_of(found, benchmark, readout), {}
      plot = _plot(found, benchmark, readout)
      if plot.panels:  # it has none if no answer could be parsed
        plots.write_plot(plot, out)
        title = f'{benchmark}, {name}'
        figures[plot.name] = reports.figure_of(plot, title, _caption(metric))
      has_log_loss = rows[0]['log_loss_with'] is not None
      columns = _COLUMNS + _LOG_LOSSES if has_log_loss else _COLUMNS
      note = f'{found["num_comparisons"][readout]} comparisons of this readout in all.'
      table = dataclasses.replace(_table(rows, columns), title=metric, note=note)
      heading = f'{benchmark}: {name}'
      sections.append(reports.Section(heading, figures=figures, tables=[table]))
  title = 'Guesses in the prompt: an ablation'
  write_atomically(out / PAGE, reports.render(title, _lead(found), sections))


def table(found: Results) -> str:
  """Tables for a terminal: the expected value in each cell, and where curves cross."""
  parts = []
  for benchmark, metric in found['metrics'].items():
    of_benchmark = _table(_rows_of(found, benchmark, 'expected'), _COLUMNS)
    parts.append(
      f'{benchmark}: {metric} of the expected value, {found["num_prompts"]} prompts\n'
      + of_benchmark.text()
    )
  if found['curves']:
    parts.append(_crossings(found['curves']).text())
  return '\n\n'.join([*parts, _lead(found)])


def _table(rows: Sequence[Row], columns: Sequence[_Column]) -> reports.Table:
  cells = [[shown(row) for _, shown in columns] for row in rows]
  return reports.Table(cells, header=[name for name, _ in columns])


def _rows_of(found: Results, benchmark: str, readout: ReadoutName) -> list[Row]:
  return [
    row
    for row in found['rows']
    if (row['benchmark'], row['readout']) == (benchmark, readout)
  ]


def _lead(found: Results) -> str:
  lines = [f'{found["model"]}, {found["num_prompts"]} prompts in each cell.']
  for readout, name in READOUTS.items():
    rows = [row for row in found['rows'] if row['readout'] == readout]
    own, guess = (
      [_sign(row[key]) for row in rows]
      for key in ('with_minus_without', 'with_minus_guess')
    )
    lines.append(
      f'{name.capitalize()}: of {len(rows)} cells, the guess lowers the error in '
      f'{own.count(-1)} and raises it in {own.count(1)}; the answer is better than the '
      f'guess alone in {guess.count(-1)} and worse in {guess.count(1)} (p < {LEVEL} '
      f'after Holm, {found["num_comparisons"][readout]} comparisons).'
    )
  return ' '.join(lines)


def _sign(comparison: Row) -> int:
  """The sign of a difference that holds; 0 for one that may be chance."""
  p, difference = comparison['p'], comparison['difference']
  if p is None or difference is None or p >= LEVEL:
    return 0
  return (difference > 0) - (difference < 0)


def _overview(found: Results) -> reports.Section:
  files = {name: name for name in (TABLE, NUMBERS)}
  tables = [_crossings(found['curves'])] if found['curves'] else []
  return reports.Section('How to read it', _HOW_TO_READ, files=files, tables=tables)


def _crossings(curves: Sequence[Row]) -> reports.Table:
  rows = []
  for curve in curves:
    at, ends = curve['at'], (curve['low'], curve['high'])
    low, high = ('open' if end is None else number(end) for end in ends)
    rows.append(
      [
        curve['benchmark'],
        READOUTS[curve['readout']],
        str(curve['num_examples']),
        _SIDES[curve['side']] if at is None else number(at),
        f'{low} to {high}' if curve['share_crossing'] else '-',
        f'{curve["share_crossing"]:.0%}',
      ]
    )
  title = 'Where the curve of the oracle meets the diagonal'
  return reports.Table(rows, header=_CROSSING, title=title, note=_ABOUT_CROSSINGS)


def _share(value: float | None) -> str:
  return '-' if value is None else f'{value:.0%}'


def _weight(value: float | None, stderr: float | None) -> str:
  return '-' if value is None else f'{value:.2f} ± {stderr:.2f}'


def _difference(of: Row) -> str:
  if of['difference'] is None:
    return '-'
  return with_interval(of['difference'], of['low'], of['high'])


def _p(p: float | None) -> str:
  if p is None:
    return '-'
  return '< 0.001' if p < 0.001 else number(p)


def _caption(metric: str) -> str:
  return (
    f'(a) {metric.capitalize()} of the answer against that of the guess, which is the '
    'label with growing noise; below the diagonal the model refines the guess. (b) '
    'The same with each kind of guess and without, by number of examples. (c) The '
    'weight of the guess in the answer, with two standard errors; 1 means a copy if '
    'the weight of the own answer is 0.'
  )


def _plot(found: Results, benchmark: str, readout: ReadoutName) -> plots.Plot:
  metric, rows = found['metrics'][benchmark], _rows_of(found, benchmark, readout)
  kinds = [*dict.fromkeys(row['guess'] for row in rows)]
  kinds = [kind for kind in kinds if not kind.startswith(ORACLE)] or kinds
  ticks = tuple(map(str, sorted({row['num_examples'] for row in rows})))
  errors, weights = [], []
  for i, (kind, colour) in enumerate(_coloured(kinds)):
    of_kind = [row for row in rows if row['guess'] == kind]
    errors.append(_series(kind, 'line', colour, ticks, of_kind, 'with_guess'))
    shift = 0.08 * (i - (len(kinds) - 1) / 2)
    weights.append(_series(kind, 'dots', colour, ticks, of_kind, 'guess_weight', shift))
  own = [row for row in rows if row['guess'] == kinds[0]]
  errors.append(_series('without guess', 'dashed', BLACK, ticks, own, 'without_guess'))
  curves = [
    curve
    for curve in found['curves']
    if (curve['benchmark'], curve['readout']) == (benchmark, readout)
    and curve['guess_losses']
  ]
  panels = [
    plots.Panel('a', f'{metric} of the guess', f'{metric} of answers', _curves(curves)),
    plots.Panel('b', 'examples', metric, _shown(errors), x_names=ticks),
    plots.Panel('c', 'examples', 'weight of guess', _shown(weights), x_names=ticks),
  ]
  name = f'{benchmark}_{readout}'
  return plots.Plot(name, tuple(panel for panel in panels if panel.series))


def _series(
  name: str,
  style: str,
  colour: str,
  ticks: Sequence[str],
  rows: Sequence[Row],
  key: str,
  shift: float = 0.0,
) -> plots.Series:
  """A field of rows by their number of examples, shifted from the ticks.

  Bars have two standard errors, if the rows have some.
  """
  found = []
  for row in rows:
    if (value := row[key]) is not None:
      half = 2 * row.get(f'{key}_stderr', 0.0)
      x = ticks.index(str(row['num_examples'])) + shift
      found.append((x, value, value - half, value + half))
  columns = np.array(sorted(found), np.float64).reshape(-1, 4).T.tolist()
  return plots.Series(name, style, colour, *map(tuple, columns))


def _shown(found: Sequence[plots.Series]) -> tuple[plots.Series, ...]:
  return tuple(one for one in found if one.x)


def _coloured(names: Sequence[str]) -> list[tuple[str, str]]:
  return list(zip(names, itertools.cycle((*PALETTE, GREY)), strict=False))


def _curves(curves: Sequence[Row]) -> tuple[plots.Series, ...]:
  """The curves of the oracle, and the diagonal."""
  if not curves:
    return ()
  largest = max(x for curve in curves for x in curve['guess_losses'])
  diagonal = [0.0, largest]
  shown = []
  names = [f'{curve["num_examples"]} examples' for curve in curves]
  for curve, (name, colour) in zip(curves, _coloured(names), strict=True):
    points = sorted(zip(curve['guess_losses'], curve['answer_losses'], strict=True))
    shown.append(plots.series(name, 'line', colour, *zip(*points, strict=True)))
  shown.append(plots.series('the guess itself', 'dashed', BLACK, diagonal, diagonal))
  return tuple(shown)
