"""Draws tables of the prior, the picture of docs/tabular.md.

python docs/table_pictures.py docs/images
"""

import pathlib
import sys

import jax
import numpy as np
from jaxtyping import Float

import zoo
from zoo.reports.style import Figure

_KEY, _ROWS, _COLUMNS = 3, 3, 4


def draw_tables() -> Figure:
  """Twelve tables: two features of each, and the labels as colours."""
  number = _ROWS * _COLUMNS
  task = zoo.create_task('tabular')
  prompt = jax.device_get(task.sample(jax.random.key(_KEY), number, latents=True))
  figure = Figure(height=6.5)
  grid = figure.subplots(_ROWS, _COLUMNS)
  for i, axes in enumerate(grid.ravel()):
    x, y = prompt.x[i], prompt.y[i]
    d = int(prompt.latents['num_features'][i])
    is_class = bool(prompt.latents['is_class'][i])
    labels = np.argmax(y[:, 1:], axis=1) if is_class else y[:, 0]
    first, second = _informative(x[:, :d], y)
    axes.scatter(
      x[:, first],
      x[:, second],
      c=labels,
      s=8,
      cmap='tab10' if is_class else 'cividis',
      vmin=0 if is_class else None,
      vmax=9 if is_class else None,
    )
    what = f'{len(np.unique(labels))} classes' if is_class else 'numbers'
    axes.set_title(f'{what}, d = {d}')
    axes.set_xlabel(f'feature {first + 1}')
    axes.set_ylabel(f'feature {second + 1}')
  return figure


def _informative(
  x: Float[np.ndarray, 'c d'], y: Float[np.ndarray, 'c k']
) -> tuple[int, int]:
  """The two features that a regression tree of the labels would split first.

  For each feature the variance of the labels within eight intervals of it is summed.
  """
  left = []
  for column in x.T:
    edges = np.unique(np.quantile(column, np.linspace(0, 1, 9)[1:-1]))
    bins = np.searchsorted(edges, column)
    within = [len(y[bins == b]) * y[bins == b].var(axis=0).sum() for b in set(bins)]
    left.append(sum(within))
  first, second = np.argsort(left)[:2]
  return int(first), int(second)


if __name__ == '__main__':
  draw_tables().savefig(pathlib.Path(sys.argv[1]) / 'tables.png')
