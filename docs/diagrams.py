"""Draws how a prompt becomes a prediction, and where the initial guess stands.

python docs/diagrams.py docs/images/architecture.png
"""

import sys
from typing import Any

import jax.numpy as jnp
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import zoo
from zoo.models.tokens import LAYOUTS, lay_out
from zoo.plots import BLUE, GREEN, VERMILION

_GREY = '#808080'  # legible on white and on black
_LABEL, _GUESS, _FEATURES = GREEN, VERMILION, BLUE
# What stands for the entries of a prompt of two examples.
_NUMBERS = {
  **{11: 'x₁', 12: 'x₂', 13: 'x', 21: 'y₁', 22: 'y₂'},
  **{31: 'guess₁', 32: 'guess₂', 33: 'guess', 0: '0'},
}
_BODIES = (
  'transformer: layers of a mixer\n'
  '(softmax, linear, delta, Mamba-2, …)\n'
  'and a feed-forward network',
  'deep linear attention',
  'LSTM, GRU',
  'deep set, MLP, MLP-mixer',
)


def draw() -> Figure:
  """The diagram: tokens in their three layouts, body, readout and guess."""
  figure = Figure(figsize=(11, 4.6), layout='constrained')
  axes = figure.subplots()
  axes.set_axis_off()
  axes.set_xlim(0, 110)
  axes.set_ylim(0, 46)
  _text(axes, 17, 43.5, 'tokens, in one of three layouts', weight='bold')
  for layout, top in zip(LAYOUTS, (39, 28, 17), strict=True):
    _text(axes, 0, top - 2.5, layout, ha='left')
    _draw_tokens(axes, entries(layout), 12, top)
  _arrow(axes, (50, 25), (56, 25))
  _text(axes, 70, 43.5, 'body', weight='bold')
  _box(axes, 57, 10, 26, 30)
  for text, y in zip(_BODIES, (32.5, 24.5, 19.5, 14.5), strict=True):
    _text(axes, 70, y, text, size=8.5)
  _arrow(axes, (83.5, 25), (88, 25))
  _text(axes, 93, 43.5, 'readout', weight='bold')
  _box(axes, 88.5, 20, 9, 10)
  _text(axes, 93, 25, 'last\ntoken', size=8.5)
  _arrow(axes, (98, 25), (101.5, 25))
  _text(axes, 103, 25, '+', size=16)
  _arrow(axes, (104.5, 25), (107, 25))
  _text(axes, 108.8, 25, 'ŷ', size=15)
  _draw_guess(axes)
  return figure


def entries(layout: str) -> list[list[str]]:
  """The names of the entries of each token of a prompt of two examples."""
  prompt = zoo.Prompt(
    x=jnp.array([[[11.0], [12.0]]]),
    y=jnp.array([[21.0, 22.0]]),
    x_query=jnp.array([[13.0]]),
    y_query=jnp.zeros(1),
  )
  (tokens,) = lay_out(prompt, jnp.array([[[31.0], [32.0], [33.0]]]), layout)
  return [[_NUMBERS[int(number)] for number in token] for token in tokens]


def _draw_guess(axes: Axes) -> None:
  """The guess in the tokens, and the residual one beside the model."""
  inside = 'guess in the tokens:\n0, fixed, w·x or a network'
  _text(axes, 33, 4, inside, color=_GUESS)
  outside = 'residual guess: subtracted from the\nlabels, added to the prediction'
  _text(axes, 84, 4, outside, color=_GUESS)
  line = {'color': _GUESS, 'linestyle': '--'}
  axes.plot([98, 103], [4, 4], linewidth=1, **line)
  axes.add_patch(
    FancyArrowPatch((103, 3.9), (103, 23), arrowstyle='-|>', mutation_scale=12, **line)
  )


def _draw_tokens(axes: Axes, tokens: list[list[str]], left: float, top: float) -> None:
  width, height = 7.2, 2.7
  for i, token in enumerate(tokens):
    for j, entry in enumerate(token):
      colour = _GREY
      if entry.startswith(('x', 'y', 'guess')):
        colour = {'x': _FEATURES, 'y': _LABEL, 'g': _GUESS}[entry[0]]
      y = top - (j + 1) * height
      _box(axes, left + i * width, y, width - 0.9, height - 0.3, colour)
      place = left + (i + 0.44) * width, y + height / 2 - 0.15
      _text(axes, *place, entry, color=colour, size=9)


def _box(
  axes: Axes, x: float, y: float, width: float, height: float, colour: str = _GREY
) -> None:
  style = 'round,pad=0,rounding_size=0.6'
  axes.add_patch(
    FancyBboxPatch((x, y), width, height, boxstyle=style, fill=False, edgecolor=colour)
  )


def _text(axes: Axes, x: float, y: float, text: str, **given: Any) -> None:
  style: dict[str, Any] = {
    'ha': 'center',
    'va': 'center',
    'color': _GREY,
    'size': 10,
    **given,
  }
  axes.text(x, y, text, **style)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
  axes.add_patch(
    FancyArrowPatch(start, end, arrowstyle='-|>', mutation_scale=12, color=_GREY)
  )


if __name__ == '__main__':
  draw().savefig(sys.argv[1], dpi=150, transparent=True)
