"""The paper arXiv 2512.04268: its figures and claims, by theory and by training.

`reproduce` trains the models, draws the figures and judges the claims. `judge` judges
one claim of `CLAIMS`. `FIGURES` has the figures by name.
"""

from studies.paper.claim import judge as judge
from studies.paper.claims import CLAIMS as CLAIMS
from studies.paper.reproduce import FIGURES as FIGURES
from studies.paper.reproduce import reproduce as reproduce
