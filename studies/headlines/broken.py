"""Negative controls of headlines: models that are broken on purpose.

A headline says something only if a model without the property misses its ranges. Most
headlines get models that were trained for four steps of eight prompts. `BROKEN` says
what is broken in the others. `python -m benchmarks.broken_headlines` measures all.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from flax import nnx

import zoo
from configs import get_config
from studies.headlines import (
  HEADLINES,
  appearance,
  beliefs,
  clusters,
  diversity,
  markov_phases,
  pool_lines,
  saddles,
  state_tracking,
  tabular,
  transience,
)
from studies.runner import Trainer
from studies.study import Measured, Measurement, by_seed
from zoo.config.building import build_model, build_task
from zoo.config.read import read
from zoo.reports import Table
from zoo.theory import dynamics
from zoo.training.sweeps import Point, Row

# The only mixer of each family of the headline on beliefs.
_ONE_EACH = (
  ('attention', 'softmax'),
  ('state_space', 'mamba'),
  ('fast_weights', 'delta'),
)
_FEW_STEPS = 'trained for 4 steps of 8 prompts'
# What is broken in the headlines that train nothing, or whose models are kept.
BROKEN = {
  'pool_lines': 'ridge regression in place of dMMSE',
  'saddles': 'heads with one merged matrix for keys and queries',
  'tabular': 'a checkpoint with random weights, two splits',
}
HEADER: tuple[str, ...] = (
  'headline',
  'broken',
  'number',
  'holds if',
  'measured',
  'verdict',
)


class Short(Trainer):
  """Trains four steps instead of thousands."""

  def __call__(
    self,
    name: str,
    config: str,
    fields: Mapping[str, object],
    points: Sequence[Point] = ({'seed': 0},),
    part: Any = None,
  ) -> list[Row]:
    short = {
      'train.num_steps': 4,
      'train.batch_size': 8,
      'train.log_every': 2,
      'optimizer.warmup_steps': 0,
      'checkpoint.every': 2,
      'checkpoint.keep': 2,
      'eval.every': 2,
      'eval.num_batches': 2,
    }
    return super().__call__(name, config, {**fields, **short}, points, part)


def measure(name: str, folder: pathlib.Path) -> Measurement:
  """Measures a headline whose model is broken.

  Args:
    name: The name of the headline.
    folder: A folder for what is trained.

  Returns:
    The numbers, and the panels of the picture.
  """
  with _broken(name, folder):
    return HEADLINES[name].measure(Short(folder / 'runs', get_config))


@contextlib.contextmanager
def _broken(name: str, folder: pathlib.Path) -> Iterator[None]:
  """Breaks the model of a headline, and shortens the measurement, inside the block."""
  changes: list[tuple[Any, str, object]] = [
    (markov_phases, '_PARTS', {'start': (2, 2), 'whole': (4, 2)}),
    (transience, '_STEPS', (2, 4)),
    (transience, '_SEEDS', (0,)),
    (clusters, '_SEEDS', [{'seed': 0}]),
    (appearance, '_SEEDS', (0,)),
    (appearance, '_STEPS', dict.fromkeys(appearance._STEPS, (1, 2, 4))),
    (appearance, '_COEFFICIENT_STEPS', dict.fromkeys(appearance._STEPS, (4,))),
    (appearance, '_LENGTH', {**appearance._LENGTH, 'num_steps': 100}),
    (diversity, '_STEPS', (2, 4)),
    (state_tracking, '_SEEDS', (0,)),
    (state_tracking, '_RATES', (1e-2,)),
    (saddles, '_SEEDS', (0,)),
    (saddles, '_COLOURS', saddles._COLOURS[:1]),
    (tabular, '_SPLITS', 2),
    (beliefs, '_FAMILIES', {family: (mixer,) for family, mixer in _ONE_EACH}),
    (beliefs, '_RATES', (1e-3,)),
    (beliefs, '_SEEDS', (0,)),
  ]
  if name == 'pool_lines':
    ridge = pool_lines._mean('ridge', 64, new=True, num_prompts=2048)
    changes.append((pool_lines, '_mean', lambda *args, **kwargs: ridge))
  if name == 'saddles':
    changes.append((dynamics, 'separate_heads', _merged))
  if name == 'tabular':
    config, untrained = read(get_config('tabular')), folder / 'untrained'
    model = build_model(config, build_task(config), nnx.Rngs(0))
    zoo.save(model, untrained, config)
    changes.append((tabular, '_CHECKPOINT', untrained))
  with contextlib.ExitStack() as stack:
    for module, attribute, value in changes:
      stack.enter_context(mock.patch.object(module, attribute, value))
    yield


def _merged(num_features: int, num_heads: int, rank: int, scale: float, seed: int):
  return dynamics.merged_heads(num_features, num_heads, scale, seed)


def rows_of(name: str, numbers: Mapping[str, Measured]) -> list[list[str]]:
  """Returns a row of the table for each number of a headline that has a range."""
  rows = []
  for number, range_ in HEADLINES[name].expected.items():
    measured = numbers[number]
    verdict = 'holds' if range_.holds(measured) else 'fails'
    text = ' '.join(f'{value:.4g}' for value in by_seed(measured))
    how = BROKEN.get(name, _FEW_STEPS)
    rows.append([name, how, number, str(range_), text, verdict])
  return rows


def table_of(rows: Sequence[Sequence[str]]) -> Table:
  """Returns a table of what a broken model misses of each headline.

  Args:
    rows: The rows of the CSV, without its header.
  """
  lines = []
  for name in dict.fromkeys(row[0] for row in rows):
    own = [row for row in rows if row[0] == name]
    missed = [row for row in own if row[-1] == 'fails']
    first = missed[0] if missed else None
    example = f'`{first[2]}` is {first[4]}, {first[3]} is asked' if first else 'none'
    held = ', '.join(f'`{row[2]}`' for row in own if row[-1] == 'holds')
    lines.append(
      [f'`{name}`', own[0][1], f'{len(missed)} of {len(own)}', example, held]
    )
  header = (
    'headline',
    'the broken model',
    'ranges missed',
    'one of them',
    'ranges that hold all the same',
  )
  return Table(lines, header)
