"""Studies: what they train and measure; the paper, the atlas and the headlines."""

from studies.cell_table import CellTable as CellTable
from studies.cell_table import fill as fill
from studies.runner import Trainer as Trainer
from studies.runner import best as best
from studies.runner import histories as histories
from studies.runner import history as history
from studies.runner import load as load
from studies.study import Expected as Expected
from studies.study import Measurement as Measurement
from studies.study import Study as Study
from studies.study import at_least as at_least
from studies.study import at_most as at_most
from studies.study import near as near
from studies.study import run as run
from studies.study import table as table
