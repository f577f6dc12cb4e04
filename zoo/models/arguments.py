"""Arguments that several models take: the type, the range and the meaning of each."""

from collections.abc import Sequence
from typing import Annotated

from jaxtyping import ArrayLike

from zoo.core.values import choice, number, size, vector
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
InitialGuess = Annotated[
  ArrayLike | Sequence[float], vector(about='Weights g of the fixed guess g·x + β.')
]
InitialBias = Annotated[
  float, number(about='Offset β of the fixed guess, in units of the labels.')
]
