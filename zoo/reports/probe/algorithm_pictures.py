"""Which algorithm at which layer, as a picture."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from zoo.probing.nearest.by_layer import Match, Readout
from zoo.reports.heat_maps import HeatMap, plot_heat_maps
from zoo.reports.probe.algorithm_words import NAMES
from zoo.reports.style import Ax

_COLUMNS = 4  # So many maps stand side by side.
_LEAST = 1e-4  # All smaller distances have the same colour.
_NEAREST, _AS_NEAR = '●', '○'


def plot_layer_algorithms(readout: Readout, *, ax: Ax = None) -> list[Axes]:
  """Draws heat maps of the distances of all layers by steps, one for each algorithm.

  A disc marks the nearest number of steps of each layer, and circles mark the others
  that are nearest in 95 % of bootstrap samples. The last map has the algorithms without
  steps.

  Args:
    readout: The distances, one of the two of `LayerAlgorithms`.
    ax: Axes, one for each map. None makes a new figure.

  Returns:
    The axes.
  """
  scale = LogNorm(_LEAST, 1, clip=True)
  stepless = {
    name: match
    for name, match in readout.matches.items()
    if match.unexplained.shape[1] == 1 and name not in NAMES
  }
  maps = [
    _map(match.unexplained, scale, NAMES[name], 'steps', _marks(match))
    for name, match in readout.matches.items()
    if name not in stepless
  ]
  if stepless:
    distances = np.concatenate(
      [match.unexplained for match in stepless.values()], axis=1
    )
    columns = dict(enumerate(stepless))
    texts = [[''] * len(stepless) for _ in distances]
    maps.append(_map(distances, scale, 'without steps', '', texts, columns))
  grid = [maps[i : i + _COLUMNS] for i in range(0, len(maps), _COLUMNS)]
  num_layers = len(readout.nearest)
  height = 0.9 + len(grid) * (1.1 + 0.22 * min(num_layers, 12))
  return plot_heat_maps(
    grid,
    height,
    title='Distance of each layer from each algorithm, by its steps',
    ax=ax,
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
  name = 'share of the variation over contexts'
  return HeatMap(distances, scale, name, title, x_axis, 'layer', rows, columns, texts)


def _marks(match: Match) -> list[list[str]]:
  """Returns marks of the nearest number of steps, and of those in its interval."""
  steps = range(match.unexplained.shape[1])
  return [
    [_NEAREST if k == nearest else _AS_NEAR if low <= k <= high else '' for k in steps]
    for nearest, low, high in zip(match.nearest, match.low, match.high, strict=True)
  ]
