"""The claims of arXiv 2512.04268 that are judged, in the order of the report."""

from zoo.studies.paper.experiments import EXPERIMENTS
from zoo.studies.paper.theorems import THEOREMS

CLAIMS = (*THEOREMS, *EXPERIMENTS)
