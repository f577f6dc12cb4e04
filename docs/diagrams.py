"""Draws how a prompt becomes a prediction, and where the initial guess stands.

python docs/diagrams.py docs/images/architecture.png
"""

import sys
from typing import Any

import jax.numpy as jnp
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import zoo
from zoo.models.tokens import LAYOUTS, lay_out
from zoo.reports.style import BLACK, BLUE, GREEN, GREY, VERMILION, Figure, in_style

_LABEL, _GUESS, _FEATURES = GREEN, VERMILION, BLUE
# What stands for the entries of a prompt of two examples.
_NUMBERS = {
  **{11: 'x₁', 12: 'x₂', 13: 'x_q', 21: 'y₁', 22: 'y₂'},
  **{31: 'guess₁', 32: 'guess₂', 33: 'guess', 0: '0'},
}
_BODIES = (
  'transformer: layers of a mixer\n'
  '(softmax, linear, delta,\n'
  'Mamba-2, …) and a\n'
  'feed-forward network',
  'deep linear attention',
  'LSTM, GRU',
  'deep set, MLP, MLP-mixer',
)


@in_style()
def draw() -> Figure:
  """The diagram: tokens in their three layouts, body, readout and guess."""
  figure = Figure(4.0)
  axes = figure.subplots()
  axes.set_axis_off()
  axes.set_xlim(0, 100)
  axes.set_ylim(0, 50)
  _text(axes, 24, 48, 'tokens, in one of three layouts', weight='bold')
  for layout, top in zip(LAYOUTS, (44, 32, 20), strict=True):
    _text(axes, 0, top - 3, layout, ha='left')
    _draw_tokens(axes, entries(layout), 14, top)
  _arrow(axes, (50, 27), (54, 27))
  _text(axes, 67.5, 48, 'body', weight='bold')
  _box(axes, 54.5, 10, 26, 34)
  for text, y in zip(_BODIES, (35, 25, 19.5, 14), strict=True):
    _text(axes, 67.5, y, text, size=9)
  _arrow(axes, (81, 27), (84.5, 27))
  _text(axes, 88.5, 48, 'readout', weight='bold')
  _box(axes, 85, 21, 7, 12)
  _text(axes, 88.5, 27, 'last\ntoken', size=9)
  _arrow(axes, (92.5, 27), (95, 27))
  _text(axes, 96, 27, '+', size=14)
  _arrow(axes, (97, 27), (99.5, 27))
  _text(axes, 100.5, 27, 'ŷ', size=14)
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
  _text(axes, 28, 3, inside, color=_GUESS)
  outside = 'residual guess: subtracted from the\nlabels, added to the prediction'
  _text(axes, 72, 3, outside, color=_GUESS)
  line: dict[str, Any] = {'color': _GUESS, 'linestyle': '--'}
  axes.plot([89, 96], [3, 3], linewidth=1, **line)
  axes.add_patch(
    FancyArrowPatch((96, 2.9), (96, 25), arrowstyle='-|>', mutation_scale=12, **line)
  )


def _draw_tokens(axes: Axes, tokens: list[list[str]], left: float, top: float) -> None:
  width, height = 7.1, 3.1
  for i, token in enumerate(tokens):
    for j, entry in enumerate(token):
      colour = GREY
      if entry.startswith(('x', 'y', 'guess')):
        colour = {'x': _FEATURES, 'y': _LABEL, 'g': _GUESS}[entry[0]]
      y = top - (j + 1) * height
      _box(axes, left + i * width, y, width - 0.9, height - 0.3, colour)
      place = left + (i + 0.44) * width, y + height / 2 - 0.15
      shown = entry.replace('x_q', r'$\mathdefault{x_q}$')
      _text(axes, *place, shown, color=colour, size=8)


def _box(
  axes: Axes, x: float, y: float, width: float, height: float, colour: str = GREY
) -> None:
  style = 'round,pad=0,rounding_size=0.6'
  axes.add_patch(
    FancyBboxPatch((x, y), width, height, boxstyle=style, fill=False, edgecolor=colour)
  )


def _text(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
  style: dict[str, Any] = {
    'ha': 'center',
    'va': 'center',
    'color': BLACK,
    'size': 10,
    **options,
  }
  axes.text(x, y, text, **style)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
  axes.add_patch(
    FancyArrowPatch(start, end, arrowstyle='-|>', mutation_scale=12, color=GREY)
  )


if __name__ == '__main__':
  draw().savefig(sys.argv[1])
