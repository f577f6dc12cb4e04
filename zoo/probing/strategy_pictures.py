"""Which strategy a model follows, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zoo.measure.intervals import Estimate
from zoo.probing.strategies import Mixture, Strategies
from zoo.reports.plots import Panel, Series, render_grid
from zoo.reports.style import BLUE, VERMILION, Figure, colours_of

_UNKNOWN = Estimate(math.nan, math.nan)


def plot_strategies(strategies: Strategies) -> Figure:
  """The weights and what they leave unexplained, by the number of examples.

  A weight is left out where its predictors cannot be told apart from others. Bands are
  two standard errors.
  """
  groups = {name: {*name.split(', ')} for name in strategies.weights}
  colours = colours_of(name.split(', ')[0] for name in groups)
  weights = [
    _curve(
      name,
      colour,
      [Estimate(_weight_of(group, mixture), 0.0) for mixture in strategies.by_length],
    )
    for (name, group), colour in zip(groups.items(), colours.values(), strict=True)
  ]
  shares = [mixture.unexplained for mixture in strategies.by_length]
  unexplained = [_curve('unexplained', BLUE, shares)]
  if strategies.by_prompt is not None:
    by_prompt = strategies.by_prompt.by_length
    name = 'unexplained, weights by likelihood'
    unexplained.append(_curve(name, VERMILION, by_prompt))
  panels = (
    Panel('Weights', 'examples', 'weight', tuple(weights)),
    Panel('What they leave', 'examples', 'share', tuple(unexplained)),
  )
  return render_grid(panels, 2, 2.8)


def _weight_of(group: set[str], mixture: Mixture) -> float:
  """The weight of predictors; NaN where some share theirs with others."""
  total = 0.0
  for name, weight in mixture.weights.items():
    names = {*name.split(', ')}
    if names & group and not names <= group:
      return math.nan
    total += weight if names & group else 0.0
  return total


def _curve(name: str, colour: str, estimates: Sequence[Estimate | None]) -> Series:
  """Estimates after 0, 1, … examples, with two standard errors."""
  known = [_UNKNOWN if estimate is None else estimate for estimate in estimates]
  means = tuple(estimate.mean for estimate in known)
  return Series(
    name,
    'curve',
    colour,
    tuple(map(float, range(len(known)))),
    means,
    tuple(estimate.mean - 2 * estimate.stderr for estimate in known),
    tuple(estimate.mean + 2 * estimate.stderr for estimate in known),
  )
