"""Heat maps: matrices in colours."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage

from zoo.reports.style import (
  AMOUNTS,
  BLACK,
  FIGURE_INCHES,
  GREY,
  SIGNED,
  SMALL,
  Ax,
  Figure,
  drawing_of,
  given_axes,
  house_style,
  label_log_axes,
)

_INCHES_OF_LETTER = 0.08  # A letter of the name of a column has this width.
_INCHES_OF_TURNED = 0.2  # Names that are turned by 45 degrees need this distance.
_CLEAR = 0.1  # A negative entry beyond this share of the largest has a mark.


@dataclasses.dataclass(frozen=True)
class HeatMap:
  """A matrix, the colours of its entries, and the words around it.

  Attributes:
    values: The matrix `[r, c]`. NaN entries stay white, with texts in grey.
    scale: Maps entries to colours. Maps with the same scale share a colour bar.
    scale_name: The label of the colour bar.
    title: The title above the map.
    x_axis: The label of the columns.
    y_axis: The label of the rows.
    rows: The names of some rows, by number.
    columns: The names of some columns, by number.
    texts: The text in each entry, by row and column; empty for no texts.
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


@house_style
def plot_heat_maps(
  grid: Sequence[Sequence[HeatMap]],
  height: float,
  width: float = FIGURE_INCHES,
  *,
  colours: str = AMOUNTS,
  title: str = '',
  ax: Ax = None,
) -> list[Axes]:
  """Draws rows of heat maps, which may end early.

  Args:
    grid: The heat maps by row.
    height: The height of a new figure, in inches.
    width: The width of a new figure, in inches.
    colours: `AMOUNTS` or, for entries of both signs, `SIGNED` of `zoo.reports.style`.
    title: The title of a new figure.
    ax: Axes to draw in, one for each heat map, row by row; colour bars take a part of
      them. By default the function makes a figure.

  Returns:
    The axes of the heat maps, row by row.

  Raises:
    UserError: If `ax` has not as many axes as there are heat maps.
  """
  maps = [heat_map for row in grid for heat_map in row]
  drawn = given_axes(ax, len(maps))
  is_own = drawn is None
  if drawn is None:
    figure = Figure(height, width)
    every = figure.subplots(len(grid), max(map(len, grid)), squeeze=False)
    for row, of_row in zip(grid, every, strict=True):
      for axes in of_row[len(row) :]:
        axes.set_axis_off()
    drawn = [
      axes
      for row, of_row in zip(grid, every, strict=True)
      for axes in of_row[: len(row)]
    ]
  images: dict[Normalize, list[AxesImage]] = {}
  names = {}
  for heat_map, axes in zip(maps, drawn, strict=True):
    images.setdefault(heat_map.scale, []).append(_draw(axes, heat_map, colours))
    names[heat_map.scale] = heat_map.scale_name
  for scale, of_scale in images.items():
    of = [image.axes for image in of_scale]
    values = np.concatenate(
      [heat_map.values.ravel() for heat_map in maps if heat_map.scale is scale]
    )
    figure = of[0].get_figure(root=False)
    assert figure is not None
    bar = figure.colorbar(
      of_scale[0],
      ax=of,
      location='bottom',
      shrink=0.8,
      aspect=20 * min(len(of), 2),
      extend=_beyond(scale, values),
    )
    bar.set_label(names[scale])
    if bar.ax.get_xscale() == 'log':
      label_log_axes(bar.ax)
    else:
      bar.ax.locator_params('x', nbins=5)
  if is_own:
    drawing_of(drawn).numbers = _to_csv(maps)
    if title:
      drawing_of(drawn).suptitle(title)
  return drawn


def _beyond(
  scale: Normalize, values: np.ndarray
) -> Literal['neither', 'min', 'max', 'both']:
  """Returns the ends of a colour bar that have an arrow, since values are beyond."""
  is_below = scale.vmin is not None and bool((values < scale.vmin).any())
  is_above = scale.vmax is not None and bool((values > scale.vmax).any())
  if is_below and is_above:
    return 'both'
  return 'min' if is_below else 'max' if is_above else 'neither'


def _to_csv(maps: Sequence[HeatMap]) -> str:
  """Returns all entries, one in a line, with the number and title of their heat map."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(['map', 'title', 'row', 'column', 'row_name', 'column_name', 'value'])
  for number, heat_map in enumerate(maps):
    title = heat_map.title.replace('\n', ', ')
    for (row, column), value in np.ndenumerate(heat_map.values):
      names = heat_map.rows.get(row, ''), heat_map.columns.get(column, '')
      writer.writerow([number, title, row, column, *names, repr(float(value))])
  return text.getvalue()


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
  _name(axes.xaxis, heat_map.columns, **_look_of_names(axes, heat_map.columns))
  _name(axes.yaxis, heat_map.rows)
  if colours == SIGNED and not heat_map.texts:
    _mark_negative(axes, image)
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


def _look_of_names(axes: Axes, names: Mapping[int, str]) -> dict[str, Any]:
  """Returns a look for the names of columns, in which none hides another."""
  figure = axes.get_figure(root=True)
  assert figure is not None
  # The axes are not laid out yet, which changes their width little.
  inches = axes.get_position().width * figure.get_figwidth()
  if (
    sum(2 + len(name.replace('$', '')) for name in names.values()) * _INCHES_OF_LETTER
    < inches
  ):
    return {}
  if inches / len(names) > _INCHES_OF_TURNED:
    return {'rotation': 45, 'ha': 'right', 'rotation_mode': 'anchor'}
  return {'rotation': 90, 'size': SMALL}


def _mark_negative(axes: Axes, image: AxesImage) -> None:
  """Marks each entry that is clearly negative by a minus, for colour-blind readers."""
  values = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
  least = _CLEAR * float(np.nanmax(np.abs(values), initial=0.0))
  for row, column in np.argwhere(values < -least):
    place = {'ha': 'center', 'va': 'center', 'size': SMALL}
    red, green, blue, _ = image.cmap(image.norm(values[row, column]))
    is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    axes.text(column, row, '−', color=BLACK if is_light else 'white', **place)


def _name(axis: Axis, names: Mapping[int, str], **look: Any) -> None:
  axis.set_ticks([*names], [*names.values()], **look)
  axis.set_tick_params(length=2 if names else 0, pad=1)
