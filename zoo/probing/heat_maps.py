"""Heat maps of attention, heads and the step matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from zoo.probing.attention_heads import Head
from zoo.probing.implicit import ImplicitAlgorithm
from zoo.reports.style import SIGNED, SMALL, WIDTH, Figure, in_style

_MOST_HEADS = 12
_MOST_COLUMNS = 4  # maps side by side
_MOST_ROWS = 8  # layers, or calls of layers
_MOST_NAMES = 11  # tokens named on one axis


@in_style()
def plot_heads(heads: list[Head]) -> Figure:
  """Heat maps of b_h and A_h, for up to twelve heads with the highest pruning cost.

  Each map is divided by its largest entry. The title gives each head's strength,
  `|b_h| |A_h|`.
  """
  shown = sorted(range(len(heads)), key=lambda head: -heads[head].pruning_cost)
  shown = sorted(shown[:_MOST_HEADS])
  columns = min(len(shown), _MOST_COLUMNS)
  rows = -(-len(shown) // columns)
  e = heads[0].value.size
  figure = Figure(1.2 + 2.3 * rows, min(1.2 + 2.2 * columns, WIDTH))
  grid = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[1, e] * rows)
  for axes in grid.flat:
    axes.set_axis_off()
  image = None
  for position, number in enumerate(shown):
    head = heads[number]
    row, column = divmod(position, columns)
    top, bottom = grid[2 * row, column], grid[2 * row + 1, column]
    _heat(top, _over_largest(head.value[None]), 1.0)
    image = _heat(bottom, _over_largest(head.form), 1.0)
    strength = np.linalg.norm(head.value) * np.linalg.norm(head.form)
    title = (
      f'head {number}, strength {strength:.2g}\npruning costs {head.pruning_cost:.3g}'
    )
    top.set_title(title, size=8)
    if column == 0:
      top.set_ylabel('$b_h$', rotation=0, ha='right', va='center')
      bottom.set_ylabel('$A_h$, by entry of the key', size=SMALL)
    bottom.set_xlabel('entry of the query, label last', size=SMALL)
  assert image is not None  # a model has a head
  _colour_bar(figure, image, grid, 'over the largest entry')
  left_out = f': {len(shown)} of {len(heads)}' if len(shown) < len(heads) else ''
  figure.suptitle(f'Value vectors and bilinear forms of the heads{left_out}')
  return figure


@in_style()
def plot_attention(
  maps: Mapping[str, Float[np.ndarray, 'h q k']], tokens: Sequence[str]
) -> Figure:
  """Heat maps of the attention of layers and heads, with one row for each layer.

  Shows up to eight evenly spaced layers, and the first four heads of each. Every row of
  a map has its own colour scale, up to the row's largest weight, because the first
  tokens see few others and so have larger weights. The largest weight of the last row,
  the query's, is in the title.
  """
  at = np.linspace(0, len(maps) - 1, min(len(maps), _MOST_ROWS)).round().astype(int)
  shown = [list(maps.items())[i] for i in at]
  most = max(len(heads) for _, heads in shown)
  columns = min(most, _MOST_COLUMNS)
  figure = Figure(0.9 + 2.3 * len(shown), min(1.8 + 2.1 * columns, WIDTH))
  grid = figure.subplots(len(shown), columns, squeeze=False)
  image = None
  for row, (layer, heads) in zip(grid, shown, strict=True):
    for axes in row:
      axes.set_axis_off()
    for head, axes in zip(range(len(heads)), row, strict=False):
      weights = heads[head]
      largest = weights.max(axis=1, keepdims=True)
      shares = weights / np.where(largest > 0, largest, 1)
      axes.set_axis_on()
      image = axes.imshow(shares, vmin=0, vmax=1)
      axes.grid(visible=False)
      axes.set_title(f'{layer}, head {head}: to {largest[-1, 0]:.2g}', size=8)
      _name_tokens(axes, tokens, *weights.shape)
    row[0].set_ylabel('token that attends', size=8)
  for axes in grid[-1]:
    axes.set_xlabel('token attended to', size=8)
  assert image is not None  # a layer has a head
  _colour_bar(figure, image, grid, 'share of the largest weight of the row')
  counts = []
  if len(shown) < len(maps):
    counts.append(f'{len(shown)} of {len(maps)} layers')
  if columns < most:
    counts.append(f'{columns} of {most} heads')
  left_out = f': {", ".join(counts)}' if counts else ''
  figure.suptitle(f'Mean absolute weight of each token{left_out}')
  return figure


def _name_tokens(axes: Axes, tokens: Sequence[str], queries: int, keys: int) -> None:
  """Names the tokens on both axes; of many tokens, only some and the last."""
  apart = -(-len(tokens) // _MOST_NAMES)
  # Features and labels alternate in interleaved tokens; an odd distance names both.
  apart += 1 - apart % 2
  names = [re.sub(r'([xy])_(\w+)', r'$\1_{\2}$', name) for name in tokens]
  for axis, count in ((axes.xaxis, keys), (axes.yaxis, queries)):
    ticks = sorted({*range(0, count - apart // 2, apart), count - 1})
    axis.set_ticks(ticks, [names[i] for i in ticks], size=SMALL)
  axes.tick_params('x', rotation=90)
  axes.tick_params(length=2, pad=1)


@in_style()
def plot_step_matrix(found: ImplicitAlgorithm) -> Figure:
  """Heat maps of the model's and the optimum's step matrix, and their difference."""
  figure = Figure(3.7)
  panels = figure.subplots(1, 3)
  gap = found.step_matrix - found.best_step_matrix
  limit = float(
    max(np.abs(found.step_matrix).max(), np.abs(found.best_step_matrix).max())
  )
  parts = (
    ('step matrix Γ of the model', found.step_matrix, limit),
    ('Γ of the optimum', found.best_step_matrix, limit),
    ('difference', gap, float(np.abs(gap).max())),
  )
  for axes, (title, matrix, bound) in zip(panels, parts, strict=True):
    image = _heat(axes, matrix, bound or 1.0)
    axes.set_title(title)
    axes.set_xlabel("entry of $(1/C)\\,\\sum_i y_i' x_i$")
    bar = figure.colorbar(image, ax=axes, location='bottom', label='entry of Γ')
    bar.ax.locator_params('x', nbins=5)
  panels[0].set_ylabel('entry of the weights')
  return figure


def _colour_bar(figure: Figure, image: AxesImage, grid: Any, label: str) -> None:
  """Adds one colour bar for all axes of a grid, below them."""
  bar = figure.colorbar(image, ax=grid, location='bottom', shrink=0.6, aspect=40)
  bar.set_label(label)


def _over_largest(matrix: Float[np.ndarray, 'r c']) -> Float[np.ndarray, 'r c']:
  return matrix / (np.abs(matrix).max() or 1.0)


def _heat(axes: Axes, matrix: Float[np.ndarray, 'r c'], limit: float) -> AxesImage:
  axes.set_axis_on()
  axes.set_xticks([])
  axes.set_yticks([])
  return axes.imshow(matrix, cmap=SIGNED, vmin=-limit, vmax=limit)
