"""Studies: what they train and measure; the paper, the atlas and the headlines."""

from zoo.studies.runner import Trainer as Trainer
from zoo.studies.runner import best as best
from zoo.studies.runner import histories as histories
from zoo.studies.runner import history as history
from zoo.studies.runner import load as load
from zoo.studies.study import Expected as Expected
from zoo.studies.study import Measurement as Measurement
from zoo.studies.study import Study as Study
from zoo.studies.study import at_least as at_least
from zoo.studies.study import at_most as at_most
from zoo.studies.study import near as near
from zoo.studies.study import run as run
from zoo.studies.study import table as table
