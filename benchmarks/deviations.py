"""How measured values of baselines deviate from known ones, as a picture."""

import math
from collections.abc import Sequence

import numpy as np

from zoo.reports.style import BLACK, SKY, Figure, in_style, legend_above


@in_style()
def plot_deviations(deviations: Sequence[float]) -> Figure:
  """How many values deviate by how many standard errors, beside a normal density."""
  values = np.array(deviations, np.float64)
  least, most = np.floor(values.min(initial=-1)), np.ceil(values.max(initial=1))
  edges = np.arange(least, most + 0.5, 0.5)
  figure = Figure(3.0)
  axes = figure.subplots()
  axes.hist(
    values, [*edges], color=SKY, edgecolor='white', label=f'{len(values)} values'
  )
  x = np.linspace(edges[0], edges[-1], 201)
  density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
  axes.plot(x, 0.5 * len(values) * density, color=BLACK, label='N(0, 1)')
  axes.set_xlabel('measured − known, in standard errors of the difference')
  axes.set_ylabel('values')
  legend_above(figure)
  return figure
