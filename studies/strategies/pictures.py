"""Which strategies models follow, how they change in training, and phase diagrams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from studies.strategies.phases import Diagram, mean_over_seeds
from studies.strategies.series import FittedRun
from zoo.measure.statistics import Estimate
from zoo.probing.nearest_strategies.mixtures import Strategies
from zoo.reports.plots import Panel, Series, render_grid
from zoo.reports.style import (
  BLACK,
  BLUE,
  GREY,
  PALETTE,
  SMALL,
  VERMILION,
  WIDTH,
  Figure,
  colours_of,
  in_style,
)

_STEP = 'training step'
_UNKNOWN = Estimate(math.nan, math.nan)


def plot_strategies(strategies: Strategies) -> Figure:
  """The weights and what they leave unexplained, by the number of examples.

  A weight is left out where its predictors cannot be told apart from others. Bands are
  95 % intervals.
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
  return render_grid(panels, 2, 2.8)


def plot_series(run: FittedRun) -> Figure:
  """The weights and what they leave unexplained, by the step of training.

  A weight is left out where its predictors cannot be told apart from others. Bands are
  95 % intervals.
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
  panels = (
    Panel('Weights', _STEP, 'weight', tuple(weights), 'log'),
    Panel('What they leave', _STEP, 'share', tuple(unexplained), 'log'),
  )
  return render_grid(panels, 2, 2.8)


def _weight_of(
  group: set[str], weights: Mapping[str, float], stderrs: Mapping[str, float]
) -> Estimate:
  """The weight of predictors; NaN where some share theirs with others."""
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
  """Estimates with 95 % intervals, by default after 0, 1, … examples."""
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


@in_style()
def plot_diagrams(shown: Sequence[Diagram]) -> Figure:
  """Diagrams: the colour of the largest weight, paler the more it leaves unexplained.

  Lines join equal odds of the first predictor against the second.
  """
  rows = max(len(diagram.values) for diagram in shown)
  columns = min(len(shown), 3)
  lines = -(-len(shown) // columns)
  figure = Figure(1.5 + lines * (0.9 + 0.3 * rows), WIDTH if columns > 1 else 5.0)
  every = [*figure.subplots(lines, columns, squeeze=False).flat]
  names = shown[0].names
  colours = dict(zip(names, itertools.cycle(PALETTE), strict=False))
  for axes in every[len(shown) :]:
    axes.set_axis_off()
  for axes, diagram in zip(every, shown, strict=False):
    _draw_diagram(axes, diagram, [to_rgb(colours[name]) for name in diagram.names])
  handles: list[Any] = [Patch(color=c, label=name) for name, c in colours.items()]
  if any(diagram.is_tied.any() for diagram in shown):
    handles.append(Patch(color=GREY, label='not told apart'))
  if any(_has_lines(diagram) for diagram in shown):
    label = f'log odds of {names[0]}, nats'  # against the other, by all labels so far
    handles.append(Line2D([], [], color=BLACK, lw=0.7, ls='--', label=label))
  figure.legend(handles=handles, loc='outside upper center', ncols=2)
  return figure


def _has_lines(diagram: Diagram) -> bool:
  """Whether there are odds of at least one nat to draw."""
  return min(diagram.odds.shape) > 1 and bool(diagram.odds.max() > 1)


def _draw_diagram(
  axes: Axes, diagram: Diagram, colours: Sequence[tuple[float, float, float]]
) -> None:
  unexplained = np.nan_to_num(mean_over_seeds(diagram.unexplained), nan=1.0)
  strength = np.clip(1 - unexplained, 0, 1)[..., None]
  solid = np.array(colours)[diagram.winners]
  solid = np.where(diagram.is_tied[..., None], to_rgb(GREY), solid)
  axes.imshow(1 - strength * (1 - solid), aspect='auto', origin='lower')
  axes.grid(visible=False)
  axes.set_title(diagram.title, size=8 if diagram.title else None)
  axes.set_xlabel(_STEP)
  axes.set_ylabel(diagram.field)
  axes.set_yticks(range(len(diagram.values)), [*map(str, diagram.values)])
  few = range(0, len(diagram.steps), max(1, len(diagram.steps) // 6))
  axes.set_xticks(few, [str(diagram.steps[i]) for i in few])
  if not _has_lines(diagram):
    return
  logs = np.log10(np.maximum(diagram.odds, 1e-9))
  contours = axes.contour(
    logs,
    levels=np.arange(0, math.ceil(logs.max())),
    colors=BLACK,
    linewidths=0.7,
    linestyles='dashed',
  )
  axes.clabel(contours, fmt=lambda level: f'$10^{{{level:.0f}}}$', fontsize=SMALL)
