"""The results as numbers: losses, paired differences, and copies of guesses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64

from studies.llm.guesses import LabelScale
from studies.llm.prompts import ARMS, WITH, WITHOUT
from studies.llm.readouts import READOUTS
from zoo.measure.statistics import estimate, interval

BASELINES = 'guess', 'context_mean', 'constant'

# A row of a prompt in `rows.jsonl`: its record, its answers by arm, and seconds.
Line: TypeAlias = dict[str, Any]
Losses = Float64[np.ndarray, ' n']  # one per prompt, NaN if no answer was parsed


def answers(lines: Sequence[Line], arm: str, readout: str) -> list[Any]:
  """The labels that were read, None where no answer was parsed."""
  return [line['arms'][arm][readout]['value'] for line in lines]


def losses(labels: Sequence[Any], lines: Sequence[Line], scale: LabelScale) -> Losses:
  """The losses of answers or of guesses, by prompt."""
  return np.array(
    [
      math.nan if label is None else scale.loss(label, line['label'])
      for label, line in zip(labels, lines, strict=True)
    ]
  )


def summarise(lines: Sequence[Line], scale: LabelScale) -> dict[str, Any]:
  """The numbers of the experiment, from the rows of the prompts.

  A loss is a squared error, or with classes 0 or 1. `paired` is the loss with the guess
  minus that without it, on prompts where both answers were parsed; `against_guess` is
  the loss with the guess minus that of the guess itself. Negative differences are
  better. Means have standard errors and Student's t intervals: losses are bounded, so
  their mean over dozens of prompts is nearly normal. None stands for what too few
  answers do not have. With a guess, it is also counted how many answers copy it.
  """
  baselines = {
    name: losses([line[name] for line in lines], lines, scale) for name in BASELINES
  }
  without, with_guess = (
    {r: losses(answers(lines, arm, r), lines, scale) for r in READOUTS} for arm in ARMS
  )
  of_guess = baselines['guess']
  arms = {WITHOUT: _readouts(lines, WITHOUT, without)}
  arms[WITH] = _readouts(lines, WITH, with_guess)
  for r in READOUTS:
    copied = np.array(
      [
        answer is not None and scale.same(answer, line['guess'])
        for answer, line in zip(answers(lines, WITH, r), lines, strict=True)
      ]
    )
    arms[WITH][r] |= _copies(copied, with_guess[r], of_guess)
  return {
    'metric': 'error rate' if scale.classes else 'mean squared error',
    'num_prompts': len(lines),
    'baselines': {name: _mean(baselines[name], 'loss') for name in BASELINES},
    'arms': arms,
    'paired': {r: _mean(with_guess[r] - without[r], 'difference') for r in READOUTS},
    'against_guess': {
      r: _mean(with_guess[r] - of_guess, 'difference') for r in READOUTS
    },
    'seconds': sum(line['seconds'] for line in lines),
  }


def _mean(values: Losses, name: str) -> dict[str, Any]:
  """The mean of the numbers that are not NaN; None for what too few do not have."""
  known = values[~np.isnan(values)]
  mean = stderr = low = high = None
  if known.size:
    mean = float(known.mean())
  if known.size > 1:
    stderr, (_, low, high) = estimate(known).stderr, interval(known)
  return {'num': known.size, name: mean, 'stderr': stderr, 'low': low, 'high': high}


def _readouts(
  lines: Sequence[Line], arm: str, of_arm: dict[str, Losses]
) -> dict[str, dict[str, Any]]:
  numbers = {}
  for r, values in of_arm.items():
    mean = _mean(values, 'loss')
    num = mean.pop('num')
    numbers[r] = {'num_parsed': num, 'parse_rate': num / len(lines), **mean}
  masses = [line['arms'][arm]['expected'].get('mass', 0.0) for line in lines]
  numbers['expected']['mass'] = float(np.mean(masses))
  return numbers


def _copies(
  copied: Bool[np.ndarray, ' n'], values: Losses, of_guess: Losses
) -> dict[str, Any]:
  parsed = ~np.isnan(values)
  changed = parsed & ~copied
  return {
    'num_copied': int(copied.sum()),
    'copied_share': float(copied.sum() / parsed.sum()) if parsed.any() else None,
    'num_changed': int(changed.sum()),
    'changed_loss': _mean(values[changed], 'loss')['loss'],
    'changed_guess_loss': _mean(of_guess[changed], 'loss')['loss'],
  }
