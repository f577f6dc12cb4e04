"""A picture of how measured values of baselines deviate from known ones."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from zoo.reports.style import (
  BLACK,
  SKY,
  Figure,
  drawing_of,
  given_axes,
  house_style,
  legend_above,
  legend_within,
)


@house_style
def plot_deviations(deviations: Sequence[float], *, ax: Axes | None = None) -> Axes:
  """Draws a histogram of deviations beside the standard normal density.

  Args:
    deviations: The deviations, in standard errors of the difference.
    ax: The axes to draw in; by default those of a new figure.

  Returns:
    The axes.
  """
  values = np.array(deviations, np.float64)
  least, most = np.floor(values.min(initial=-1)), np.ceil(values.max(initial=1))
  edges = np.arange(least, most + 0.5, 0.5)
  given = given_axes(ax, 1)
  axes = Figure(3.0).subplots() if given is None else given[0]
  counts, *_ = axes.hist(
    values, [*edges], color=SKY, edgecolor='white', label=f'{len(values)} values'
  )
  x = np.linspace(edges[0], edges[-1], 201)
  density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
  axes.plot(x, 0.5 * len(values) * density, color=BLACK, label='N(0, 1)')
  axes.set_xlabel('measured − known, in standard errors of the difference')
  axes.set_ylabel('values')
  if given is not None:
    legend_within(axes)
    return axes
  legend_above(drawing_of(axes))
  lines = [
    f'{low:g},{high:g},{count:.0f}'
    for low, high, count in zip(edges, edges[1:], counts, strict=False)
  ]
  drawing_of(axes).numbers = '\n'.join(['from,to,values', *lines, ''])
  return axes
