"""The table of an ablation."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

from flax.traverse_util import flatten_dict

from zoo.core.tables import format_table, to_csv
from zoo.host.files import write_atomically
from zoo.llm.ablation_results import LEVEL, Results, Row
from zoo.llm.readouts import READOUTS
from zoo.llm.report import number, with_interval

TABLE, NUMBERS = FILES = 'table.csv', 'ablation.json'
_Column = tuple[str, Callable[[Row], str]]  # its header, and what it shows of a row
_COLUMNS: list[_Column] = [
  ('guess', lambda row: row['guess']),
  ('examples', lambda row: str(row['num_examples'])),
  ('answers', lambda row: f'{row["num_parsed"]}/{row["num_prompts"]}'),
  ('without guess', lambda row: number(row['without_guess'])),
  ('with guess', lambda row: number(row['with_guess'])),
  ('guess alone', lambda row: number(row['guess_alone'])),
  ('copied', lambda row: _share(row['copied_share'])),
  (
    'weight of guess',
    lambda row: _weight(row['guess_weight'], row['guess_weight_stderr']),
  ),
  (
    'weight of own answer',
    lambda row: _weight(row['own_weight'], row['own_weight_stderr']),
  ),
  ('with − without', lambda row: _difference(row['with_minus_without'])),
  ('p', lambda row: _p(row['with_minus_without']['p'])),
  ('with − guess alone', lambda row: _difference(row['with_minus_guess'])),
  ('p', lambda row: _p(row['with_minus_guess']['p'])),
]


def write(found: Results, out: pathlib.Path) -> None:
  """Writes `ablation.json` and `table.csv` into a folder; raises OSError."""
  write_atomically(out / NUMBERS, json.dumps(found, indent=2) + '\n')
  flat = [flatten_dict(row, sep='_') for row in found['rows']]
  write_atomically(out / TABLE, to_csv([*flat[0]], flat))


def table(found: Results) -> str:
  """The cells of each readout as tables for a terminal, and what holds in them."""
  header = [name for name, _ in _COLUMNS]
  parts = []
  for readout, name in READOUTS.items():
    rows = [row for row in found['rows'] if row['readout'] == readout]
    shown = format_table([[cell(row) for _, cell in _COLUMNS] for row in rows], header)
    title = f'{name}: {found["metric"]}, {found["num_prompts"]} prompts in each cell'
    own, guess = (
      [_sign(row[key]) for row in rows]
      for key in ('with_minus_without', 'with_minus_guess')
    )
    parts.append(
      f'{title}\n{shown}\nOf {len(rows)} cells, the guess lowers the error in '
      f'{own.count(-1)} and raises it in {own.count(1)}; the answer is better than the '
      f'guess alone in {guess.count(-1)} and worse in {guess.count(1)} (p < {LEVEL} '
      f'after Holm, {found["num_comparisons"][readout]} comparisons).'
    )
  return '\n\n'.join([*parts, f'asked: {found["model"]}'])


def _sign(comparison: Row) -> int:
  """The sign of a difference that holds; 0 for one that may be chance."""
  p, difference = comparison['p'], comparison['difference']
  if p is None or difference is None or p >= LEVEL:
    return 0
  return (difference > 0) - (difference < 0)


def _share(value: float | None) -> str:
  return '-' if value is None else f'{value:.0%}'


def _weight(value: float | None, stderr: float | None) -> str:
  return '-' if value is None else f'{value:.2f} ± {stderr:.2f}'


def _difference(of: Row) -> str:
  if of['difference'] is None:
    return '-'
  return with_interval(of['difference'], of['low'], of['high'])


def _p(p: float | None) -> str:
  if p is None:
    return '-'
  return '< 0.001' if p < 0.001 else number(p)
