"""The results as a table for a terminal, and as figure 6."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from zoo.core.tables import format_table
from zoo.llm.readouts import READOUTS
from zoo.llm.summary import PARSED, Difference, Line, Loss, Summary
from zoo.reports import plots, style

_ARMS = {'without_guess': 'without guess', 'with_guess': 'with guess'}
_BASELINES = {
  'guess': 'guess alone',
  'context_mean': 'context mean',
  'constant': 'train mean',
}


def table(summary: Summary) -> str:
  """The summary as a table for a terminal."""
  losses = [
    [name]
    + [
      cell
      for arm in _ARMS
      for cell in (
        _shown(summary['arms'][arm][readout]),
        f'{summary["arms"][arm][readout]["parse_rate"]:.0%}',
      )
    ]
    for readout, name in READOUTS.items()
  ]
  baselines = [
    [_baseline(key, summary['metric']), _shown(found)]
    for key, found in summary['baselines'].items()
  ]
  if (of_contexts := summary['context_guess_loss']) is not None:
    baselines.append(['guesses in the context', f'{of_contexts:.3f}'])
  if (of_classes := summary['log_losses']) is not None:
    for key, name in {**_ARMS, 'guess': 'guess alone', 'constant': 'train'}.items():
      baselines.append([f'log loss, {name}', _shown(of_classes[key])])
  differences = [
    [name, _interval(summary['paired'][r]), _interval(summary['against_guess'][r])]
    for r, name in READOUTS.items()
  ]
  header = ['', 'without guess', 'parsed', 'with guess', 'parsed']
  return '\n\n'.join(
    [
      f'{summary["metric"]} ± s.e. of {summary["model"]} on {summary["num_prompts"]} '
      f'prompts\n{summary["num_examples"]} examples each, from '
      f'{summary["context_split"]}; guesses: {_guess(summary["guess"])}',
      format_table(losses, header),
      format_table(baselines),
      format_table(
        differences, ['difference, 95 %', 'with − without', 'with − guess alone']
      ),
      '\n'.join(
        f'{READOUTS[r]}: {_copies(summary["arms"]["with_guess"][r])}' for r in PARSED
      ),
    ]
  )


def plot(summary: Summary, lines: Sequence[Line]) -> plots.Plot:
  """Figure 6: losses by arm and readout, differences, answers against guesses."""
  names, metric = tuple(READOUTS.values()), summary['metric']
  width = [-0.4, 2.4]  # of all readouts
  losses = [
    _points(label, colour, shift, summary['arms'][arm].values(), 'loss')
    for (arm, label), colour, shift in zip(
      _ARMS.items(), (style.VERMILION, style.BLUE), (-0.1, 0.1), strict=True
    )
  ]
  for key, colour in zip(
    _BASELINES, (style.BLACK, style.GREEN, style.ORANGE), strict=True
  ):
    level = summary['baselines'][key]['loss'] or 0.0
    name = _baseline(key, metric)
    losses.append(plots.series(name, 'dashed', colour, width, [level, level]))
  paired, against_guess = summary['paired'].values(), summary['against_guess'].values()
  differences = [
    _points('with − without guess', style.BLUE, -0.1, paired, 'difference'),
    _points('with guess − guess alone', style.PURPLE, 0.1, against_guess, 'difference'),
    plots.series('no difference', 'dashed', style.BLACK, width, [0, 0]),
  ]
  panels = [
    plots.Panel('a', 'readout', f'{metric}, 95 %', tuple(losses), x_names=names),
    plots.Panel('b', 'readout', 'difference, 95 %', tuple(differences), x_names=names),
  ]
  if metric == 'mean squared error':
    panels.append(_answers_against_guesses(lines))
  return plots.Plot('6', tuple(panels))


def _answers_against_guesses(lines: Sequence[Line]) -> plots.Panel:
  shown = []
  guesses = [float(line['guess']) for line in lines]
  for readout, colour in zip(
    READOUTS, (style.VERMILION, style.BLUE, style.GREEN), strict=True
  ):
    values = [line['arms']['with_guess'][readout]['value'] for line in lines]
    pairs = sorted(
      (guess, float(value))
      for guess, value in zip(guesses, values, strict=True)
      if value is not None
    )
    if pairs:
      x, y = zip(*pairs, strict=True)
      shown.append(plots.series(READOUTS[readout], 'dots', colour, x, y))
  ends = [min(guesses), max(guesses)]
  shown.append(plots.series('a copy of the guess', 'dashed', style.BLACK, ends, ends))
  return plots.Panel('c', 'initial guess of the query', 'answer', tuple(shown))


def _points(
  name: str,
  colour: str,
  shift: float,
  found: Iterable[Mapping[str, object]],
  mean: str,
) -> plots.Series:
  """A point beside the tick of each readout that has an interval."""
  points = [
    (i + shift, each[mean], each['low'], each['high'])
    for i, each in enumerate(found)
    if each['low'] is not None
  ]
  return plots.Series(name, 'dots', colour, *map(tuple, zip(*points, strict=True)))


def _baseline(key: str, metric: str) -> str:
  """The name of a baseline; for classes, `majority` replaces `mean`."""
  name = _BASELINES[key]
  return name.replace('mean', 'majority') if metric == 'error rate' else name


def _guess(guess: Mapping[str, str | float | bool]) -> str:
  bias = f', bias {guess["bias"]:+g}' if guess['bias'] else ''
  noise = f', noise {guess["noise"]:g}' if guess['noise'] else ''
  shuffled = ', shuffled' if guess['shuffled'] else ''
  return f'{guess["model"]}{bias}{noise}{shuffled}'


def _shown(found: Loss) -> str:
  if found['loss'] is None:
    return '-'
  error = '' if found['stderr'] is None else f' ± {found["stderr"]:.3f}'
  return f'{found["loss"]:.3f}{error}'


def _interval(pair: Difference) -> str:
  if pair['low'] is None:
    return '-'
  return f'{pair["difference"]:+.3f} [{pair["low"]:+.3f}, {pair["high"]:+.3f}]'


def _copies(found: Mapping[str, object]) -> str:
  text = f'{found["num_copied"]} of {found["num_parsed"]} answers copy the guess'
  if not found['num_changed']:
    return text
  return (
    f'{text}; the other {found["num_changed"]} have {found["changed_loss"]:.3f}, their '
    f'guesses {found["changed_guess_loss"]:.3f}'
  )
