"""The claims of arXiv 2512.04268 that are judged."""

from studies.paper.experiments import EXPERIMENTS
from studies.paper.theorems import THEOREMS

# The claims in the order of the report.
CLAIMS = (*THEOREMS, *EXPERIMENTS)
