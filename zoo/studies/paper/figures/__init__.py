"""The figures of arXiv 2512.04268, and three more: their models and plots."""

from zoo.reports.plots import Plot
from zoo.studies.paper.figures import beyond, fixed_guess, shift, trained_guess
from zoo.studies.paper.figures.parts import Figure as Figure
from zoo.studies.paper.training import Runs

# The figures by name: 1 to 5 are the paper's.
FIGURES: dict[str, Figure] = {
  **fixed_guess.FIGURES,
  **trained_guess.FIGURES,
  **beyond.FIGURES,
  **shift.FIGURES,
}


def plot(name: str, runs: Runs) -> Plot:
  """The data of a figure, from its finished runs."""
  return Plot(name, FIGURES[name].plot(runs))
