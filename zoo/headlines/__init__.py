"""The headline numbers of in-context learning, each in a file of its own.

To add one, write a file with a `HEADLINE` and list it here.
"""

from zoo.headlines import deep_linear, one_step, pool_lines, prior_mean
from zoo.headlines.headline import Headline as Headline
from zoo.headlines.run import run as run
from zoo.headlines.run import table as table

HEADLINES = {
  one.HEADLINE.name: one.HEADLINE
  for one in (one_step, deep_linear, pool_lines, prior_mean)
}
