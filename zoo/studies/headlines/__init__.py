"""The headline numbers of in-context learning, one per file.

To add one, write a file with a `Headline` and list it here.
"""

from zoo.studies.headlines import (
  deep_linear,
  garg,
  induction,
  markov_phases,
  one_step,
  pool_crossing,
  pool_lines,
  prior_mean,
  ranking,
  recall,
)
from zoo.studies.headlines.headline import Headline as Headline
from zoo.studies.headlines.run import run as run
from zoo.studies.headlines.run import table as table

_ALL = (
  *(one_step.HEADLINE, deep_linear.HEADLINE, prior_mean.HEADLINE),
  *(pool_lines.HEADLINE, pool_crossing.HEADLINE, markov_phases.HEADLINE),
  *(induction.HEADLINE, recall.HEADLINE, ranking.HEADLINE),
  *(garg.TOY, garg.FULL, garg.LOOPED),
)
# All headlines by name, in the order in which they are run.
HEADLINES = {one.name: one for one in _ALL}
