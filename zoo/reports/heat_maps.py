"""Matrices in colours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage

from zoo.reports.style import (
  AMOUNTS,
  BLACK,
  GREY,
  SMALL,
  WIDTH,
  Figure,
  in_style,
  label_log_axes,
)


@dataclasses.dataclass(frozen=True)
class HeatMap:
  """A matrix, the colours of its entries, and the words around it.

  `scale` maps entries to colours; maps of one scale share a colour bar, whose label is
  `scale_name`. `rows` and `columns` have the names of some of them, by number, and
  `texts` is what stands in each entry. NaN entries stay white, with texts in grey.
  """

  values: Float[np.ndarray, 'r c']
  scale: Normalize
  scale_name: str = ''
  title: str = ''
  x_axis: str = ''
  y_axis: str = ''
  rows: Mapping[int, str] = dataclasses.field(default_factory=dict)
  columns: Mapping[int, str] = dataclasses.field(default_factory=dict)
  texts: Sequence[Sequence[str]] = ()


@in_style()
def plot_heat_maps(
  grid: Sequence[Sequence[HeatMap]],
  height: float,
  width: float = WIDTH,
  *,
  colours: str = AMOUNTS,
  title: str = '',
) -> Figure:
  """Rows of heat maps, which may end early, in a figure of that size in inches.

  `colours` is `AMOUNTS` or, for entries of both signs, `SIGNED` of `zoo.reports.style`.
  """
  figure = Figure(height, width)
  columns = max(map(len, grid))
  every = figure.subplots(len(grid), columns, squeeze=False)
  images: dict[Normalize, list[AxesImage]] = {}
  names = {}
  for row, drawn in zip(grid, every, strict=True):
    for axes in drawn[len(row) :]:
      axes.set_axis_off()
    for heat_map, axes in zip(row, drawn, strict=False):
      images.setdefault(heat_map.scale, []).append(_draw(axes, heat_map, colours))
      names[heat_map.scale] = heat_map.scale_name
  for scale, drawn in images.items():
    of = [image.axes for image in drawn]
    bar = figure.colorbar(
      drawn[0], ax=of, location='bottom', shrink=0.8, aspect=20 * min(len(of), 2)
    )
    bar.set_label(names[scale])
    if bar.ax.get_xscale() == 'log':
      label_log_axes(bar.ax)
    else:
      bar.ax.locator_params('x', nbins=5)
  if title:
    figure.suptitle(title)
  return figure


def _draw(axes: Axes, heat_map: HeatMap, colours: str) -> AxesImage:
  image = axes.imshow(
    heat_map.values,
    cmap=colours,
    norm=heat_map.scale,
    aspect='auto' if heat_map.texts else 'equal',
  )
  axes.grid(visible=False)
  axes.set_title(heat_map.title, size=8 if heat_map.title else None)
  axes.set_xlabel(heat_map.x_axis)
  axes.set_ylabel(heat_map.y_axis)
  _name(axes.xaxis, heat_map.columns, rotation=45, ha='right', rotation_mode='anchor')
  _name(axes.yaxis, heat_map.rows)
  size = SMALL if heat_map.values.shape[1] > 7 else 9
  for row, texts in enumerate(heat_map.texts):
    for column, text in enumerate(texts):
      value = heat_map.values[row, column]
      red, green, blue, _ = image.cmap(image.norm(value))
      is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
      colour = GREY if np.isnan(value) else BLACK if is_light else 'white'
      place = {'ha': 'center', 'va': 'center', 'size': size, 'color': colour}
      axes.text(column, row, text, **place)
  return image


def _name(axis: Axis, names: Mapping[int, str], **look: Any) -> None:
  axis.set_ticks([*names], [*names.values()], **look)
  axis.set_tick_params(length=2 if names else 0, pad=1)
