"""Figures 1 to 5 of arXiv 2512.04268: their models and plots."""

from zoo.reports.plots import Plot
from zoo.studies.paper.figures import fixed_guess, trained_guess
from zoo.studies.paper.figures.parts import Figure as Figure
from zoo.studies.paper.training import Runs

# By name.
FIGURES: dict[str, Figure] = {**fixed_guess.FIGURES, **trained_guess.FIGURES}


def plot(name: str, runs: Runs) -> Plot:
  """The data of a figure, from its finished runs."""
  return Plot(name, FIGURES[name].plot(runs))
