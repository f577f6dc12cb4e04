"""Which algorithm at which layer, as a picture and in words."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LogNorm

from zoo.measure.intervals import Estimate
from zoo.probing.algorithms import Match, Readout
from zoo.probing.verdicts import percent, shown_share
from zoo.reports.heat_maps import HeatMap, plot_heat_maps
from zoo.reports.style import Figure

_NAMES = {
  'gd': 'gradient descent',
  'preconditioned_gd': 'preconditioned descent',
  'gd_plus_plus': 'GD++',
  'chebyshev': "Chebyshev's steps",
  'richardson': 'any steps (Richardson)',
  'newton': 'iterative Newton',
  'conjugate_gradients': 'conjugate gradients',
}
_COLUMNS = 4  # maps side by side
_LEAST = 1e-4  # distances below it have one colour
_NEAREST, _AS_NEAR = '●', '○'
_STARTS_AT_HALF = 0.5  # what the nearest leaves, above which none is the algorithm


def plot_layer_algorithms(readout: Readout) -> Figure:
  """Heat maps of the distances of all layers, one for each algorithm, by steps.

  A disc marks the nearest number of steps of each layer, and circles the rest of its
  95 % interval. The last map has the algorithms without steps.
  """
  scale = LogNorm(_LEAST, 1, clip=True)
  stepless = {
    name: match
    for name, match in readout.matches.items()
    if match.distance.shape[1] == 1 and name not in _NAMES
  }
  maps = [
    _map(match.distance, scale, _NAMES[name], 'steps', _marks(match))
    for name, match in readout.matches.items()
    if name not in stepless
  ]
  if stepless:
    distances = np.concatenate([match.distance for match in stepless.values()], axis=1)
    columns = dict(enumerate(stepless))
    texts = [[''] * len(stepless) for _ in distances]
    maps.append(_map(distances, scale, 'without steps', '', texts, columns))
  grid = [maps[i : i + _COLUMNS] for i in range(0, len(maps), _COLUMNS)]
  num_layers = len(readout.nearest)
  height = 0.9 + len(grid) * (1.1 + 0.22 * min(num_layers, 12))
  return plot_heat_maps(
    grid, height, title='Distance of each layer from each algorithm, by its steps'
  )


def _map(
  distances: np.ndarray,
  scale: LogNorm,
  title: str,
  x_axis: str,
  texts: list[list[str]],
  columns: dict[int, str] | None = None,
) -> HeatMap:
  num_layers, num_columns = distances.shape
  apart = max(1, -(-num_layers // 8))
  rows = {layer: str(layer) for layer in range(0, num_layers, apart)}
  if columns is None:
    columns = {k: str(k) for k in range(0, num_columns, max(1, -(-num_columns // 6)))}
  name = 'share of what the start leaves to be learned'
  return HeatMap(distances, scale, name, title, x_axis, 'layer', rows, columns, texts)


def _marks(match: Match) -> list[list[str]]:
  """The nearest number of steps of each layer, and those within its interval."""
  steps = range(match.distance.shape[1])
  return [
    [
      _NEAREST if k == nearest else _AS_NEAR if low <= k <= high else '' for k in steps
    ]
    for nearest, low, high in zip(match.nearest, match.low, match.high, strict=True)
  ]


def name_layer_algorithms(readout: Readout) -> str:
  """What is nearest after the last layer, and whether the number of steps rises.

  The second is said only of layers to which that algorithm is as near as any, and whose
  intervals are apart.
  """
  last = len(readout.nearest) - 1
  alike = readout.nearest[last]
  name = min(alike, key=lambda name: round(_left(readout.matches[name], last).mean, 8))
  match = readout.matches[name]
  left = _left(match, last)
  shown = percent(0.0) if left.mean < 1e-8 else shown_share(left)
  said = f'After the last layer, {last}, the nearest algorithm is {_at(name, match)}'
  if left.mean > _STARTS_AT_HALF:
    said = (
      f'No algorithm explains half of what the last layer, {last}, predicts: the '
      f'nearest is {_at(name, match)}'
    )
  said += f', which is {shown} of what the start leaves to be learned away from it'
  others = [_NAMES.get(other, f"the task's {other}") for other in alike if other != name]
  if others:
    said += f'; within two standard errors of it: {", ".join(others)}'
  near = [layer for layer in range(last + 1) if name in readout.nearest[layer]]
  first = near[0]
  if match.high[first] < match.low[last]:
    said += (
      f'. Its nearest number of steps rises from {_steps(match, first)} after layer '
      f'{first} to {_steps(match, last)} after layer {last}'
    )
  return f'{said}.'


def _left(match: Match, layer: int) -> Estimate:
  k = match.nearest[layer]
  return Estimate(
    float(match.distance[layer, k]), float(match.standard_error[layer, k])
  )


def _at(name: str, match: Match) -> str:
  """The algorithm at the last layer's nearest number of steps, in words."""
  if name not in _NAMES:
    return f"the task's {name}"
  steps = _steps(match, -1)
  return f'{_NAMES[name]} with {steps} step{"" if steps == "1" else "s"}'


def _steps(match: Match, layer: int) -> str:
  """The nearest number of steps with its interval; the most is only a lower bound."""
  nearest, low, high = (
    int(steps[layer]) for steps in (match.nearest, match.low, match.high)
  )
  most = match.distance.shape[1] - 1
  said = f'at least {nearest}' if nearest == most else str(nearest)
  return said if low == high else f'{said} (95 % interval {low} to {high})'
