"""The atlas: architectures × tasks × initial guesses, trained at equal operations.

`run` trains the cells of a `Grid` and returns a list of `AtlasRow`. The other functions
turn such rows into pictures (`draw`), tables (`tables`, `beside_softmax`,
`shares_beside_softmax`) and one paragraph of text (`summary`).
"""

from studies.atlas.notes import Settings as Settings
from studies.atlas.pictures import draw as draw
from studies.atlas.report import ABOUT as ABOUT
from studies.atlas.report import beside_softmax as beside_softmax
from studies.atlas.report import shares_beside_softmax as shares_beside_softmax
from studies.atlas.report import summary as summary
from studies.atlas.results import AtlasRow as AtlasRow
from studies.atlas.results import Cell as Cell
from studies.atlas.results import from_csv as from_csv
from studies.atlas.tables import tables as tables
from studies.atlas.training import Grid as Grid
from studies.atlas.training import run as run
