"""The pictures of an atlas, which are drawn from its rows."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from studies.atlas.comparisons import GuessChange, changes, pooled
from studies.atlas.results import (
  LEAST_SHARE,
  LOWEST,
  NOTHING,
  AtlasRow,
  at_budget,
  baselines_of,
  common_budgets,
  is_like_bayes,
  scale_of,
  share_in_words,
)
from zoo.measure.intervals import Estimate
from zoo.reports.heat_maps import HeatMap, plot_heat_maps
from zoo.reports.interval_plots import RowPoint, plot_rows
from zoo.reports.plots import Panel, Series, plot_panels, series
from zoo.reports.style import (
  BLACK,
  BLUE,
  FIGURE_INCHES,
  GREEN,
  GREY,
  ORANGE,
  PURPLE,
  VERMILION,
  Ax,
  Figure,
  drawing_of,
)

_COLOURS = {
  'zero': BLUE,
  'linear': VERMILION,
  'network': GREEN,
  'residual': PURPLE,
  'residual_network': ORANGE,
}
# The columns of the heat map, as a reader says them; others keep their names.
_WORDS = {
  'linear': 'linear regression',
  'noisy': 'linear, with noise',
  'sparse': 'sparse regression',
  'tree': 'decision trees',
  'parity': 'running parity',
  'prior': 'prior mean, guess 0',
  'prior, linear': 'prior mean, guess in tokens',
  'prior, residual': 'prior mean, guess outside',
  'hidden_markov': 'hidden Markov chain',
  'markov': 'Markov chain',
}
_LINES = {'bayes': BLACK, 'gd': GREY, 'nearest_neighbours': GREY}


def draw(rows: Sequence[AtlasRow]) -> dict[str, Figure]:
  """Draws all pictures for which there are rows.

  Returns:
    The pictures, by file name without the ending.
  """
  drawn: dict[str, Axes | list[Axes]] = {'atlas': heat_map(rows)}
  if ratios := slope_ratios(rows):
    drawn['atlas_slopes'] = slopes(ratios)
  if changed := changes(rows):
    drawn['atlas_guesses'] = effects(changed)
  if len({row.prompts for row in rows}) > len({row.task for row in rows}):
    drawn['atlas_contexts'] = by_context(rows)
  return {name: drawing_of(axes) for name, axes in drawn.items()}


def heat_map(rows: Sequence[AtlasRow], *, ax: Axes | None = None) -> Axes:
  """Draws what each architecture leaves unlearned on each task, as a heat map.

  The numbers are (loss − Bayes loss) / (loss without examples − Bayes loss), after the
  largest budget with which every trained cell has a row. Cells whose risk is known from
  theory say so. Cells without a loss, and those that do not exist, have a dash.

  Args:
    rows: The rows of the atlas.
    ax: The axes to draw in. By default the function makes a figure.

  Returns:
    The axes.
  """
  shares, texts = {}, {}
  for row in at_budget(rows):
    place = row.model, _column(row, rows)
    share = shares[place] = _share(row, rows)
    texts[place] = _words(row, share, rows)
  label = 'share of the learnable loss that is not learned (log scale)'
  return _matrix(shares, texts, LogNorm(LEAST_SHARE, 1), label, ax)


def slope_ratios(rows: Sequence[AtlasRow]) -> dict[tuple[str, str], float]:
  """Returns the share after the largest budget over the share after a smaller one.

  Shares are given by `LossScale.share`; those below `LEAST_SHARE` count as that. Tasks
  with a single budget are left out, and so are cells that reach the cap on steps before
  a budget is spent.

  Returns:
    The ratios by model and column. The name of a column has the task and the factor
    between the two budgets.
  """
  ratios: dict[tuple[str, str], float] = {}
  for prompts in dict.fromkeys(row.prompts for row in rows):
    cells = [row for row in rows if row.prompts == prompts]
    budgets = common_budgets(cells)
    if len(budgets) > 1:
      before = _smaller_budget(budgets)
      first = _shares_of_trained(cells, before, rows)
      last = _shares_of_trained(cells, budgets[-1], rows)
      factor = f'× {budgets[-1] / before:.0f}'
      ratios |= {
        (model, f'{column}, {factor}'): share / first[model, column]
        for (model, column), share in last.items()
        if (model, column) in first
      }
  return ratios


def _smaller_budget(budgets: Sequence[float]) -> float:
  """Returns the largest budget up to a tenth of the last, or else the first."""
  early = [budget for budget in budgets if budget <= budgets[-1] / 9.5]
  return max(early, default=budgets[0])


def slopes(ratios: Mapping[tuple[str, str], float], *, ax: Axes | None = None) -> Axes:
  """Draws the ratios of `slope_ratios` as a heat map.

  Args:
    ratios: The ratios by model and column.
    ax: The axes to draw in. By default the function makes a figure.

  Returns:
    The axes.
  """
  texts = {
    place: f'{ratio:.2g}' if math.isfinite(ratio) else '–'
    for place, ratio in ratios.items()
  }
  label = 'share not learned with more operations, over that with fewer (log scale)'
  return _matrix(ratios, texts, LogNorm(0.01, 1), label, ax)


def _shares_of_trained(
  cells: Sequence[AtlasRow], budget: float, rows: Sequence[AtlasRow]
) -> dict[tuple[str, str], float]:
  """Returns shares, at least LEAST_SHARE, of cells that spent a budget to its end."""
  return {
    (row.model, _column(row, rows)): max(_share(row, rows), LEAST_SHARE)
    for row in at_budget(cells, budget)
    if row.budget and not row.is_capped
  }


def _matrix(
  values: Mapping[tuple[str, str], float],
  texts: Mapping[tuple[str, str], str],
  scale: LogNorm,
  label: str,
  ax: Axes | None,
) -> Axes:
  """Draws values and texts by model and column; the lowest models come first.

  Models are ordered by the mean log of their values. A value that is infinite or NaN
  counts as 1 there.

  Returns:
    The axes.
  """
  logs: dict[str, list[float]] = {model: [] for model, _ in values}
  for (model, _), value in values.items():
    logs[model].append(
      math.log(max(value, LEAST_SHARE)) if math.isfinite(value) else 0.0
    )
  models = sorted(logs, key=lambda name: float(np.mean(logs[name])))
  columns = [*dict.fromkeys(column for _, column in values)]
  matrix = np.full((len(models), len(columns)), math.nan)
  words = [['–'] * len(columns) for _ in models]
  for (model, column), value in values.items():
    place = models.index(model), columns.index(column)
    matrix[place] = max(value, LEAST_SHARE)  # max keeps a NaN that comes first
    words[place[0]][place[1]] = texts[model, column]
  shown = HeatMap(
    matrix,
    scale,
    label,
    rows=dict(enumerate(models)),
    columns=dict(enumerate(_WORDS.get(column, column) for column in columns)),
    texts=words,
  )
  # With more than 16 columns the figure is wider than a page, to keep numbers legible.
  width = min(max(2 + 0.85 * len(columns), 6.4), FIGURE_INCHES)
  width = max(width, 1.8 + 0.38 * len(columns))
  return plot_heat_maps([[shown]], 2.4 + 0.32 * len(models), width, ax=ax)[0]


def _share(row: AtlasRow, rows: Sequence[AtlasRow]) -> float:
  if row.known == NOTHING or not math.isfinite(row.loss.mean):
    return math.nan
  return scale_of(rows, row.prompts).share(row.loss.mean)


def _words(row: AtlasRow, share: float, rows: Sequence[AtlasRow]) -> str:
  if not math.isfinite(share):
    return 'diverged' if row.budget else '–'
  shown = share_in_words(share)
  if row.is_capped:
    shown += '*'
  if row.known == LOWEST:
    return f'{shown}\ntheory'
  return f'{shown}\nBayes' if is_like_bayes(row, rows) else shown


def effects(changed: Sequence[GuessChange], *, ax: Ax = None) -> list[Axes]:
  """Draws the effects of guesses, in % of the loss with the guess 0.

  Effects pooled over models come first, and then each effect, from the lowest on.

  Args:
    changed: The effects, from `changes`.
    ax: Axes to draw in, one for each task and context length. By default the function
      makes a figure.

  Returns:
    The axes of the panels.
  """
  panels: dict[str, list[RowPoint]] = {}
  for pool, share in pooled(changed).items():
    point = RowPoint(f'{pool.kind} (mean)', pool.guess, *_in_percent(share))
    panels.setdefault(f'{pool.task}, C = {pool.context_length}', []).append(point)
  for change in sorted(changed, key=lambda change: change.share.mean):
    point = RowPoint(change.row.model, change.row.guess, *_in_percent(change.share))
    name = f'{change.row.task}, C = {change.row.context_length}'
    panels.setdefault(name, []).append(point)
  axis = 'change of the loss, in % of that with the guess 0; below 0 the guess helps'
  return plot_rows(panels, axis, _COLOURS, level=0.0, ax=ax)


def _in_percent(share: Estimate) -> tuple[float, float]:
  """Returns the mean and half of the interval, in %."""
  return 100 * share.mean, 100 * share.half


def by_context(rows: Sequence[AtlasRow], *, ax: Ax = None) -> list[Axes]:
  """Draws losses by the context length in training, which is also that of the test.

  Args:
    rows: The rows of the atlas.
    ax: Axes to draw in, one for each model and task. By default the function makes a
      figure.

  Returns:
    The axes of the panels.
  """
  cells = [row for row in at_budget(rows) if row.losses]
  groups: dict[tuple[str, str], list[AtlasRow]] = {}
  for row in sorted(cells, key=lambda row: row.context_length):
    groups.setdefault((row.model, row.task), []).append(row)
  axes = 'examples, in training and in the test (log scale)', 'loss (log scale)'
  panels = []
  for (model, task), of in groups.items():
    shown = []
    baselines = [baselines_of(rows, row.prompts) for row in of]
    for name, colour in _LINES.items():
      lines = [of_prompts[name] for of_prompts in baselines if name in of_prompts]
      known = {row.context_length: row.losses[0] for row in lines}
      if known:
        y = _positive([*known.values()])
        shown.append(series(name, 'dashed', colour, [*known], y))
    for guess in dict.fromkeys(row.guess for row in of):
      of_guess = [row for row in of if row.guess == guess]
      x = [row.context_length for row in of_guess]
      label = f'guess: {guess}' if guess else 'no choice of guess'
      shown.append(_intervals(label, _COLOURS.get(guess, BLUE), x, of_guess))
    panels.append(Panel(f'{model}, {task}', *axes, tuple(shown), 'log', 'log'))
  return plot_panels(panels, min(len(panels), 3), 2.3, ax=ax)


def _positive(values: Sequence[float]) -> list[float]:
  """Replaces losses that are 0 up to rounding by NaN, for a log axis."""
  return [value if value > 1e-8 else math.nan for value in values]


def _intervals(
  name: str, colour: str, x: Sequence[int | float], rows: Sequence[AtlasRow]
) -> Series:
  """Returns the losses of rows with 95 % intervals, which one seed does not have."""
  ends = []
  for row in rows:
    loss = row.loss
    is_known = math.isfinite(loss.half)
    half = loss.half if is_known else 0.0
    ends.append((loss.mean, loss.mean - half, loss.mean + half))
  return Series(name, 'curve', colour, tuple(map(float, x)), *zip(*ends, strict=True))


def _column(row: AtlasRow, rows: Sequence[AtlasRow]) -> str:
  """Returns the name of a column: the task, and what sets it apart from other columns.

  The context length is added if the task has several, and the guess if it is not 0.
  """
  lengths = {other.context_length for other in rows if other.task == row.task}
  name = f'{row.task}, C = {row.context_length}' if len(lengths) > 1 else row.task
  return name if row.guess in ('', 'zero') else f'{name}, {row.guess}'
