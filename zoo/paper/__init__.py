"""Reproduces figures and claims of arXiv 2512.04268, by theory and by training."""

from zoo.paper.claims import CLAIMS as CLAIMS
from zoo.paper.claims import judge as judge
from zoo.paper.figures import FIGURES as FIGURES
from zoo.paper.reproduce import reproduce as reproduce
