"""Heat maps of the heads and of the step matrix."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from zoo.probing.attention_heads import Head
from zoo.probing.implicit import ImplicitAlgorithm

_MOST_HEADS = 12


def plot_heads(heads: list[Head]) -> Figure:
  """Heat maps of b_h and A_h, for up to twelve heads with the highest pruning cost.

  Each map is divided by its largest entry. The title of a head has its strength, the
  norm `|b_h| |A_h|` of its product.
  """
  shown = sorted(range(len(heads)), key=lambda head: -heads[head].pruning_cost)
  shown = sorted(shown[:_MOST_HEADS])
  columns = min(len(shown), 6)
  rows = -(-len(shown) // columns)
  e = heads[0].value.size
  figure = Figure(figsize=(1.2 + 2.2 * columns, 0.7 + 2.9 * rows), layout='constrained')
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
      bottom.set_ylabel('$A_h$, by entry of the key', size=8)
    bottom.set_xlabel('entry of the query, label last', size=8)
  assert image is not None  # a model has a head
  figure.colorbar(image, ax=grid, label='over the largest entry', shrink=0.7)
  left_out = f': {len(shown)} of {len(heads)}' if len(shown) < len(heads) else ''
  figure.suptitle(f'Value vectors and bilinear forms of the heads{left_out}', size=10)
  return figure


def plot_step_matrix(found: ImplicitAlgorithm) -> Figure:
  """Heat maps of the model's and the optimum's step matrix, and their difference."""
  figure = Figure(figsize=(10, 3.4), layout='constrained')
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
    axes.set_title(title, size=10)
    axes.set_xlabel("entry of $(1/C)\\,\\sum_i y_i' x_i$")
    figure.colorbar(image, ax=axes, shrink=0.8)
  panels[0].set_ylabel('entry of the weights learned')
  return figure


def _over_largest(matrix: Float[np.ndarray, 'r c']) -> Float[np.ndarray, 'r c']:
  return matrix / (np.abs(matrix).max() or 1.0)


def _heat(axes: Axes, matrix: Float[np.ndarray, 'r c'], limit: float) -> AxesImage:
  axes.set_axis_on()
  axes.set_xticks([])
  axes.set_yticks([])
  # Orange and purple, which colour-blind readers can distinguish; white is 0.
  return axes.imshow(matrix, cmap='PuOr', vmin=-limit, vmax=limit)
