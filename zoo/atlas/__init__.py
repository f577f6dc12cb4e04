"""The atlas: architectures × tasks × initial guesses, each trained the same way."""

from zoo.atlas.results import Cell as Cell
from zoo.atlas.results import Reason as Reason
from zoo.atlas.results import Result as Result
from zoo.atlas.results import table as table
from zoo.atlas.training import Grid as Grid
from zoo.atlas.training import run as run
