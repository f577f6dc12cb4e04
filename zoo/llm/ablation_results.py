"""The numbers of an ablation, from the lines of its cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypedDict

import numpy as np
from jaxtyping import Float

from zoo.host.files import finite_or_null
from zoo.llm.config import ORACLE
from zoo.llm.experiment import Run
from zoo.llm.guesses import Scale
from zoo.llm.inference import crossing, p_value, paired_interval, weights
from zoo.llm.prompts import ARMS, WITH, WITHOUT
from zoo.llm.readouts import READOUTS, Readout, ReadoutName
from zoo.llm.summary import ByPrompt, Line, Losses, by_prompt, log_losses
from zoo.measure.intervals import holm

LEVEL = 0.05  # for all comparisons of a readout together


Row: TypeAlias = dict[str, Any]  # of the table, or a curve: numbers and texts by name


class Cell(NamedTuple):
  """A benchmark, the number of examples, and the name of the guess with its noise."""

  benchmark: str
  num_examples: int
  guess: str
  noise: float

  @property
  def name(self) -> str:
    """Its folder."""
    return f'{self.benchmark}/{self.num_examples}_examples/{self.guess}'


class Results(TypedDict):
  """The content of `ablation.json`.

  There is a row for each cell and readout, and a curve for each oracle and readout. A
  comparison in a row is a mean difference on the same prompts; negative is better. Its
  interval has a level of 1 − 0.05/m, so that all m intervals of a readout hold together
  with 95 %; its `p` is adjusted by Holm's method. What too few answers have, and a
  weight that is not determined, is None.

  A curve has the errors of guesses and of answers. Its `at` is None if it does not
  cross the diagonal; `side` then says on which side it is. Its `low` and `high` are
  None beyond the ends of the curve.
  """

  model: str
  num_prompts: int
  metrics: dict[str, str]  # by benchmark
  num_comparisons: dict[str, int]  # by readout
  rows: list[Row]
  curves: list[Row]
  seconds: float


def results(runs: Mapping[Cell, Run], seed: int) -> Results:
  """All numbers of an ablation whose runs are finished."""
  found = {cell: by_prompt(run.ordered(), run.scale) for cell, run in runs.items()}
  summaries = {cell: run.finished() for cell, run in runs.items()}
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
    pairs = zip(compared[::2], compared[1::2], strict=True)
    for (cell, run), pair in zip(runs.items(), pairs, strict=True):
      rows.append(_row(cell, run, found[cell], readout, *pair))
  oracles = [cell for cell in runs if cell.guess.startswith(ORACLE)]
  curves = [
    _curve(name, num_examples, [found[cell] for cell in cells], readout, seed)
    for (name, num_examples), group in itertools.groupby(oracles, lambda one: one[:2])
    if len(cells := [*group]) > 1
    for readout in READOUTS
  ]
  first, *_ = summaries.values()
  return {
    'model': first['model'],
    'num_prompts': first['num_prompts'],
    'metrics': {cell.benchmark: of['metric'] for cell, of in summaries.items()},
    'num_comparisons': num_comparisons,
    'rows': rows,
    'curves': curves,
    'seconds': sum(of['seconds'] for of in summaries.values()),
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


def _row(
  cell: Cell,
  run: Run,
  found: ByPrompt,
  readout: ReadoutName,
  against_own: Row,
  against_guess: Row,
) -> Row:
  lines, scale, summary = run.ordered(), run.scale, run.finished()
  without_guess, with_guess = (summary['arms'][arm][readout] for arm in ARMS)
  parsed = ~np.isnan(found.losses[WITH][readout])
  fit = weights(*_encoded(lines, scale, readout)) or (None,) * 4
  log_loss: list[float | None] = [None, None]
  if scale.classes and readout == 'expected':
    log_loss = [float(log_losses(lines, scale, arm).mean()) for arm in ARMS]
  return {
    'benchmark': cell.benchmark,
    'num_examples': cell.num_examples,
    'guess': cell.guess,
    'readout': readout,
    'num_prompts': len(lines),
    'num_parsed': with_guess['num_parsed'],
    'without_guess': without_guess['loss'],
    'with_guess': with_guess['loss'],
    'guess_alone': summary['baselines']['guess']['loss'],
    'copied_share': (
      float(found.copied[readout].sum() / parsed.sum()) if parsed.any() else None
    ),
    'guess_weight': fit[0],
    'guess_weight_stderr': fit[1],
    'own_weight': fit[2],
    'own_weight_stderr': fit[3],
    'with_minus_without': against_own,
    'with_minus_guess': against_guess,
    'log_loss_without': log_loss[0],
    'log_loss_with': log_loss[1],
  }


def _encoded(
  lines: Sequence[Line], scale: Scale, readout: ReadoutName
) -> Float[np.ndarray, '3 n k']:
  """Guess, own answer and answer, where all three exist: a number, or one per class.

  A class is a one-hot vector; for the expected value it is the probabilities.
  """
  rows = []
  for line in lines:
    guess: Readout = {'value': line['guess']}
    three = [guess, *(line['arms'][arm][readout] for arm in ARMS)]
    if all(one['value'] is not None for one in three):
      rows.append([_vector(scale, one) for one in three])
  width = max(len(scale.classes), 1)
  return np.array(rows, np.float64).reshape(len(rows), 3, width).swapaxes(0, 1)


def _vector(scale: Scale, found: Readout) -> list[float | str | None]:
  if 'probabilities' in found:
    return [found['probabilities'][name] for name in scale.classes]
  if scale.classes:
    return [float(found['value'] == name) for name in scale.classes]
  return [found['value']]


def _curve(
  benchmark: str,
  num_examples: int,
  oracles: Sequence[ByPrompt],
  readout: ReadoutName,
  seed: int,
) -> Row:
  """The curve over the sizes of the oracle's noise."""
  guess = np.stack([of.baselines['guess'] for of in oracles])
  answer = np.stack([of.losses[WITH][readout] for of in oracles])
  found = crossing(guess, answer, seed)
  points = [
    (float(x[~np.isnan(y)].mean()), float(y[~np.isnan(y)].mean()))
    for x, y in zip(guess, answer, strict=True)
    if not np.isnan(y).all()
  ]
  side = 'crosses'
  if not points:
    side = 'no answers'
  elif math.isinf(found.at):
    side = 'nowhere below' if found.at > 0 else 'begins below'
  return finite_or_null(
    {
      'benchmark': benchmark,
      'num_examples': num_examples,
      'readout': readout,
      'guess_losses': [x for x, _ in points],
      'answer_losses': [y for _, y in points],
      'at': found.at,
      'side': side,
      'low': found.low,
      'high': found.high,
      'share_crossing': found.share,
    }
  )
