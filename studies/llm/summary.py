"""The results of an experiment: losses, paired differences, and copied guesses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64

from studies.llm.guesses import LabelScale
from studies.llm.prompts import ARMS, WITH, WITHOUT
from studies.llm.readouts import READOUTS
from zoo.measure.intervals import estimate

BASELINES = 'guess', 'context_mean', 'constant'

# The row of a prompt in `rows.jsonl`: its record, its answers by arm, and its seconds.
Line: TypeAlias = dict[str, Any]
Losses = Float64[np.ndarray, ' n']  # a loss for each prompt; NaN without an answer


def answers(lines: Sequence[Line], arm: str, readout: str) -> list[Any]:
  """Returns the labels that a readout gave, with None where none was parsed."""
  return [line['arms'][arm][readout]['value'] for line in lines]


def losses(labels: Sequence[Any], lines: Sequence[Line], scale: LabelScale) -> Losses:
  """Returns the loss of an answer or a guess for each prompt; NaN for None."""
  return np.array(
    [
      math.nan if label is None else scale.loss(label, line['label'])
      for label, line in zip(labels, lines, strict=True)
    ]
  )


def summarise(lines: Sequence[Line], scale: LabelScale) -> dict[str, Any]:
  """Computes the numbers of an experiment from the rows of its prompts.

  A loss is a squared error or, with classes, 0 if the answer is right and 1 if not.
  Means have standard errors and Student's t intervals. Losses are bounded, so that
  their mean over dozens of prompts is nearly normal. A number for which there are too
  few answers is None.

  Args:
    lines: The rows of the prompts.
    scale: The scale of the labels.

  Returns:
    A dictionary with the losses of each arm and readout (`arms`), which for prompts
    with guesses has the number of copied guesses, too; the losses of the baselines; the
    loss with guesses minus that without them, on prompts where both answers were parsed
    (`paired`); and the loss with guesses minus that of the guess itself
    (`against_guess`). If a difference is negative, the answer with the guess is better.
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
  """Returns the mean of the numbers that are not NaN, with None for what is unknown."""
  known = values[~np.isnan(values)]
  mean = stderr = low = high = None
  if known.size:
    mean = float(known.mean())
  if known.size > 1:
    found = estimate(known)
    stderr, low, high = found.stderr, found.low, found.high
  return {'num': known.size, name: mean, 'stderr': stderr, 'low': low, 'high': high}


def _readouts(
  lines: Sequence[Line], arm: str, of_arm: dict[str, Losses]
) -> dict[str, dict[str, Any]]:
  numbers = {}
  for r, values in of_arm.items():
    mean = _mean(values, 'loss')
    num = mean.pop('num')
    numbers[r] = {'num_parsed': num, 'parse_rate': num / len(lines), **mean}
  masses = [line['arms'][arm]['expected']['mass'] for line in lines]
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
