"""Reproduces figures and claims of arXiv 2512.04268, by theory and by training."""

from zoo.studies.paper.claim import judge as judge
from zoo.studies.paper.claims import CLAIMS as CLAIMS
from zoo.studies.paper.reproduce import FIGURES as FIGURES
from zoo.studies.paper.reproduce import reproduce as reproduce
