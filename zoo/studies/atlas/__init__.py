"""The atlas: architectures × tasks × initial guesses, each trained the same way."""

from zoo.studies.atlas.results import Cell as Cell
from zoo.studies.atlas.results import Reason as Reason
from zoo.studies.atlas.results import Result as Result
from zoo.studies.atlas.results import table as table
from zoo.studies.atlas.training import Grid as Grid
from zoo.studies.atlas.training import run as run
