"""The claims of arXiv 2512.04268 that are judged."""

from zoo.studies.paper.experiments import EXPERIMENTS
from zoo.studies.paper.theorems import THEOREMS

# In the order of the report.
CLAIMS = (*THEOREMS, *EXPERIMENTS)
