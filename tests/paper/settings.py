"""Short training, and a made-up figure 6."""

import configs
from zoo.reports.plots import Panel, Plot, Series
from zoo.reports.style import BLUE

# `context` would take as long as all others together; its plot has a test of its own.
MADE = '1', '2', '3', '4', '5', 'covariance'


def get_config(name, variant):
  """The smoke variant of a config, whichever was asked for, on one device."""
  config = configs.get_config(name, 'smoke')
  config.mesh.data = 1
  return config


def figure_6(**upper_ends):
  """A figure 6 whose differences in panel b have these upper ends, for free answers.

  A difference whose end is None is known for the other readouts alone, as where no
  answer could be parsed.
  """
  lines = []
  for name, high in upper_ends.items():
    x, y, ends = (0.9, 1.9), (-1.0, -2.0), (5.0, 6.0)
    if high is not None:
      x, y, ends = (-0.1, *x), (high - 1.0, *y), (high, *ends)
    lines.append(Series(name, 'dots', BLUE, x, y, tuple(v - 1 for v in y), ends))
  return Plot('6', (Panel('b', 'readout', 'difference, 95 %', tuple(lines)),))
