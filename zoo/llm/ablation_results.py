"""The numbers of an ablation, from the lines of its cells."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypedDict

import numpy as np

from zoo.llm.experiment import Run
from zoo.llm.inference import Weights, p_value, paired_interval, weights
from zoo.llm.prompts import ARMS, WITH, WITHOUT
from zoo.llm.readouts import READOUTS, ReadoutName
from zoo.llm.summary import ByPrompt, Line, Losses, Summary, by_prompt
from zoo.measure.intervals import holm

LEVEL = 0.05  # for all comparisons of a readout together

Row: TypeAlias = dict[str, Any]  # of the table: numbers and texts by name


class Cell(NamedTuple):
  """The number of examples, and the name of the guess with its noise."""

  num_examples: int
  guess: str

  @property
  def name(self) -> str:
    """Its folder."""
    return f'{self.num_examples}_examples/{self.guess}'


class Results(TypedDict):
  """The content of `ablation.json`.

  There is a row for each cell and readout. A comparison in a row is a mean difference
  on the same prompts; negative is better. Its interval has a level of 1 − 0.05/m, so
  that all m intervals of a readout hold together with 95 %; its `p` is adjusted by
  Holm's method. What too few answers have, and a weight that is not determined, as
  with classes, is None.
  """

  model: str
  num_prompts: int
  metric: str
  num_comparisons: dict[str, int]  # by readout
  rows: list[Row]
  seconds: float


def results(runs: Mapping[Cell, Run]) -> Results:
  """All numbers of an ablation whose runs are finished."""
  found = {
    cell: by_prompt(run.ordered(), run.wording.scale) for cell, run in runs.items()
  }
  summaries = [run.summary for run in runs.values() if run.summary is not None]
  rows, num_comparisons = [], {}
  for readout in READOUTS:
    compared = _comparisons(
      [
        of.losses[WITH][readout] - base
        for of in found.values()
        for base in (of.losses[WITHOUT][readout], of.baselines['guess'])
      ]
    )
    num_comparisons[readout] = sum(one['p'] is not None for one in compared)
    comparison = iter(compared)
    for (cell, run), summary in zip(runs.items(), summaries, strict=True):
      rows.append(
        {
          **cell._asdict(),
          'readout': readout,
          **_numbers(run, summary, found[cell], readout),
          'with_minus_without': next(comparison),
          'with_minus_guess': next(comparison),
        }
      )
  first = summaries[0]
  return {
    'model': first['model'],
    'num_prompts': first['num_prompts'],
    'metric': first['metric'],
    'num_comparisons': num_comparisons,
    'rows': rows,
    'seconds': sum(of['seconds'] for of in summaries),
  }


def _comparisons(differences: Sequence[Losses]) -> list[Row]:
  """The comparisons, with simultaneous intervals and Holm's adjusted p."""
  differences = [values[~np.isnan(values)] for values in differences]
  p_values = [p_value(values) for values in differences]
  known = [p for p in p_values if p is not None]
  adjusted = iter(holm(known))
  found = []
  for values, p in zip(differences, p_values, strict=True):
    bounds = paired_interval(values, 1 - LEVEL / max(len(known), 1))
    low, high = (None, None) if bounds is None else bounds
    found.append(
      {
        'num': len(values),
        'difference': float(values.mean()) if values.size else None,
        'low': low,
        'high': high,
        'p': None if p is None else next(adjusted),
      }
    )
  return found


def _numbers(
  run: Run, summary: Summary, found: ByPrompt, readout: ReadoutName
) -> dict[str, Any]:
  """Those of a cell and a readout that are no comparisons."""
  without_guess, with_guess = (summary['arms'][arm][readout] for arm in ARMS)
  parsed = ~np.isnan(found.losses[WITH][readout])
  copied = found.copied[readout].sum()
  of_classes = bool(run.wording.scale.classes)
  fit = Weights() if of_classes else _weights(run.ordered(), readout)
  return {
    'num_prompts': summary['num_prompts'],
    'num_parsed': with_guess['num_parsed'],
    'without_guess': without_guess['loss'],
    'with_guess': with_guess['loss'],
    'guess_alone': summary['baselines']['guess']['loss'],
    'copied_share': float(copied / parsed.sum()) if parsed.any() else None,
    **fit._asdict(),
  }


def _weights(lines: Sequence[Line], readout: ReadoutName) -> Weights:
  """Those of guess and own answer, on prompts that have all three numbers."""
  three = [
    (line['guess'], *(line['arms'][arm][readout]['value'] for arm in ARMS))
    for line in lines
  ]
  known = [numbers for numbers in three if None not in numbers]
  return weights(*np.array(known, np.float64).reshape(-1, 3).T)
