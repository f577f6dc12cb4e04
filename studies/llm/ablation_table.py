"""The table of an ablation, which is computed from the rows of its cells."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from studies.llm.experiment import Run
from studies.llm.guesses import LabelScale
from studies.llm.inference import Weights, paired_interval, paired_test, weights
from studies.llm.prompts import ARMS, WITH, WITHOUT
from studies.llm.readouts import READOUTS
from studies.llm.summary import Line, Losses, answers, losses
from zoo.core.tables import format_table
from zoo.measure.tests import holm

LEVEL = 0.05  # the level of all comparisons of a readout together

# These columns of `table.csv` are shown in a terminal, with these headers.
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
  """A cell of an ablation.

  Attributes:
    num_examples: The number of examples in a prompt.
    guess: The name of the guess, which for the oracle includes the size of its noise.
  """

  num_examples: int
  guess: str

  @property
  def name(self) -> str:
    """The name of the cell, which is also its folder."""
    return f'{self.num_examples}_examples/{self.guess}'


def row_of(run: Run) -> dict[str, Any]:
  """Returns the row of a finished run: its summary, and the values of each prompt."""
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
  """Computes the content of `ablation.json` from the rows of its cells.

  The table has a row for each cell and readout. A comparison in a row is the mean
  difference of two losses on the same prompts; if it is negative, the loss with the
  guess is lower. Each interval has the level 1 − 0.05/m (Bonferroni), so that all m
  intervals of a readout hold together with a probability of about 95 %. Each `p` is
  adjusted by Holm's method. A number is None if there are too few answers for it, or if
  a weight is not determined; with classes no weight is.

  Args:
    cells: The rows of the cells, from `row_of`.
    scale: The scale of the labels.

  Returns:
    The content, which JSON can hold.
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
  """Returns the comparisons, with simultaneous intervals and p adjusted by Holm."""
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
  """Returns the numbers of a cell and a readout, without the comparisons."""
  with_guess = summary['arms'][WITH][readout]
  fit = Weights()
  if not scale.classes:
    # The fit uses the prompts that have the guess and both answers.
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
  """Returns a row with nested fields joined by _, which are columns of `table.csv`."""
  return flatten_dict(row, sep='_')


def table(ablation: Mapping[str, Any]) -> str:
  """Returns the content of `ablation.json` as one table for each readout."""
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
