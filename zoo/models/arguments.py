"""Arguments that several models take: the type, the range and the meaning of each."""

from typing import Annotated

from zoo.core.values import choice, number, size
from zoo.models.tokens import LAYOUTS

# Python makes and traces layers and loops one by one.
MAX_LAYERS = MAX_LOOPS = 1000

NumHeads = Annotated[int, size(about='Number of heads.')]
NumLayers = Annotated[int, size(maximum=MAX_LAYERS, about='Number of layers.')]
Width = Annotated[int, size(about='Entries of each hidden vector.')]
InitScale = Annotated[
  float,
  # float32 can hold the weights.
  number(
    minimum=0.0, maximum=1e30, about='Standard deviation of the initial matrices.'
  ),
]
Tokens = Annotated[str, choice(LAYOUTS, about='How a prompt becomes tokens.')]
