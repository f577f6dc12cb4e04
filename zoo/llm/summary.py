"""The results as numbers: losses, paired differences, and copies of guesses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypedDict

import numpy as np
from jaxtyping import Bool, Float64

from zoo.llm.guesses import Scale
from zoo.llm.prompts import ARMS, WITH, WITHOUT, Record
from zoo.llm.readouts import READOUTS, Answers, ReadoutName
from zoo.measure.intervals import estimate, interval

PARSED: tuple[ReadoutName, ...] = 'free', 'forced'  # answers may copy the guess
BASELINES = 'guess', 'context_mean', 'constant'

Losses = Float64[np.ndarray, ' n']  # one per prompt, NaN if no answer was parsed
Numbers: TypeAlias = dict[str, int | float | None]  # by name


class Line(Record):
  """A line of `prompts.jsonl`: a prompt, and its answers by arm."""

  arms: dict[str, Answers]
  seconds: float


class Results(TypedDict):
  """The numbers of the experiment; the keys of the inner objects are readouts.

  A mean has a standard error, and that of answers or differences a 95 % interval; None
  stands for what too few answers do not have. With a guess, a parsed readout also
  reports how many answers copy it, and the losses where they do not.
  """

  metric: str
  num_prompts: int
  baselines: dict[str, Numbers]
  arms: dict[str, dict[ReadoutName, Numbers]]
  paired: dict[ReadoutName, Numbers]
  against_guess: dict[ReadoutName, Numbers]
  seconds: float


class Summary(Results):
  """The content of `summary.json`, with the model, the data and the guesses."""

  model: str
  num_params: int
  engine: str  # the libraries and the device that it ran on
  benchmark: str
  data_sha256: str
  seed: int
  num_examples: int
  context_split: str
  guess: dict[str, str | float | bool]
  guess_loss_by_split: dict[str, float]


class ByPrompt(NamedTuple):
  """What each prompt of a run gives, by arm and readout, and by baseline."""

  losses: dict[str, dict[ReadoutName, Losses]]
  baselines: dict[str, Losses]
  copied: dict[ReadoutName, Bool[np.ndarray, ' n']]  # an answer that equals the guess


def by_prompt(lines: Sequence[Line], scale: Scale) -> ByPrompt:
  """The losses of all answers and baselines, and which answers are copies."""

  def losses(found: Sequence[float | str | None]) -> Losses:
    return np.array(
      [
        math.nan if answer is None else scale.loss(answer, line['label'])
        for answer, line in zip(found, lines, strict=True)
      ]
    )

  def answers(arm: str, readout: ReadoutName) -> list[float | str | None]:
    return [line['arms'][arm][readout]['value'] for line in lines]

  def is_copied(readout: ReadoutName) -> list[bool]:
    return [
      value is not None and scale.same(value, line['guess'])
      for value, line in zip(answers(WITH, readout), lines, strict=True)
    ]

  return ByPrompt(
    {arm: {r: losses(answers(arm, r)) for r in READOUTS} for arm in ARMS},
    {name: losses([line[name] for line in lines]) for name in BASELINES},
    {r: np.array(is_copied(r)) for r in READOUTS},
  )


def summarise(lines: Sequence[Line], scale: Scale) -> Results:
  """The numbers of the experiment, from the lines of `prompts.jsonl`.

  A loss is a squared error, or with classes 0 or 1. `paired` is the loss with the guess
  minus that without it, on prompts where both answers were parsed; `against_guess` is
  the loss with the guess minus that of the guess itself. Negative differences are
  better. Means have standard errors and Student's t intervals: losses are bounded, so
  their mean over dozens of prompts is nearly normal.
  """
  found = by_prompt(lines, scale)
  with_guess, of_guess = found.losses[WITH], found.baselines['guess']
  arms: dict[str, dict[ReadoutName, Numbers]] = {
    arm: {r: _readout(losses) for r, losses in of_arm.items()}
    for arm, of_arm in found.losses.items()
  }
  for r in PARSED:
    arms[WITH][r] |= _copies(found.copied[r], with_guess[r], of_guess)
  for arm in ARMS:
    masses = [line['arms'][arm]['expected'].get('mass', 0.0) for line in lines]
    arms[arm]['expected']['mass'] = float(np.mean(masses))
  return {
    'metric': 'error rate' if scale.classes else 'mean squared error',
    'num_prompts': len(lines),
    'baselines': {name: _loss(losses) for name, losses in found.baselines.items()},
    'arms': arms,
    'paired': {
      r: _difference(with_guess[r] - found.losses[WITHOUT][r]) for r in READOUTS
    },
    'against_guess': {r: _difference(with_guess[r] - of_guess) for r in READOUTS},
    'seconds': sum(line['seconds'] for line in lines),
  }


def _mean(values: Losses) -> Numbers:
  """The mean of the numbers that are not NaN; None for what too few do not have."""
  known = values[~np.isnan(values)]
  mean = stderr = low = high = None
  if known.size:
    mean = float(known.mean())
  if known.size > 1:
    stderr, (_, low, high) = estimate(known).stderr, interval(known)
  return {'num': known.size, 'mean': mean, 'stderr': stderr, 'low': low, 'high': high}


def _loss(values: Losses) -> Numbers:
  found = _mean(values)
  return {'loss': found['mean'], 'stderr': found['stderr']}


def _readout(losses: Losses) -> Numbers:
  found = _mean(losses)
  num = len(losses) - int(np.isnan(losses).sum())
  bounds = {'low': found['low'], 'high': found['high']}
  return {'num_parsed': num, 'parse_rate': num / len(losses), **_loss(losses), **bounds}


def _copies(
  copied: Bool[np.ndarray, ' n'], losses: Losses, of_guess: Losses
) -> Numbers:
  parsed = ~np.isnan(losses)
  changed = parsed & ~copied
  return {
    'num_copied': int(copied.sum()),
    'copied_share': float(copied.sum() / parsed.sum()) if parsed.any() else None,
    'num_changed': int(changed.sum()),
    'changed_loss': _mean(losses[changed])['mean'],
    'changed_guess_loss': _mean(of_guess[changed])['mean'],
  }


def _difference(differences: Losses) -> Numbers:
  found = _mean(differences)
  return {'num': found['num'], 'difference': found.pop('mean'), **found}
