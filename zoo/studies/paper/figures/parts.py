"""Parts of several figures: names of axes and series, and series of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zoo.reports.plots import Panel, Series, level, series
from zoo.studies.paper import setting
from zoo.studies.paper.training import Point, Runs

STEP = 'training step'
RISK = 'in-context risk'
TRAINED, LOWEST, GD = 'trained', 'lowest known risk', 'one step of gradient descent'


class Figure(NamedTuple):
  """The title and caption of a figure, the models that it needs, and its plot."""

  title: str
  caption: str
  points: tuple[Point, ...]
  plot: Callable[[Runs], tuple[Panel, ...]]


def gd_level(x: Sequence[int | float], risk: float | None = None) -> Series:
  """The risk of one step of gradient descent, by default in the paper's setting."""
  risk = setting.gd_risk(setting.task()) if risk is None else risk
  return level(GD, risk, [min(x), max(x)])


def curve(
  runs: Runs, at: Point, name: str, colour: str, field: str = 'exact_risk'
) -> Series:
  """A field logged while a point was trained, with its range over the seeds."""
  return series(name, 'curve', colour, *runs.history(at, field))


def dots(
  runs: Runs,
  name: str,
  colour: str,
  points: Mapping[int, Point] | Mapping[float, Point],
) -> Series:
  """The final exact risk of each point, by x."""
  finals = [[row['exact_risk'] for row in runs[at]] for at in points.values()]
  return series(name, 'dots', colour, list(points), np.transpose(finals))


def training(key: str, curves: Sequence[Series]) -> Panel:
  """The risk during training, with that of one step of gradient descent."""
  gd = gd_level([0, curves[0].x[-1]])
  return Panel(key, STEP, RISK, (*curves, gd), y_scale='log')
