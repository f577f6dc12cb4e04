"""The numbers of an ablation, from the lines of its cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import numpy as np
from jaxtyping import Float, Float64

from zoo.llm.guesses import Scale
from zoo.llm.inference import crossing, holm, p_value, paired_interval, weights
from zoo.llm.readouts import READOUTS, Answers, ReadoutName
from zoo.llm.summary import (
  Line,
  Summary,
  baseline_losses,
  is_copy,
  log_losses,
  losses_of,
)

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

  @property
  def is_oracle(self) -> bool:
    """Whether the cell is a point of the curve over sizes of noise."""
    return self.guess.startswith('oracle')


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
  rows, num_comparisons = [], {}
  for readout in READOUTS:
    differences = [
      (_losses(one, readout) - base)
      for one in measured
      for base in (_losses(one, readout, 'without_guess'), _guess_losses(one))
    ]
    found = _comparisons([values[~np.isnan(values)] for values in differences])
    num_comparisons[readout] = sum(one['p'] is not None for one in found)
    pairs = zip(found[::2], found[1::2], strict=True)
    rows += [_row(one, readout, *of) for one, of in zip(measured, pairs, strict=True)]
  groups = itertools.groupby(measured, lambda one: one.cell[:2])
  oracles = [[one for one in of if one.cell.is_oracle] for _, of in groups]
  return {
    'model': measured[0].summary['model'],
    'num_prompts': measured[0].summary['num_prompts'],
    'metrics': {one.cell.benchmark: one.summary['metric'] for one in measured},
    'num_comparisons': num_comparisons,
    'rows': rows,
    'curves': [
      _curve(of, readout, seed) for of in oracles if len(of) > 1 for readout in READOUTS
    ],
    'seconds': sum(one.summary['seconds'] for one in measured),
  }


def _losses(
  one: Measured, readout: ReadoutName, arm: str = 'with_guess'
) -> Float64[np.ndarray, ' n']:
  return losses_of(one.lines, one.scale, arm, readout)


def _guess_losses(one: Measured) -> Float64[np.ndarray, ' n']:
  return baseline_losses(one.lines, one.scale, 'guess')


def _comparisons(
  differences: Sequence[Float64[np.ndarray, ' n']],
) -> list[Comparison]:
  """The comparisons, with simultaneous intervals and Holm's adjusted p."""
  p_values = [p_value(values) for values in differences]
  known = [p for p in p_values if p is not None]
  adjusted = iter(holm(known))
  found: list[Comparison] = []
  for values, p in zip(differences, p_values, strict=True):
    mean = float(values.mean()) if values.size else None
    p = None if p is None else next(adjusted)
    bounds = paired_interval(values, 1 - LEVEL / max(len(known), 1))
    low, high = (None, None) if bounds is None else bounds
    found.append(
      {'num': len(values), 'difference': mean, 'low': low, 'high': high, 'p': p}
    )
  return found


def _row(
  one: Measured,
  readout: ReadoutName,
  against_own: Comparison,
  against_guess: Comparison,
) -> Row:
  cell, lines, scale, summary = one
  arms, parsed = summary['arms'], summary['arms']['with_guess'][readout]
  copied = [
    is_copy(scale, line, readout)
    for line in lines
    if line['arms']['with_guess'][readout]['value'] is not None
  ]
  fit = weights(*_encoded(one, readout))
  log_loss = {'without_guess': None, 'with_guess': None}
  if scale.classes and readout == 'expected':
    log_loss = {arm: float(log_losses(lines, scale, arm).mean()) for arm in log_loss}
  return {
    'benchmark': cell.benchmark,
    'num_examples': cell.num_examples,
    'guess': cell.guess,
    'readout': readout,
    'num_prompts': len(lines),
    'num_parsed': parsed['num_parsed'],
    'without_guess': arms['without_guess'][readout]['loss'],
    'with_guess': parsed['loss'],
    'guess_alone': summary['baselines']['guess']['loss'],
    'copied_share': float(np.mean(copied)) if copied else None,
    'guess_weight': None if fit is None else fit.guess,
    'guess_weight_stderr': None if fit is None else fit.guess_stderr,
    'own_weight': None if fit is None else fit.own,
    'own_weight_stderr': None if fit is None else fit.own_stderr,
    'with_minus_without': against_own,
    'with_minus_guess': against_guess,
    'log_loss_without': log_loss['without_guess'],
    'log_loss_with': log_loss['with_guess'],
  }


def _encoded(one: Measured, readout: ReadoutName) -> list[Float[np.ndarray, 'n k']]:
  """Guess, own answer and answer, where all three exist: a number, or one per class.

  A class is a one-hot vector; for the expected value it is the probabilities.
  """
  rows = []
  for line in one.lines:
    own, answer = (line['arms'][arm] for arm in ('without_guess', 'with_guess'))
    if own[readout]['value'] is not None and answer[readout]['value'] is not None:
      guess = _vector(one.scale, line['guess'])
      rows.append((guess, *(_read(one.scale, of, readout) for of in (own, answer))))
  width = max(len(one.scale.classes), 1)
  stacked = np.array(rows, np.float64).reshape(len(rows), 3, width)
  return [stacked[:, i] for i in range(3)]


def _read(scale: Scale, answers: Answers, readout: ReadoutName) -> list[float]:
  found = answers[readout]
  if 'probabilities' in found:
    return [found['probabilities'][name] for name in scale.classes]
  value = found['value']
  assert value is not None
  return _vector(scale, value)


def _vector(scale: Scale, label: float | str) -> list[float]:
  if scale.classes:
    return [float(label == name) for name in scale.classes]
  return [float(label)]


def _curve(oracles: Sequence[Measured], readout: ReadoutName, seed: int) -> CurveRow:
  guess = np.stack([_guess_losses(one) for one in oracles])
  answer = np.stack([_losses(one, readout) for one in oracles])
  found = crossing(guess, answer, seed)
  points = [
    (float(x[~np.isnan(y)].mean()), float(y[~np.isnan(y)].mean()))
    for x, y in zip(guess, answer, strict=True)
    if not np.isnan(y).all()
  ]
  finite = {
    name: value if math.isfinite(value) else None
    for name, value in found._asdict().items()
  }
  side = 'crosses'
  if not points:
    side = 'no answers'
  elif finite['at'] is None:
    side = 'nowhere below' if found.at > 0 else 'begins below'
  return {
    'benchmark': oracles[0].cell.benchmark,
    'num_examples': oracles[0].cell.num_examples,
    'readout': readout,
    'guess_losses': [x for x, _ in points],
    'answer_losses': [y for _, y in points],
    'at': finite['at'],
    'side': side,
    'low': finite['low'],
    'high': finite['high'],
    'share_crossing': found.share,
  }
