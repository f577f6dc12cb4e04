"""Pictures of strategies: by number of examples, by training step, and as phases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from studies.strategies.phases import SEED, Diagram, mean_over_seeds
from studies.strategies.series import FittedRun
from zoo.measure.intervals import Estimate, estimate
from zoo.probing.nearest.mixtures import Strategies
from zoo.reports.plots import Panel, Series, plot_panels
from zoo.reports.style import (
  BASELINES,
  BLACK,
  BLUE,
  FIGURE_INCHES,
  GREY,
  PALETTE,
  SMALL,
  VERMILION,
  Ax,
  Figure,
  colours_of,
  drawing_of,
  given_axes,
  house_style,
  label_log_axes,
  legend_above,
)

_STEP = 'training step'
# Fields of the kept diagrams, as a reader says them.
_WORDS = {
  'task.num_urns': 'number of urns',
  'optimizer.weight_decay': 'weight decay',
}
_UNKNOWN = Estimate(math.nan, math.nan)


def plot_strategies(strategies: Strategies, *, ax: Ax = None) -> list[Axes]:
  """Draws the weights, and what they leave unexplained, by the number of examples.

  A weight is left out where its predictors cannot be told apart from others. Bands are
  95 % intervals.

  Args:
    strategies: The mixtures that `zoo.probing.strategies` fits to one model.
    ax: Two axes to draw in. By default the function makes a figure.

  Returns:
    The axes of the two panels.
  """
  groups = {name: {*name.split(', ')} for name in strategies.weights}
  colours = colours_of(name.split(', ')[0] for name in groups)
  weights = [
    _curve_of(
      name,
      colour,
      [
        _weight_of(group, mixture.weights, mixture.stderrs)
        for mixture in strategies.by_length
      ],
    )
    for (name, group), colour in zip(groups.items(), colours.values(), strict=True)
  ]
  shares = [mixture.unexplained for mixture in strategies.by_length]
  unexplained = [_curve_of('unexplained', BLUE, shares)]
  if strategies.by_prompt is not None:
    by_prompt = strategies.by_prompt.by_length
    name = 'unexplained, weights by likelihood'
    unexplained.append(_curve_of(name, VERMILION, by_prompt))
  panels = (
    Panel('Weights', 'examples', 'weight', tuple(weights)),
    Panel('What they leave', 'examples', 'share', tuple(unexplained)),
  )
  return plot_panels(panels, 2, 2.8, ax=ax)


# Hatches tell the cells apart in a grey print, too.
_UNMEASURED, _TIED = '////', 'xxxx'
_LIGHT = '#cccccc'  # the colour behind the hatch of tied cells
_OF_NAMES = '', '..', '\\\\\\', '++', 'oo', '--'
_LINE_COLUMNS = 3  # the number of panels with lines side by side
_FAR = 5  # shares further apart by this factor have a log axis


def plot_series(run: FittedRun, *, ax: Ax = None) -> list[Axes]:
  """Draws the weights, and what they leave unexplained, by the step of training.

  A weight is left out where its predictors cannot be told apart from others. Bands are
  95 % intervals.

  Args:
    run: The fits of one run.
    ax: Two axes to draw in. By default the function makes a figure.

  Returns:
    The axes of the two panels.
  """
  steps, last = [*run.fits], [*run.fits.values()][-1]
  groups = {name: {*name.split(', ')} for name in last.weights}
  colours = colours_of(name.split(', ')[0] for name in groups)
  weights = [
    _curve_of(
      name,
      colour,
      [_weight_of(group, fit.weights, fit.stderrs) for fit in run.fits.values()],
      steps,
    )
    for (name, group), colour in zip(groups.items(), colours.values(), strict=True)
  ]
  shares = [fit.unexplained for fit in run.fits.values()]
  unexplained = [_curve_of('unexplained', BLUE, shares, steps)]
  if last.by_prompt is not None:
    by_prompt = [fit.by_prompt for fit in run.fits.values()]
    name = 'unexplained, weights by likelihood'
    unexplained.append(_curve_of(name, VERMILION, by_prompt, steps))
  scale, x_axis = _scale_of(steps)
  panels = (
    Panel('Weights', x_axis, 'weight', tuple(weights), scale),
    Panel('What they leave', x_axis, 'share', tuple(unexplained), scale),
  )
  return plot_panels(panels, 2, 2.8, ax=ax)


def _weight_of(
  group: set[str], weights: Mapping[str, float], stderrs: Mapping[str, float]
) -> Estimate:
  """Returns the summed weight of predictors; NaN if some share theirs with others."""
  total = error = 0.0
  for name, weight in weights.items():
    names = {*name.split(', ')}
    if names & group and not names <= group:
      return _UNKNOWN
    if names & group:
      total, error = total + weight, error + stderrs[name]
  return Estimate(total, error)


def _curve_of(
  name: str,
  colour: str,
  estimates: Sequence[Estimate | None],
  x: Sequence[int] | None = None,
) -> Series:
  """Returns a curve of estimates with 95 % intervals.

  By default x is 0, 1, 2 and so on.
  """
  known = [_UNKNOWN if estimate is None else estimate for estimate in estimates]
  means = tuple(estimate.mean for estimate in known)
  return Series(
    name,
    'curve',
    colour,
    tuple(map(float, range(len(known)) if x is None else x)),
    means,
    tuple(estimate.mean - estimate.half for estimate in known),
    tuple(estimate.mean + estimate.half for estimate in known),
  )


def plot_lines(shown: Sequence[Diagram], *, ax: Ax = None) -> list[Axes]:
  """Draws the weights, and what they leave unexplained, by the step of training.

  Each line is the mean over seeds, and its band the 95 % interval of this mean by
  Student's t, which one seed does not have. A weight is left out where its predictor
  cannot be told apart from another one in some seed.

  Args:
    shown: Diagrams of runs. Each has a panel of weights for each value of its field,
      and one of what they leave at each value. The seeds of a sweep over seeds alone
      are one value.
    ax: Axes to draw in, one for each panel. By default the function makes a figure.

  Returns:
    The axes of the panels.

  Raises:
    UserError: If `ax` has another number of axes.
  """
  panels = [panel for diagram in shown for panel in _panels_of(diagram)]
  drawn = plot_panels(panels, min(len(panels), _LINE_COLUMNS), 2.2, ax=ax)
  low, high = drawn[-1].get_xlim()  # the last panel has all steps
  for axes in drawn:
    axes.set_xlim(min(low, axes.get_xlim()[0]), max(high, axes.get_xlim()[1]))
    label_log_axes(axes)
  return drawn


def _scale_of(steps: Sequence[int]) -> tuple[str, str]:
  """Returns the scale of the axis of steps and its label; a log axis has no 0."""
  if min(steps) > 0 and len(steps) > 1:
    return 'log', f'{_STEP} (log scale)'
  return 'linear', _STEP


def _panels_of(diagram: Diagram) -> Iterator[Panel]:
  weights, unexplained = diagram.weights, diagram.unexplained
  is_shared: np.ndarray = diagram.is_shared
  field = _WORDS.get(diagram.field, diagram.field)
  names = [f'{field} = {value}' for value in diagram.values]
  if diagram.field == SEED:  # the values of the field are the seeds
    weights, unexplained = weights.swapaxes(0, 2), unexplained.swapaxes(0, 1)
    is_shared = np.any(is_shared, axis=2, keepdims=True)
    names = ['all seeds']
  scale, x_axis = _scale_of(diagram.steps)
  for at, of_value in enumerate(names):
    lines = []
    colours = itertools.cycle(PALETTE)
    for i, (name, colour) in enumerate(zip(diagram.names, colours, strict=False)):
      others = np.delete(is_shared[i, :, at], i, axis=0)
      known = np.where(others.any(axis=0), math.nan, weights[:, i, at])
      name = f'mixture weight of {name}'
      lines.append(_line(name, 'curve', colour, diagram.steps, known))
    title = ', '.join(filter(None, [diagram.title, of_value]))
    yield Panel(title, x_axis, 'mixture weight', tuple(lines), scale)
  # These colours differ from those of the predictors.
  colours = itertools.cycle([*BASELINES.values()][2:])
  by_value = unexplained.swapaxes(0, 1)
  left = tuple(
    _line(f'unexplained, {name}', 'dashed curve', colour, diagram.steps, values)
    for name, colour, values in zip(names, colours, by_value, strict=False)
  )
  title = ', '.join(filter(None, [diagram.title, 'what they leave']))
  means = [mean for line in left for mean in line.y if not math.isnan(mean)]
  if means and 0 < _FAR * min(means) < max(means):
    yield Panel(title, x_axis, 'unexplained (log scale)', left, scale, 'log')
  else:
    yield Panel(title, x_axis, 'unexplained', left, scale)


def _line(
  name: str,
  kind: str,
  colour: str,
  steps: Sequence[int],
  values: Float[np.ndarray, 'seed step'],
) -> Series:
  """Returns the mean over seeds at each step with its interval; NaN without values."""
  ends = []
  for of_step in values.T:
    known = of_step[~np.isnan(of_step)]
    mean = float(known.mean()) if known.size else math.nan
    half = estimate(known).half if known.size > 1 else 0.0
    ends.append((mean, mean - half, mean + half))
  means, lows, highs = zip(*ends, strict=True)
  return Series(name, kind, colour, tuple(map(float, steps)), means, lows, highs)


@house_style
def plot_diagrams(shown: Sequence[Diagram], *, ax: Ax = None) -> list[Axes]:
  """Draws phase diagrams.

  The colour of a cell is that of the predictor with the largest weight. It is paler the
  more the mixture leaves unexplained. Cells meet in the middle between two steps, on
  the axis of steps. Cells whose predictors are not told apart, and cells without a
  measurement, have hatches of their own. Dashed lines join cells with equal log odds of
  the first predictor against the second.

  Args:
    shown: The diagrams, which have the same predictors.
    ax: Axes to draw in, one for each diagram. By default the function makes a figure.

  Returns:
    The axes of the diagrams.

  Raises:
    UserError: If `ax` has another number of axes.
  """
  given = given_axes(ax, len(shown))
  if given is None:
    rows = max(len(diagram.values) for diagram in shown)
    columns = min(len(shown), 3)
    lines = -(-len(shown) // columns)
    width = FIGURE_INCHES if columns > 1 else 5.0
    figure = Figure(1.5 + lines * (0.9 + 0.3 * rows), width)
    every = [*figure.subplots(lines, columns, squeeze=False).flat]
    for axes in every[len(shown) :]:
      axes.set_axis_off()
    drawn = every[: len(shown)]
  else:
    drawn = given
  names = shown[0].names
  colours = dict(zip(names, itertools.cycle(PALETTE), strict=False))
  hatches = dict(zip(names, itertools.cycle(_OF_NAMES), strict=False))
  for axes, diagram in zip(drawn, shown, strict=True):
    _draw_diagram(axes, diagram, colours, hatches)
  handles: dict[str, Any] = {
    name: Patch(facecolor=colours[name], edgecolor='white', lw=0, hatch=hatches[name])
    for name in names
  }
  states = [_states(diagram) for diagram in shown]
  if any(is_tied.any() for is_tied, _, _ in states):
    handles['not told apart'] = Patch(
      facecolor=_LIGHT, edgecolor=GREY, lw=0, hatch=_TIED
    )
  if any(is_plain.any() for _, is_plain, _ in states):
    handles['nothing explained'] = Patch(facecolor='white', edgecolor=GREY)
  if any(is_unknown.any() for _, _, is_unknown in states):
    handles['nothing measured'] = Patch(
      facecolor='white', edgecolor=GREY, hatch=_UNMEASURED
    )
  if any(_has_lines(diagram) for diagram in shown):
    # The odds are against the second predictor, given all labels so far.
    label = f'log odds of {names[0]}, nats'
    handles[label] = Line2D([], [], color=BLACK, lw=0.7, ls='--')
  if given is None:
    legend_above(drawing_of(drawn), handles)
  else:
    drawn[0].legend(handles.values(), handles.keys())
  return drawn


def _states(diagram: Diagram) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns which cells are tied, which explain nothing, and which have no model."""
  unexplained = mean_over_seeds(diagram.unexplained)
  is_unknown = np.isnan(unexplained) | np.isnan(diagram.weights).all(axis=(0, 1))
  is_tied = diagram.is_tied & ~is_unknown
  return is_tied, ~is_unknown & ~is_tied & (unexplained >= 1), is_unknown


def _has_lines(diagram: Diagram) -> bool:
  """Returns whether a diagram has two axes, and log odds above one nat."""
  return min(diagram.odds.shape) > 1 and bool(diagram.odds.max() > 1)


def _edges(steps: Sequence[int], is_log: bool) -> np.ndarray:
  """Returns the edges of cells: the middles between steps, on their axis."""
  at = np.log(steps) if is_log else np.asarray(steps, np.float64)
  if len(at) == 1:
    edges = np.array([at[0] - 0.5, at[0] + 0.5])
  else:
    middles = (at[1:] + at[:-1]) / 2
    first, last = at[0] - (middles[0] - at[0]), at[-1] + (at[-1] - middles[-1])
    edges = np.concatenate([[first], middles, [last]])
  return np.exp(edges) if is_log else edges


def _draw_diagram(
  axes: Axes, diagram: Diagram, colours: dict[str, str], hatches: dict[str, str]
) -> None:
  is_tied, _, is_unknown = _states(diagram)
  unexplained = np.nan_to_num(mean_over_seeds(diagram.unexplained), nan=1.0)
  strength = np.clip(1 - unexplained, 0, 1)[..., None]
  solid = np.array([to_rgb(colours[name]) for name in diagram.names])[diagram.winners]
  solid = np.where(is_tied[..., None], to_rgb(_LIGHT), solid)
  is_log = min(diagram.steps) > 0
  edges = _edges(diagram.steps, is_log)
  rows = np.arange(len(diagram.values) + 1) - 0.5
  axes.pcolormesh(edges, rows, 1 - strength * (1 - solid))
  for (row, column), winner in np.ndenumerate(diagram.winners):
    look = hatches[diagram.names[winner]], 'white'
    if is_tied[row, column]:
      look = _TIED, GREY
    if is_unknown[row, column]:
      look = _UNMEASURED, GREY
    if not look[0]:
      continue
    axes.add_patch(
      Rectangle(
        (float(edges[column]), float(rows[row])),
        float(edges[column + 1] - edges[column]),
        1.0,
        fill=False,
        lw=0,
        hatch=look[0],
        edgecolor=look[1],
      )
    )
  axes.grid(visible=False)
  axes.set_title(diagram.title, size=8 if diagram.title else None)
  axes.set_xlabel(f'{_STEP} (log scale)' if is_log else _STEP)
  axes.set_ylabel(_WORDS.get(diagram.field, diagram.field))
  axes.set_yticks(range(len(diagram.values)), [*map(str, diagram.values)])
  if is_log:
    axes.set_xscale('log')
  axes.set_xlim(edges[0], edges[-1])
  label_log_axes(axes)
  if not _has_lines(diagram):
    return
  logs = np.log10(np.maximum(diagram.odds, 1e-9))
  contours = axes.contour(
    diagram.steps,
    range(len(diagram.values)),
    logs,
    levels=np.arange(0, math.ceil(logs.max())),
    colors=BLACK,
    linewidths=0.7,
    linestyles='dashed',
  )
  axes.clabel(contours, fmt=lambda level: f'$10^{{{level:.0f}}}$', fontsize=SMALL)
