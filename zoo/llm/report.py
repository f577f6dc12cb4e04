"""The results as a table for a terminal, and as figure 6."""

from collections.abc import Iterable, Mapping, Sequence

from zoo.core.tables import format_table
from zoo.llm.prompts import WITH, WITHOUT
from zoo.llm.readouts import READOUTS
from zoo.llm.summary import PARSED, Line, Numbers, Summary
from zoo.reports import plots
from zoo.reports.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION

_ARMS = {WITHOUT: 'without guess', WITH: 'with guess'}
_BASELINES = {
  'guess': ('guess alone', BLACK),
  'context_mean': ('context mean', GREEN),
  'constant': ('train mean', ORANGE),
}
_ACROSS = -0.4, 2.4  # from the left of the first readout to the right of the last


def table(summary: Summary) -> str:
  """The summary as a table for a terminal."""
  metric, arms = summary['metric'], summary['arms']
  losses = [
    [name, *(cell for arm in _ARMS for cell in _parsed(arms[arm][readout]))]
    for readout, name in READOUTS.items()
  ]
  baselines = [
    [_baseline(key, metric), _loss(found)]
    for key, found in summary['baselines'].items()
  ]
  differences = [
    [name, *(_difference(summary[kind][r]) for kind in ('paired', 'against_guess'))]
    for r, name in READOUTS.items()
  ]
  return '\n\n'.join(
    [
      f'{metric} ± s.e. of {summary["model"]} on {summary["num_prompts"]} '
      f'prompts\n{summary["num_examples"]} examples each, from '
      f'{summary["context_split"]}; guesses: {_guess(summary["guess"])}',
      format_table(losses, ['', 'without guess', 'parsed', 'with guess', 'parsed']),
      format_table(baselines),
      format_table(
        differences, ['difference, 95 %', 'with − without', 'with − guess alone']
      ),
      '\n'.join(f'{READOUTS[r]}: {_copies(arms[WITH][r])}' for r in PARSED),
    ]
  )


def _loss(found: Numbers) -> str:
  if found['loss'] is None:
    return '-'
  error = '' if found['stderr'] is None else f' ± {found["stderr"]:.3f}'
  return f'{found["loss"]:.3f}{error}'


def _parsed(found: Numbers) -> tuple[str, str]:
  return _loss(found), f'{found["parse_rate"]:.0%}'


def _difference(pair: Numbers) -> str:
  if pair['low'] is None:
    return '-'
  return f'{pair["difference"]:+.3f} [{pair["low"]:+.3f}, {pair["high"]:+.3f}]'


def _baseline(key: str, metric: str) -> str:
  """The name of a baseline; for classes, `majority` replaces `mean`."""
  name, _ = _BASELINES[key]
  return name.replace('mean', 'majority') if metric == 'error rate' else name


def _guess(guess: Mapping[str, str | float | bool]) -> str:
  bias = f', bias {guess["bias"]:+g}' if guess['bias'] else ''
  noise = f', noise {guess["noise"]:g}' if guess['noise'] else ''
  shuffled = ', shuffled' if guess['shuffled'] else ''
  return f'{guess["model"]}{bias}{noise}{shuffled}'


def _copies(found: Mapping[str, object]) -> str:
  text = f'{found["num_copied"]} of {found["num_parsed"]} answers copy the guess'
  if not found['num_changed']:
    return text
  return (
    f'{text}; the other {found["num_changed"]} have {found["changed_loss"]:.3f}, their '
    f'guesses {found["changed_guess_loss"]:.3f}'
  )


def plot(summary: Summary, lines: Sequence[Line]) -> plots.Plot:
  """Figure 6: losses by arm and readout, differences, answers against guesses."""
  names, metric = tuple(READOUTS.values()), summary['metric']
  losses = [
    _points(_ARMS[arm], colour, shift, summary['arms'][arm].values(), 'loss')
    for arm, colour, shift in ((WITHOUT, VERMILION, -0.1), (WITH, BLUE, 0.1))
  ] + [
    plots.level(
      _baseline(key, metric), summary['baselines'][key]['loss'] or 0.0, _ACROSS, colour
    )
    for key, (_, colour) in _BASELINES.items()
  ]
  paired, against_guess = summary['paired'].values(), summary['against_guess'].values()
  differences = [
    _points('with − without guess', BLUE, -0.1, paired, 'difference'),
    _points('with guess − guess alone', PURPLE, 0.1, against_guess, 'difference'),
    plots.level('no difference', 0.0, _ACROSS),
  ]
  panels = [
    plots.Panel('a', 'readout', f'{metric}, 95 %', tuple(losses), x_names=names),
    plots.Panel('b', 'readout', 'difference, 95 %', tuple(differences), x_names=names),
  ]
  if metric == 'mean squared error':
    panels.append(_answers_against_guesses(lines))
  return plots.Plot('6', tuple(panels))


def _points(
  name: str, colour: str, shift: float, found: Iterable[Mapping], mean: str
) -> plots.Series:
  """A point beside the tick of each readout that has an interval."""
  points = [
    (i + shift, each[mean], each['low'], each['high'])
    for i, each in enumerate(found)
    if each['low'] is not None
  ]
  return plots.Series(name, 'dots', colour, *map(tuple, zip(*points, strict=True)))


def _answers_against_guesses(lines: Sequence[Line]) -> plots.Panel:
  shown = []
  for readout, colour in zip(READOUTS, (VERMILION, BLUE, GREEN), strict=True):
    pairs = sorted(
      (float(line['guess']), float(value))
      for line in lines
      if (value := line['arms'][WITH][readout]['value']) is not None
    )
    if pairs:
      x, y = zip(*pairs, strict=True)
      shown.append(plots.series(READOUTS[readout], 'dots', colour, x, y))
  guesses = [float(line['guess']) for line in lines]
  ends = [min(guesses), max(guesses)]
  shown.append(plots.series('a copy of the guess', 'dashed', BLACK, ends, ends))
  return plots.Panel('c', 'initial guess of the query', 'answer', tuple(shown))
