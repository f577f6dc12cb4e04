"""Sweeps: training a config at many points, with one table of the results."""

from zoo.training.sweeps.folders import is_finished as is_finished
from zoo.training.sweeps.folders import kept_models as kept_models
from zoo.training.sweeps.groups import points_of as points_of
from zoo.training.sweeps.groups import side_by_side as side_by_side
from zoo.training.sweeps.points import Point as Point
from zoo.training.sweeps.points import at_point as at_point
from zoo.training.sweeps.points import grid as grid
from zoo.training.sweeps.run import LostPointsError as LostPointsError
from zoo.training.sweeps.run import sweep as sweep
from zoo.training.sweeps.table import Row as Row
from zoo.training.sweeps.table import format_table as format_table
