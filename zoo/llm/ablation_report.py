"""The table and the page of an ablation."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import pathlib
from collections.abc import Callable, Sequence

from zoo import reports
from zoo.core.tables import format_table
from zoo.host.files import write_atomically
from zoo.llm.ablation_results import LEVEL, Comparison, CurveRow, Results, Row
from zoo.llm.readouts import READOUTS, ReadoutName
from zoo.reports import plots
from zoo.reports.style import BLACK, GREY, PALETTE

TABLE, PAGE, NUMBERS = 'table.csv', 'report.html', 'ablation.json'
FILES = TABLE, PAGE, NUMBERS
_COLOURS = *PALETTE, GREY
_HEADER = (
  *('guess', 'examples', 'answers', 'without guess', 'with guess', 'guess alone'),
  *('copied', 'weight of guess', 'weight of own answer'),
  *('with − without', 'p', 'with − guess alone', 'p'),
)
_LOG_LOSSES = 'log loss without', 'log loss with'
_SIDES = {
  'nowhere below': 'none: nowhere better than the guess',
  'begins below': 'none: better than the least noisy guess already',
  'no answers': 'no answers',
}


def write(found: Results, out: pathlib.Path) -> None:
  """Writes `ablation.json`, `table.csv`, `report.html` and its figures into a folder.

  Raises OSError.
  """
  write_atomically(out / NUMBERS, json.dumps(found, indent=2) + '\n')
  write_atomically(out / TABLE, to_csv(found['rows']))
  sections = [_overview(found)]
  for benchmark, metric in found['metrics'].items():
    for readout, name in READOUTS.items():
      plot, figures = _plot(found, benchmark, readout), {}
      if plot.panels:  # it has none if no answer could be parsed
        plots.write_plot(plot, out)
        title = f'{benchmark}, {name}'
        figures[plot.name] = reports.figure_of(plot, title, _caption(metric))
      tables = [_table(found, benchmark, readout)]
      heading = f'{benchmark}: {name}'
      sections.append(reports.Section(heading, figures=figures, tables=tables))
  title = 'Guesses in the prompt: an ablation'
  write_atomically(out / PAGE, reports.render(title, _lead(found), sections))


def table(found: Results) -> str:
  """Tables for a terminal: the expected value in each cell, and where curves cross."""
  parts = []
  for benchmark, metric in found['metrics'].items():
    rows = _rows_of(found, benchmark, 'expected')
    parts.append(
      f'{benchmark}: {metric} of the expected value, {found["num_prompts"]} prompts\n'
      + format_table([_cells(row)[:-2] for row in rows], _HEADER)
    )
  if found['curves']:
    parts.append(format_table([*map(_crossing, found['curves'])], _CROSSING))
  return '\n\n'.join([*parts, _lead(found)])


def to_csv(rows: Sequence[Row]) -> str:
  """All rows as CSV; each field of a comparison is a column."""
  text = io.StringIO()
  flat = [
    {
      name if inner is None else f'{name}_{inner}': found
      for name, value in row.items()
      for inner, found in (
        value.items() if isinstance(value, dict) else [(None, value)]
      )
    }
    for row in rows
  ]
  writer = csv.DictWriter(text, list(flat[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(flat)
  return text.getvalue()


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
    counts = [
      sum(_holds(row[key], sign) for row in rows)
      for key, sign in (
        ('with_minus_without', -1),
        ('with_minus_without', 1),
        ('with_minus_guess', -1),
        ('with_minus_guess', 1),
      )
    ]
    lines.append(
      f'{name.capitalize()}: of {len(rows)} cells, the guess lowers the error in '
      f'{counts[0]} and raises it in {counts[1]}; the answer is better than the guess '
      f'alone in {counts[2]} and worse in {counts[3]} (p < {LEVEL} after Holm, '
      f'{found["num_comparisons"][readout]} comparisons).'
    )
  return ' '.join(lines)


def _holds(comparison: Comparison, sign: int) -> bool:
  p, difference = comparison['p'], comparison['difference']
  return p is not None and p < LEVEL and (difference or 0.0) * sign > 0


def _overview(found: Results) -> reports.Section:
  tables = []
  if found['curves']:
    tables.append(
      reports.Table(
        [*map(_crossing, found['curves'])],
        header=_CROSSING,
        title='Where the curve of the oracle meets the diagonal',
        note='The error of the guess above which the answer is better than the guess. '
        'A model that ignores the guess crosses at its own error, so compare with the '
        'error without guess. The interval is from 2000 bootstrap resamples of the '
        'prompts; an open end is beyond the curve. The last column is the share of '
        'resamples that cross.',
      )
    )
  return reports.Section(
    'How to read it',
    'The weights are coefficients of a least-squares fit of the answer to the guess '
    'and to the model’s own answer without the guess, with standard errors. Copying '
    'is a weight of 1 for the guess and 0 for the own answer; a dash means that the '
    'two cannot be told apart, as for a constant guess. Intervals of differences '
    'are simultaneous, with 95 % for all comparisons of a readout; p is from the '
    'paired t test, with classes McNemar’s exact test, with Holm’s correction over '
    'all comparisons of a readout. Answers that equal the guess '
    'count as copied; with classes the model may have said the same by itself.',
    files={name: name for name in (TABLE, NUMBERS)},
    tables=tables,
  )


_CROSSING = 'benchmark', 'readout', 'examples', 'crosses at', '95 %', 'resamples'


def _crossing(curve: CurveRow) -> list[str]:
  low, high = (
    'open' if end is None else f'{end:.3f}' for end in (curve['low'], curve['high'])
  )
  at, share = curve['at'], curve['share_crossing']
  return [
    curve['benchmark'],
    READOUTS[curve['readout']],
    str(curve['num_examples']),
    _SIDES[curve['side']] if at is None else f'{at:.3f}',
    f'{low} to {high}' if share else '-',
    f'{share:.0%}',
  ]


def _table(found: Results, benchmark: str, readout: ReadoutName) -> reports.Table:
  rows = _rows_of(found, benchmark, readout)
  has_log_loss = rows[0]['log_loss_with'] is not None
  return reports.Table(
    [_cells(row) if has_log_loss else _cells(row)[:-2] for row in rows],
    header=(*_HEADER, *_LOG_LOSSES) if has_log_loss else _HEADER,
    title=found['metrics'][benchmark],
    note=f'{found["num_comparisons"][readout]} comparisons of this readout in all.',
  )


def _cells(row: Row) -> list[str]:
  copied = row['copied_share']
  cells = [
    row['guess'],
    str(row['num_examples']),
    f'{row["num_parsed"]}/{row["num_prompts"]}',
    *(_number(row[key]) for key in ('without_guess', 'with_guess', 'guess_alone')),
    '-' if copied is None else f'{copied:.0%}',
    _weight(row['guess_weight'], row['guess_weight_stderr']),
    _weight(row['own_weight'], row['own_weight_stderr']),
  ]
  for comparison in row['with_minus_without'], row['with_minus_guess']:
    cells += [_interval(comparison), _p(comparison['p'])]
  return [*cells, _number(row['log_loss_without']), _number(row['log_loss_with'])]


def _number(value: float | None) -> str:
  return '-' if value is None else f'{value:.3f}'


def _weight(value: float | None, stderr: float | None) -> str:
  return '-' if value is None else f'{value:.2f} ± {stderr:.2f}'


def _interval(of: Comparison) -> str:
  if of['difference'] is None:
    return '-'
  if of['low'] is None:
    return f'{of["difference"]:+.3f}'
  return f'{of["difference"]:+.3f} [{of["low"]:+.3f}, {of["high"]:+.3f}]'


def _p(p: float | None) -> str:
  if p is None:
    return '-'
  return '< 0.001' if p < 0.001 else f'{p:.3f}'


def _caption(metric: str) -> str:
  return (
    f'(a) {metric.capitalize()} of the answer against that of the guess, which is the '
    'label with growing noise; below the diagonal the model refines the guess. (b) '
    'The same with each kind of guess and without, by number of examples. (c) The '
    'weight of the guess in the answer, with two standard errors; 1 means a copy if '
    'the weight of the own answer is 0.'
  )


def _plot(found: Results, benchmark: str, readout: ReadoutName) -> plots.Plot:
  metric = found['metrics'][benchmark]
  curves = [
    curve
    for curve in found['curves']
    if (curve['benchmark'], curve['readout']) == (benchmark, readout)
    and curve['guess_losses']
  ]
  rows = _rows_of(found, benchmark, readout)
  kinds = list(dict.fromkeys(row['guess'] for row in rows))
  kinds = [kind for kind in kinds if not kind.startswith('oracle')] or kinds
  errors = _by_kind(rows, kinds, 'line', lambda row: (row['with_guess'], 0.0))
  own = _by_kind(rows, kinds[:1], 'line', lambda row: (row['without_guess'], 0.0))
  errors += [
    dataclasses.replace(one, name='without guess', kind='dashed', colour=BLACK)
    for one in own
  ]
  weights = _by_kind(
    rows,
    kinds,
    'dots',
    lambda row: (row['guess_weight'], 2 * (row['guess_weight_stderr'] or 0.0)),
  )
  panels = [
    plots.Panel(
      'a', f'{metric} of the guess', f'{metric} of answers', tuple(_curves(curves))
    ),
    plots.Panel('b', 'examples', metric, tuple(errors), x_names=_lengths(rows)),
    plots.Panel(
      'c', 'examples', 'weight of guess', tuple(weights), x_names=_lengths(rows)
    ),
  ]
  name = f'{benchmark}_{readout}'
  return plots.Plot(name, tuple(panel for panel in panels if panel.series))


def _curves(curves: Sequence[CurveRow]) -> list[plots.Series]:
  """The curves of the oracle, and the diagonal."""
  if not curves:
    return []
  largest = max(x for curve in curves for x in curve['guess_losses'])
  diagonal = [0.0, largest], [0.0, largest]
  return [
    *(
      plots.series(
        f'{curve["num_examples"]} examples',
        'line',
        colour,
        *zip(*sorted(_points_of(curve)), strict=True),
      )
      for curve, colour in zip(curves, _cycle(len(curves)), strict=True)
    ),
    plots.series('the guess itself', 'dashed', BLACK, *diagonal),
  ]


def _points_of(curve: CurveRow) -> list[tuple[float, float]]:
  return list(zip(curve['guess_losses'], curve['answer_losses'], strict=True))


def _cycle(count: int) -> list[str]:
  return [_COLOURS[i % len(_COLOURS)] for i in range(count)]


def _lengths(rows: Sequence[Row]) -> tuple[str, ...]:
  """The numbers of examples, as ticks of an axis."""
  return tuple(map(str, sorted({row['num_examples'] for row in rows})))


def _by_kind(
  rows: Sequence[Row],
  kinds: Sequence[str],
  style: str,
  read: Callable[[Row], tuple[float | None, float]],
) -> list[plots.Series]:
  """A series for each kind of guess over the numbers of examples, with shifted dots.

  `read` returns a value, or None, and half the length of its bar.
  """
  ticks, found = _lengths(rows), []
  for i, (kind, colour) in enumerate(zip(kinds, _cycle(len(kinds)), strict=True)):
    shift = 0.08 * (i - (len(kinds) - 1) / 2) if style == 'dots' else 0.0
    points = []
    for row in rows:
      value, half = read(row)
      if row['guess'] == kind and value is not None:
        x = ticks.index(str(row['num_examples'])) + shift
        points.append((x, value, value - half, value + half))
    if points:
      columns = (tuple(map(float, of)) for of in zip(*sorted(points), strict=True))
      found.append(plots.Series(kind, style, colour, *columns))
  return found
