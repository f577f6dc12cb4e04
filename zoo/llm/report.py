"""What the answers say: losses, pairs, copies; as numbers, a table and figure 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from zoo.llm.guesses import Scale
from zoo.llm.readouts import READOUTS

if TYPE_CHECKING:
  from zoo.plots import Plot

ARMS = {'without_guess': 'without guess', 'with_guess': 'with guess'}
CONFIDENCE = 0.95
_BASELINES = {
  'guess': 'guess alone',
  'context_mean': 'context mean',
  'constant': 'train mean',
}


def summarise(lines: Sequence[dict[str, Any]], scale: Scale) -> dict[str, Any]:
  """The numbers of the experiment, from the lines of `prompts.jsonl`.

  A loss is a squared error; with classes, 0 or 1. `paired` has the loss with the guess
  less that without it, on prompts where both answers were parsed, and `against_guess`
  that with the guess less the guess's own. Negative is better. Means come with their
  standard errors, differences with Student's interval: a loss is bounded, so that with
  dozens of prompts its mean is near normal.
  """
  losses = {
    arm: {
      readout: np.array(
        [_loss(scale, line, line['arms'][arm][readout]) for line in lines]
      )
      for readout in READOUTS
    }
    for arm in ARMS
  }
  baselines = {
    name: np.array([scale.loss(line[name], line['label']) for line in lines])
    for name in _BASELINES
  }
  with_guess, without = losses['with_guess'], losses['without_guess']
  arms = {
    arm: {readout: _arm(values) for readout, values in of_arm.items()}
    for arm, of_arm in losses.items()
  }
  for readout in ('free', 'forced'):
    arms['with_guess'][readout] |= _copies(
      lines, readout, with_guess[readout], baselines['guess'], scale
    )
  for arm in ARMS:
    masses = [line['arms'][arm]['expected']['mass'] for line in lines]
    arms[arm]['expected']['mass'] = float(np.mean(masses))
  of_contexts = [line['context_guess_loss'] for line in lines]
  return {
    'metric': 'error rate' if scale.classes else 'mean squared error',
    'num_prompts': len(lines),
    'baselines': {name: _mean(values) for name, values in baselines.items()},
    'context_guess_loss': None if None in of_contexts else float(np.mean(of_contexts)),
    'arms': arms,
    'paired': {r: _difference(with_guess[r] - without[r]) for r in READOUTS},
    'against_guess': {
      r: _difference(with_guess[r] - baselines['guess']) for r in READOUTS
    },
    'seconds': sum(line['seconds'] for line in lines),
  }


def table(summary: dict[str, Any]) -> str:
  """The summary for a terminal."""
  lines = [
    f'{summary["metric"]} ± s.e. of {summary["model"]} on {summary["num_prompts"]} '
    'prompts',
    f'{summary["num_examples"]} examples each, from {summary["context_split"]}; '
    f'guesses: {_guess(summary["guess"])}',
    '',
    f'{"":<24}{"without guess":>20}{"parsed":>8}{"with guess":>20}{"parsed":>8}',
  ]
  for readout, name in READOUTS.items():
    line = f'{name:<24}'
    for arm in ARMS:
      found = summary['arms'][arm][readout]
      line += f'{_shown(found):>20}{found["parse_rate"]:>8.0%}'
    lines.append(line)
  lines.append('')
  for key, found in summary['baselines'].items():
    lines.append(f'{_baseline(key, summary):<24}{_shown(found):>20}')
  contexts = summary['context_guess_loss']
  if contexts is not None:
    lines.append(f'{"guesses in the context":<24}{contexts:>20.3f}')
  lines += [
    '',
    f'{"difference, 95 %":<24}{"with − without":>28}{"with − guess alone":>28}',
  ]
  for readout, name in READOUTS.items():
    pairs = (summary[key][readout] for key in ('paired', 'against_guess'))
    lines.append(f'{name:<24}' + ''.join(f'{_interval(pair):>28}' for pair in pairs))
  lines.append('')
  for readout in ('free', 'forced'):
    found = summary['arms']['with_guess'][readout]
    line = (
      f'{READOUTS[readout]}: {found["num_copied"]} of {found["num_parsed"]} answers '
    )
    line += 'copy the guess'
    if found['num_changed']:
      line += (
        f'; the other {found["num_changed"]} have {found["changed_loss"]:.3f}, their '
        f'guesses {found["changed_guess_loss"]:.3f}'
      )
    lines.append(line)
  return '\n'.join(lines)


def plot(summary: dict[str, Any], lines: Sequence[dict[str, Any]]) -> Plot:
  """Figure 6: losses by arm and readout, differences, answers against guesses."""
  from zoo import plots

  names = tuple(READOUTS.values())
  colours = {'without_guess': plots.VERMILION, 'with_guess': plots.BLUE}
  metric = summary['metric']
  losses = [
    _points(
      ARMS[arm],
      colours[arm],
      -0.1 if arm == 'without_guess' else 0.1,
      [_bounded(summary['arms'][arm][readout]) for readout in READOUTS],
    )
    for arm in ARMS
  ]
  levels = zip(_BASELINES, (plots.BLACK, plots.GREEN, plots.ORANGE), strict=True)
  for key, colour in levels:
    level = summary['baselines'][key]['loss']
    losses.append(
      plots.series(
        _baseline(key, summary), 'dashed', colour, [-0.4, 2.4], [level, level]
      )
    )
  differences = [
    _points(name, colour, shift, [_ends(summary[key][r]) for r in READOUTS])
    for key, name, colour, shift in (
      ('paired', 'with − without guess', plots.BLUE, -0.1),
      ('against_guess', 'with guess − guess alone', plots.PURPLE, 0.1),
    )
  ]
  differences.append(
    plots.series('no difference', 'dashed', plots.BLACK, [-0.4, 2.4], [0, 0])
  )
  panels = [
    plots.Panel('a', 'readout', f'{metric}, 95 %', tuple(losses), x_names=names),
    plots.Panel(
      'b',
      'readout',
      'difference, 95 %',
      tuple(differences),
      x_names=names,
    ),
  ]
  if metric == 'mean squared error':
    panels.append(_answers(lines))
  return plots.Plot('6', tuple(panels))


def _answers(lines: Sequence[dict[str, Any]]) -> Any:
  from zoo import plots

  shown = []
  guesses = [line['guess'] for line in lines]
  for readout, colour in zip(
    READOUTS, (plots.VERMILION, plots.BLUE, plots.GREEN), strict=True
  ):
    pairs = [
      (guess, line['arms']['with_guess'][readout]['value'])
      for guess, line in zip(guesses, lines, strict=True)
    ]
    pairs = sorted(pair for pair in pairs if pair[1] is not None)
    if pairs:
      x, y = zip(*pairs, strict=True)
      shown.append(plots.series(READOUTS[readout], 'dots', colour, x, y))
  ends = [min(guesses), max(guesses)]
  shown.append(plots.series('a copy of the guess', 'dashed', plots.BLACK, ends, ends))
  return plots.Panel('c', 'initial guess of the query', 'answer', tuple(shown))


def _points(
  name: str,
  colour: str,
  shift: float,
  found: Sequence[tuple[float, float, float] | None],
) -> Any:
  from zoo import plots

  kept = [(x + shift, *values) for x, values in enumerate(found) if values is not None]
  return plots.Series(name, 'dots', colour, *map(tuple, zip(*kept, strict=True)))


def _bounded(found: dict[str, Any]) -> tuple[float, float, float] | None:
  if found['stderr'] is None:
    return None
  half = _student(found['num_parsed']) * found['stderr']
  return found['loss'], found['loss'] - half, found['loss'] + half


def _ends(pair: dict[str, Any]) -> tuple[float, float, float] | None:
  if pair['low'] is None:
    return None
  return pair['difference'], pair['low'], pair['high']


def _loss(scale: Scale, line: dict[str, Any], readout: dict[str, Any]) -> float:
  value = readout['value']
  return float('nan') if value is None else scale.loss(value, line['label'])


def _arm(losses: np.ndarray) -> dict[str, Any]:
  parsed = losses[~np.isnan(losses)]
  return {
    'num_parsed': len(parsed),
    'parse_rate': len(parsed) / len(losses),
    **_mean(parsed),
  }


def _mean(values: np.ndarray) -> dict[str, Any]:
  count = len(values)
  return {
    'loss': float(values.mean()) if count else None,
    'stderr': float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else None,
  }


def _copies(
  lines: Sequence[dict[str, Any]],
  readout: str,
  losses: np.ndarray,
  of_guess: np.ndarray,
  scale: Scale,
) -> dict[str, Any]:
  """How many answers are the guess as it was shown, and how the others fare."""
  values = [line['arms']['with_guess'][readout]['value'] for line in lines]
  parsed = ~np.isnan(losses)
  copied = np.array(
    [
      value is not None and scale.same(value, line['guess'])
      for value, line in zip(values, lines, strict=True)
    ]
  )
  changed = parsed & ~copied
  return {
    'num_copied': int(copied.sum()),
    'copied_share': float(copied.sum() / parsed.sum()) if parsed.any() else None,
    'num_changed': int(changed.sum()),
    'changed_loss': _mean(losses[changed])['loss'],
    'changed_guess_loss': _mean(of_guess[changed])['loss'],
  }


def _difference(differences: np.ndarray) -> dict[str, Any]:
  found = differences[~np.isnan(differences)]
  mean = _mean(found)
  half = None if len(found) < 2 else _student(len(found)) * mean['stderr']
  return {
    'num': len(found),
    'difference': mean['loss'],
    'stderr': mean['stderr'],
    'low': None if half is None else mean['loss'] - half,
    'high': None if half is None else mean['loss'] + half,
  }


def _student(count: int) -> float:
  return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))


def _baseline(name: str, summary: dict[str, Any]) -> str:
  """A baseline in words: classes have no mean."""
  with_classes = summary['metric'] == 'error rate'
  return _BASELINES[name].replace('mean', 'majority' if with_classes else 'mean')


def _guess(guess: dict[str, Any]) -> str:
  bias = f', bias {guess["bias"]:+g}' if guess['bias'] else ''
  return guess['model'] + bias + ', shuffled' * guess['shuffled']


def _shown(found: dict[str, Any]) -> str:
  if found['loss'] is None:
    return '-'
  error = '' if found['stderr'] is None else f' ± {found["stderr"]:.3f}'
  return f'{found["loss"]:.3f}{error}'


def _interval(pair: dict[str, Any]) -> str:
  if pair['low'] is None:
    return '-'
  return f'{pair["difference"]:+.3f} [{pair["low"]:+.3f}, {pair["high"]:+.3f}]'
