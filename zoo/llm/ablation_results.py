"""The numbers of an ablation, from the lines of its cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import numpy as np
from jaxtyping import Float

from zoo.llm.config import ORACLE
from zoo.llm.guesses import Scale
from zoo.llm.inference import crossing, holm, p_value, paired_interval, weights
from zoo.llm.prompts import ARMS, WITH, WITHOUT
from zoo.llm.readouts import READOUTS, Readout, ReadoutName
from zoo.llm.summary import ByPrompt, Line, Losses, Summary, by_prompt, log_losses

LEVEL = 0.05  # for all comparisons of a readout together


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


class Measured(NamedTuple):
  """A cell with the answers to all its prompts."""

  cell: Cell
  lines: Sequence[Line]
  scale: Scale
  summary: Summary


class Comparison(TypedDict):
  """A mean difference on the same prompts; negative is better.

  The interval has a level of 1 − 0.05/m, so that all m intervals of a readout hold
  together with 95 %; `p` is adjusted by Holm's method. All are None for fewer than two
  prompts; the interval also if nothing differs.
  """

  num: int
  difference: float | None
  low: float | None
  high: float | None
  p: float | None


class Row(TypedDict):
  """A cell in one readout. A loss that no answer has, or a weight that is not
  determined, is None.
  """

  benchmark: str
  num_examples: int
  guess: str
  readout: ReadoutName
  num_prompts: int
  num_parsed: int
  without_guess: float | None
  with_guess: float | None
  guess_alone: float | None
  copied_share: float | None
  guess_weight: float | None
  guess_weight_stderr: float | None
  own_weight: float | None
  own_weight_stderr: float | None
  with_minus_without: Comparison
  with_minus_guess: Comparison
  log_loss_without: float | None
  log_loss_with: float | None


class CurveRow(TypedDict):
  """The curve of the oracle: guesses' errors, answers' errors, and the crossing.

  `at` is None if the curve does not cross the diagonal; `side` then says on which side
  it is. `low` and `high` are None beyond the ends of the curve.
  """

  benchmark: str
  num_examples: int
  readout: ReadoutName
  guess_losses: list[float]
  answer_losses: list[float]
  at: float | None
  side: str
  low: float | None
  high: float | None
  share_crossing: float


class Results(TypedDict):
  """The content of `ablation.json`."""

  model: str
  num_prompts: int
  metrics: dict[str, str]  # by benchmark
  num_comparisons: dict[str, int]  # by readout
  rows: list[Row]
  curves: list[CurveRow]
  seconds: float


def results(measured: Sequence[Measured], seed: int) -> Results:
  """All numbers: a row for each cell and readout, and a curve for each oracle."""
  prompts = [by_prompt(one.lines, one.scale) for one in measured]
  cells = [*zip(measured, prompts, strict=True)]
  rows, num_comparisons = [], {}
  for readout in READOUTS:
    against = [
      found.losses[WITH][readout] - base
      for found in prompts
      for base in (found.losses[WITHOUT][readout], found.baselines['guess'])
    ]
    compared = _comparisons(against)
    num_comparisons[readout] = sum(one['p'] is not None for one in compared)
    pairs = zip(compared[::2], compared[1::2], strict=True)
    rows += [
      _row(*cell, readout, *pair) for cell, pair in zip(cells, pairs, strict=True)
    ]
  oracles = [one for one in cells if one[0].cell.guess.startswith(ORACLE)]
  curves = [
    _curve(cell, [found for _, found in of_cell], readout, seed)
    for cell, group in itertools.groupby(oracles, lambda one: one[0].cell[:2])
    if len(of_cell := [*group]) > 1
    for readout in READOUTS
  ]
  return {
    'model': measured[0].summary['model'],
    'num_prompts': measured[0].summary['num_prompts'],
    'metrics': {one.cell.benchmark: one.summary['metric'] for one in measured},
    'num_comparisons': num_comparisons,
    'rows': rows,
    'curves': curves,
    'seconds': sum(one.summary['seconds'] for one in measured),
  }


def _comparisons(differences: Sequence[Losses]) -> list[Comparison]:
  """The comparisons, with simultaneous intervals and Holm's adjusted p."""
  differences = [values[~np.isnan(values)] for values in differences]
  p_values = [p_value(values) for values in differences]
  known = [p for p in p_values if p is not None]
  adjusted = iter(holm(known))
  found: list[Comparison] = []
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
  one: Measured,
  found: ByPrompt,
  readout: ReadoutName,
  against_own: Comparison,
  against_guess: Comparison,
) -> Row:
  cell, lines, scale, summary = one
  without_guess, with_guess = (summary['arms'][arm][readout] for arm in ARMS)
  num_parsed = with_guess['num_parsed']
  copied = float(found.copied[readout].sum() / num_parsed) if num_parsed else None
  fit = weights(*_encoded(lines, scale, readout))
  log_loss: list[float | None] = [None, None]
  if scale.classes and readout == 'expected':
    log_loss = [float(log_losses(lines, scale, arm).mean()) for arm in ARMS]
  return {
    'benchmark': cell.benchmark,
    'num_examples': cell.num_examples,
    'guess': cell.guess,
    'readout': readout,
    'num_prompts': len(lines),
    'num_parsed': num_parsed,
    'without_guess': without_guess['loss'],
    'with_guess': with_guess['loss'],
    'guess_alone': summary['baselines']['guess']['loss'],
    'copied_share': copied,
    'guess_weight': None if fit is None else fit.guess,
    'guess_weight_stderr': None if fit is None else fit.guess_stderr,
    'own_weight': None if fit is None else fit.own,
    'own_weight_stderr': None if fit is None else fit.own_stderr,
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
  cell: tuple[str, int], oracles: Sequence[ByPrompt], readout: ReadoutName, seed: int
) -> CurveRow:
  """The curve over the sizes of the oracle's noise."""
  guess = np.stack([of.baselines['guess'] for of in oracles])
  answer = np.stack([of.losses[WITH][readout] for of in oracles])
  found = crossing(guess, answer, seed)
  points = [
    (float(x[~np.isnan(y)].mean()), float(y[~np.isnan(y)].mean()))
    for x, y in zip(guess, answer, strict=True)
    if not np.isnan(y).all()
  ]
  at, low, high = (
    one if math.isfinite(one) else None for one in (found.at, found.low, found.high)
  )
  side = 'crosses'
  if not points:
    side = 'no answers'
  elif at is None:
    side = 'nowhere below' if found.at > 0 else 'begins below'
  return {
    'benchmark': cell[0],
    'num_examples': cell[1],
    'readout': readout,
    'guess_losses': [x for x, _ in points],
    'answer_losses': [y for _, y in points],
    'at': at,
    'side': side,
    'low': low,
    'high': high,
    'share_crossing': found.share,
  }
