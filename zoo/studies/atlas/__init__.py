"""The atlas: architectures × tasks × guesses, each trained with the same operations."""

from zoo.studies.atlas.notes import Settings as Settings
from zoo.studies.atlas.pictures import draw as draw
from zoo.studies.atlas.report import ABOUT as ABOUT
from zoo.studies.atlas.report import beside_softmax as beside_softmax
from zoo.studies.atlas.report import summary as summary
from zoo.studies.atlas.results import AtlasRow as AtlasRow
from zoo.studies.atlas.results import Cell as Cell
from zoo.studies.atlas.results import from_csv as from_csv
from zoo.studies.atlas.tables import tables as tables
from zoo.studies.atlas.training import Grid as Grid
from zoo.studies.atlas.training import run as run
