"""Which strategy models follow, as pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from zoo.measure.statistics import Estimate
from zoo.probing.nearest_strategies.mixtures import Strategies
from zoo.reports.plots import Panel, Series, render_grid
from zoo.reports.style import BLUE, VERMILION, Figure, colours_of

_UNKNOWN = Estimate(math.nan, math.nan)


def plot_strategies(strategies: Strategies) -> Figure:
  """The weights and what they leave unexplained, by the number of examples.

  A weight is left out where its predictors cannot be told apart from others. Bands are
  95 % intervals.
  """
  groups = {name: {*name.split(', ')} for name in strategies.weights}
  colours = colours_of(name.split(', ')[0] for name in groups)
  weights = [
    curve_of(
      name,
      colour,
      [
        weight_of(group, mixture.weights, mixture.stderrs)
        for mixture in strategies.by_length
      ],
    )
    for (name, group), colour in zip(groups.items(), colours.values(), strict=True)
  ]
  shares = [mixture.unexplained for mixture in strategies.by_length]
  unexplained = [curve_of('unexplained', BLUE, shares)]
  if strategies.by_prompt is not None:
    by_prompt = strategies.by_prompt.by_length
    name = 'unexplained, weights by likelihood'
    unexplained.append(curve_of(name, VERMILION, by_prompt))
  panels = (
    Panel('Weights', 'examples', 'weight', tuple(weights)),
    Panel('What they leave', 'examples', 'share', tuple(unexplained)),
  )
  return render_grid(panels, 2, 2.8)


def weight_of(
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


def curve_of(
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
