"""The results of an experiment as a table for a terminal, and as figure 6."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from studies.llm.prompts import WITH, WITHOUT
from studies.llm.readouts import READOUTS
from studies.llm.summary import Line, answers
from zoo.core.tables import format_table
from zoo.measure.table import name_of_half
from zoo.reports import plots
from zoo.reports.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION

_BASELINES = {
  'guess': ('guess alone', BLACK),
  'context_mean': ('context mean', GREEN),
  'constant': ('train mean', ORANGE),
}
_HEADER = (
  '',
  'without guess',
  'parsed',
  'with guess',
  'parsed',
  'copied',
  'with − without',
  'with − guess alone',
)
# Lines of baselines go from the left of the first readout to the right of the last.
_ACROSS = -0.4, 2.4


def table(summary: Mapping[str, Any]) -> str:
  """Returns the summary of a run (see `summarise`) as a table for a terminal."""
  metric, guess = summary['metric'], summary['guess']
  changes = ', '.join(f'{name} {guess[name]}' for name in guess if guess[name])
  rows = []
  for r, name in READOUTS.items():
    without, with_guess = (summary['arms'][arm][r] for arm in (WITHOUT, WITH))
    rows.append(
      [
        name,
        *(_loss(without), f'{without["parse_rate"]:.0%}'),
        *(_loss(with_guess), f'{with_guess["parse_rate"]:.0%}'),
        str(with_guess['num_copied']),
        *(_difference(summary[kind][r]) for kind in ('paired', 'against_guess')),
      ]
    )
  baselines = [
    [_baseline(key, metric), _loss(summary['baselines'][key])] for key in _BASELINES
  ]
  half = name_of_half(summary['num_prompts'])
  return '\n\n'.join(
    [
      f'{metric} {half} of {summary["model"]} on {summary["num_prompts"]} prompts, and '
      f'differences [{half}]\n{summary["num_examples"]} examples each, from '
      f'{summary["context_split"]}; guesses: {changes}',
      format_table(rows, _HEADER),
      format_table(baselines),
    ]
  )


def _loss(numbers: Mapping[str, Any]) -> str:
  if numbers['loss'] is None:
    return '-'
  error = (
    '' if numbers['stderr'] is None else f' ± {numbers["high"] - numbers["loss"]:.3f}'
  )
  return f'{numbers["loss"]:.3f}{error}'


def _difference(pair: Mapping[str, Any]) -> str:
  if pair['low'] is None:
    return '-'
  return f'{pair["difference"]:+.3f} [{pair["low"]:+.3f}, {pair["high"]:+.3f}]'


def _baseline(key: str, metric: str) -> str:
  """Returns the name of a baseline; for classes, `majority` replaces `mean`."""
  name, _ = _BASELINES[key]
  return name.replace('mean', 'majority') if metric == 'error rate' else name


def plot(summary: Mapping[str, Any], lines: Sequence[Line]) -> plots.Plot:
  """Makes figure 6: losses, their differences, and answers against guesses.

  Args:
    summary: The summary of a run.
    lines: The rows of its prompts.

  Returns:
    The plot. Its third panel is left out if labels are classes.
  """
  names, metric = tuple(READOUTS.values()), summary['metric']
  half = name_of_half(summary['num_prompts'])
  without, with_guess = (summary['arms'][arm].values() for arm in (WITHOUT, WITH))
  losses = [
    _points('without guess', VERMILION, -0.1, without, 'loss'),
    _points('with guess', BLUE, 0.1, with_guess, 'loss'),
  ]
  for key, (_, colour) in _BASELINES.items():
    loss = summary['baselines'][key]['loss'] or 0.0
    losses.append(plots.level(_baseline(key, metric), loss, _ACROSS, colour))
  paired, against_guess = summary['paired'].values(), summary['against_guess'].values()
  differences = [
    _points('with − without guess', BLUE, -0.1, paired, 'difference'),
    _points('with guess − guess alone', PURPLE, 0.1, against_guess, 'difference'),
    plots.level('no difference', 0.0, _ACROSS),
  ]
  panels = [
    plots.Panel('a', 'readout', f'{metric} {half}', tuple(losses), x_names=names),
    plots.Panel(
      'b', 'readout', f'difference {half}', tuple(differences), x_names=names
    ),
  ]
  if metric == 'mean squared error':
    panels.append(_answers_against_guesses(lines))
  return plots.Plot('6', tuple(panels))


def _points(
  name: str, colour: str, shift: float, readouts: Iterable[Mapping], mean: str
) -> plots.Series:
  """Returns a point, beside its tick, for each readout that has an interval."""
  points = [
    (i + shift, numbers[mean], numbers['low'], numbers['high'])
    for i, numbers in enumerate(readouts)
    if numbers['low'] is not None
  ]
  return plots.Series(name, 'dots', colour, *map(tuple, zip(*points, strict=True)))


def _answers_against_guesses(lines: Sequence[Line]) -> plots.Panel:
  guesses = [float(line['guess']) for line in lines]
  series = []
  for readout, colour in zip(READOUTS, (VERMILION, BLUE, GREEN), strict=True):
    pairs = sorted(
      (guess, float(answer))
      for guess, answer in zip(guesses, answers(lines, WITH, readout), strict=True)
      if answer is not None
    )
    if pairs:
      x, y = zip(*pairs, strict=True)
      series.append(plots.series(READOUTS[readout], 'dots', colour, x, y))
  ends = [min(guesses), max(guesses)]
  series.append(plots.series('a copy of the guess', 'dashed', BLACK, ends, ends))
  return plots.Panel('c', 'initial guess of the query', 'answer', tuple(series))
