"""Reproduces figures and claims of arXiv 2512.04268, by theory and by training."""

from studies.paper.claim import judge as judge
from studies.paper.claims import CLAIMS as CLAIMS
from studies.paper.reproduce import FIGURES as FIGURES
from studies.paper.reproduce import reproduce as reproduce
