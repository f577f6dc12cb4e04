"""Draws layers and heads, the pictures of docs/inside.md.

python -m launch.sweep --config=configs/transformer.py:garg --sweep=seed=0..2 \\
    --workdir=runs/garg_seeds
python docs/head_pictures.py docs/images runs/garg_seeds
"""

import pathlib
import sys

import jax

import zoo
from zoo.reports.head_tables import plot_head_table
from zoo.reports.style import Figure, drawing_of


def draw_shares() -> Figure:
  """The share of the gap that each head of a transformer recovers."""
  saved = zoo.load('checkpoints/transformer')
  model, task = saved.model, saved.task
  clean = task.sample(jax.random.key(0), 1024)
  corrupt = task.redraw(jax.random.key(1), clean, keep='inputs')
  sites = [site for site in zoo.probing.sites(model) if site.endswith('.heads')]
  table = zoo.probing.effects(
    model, task, clean, corrupt, sites, kinds=['recovered'], heads=True
  )
  return drawing_of(plot_head_table(table, 'recovered'))


def draw_seeds(folder: pathlib.Path) -> Figure:
  """How much the heads of one seed are like those of two others."""
  runs = [zoo.load(folder / 'points' / f'seed={seed}') for seed in range(3)]
  task = runs[0].task
  clean = task.sample(jax.random.key(0), 512)
  corrupt = task.redraw(jax.random.key(1), clean, keep='inputs')
  models = [run.model for run in runs]
  untrained = [runs[0].untrained(seed) for seed in range(10, 15)]
  found = zoo.probing.across_seeds(models, task, clean, corrupt, untrained=untrained)
  print(found)
  return drawing_of(plot_head_table(found, 'lowest'))


if __name__ == '__main__':
  folder = pathlib.Path(sys.argv[1])
  draw_shares().savefig(folder / 'head_shares.png')
  draw_seeds(pathlib.Path(sys.argv[2])).savefig(folder / 'head_seeds.png')
