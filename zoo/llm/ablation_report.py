"""The table of an ablation."""

import json
import pathlib
from typing import Any

from flax.traverse_util import flatten_dict

from zoo.core.tables import format_table, to_csv
from zoo.host.files import write_atomically
from zoo.llm.ablation_results import LEVEL, Results, Row
from zoo.llm.readouts import READOUTS

TABLE, NUMBERS = FILES = 'table.csv', 'ablation.json'
# The columns of `table.csv` that a terminal shows, and their headers.
_SHOWN = {
  'guess': 'guess',
  'num_examples': 'examples',
  'num_parsed': 'answers',
  'without_guess': 'without guess',
  'with_guess': 'with guess',
  'guess_alone': 'guess alone',
  'copied_share': 'copied',
  'guess_weight': 'weight of guess',
  'guess_weight_stderr': '± s.e.',
  'own_weight': 'of own answer',
  'own_weight_stderr': '± s.e.',
  'with_minus_without_difference': 'with − without',
  'with_minus_without_p': 'p',
  'with_minus_guess_difference': 'with − guess alone',
  'with_minus_guess_p': 'p',
}


def write(found: Results, out: pathlib.Path) -> None:
  """Writes `ablation.json` and `table.csv` into a folder; raises OSError."""
  write_atomically(out / NUMBERS, json.dumps(found, indent=2) + '\n')
  flat = [flatten_dict(row, sep='_') for row in found['rows']]
  write_atomically(out / TABLE, to_csv([*flat[0]], flat))


def table(found: Results) -> str:
  """The cells of each readout as tables for a terminal, and what holds in them."""
  parts = []
  for readout, name in READOUTS.items():
    rows = [row for row in found['rows'] if row['readout'] == readout]
    flat = [flatten_dict(row, sep='_') for row in rows]
    cells = [[_cell(row[column]) for column in _SHOWN] for row in flat]
    title = f'{name}: {found["metric"]}, {found["num_prompts"]} prompts in each cell'
    own, guess = (
      [_sign(row[key]) for row in rows]
      for key in ('with_minus_without', 'with_minus_guess')
    )
    parts.append(
      f'{title}\n{format_table(cells, [*_SHOWN.values()])}\nOf {len(rows)} cells, the '
      f'guess lowers the error in {own.count(-1)} and raises it in {own.count(1)}; the '
      f'answer is better than the guess alone in {guess.count(-1)} and worse in '
      f'{guess.count(1)} (p < {LEVEL} after Holm, {found["num_comparisons"][readout]} '
      'comparisons).'
    )
  return '\n\n'.join([*parts, f'asked: {found["model"]}'])


def _cell(value: Any) -> str:
  if value is None:
    return '-'
  return f'{value:.3f}' if isinstance(value, float) else str(value)


def _sign(comparison: Row) -> int:
  """The sign of a difference that holds; 0 for one that may be chance."""
  p, difference = comparison['p'], comparison['difference']
  if p is None or difference is None or p >= LEVEL:
    return 0
  return (difference > 0) - (difference < 0)
