"""The table of an ablation, from the lines of its cells."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from studies.llm.experiment import Run
from studies.llm.guesses import LabelScale
from studies.llm.inference import Weights, weights
from studies.llm.prompts import ARMS, WITH, WITHOUT
from studies.llm.readouts import READOUTS
from studies.llm.summary import Line, Losses, answers, losses
from zoo.core.tables import format_table
from zoo.measure.statistics import holm, paired_interval, paired_test

LEVEL = 0.05  # for all comparisons of a readout together

# The columns of `table.csv` that fit in a terminal, and their headers.
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
  'with_minus_guess_p': 'p',
}


class AblationCell(NamedTuple):
  """The number of examples, and the name of the guess with its noise."""

  num_examples: int
  guess: str

  @property
  def name(self) -> str:
    """Its folder."""
    return f'{self.num_examples}_examples/{self.guess}'


def row_of(run: Run) -> dict[str, Any]:
  """The row of a finished run: its summary, and what is compared on each prompt."""
  lines = [
    {
      'label': line['label'],
      'guess': line['guess'],
      'arms': {
        arm: {
          readout: {'value': line['arms'][arm][readout]['value']}
          for readout in READOUTS
        }
        for arm in ARMS
      },
    }
    for line in run.ordered()
  ]
  return {'summary': run.summary, 'lines': lines}


def results(
  cells: Mapping[AblationCell, Mapping[str, Any]], scale: LabelScale
) -> dict[str, Any]:
  """The content of `ablation.json`, from the rows of its cells.

  There is a row for each cell and readout. A comparison in a row is a mean difference
  on the same prompts; negative is better. Its interval has a level of 1 − 0.05/m, so
  that all m intervals of a readout hold together with 95 %; its `p` is adjusted by
  Holm's method. What too few answers have, and a weight that is not determined, as
  with classes, is None.
  """
  summaries = [row['summary'] for row in cells.values()]
  rows, num_comparisons = [], {}
  for readout in READOUTS:
    differences = []
    for kept in cells.values():
      lines = kept['lines']
      without, with_guess = (
        losses(answers(lines, arm, readout), lines, scale) for arm in ARMS
      )
      of_guess = losses([line['guess'] for line in lines], lines, scale)
      differences += [with_guess - without, with_guess - of_guess]
    compared = _comparisons(differences)
    num_comparisons[readout] = sum(pair['p'] is not None for pair in compared)
    pairs = zip(cells.items(), compared[::2], compared[1::2], strict=True)
    for (cell, kept), to_without, to_guess in pairs:
      of_cell = _numbers(kept['summary'], kept['lines'], scale, readout)
      numbers = {**cell._asdict(), 'readout': readout, **of_cell}
      both = {'with_minus_without': to_without, 'with_minus_guess': to_guess}
      rows.append({**numbers, **both})
  first = summaries[0]
  return {
    'model': first['model'],
    'num_prompts': first['num_prompts'],
    'metric': first['metric'],
    'num_comparisons': num_comparisons,
    'rows': rows,
    'seconds': sum(summary['seconds'] for summary in summaries),
  }


def _comparisons(differences: Sequence[Losses]) -> list[dict[str, Any]]:
  """The comparisons, with simultaneous intervals and Holm's adjusted p."""
  differences = [values[~np.isnan(values)] for values in differences]
  p_values = [paired_test(values) for values in differences]
  known = [p for p in p_values if p is not None]
  adjusted = iter(holm(known))
  compared = []
  for values, p in zip(differences, p_values, strict=True):
    bounds = paired_interval(values, 1 - LEVEL / max(len(known), 1))
    low, high = (None, None) if bounds is None else bounds
    compared.append(
      {
        'num': len(values),
        'difference': float(values.mean()) if values.size else None,
        'low': low,
        'high': high,
        'p': None if p is None else next(adjusted),
      }
    )
  return compared


def _numbers(
  summary: Mapping[str, Any], lines: Sequence[Line], scale: LabelScale, readout: str
) -> dict[str, Any]:
  """Those of a cell and a readout that are no comparisons."""
  with_guess = summary['arms'][WITH][readout]
  fit = Weights()
  if not scale.classes:
    # On prompts that have all three numbers.
    columns = [answers(lines, arm, readout) for arm in ARMS]
    guesses = [line['guess'] for line in lines]
    rows = [row for row in zip(guesses, *columns, strict=True) if None not in row]
    fit = weights(*np.array(rows, np.float64).reshape(-1, 3).T)
  return {
    'num_prompts': summary['num_prompts'],
    'num_parsed': with_guess['num_parsed'],
    'without_guess': summary['arms'][WITHOUT][readout]['loss'],
    'with_guess': with_guess['loss'],
    'guess_alone': summary['baselines']['guess']['loss'],
    'copied_share': with_guess['copied_share'],
    **fit._asdict(),
  }


def flat(row: dict[str, Any]) -> dict[str, Any]:
  """A row by column of `table.csv`."""
  return flatten_dict(row, sep='_')


def table(ablation: Mapping[str, Any]) -> str:
  """The cells of each readout as tables for a terminal."""
  parts = []
  for readout, name in READOUTS.items():
    rows = [flat(row) for row in ablation['rows'] if row['readout'] == readout]
    cells = [[_text(row[column]) for column in _SHOWN] for row in rows]
    num, size = ablation['num_comparisons'][readout], ablation['num_prompts']
    shown = format_table(cells, [*_SHOWN.values()])
    parts.append(
      f'{name}: {ablation["metric"]}, {size} prompts in each cell\n{shown}\n'
      f"p of with guess − guess alone, by Holm's method, {num} comparisons"
    )
  return '\n\n'.join([*parts, f'asked: {ablation["model"]}'])


def _text(value: Any) -> str:
  if value is None:
    return '-'
  return f'{value:.3f}' if isinstance(value, float) else str(value)
