"""The claims of arXiv 2512.04268, each with a verdict that follows from numbers.

Each claim is a function that returns a `Claim` of plain functions: the exact
computation, the values read from the figures, and the rule for the verdict. No number
is hard-coded.
"""

from zoo.studies.paper.claims import (
  figures_1_to_4,
  figures_5_and_6,
  heads,
  initial_guess,
)
from zoo.studies.paper.claims.claim import Claim as Claim
from zoo.studies.paper.claims.claim import judge as judge

# The claims of the paper that are judged, in the order of the report.
CLAIMS = (
  *(*heads.CLAIMS, *initial_guess.CLAIMS),
  *(*figures_1_to_4.CLAIMS, *figures_5_and_6.CLAIMS),
)
