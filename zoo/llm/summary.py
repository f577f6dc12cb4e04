"""The results as numbers: losses, paired differences, and copies of guesses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NotRequired, TypedDict

import numpy as np
from jaxtyping import Bool, Float64

from zoo.llm.guesses import Scale
from zoo.llm.prompts import Record
from zoo.llm.readouts import READOUTS, Answers, ReadoutName
from zoo.measure.intervals import estimate, interval

ARMS = 'without_guess', 'with_guess'
PARSED: tuple[ReadoutName, ...] = 'free', 'forced'  # answers may copy the guess
BASELINES = 'guess', 'context_mean', 'constant'

Losses = Float64[np.ndarray, ' n']  # one per prompt, NaN if no answer was parsed


class Line(Record):
  """A line of `prompts.jsonl`: a prompt, and its answers by arm."""

  arms: dict[str, Answers]
  seconds: float


class Loss(TypedDict):
  """A mean loss and its standard error; None if there are too few answers."""

  loss: float | None
  stderr: float | None


class ReadoutLoss(Loss):
  """The loss of a readout in an arm, with its 95 % interval.

  With a guess, a parsed readout also reports how many answers copy it.
  """

  low: float | None
  high: float | None
  num_parsed: int
  parse_rate: float
  mass: NotRequired[float]  # of the expected value
  num_copied: NotRequired[int]
  copied_share: NotRequired[float | None]
  num_changed: NotRequired[int]
  changed_loss: NotRequired[float | None]
  changed_guess_loss: NotRequired[float | None]


class Difference(TypedDict):
  """A mean difference on the same prompts, with its 95 % interval."""

  num: int
  difference: float | None
  stderr: float | None
  low: float | None
  high: float | None


class Results(TypedDict):
  """The numbers of the experiment; the keys of the inner objects are readouts."""

  metric: str
  num_prompts: int
  baselines: dict[str, Loss]
  context_guess_loss: float | None
  arms: dict[str, dict[ReadoutName, ReadoutLoss]]
  # For classes: of the arms' expected values, the guess and the frequencies in train.
  log_losses: dict[str, Loss] | None
  paired: dict[ReadoutName, Difference]
  against_guess: dict[ReadoutName, Difference]
  seconds: float


class ModelFacts(TypedDict):
  """The language model, and the libraries and the device that it ran on."""

  model: str
  num_params: int
  engine: str


class PromptFacts(TypedDict):
  """The data and the guesses of the prompts."""

  benchmark: str
  data_sha256: str
  seed: int
  num_examples: int
  context_split: str
  guess: dict[str, str | float | bool]
  guess_loss_by_split: dict[str, float]


class Summary(ModelFacts, PromptFacts, Results):
  """The content of `summary.json`."""


def summarise(lines: Sequence[Line], scale: Scale) -> Results:
  """The numbers of the experiment, from the lines of `prompts.jsonl`.

  A loss is a squared error, or with classes 0 or 1. `paired` is the loss with the guess
  minus that without it, on prompts where both answers were parsed; `against_guess` is
  the loss with the guess minus that of the guess itself. Negative differences are
  better. Means have standard errors and Student's t intervals: losses are bounded, so
  their mean over dozens of prompts is nearly normal.
  """
  losses: dict[str, dict[ReadoutName, Losses]] = {
    arm: {readout: losses_of(lines, scale, arm, readout) for readout in READOUTS}
    for arm in ARMS
  }
  baselines = {name: baseline_losses(lines, scale, name) for name in BASELINES}
  without_guess, with_guess = (losses[arm] for arm in ARMS)
  arms: dict[str, dict[ReadoutName, ReadoutLoss]] = {
    arm: {readout: _readout(values) for readout, values in of_arm.items()}
    for arm, of_arm in losses.items()
  }
  for readout in PARSED:
    copied = [is_copy(scale, line, readout) for line in lines]
    _add_copies(
      arms['with_guess'][readout],
      np.array(copied),
      with_guess[readout],
      baselines['guess'],
    )
  for arm in ARMS:
    masses = [line['arms'][arm]['expected'].get('mass', 0.0) for line in lines]
    arms[arm]['expected']['mass'] = float(np.mean(masses))
  of_contexts = [line['context_guess_loss'] for line in lines]
  known = [loss for loss in of_contexts if loss is not None]
  return {
    'metric': 'error rate' if scale.classes else 'mean squared error',
    'num_prompts': len(lines),
    'baselines': {name: _mean(values) for name, values in baselines.items()},
    'context_guess_loss': float(np.mean(known)) if len(known) == len(lines) else None,
    'arms': arms,
    'log_losses': _log_losses(lines, scale) if scale.classes else None,
    'paired': {r: _difference(with_guess[r] - without_guess[r]) for r in READOUTS},
    'against_guess': {
      r: _difference(with_guess[r] - baselines['guess']) for r in READOUTS
    },
    'seconds': sum(line['seconds'] for line in lines),
  }


def losses_of(
  lines: Sequence[Line], scale: Scale, arm: str, readout: ReadoutName
) -> Losses:
  """The loss of each answer of an arm; NaN where no answer was parsed."""
  answers = [line['arms'][arm][readout]['value'] for line in lines]
  return np.array(
    [
      math.nan if answer is None else scale.loss(answer, line['label'])
      for answer, line in zip(answers, lines, strict=True)
    ]
  )


def baseline_losses(lines: Sequence[Line], scale: Scale, name: str) -> Losses:
  """The loss of a baseline, such as the guess alone, on each prompt."""
  return np.array([scale.loss(line[name], line['label']) for line in lines])


def log_losses(lines: Sequence[Line], scale: Scale, arm: str) -> Losses:
  """−log p of the right class in the expected value of an arm, for each prompt."""
  expected = [line['arms'][arm]['expected'].get('probabilities', {}) for line in lines]
  return np.array(
    [
      scale.log_loss([of[name] for name in scale.classes], line['label'])
      for of, line in zip(expected, lines, strict=True)
    ]
  )


def _log_losses(lines: Sequence[Line], scale: Scale) -> dict[str, Loss]:
  found = {arm: _mean(log_losses(lines, scale, arm)) for arm in ARMS}
  # A guess that was not fitted has no probabilities.
  for name, known in (
    ('guess', [line['guess_log_loss'] for line in lines]),
    ('constant', [line['constant_log_loss'] for line in lines]),
  ):
    found[name] = _mean(np.array([loss for loss in known if loss is not None]))
  return found


def is_copy(scale: Scale, line: Line, readout: ReadoutName) -> bool:
  """Whether the answer with the guess equals the guess."""
  value = line['arms']['with_guess'][readout]['value']
  return value is not None and scale.same(value, line['guess'])


def _mean(values: Losses) -> Loss:
  if not values.size:
    return {'loss': None, 'stderr': None}
  mean, stderr = estimate(values)
  return {'loss': mean, 'stderr': None if math.isnan(stderr) else stderr}


def _bounds(values: Losses) -> tuple[float | None, float | None]:
  """The 95 % interval of the mean, for at least two values."""
  if values.size < 2:
    return None, None
  _, low, high = interval(values)
  return low, high


def _readout(losses: Losses) -> ReadoutLoss:
  parsed = losses[~np.isnan(losses)]
  low, high = _bounds(parsed)
  return {
    'num_parsed': len(parsed),
    'parse_rate': len(parsed) / len(losses),
    **_mean(parsed),
    'low': low,
    'high': high,
  }


def _add_copies(
  found: ReadoutLoss, copied: Bool[np.ndarray, ' n'], losses: Losses, of_guess: Losses
) -> None:
  parsed = ~np.isnan(losses)
  changed = parsed & ~copied
  found['num_copied'] = int(copied.sum())
  found['copied_share'] = float(copied.sum() / parsed.sum()) if parsed.any() else None
  found['num_changed'] = int(changed.sum())
  found['changed_loss'] = _mean(losses[changed])['loss']
  found['changed_guess_loss'] = _mean(of_guess[changed])['loss']


def _difference(differences: Losses) -> Difference:
  found = differences[~np.isnan(differences)]
  mean, (low, high) = _mean(found), _bounds(found)
  return {
    'num': len(found),
    'difference': mean['loss'],
    'stderr': mean['stderr'],
    'low': low,
    'high': high,
  }
