"""Linear maps from values inside a model, and what they predict on other prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from zoo.core.errors import UserError
from zoo.core.losses import ROUNDING
from zoo.measure.intervals import Estimate, one_more, welch_sum
from zoo.measure.ratio import ratio
from zoo.measure.tests import p_value_above_zero

_PENALTIES = np.logspace(-6, 4, 21)  # The unit is the largest squared singular value.


# With two untrained models the interval of `above_untrained` contains the truth in 0.87
# of draws, since Welch's degrees of freedom depend on a spread that has one.
LEAST_UNTRAINED = 3
# With fewer prompts, of which half score the map, the 95 % intervals of R² contain the
# truth in less than 93 % of draws.
LEAST_PROMPTS = 128


def check_untrained(untrained: Sequence[Any]) -> None:
  """Raises UserError for one or two untrained models, whose spread is not known."""
  if 0 < len(untrained) < LEAST_UNTRAINED:
    raise UserError(
      f'the number of untrained models is {len(untrained)}; their spread needs '
      f'{LEAST_UNTRAINED} or more'
    )


class Ridge:
  """Ridge regression from standardised inputs, decomposed once for all targets."""

  def __init__(self, inputs: Float[np.ndarray, 'b m']):
    self.mean, self.spread = inputs.mean(axis=0), inputs.std(axis=0)
    # The mean of a constant column may differ from its value by rounding.
    self.spread[inputs.max(axis=0) == inputs.min(axis=0)] = 1
    self.left, self.singular, self.right = np.linalg.svd(
      self._standard(inputs), full_matrices=False
    )

  def __call__(
    self, targets: Float[np.ndarray, 'b t'], inputs: Float[np.ndarray, 'a m']
  ) -> Float[np.ndarray, 'a t']:
    """Returns predictions for other inputs, with the penalty of the least GCV error."""
    centre = targets.mean(axis=0)
    along = self.left.T @ (targets - centre)
    squares = np.square(self.singular)
    outside = np.square(targets - centre).sum() - np.square(along).sum()
    best, least = None, np.inf
    for penalty in _PENALTIES * max(squares.max(), np.finfo(float).tiny):
      kept = squares / (squares + penalty)
      error = np.square((1 - kept)[:, None] * along).sum() + max(outside, 0.0)
      freedom = len(targets) - 1 - kept.sum()  # The mean takes one degree of freedom.
      gcv = error / freedom**2 if freedom > 0 else np.inf
      if gcv < least:
        least, best = gcv, penalty
    penalty = squares.max() if best is None else best
    weights = self.right.T @ ((self.singular / (squares + penalty))[:, None] * along)
    return centre + self._standard(inputs) @ weights

  def _standard(self, inputs: Float[np.ndarray, 'b m']) -> Float[np.ndarray, 'b m']:
    return (inputs - self.mean) / self.spread


def squares(
  predicted: Float[np.ndarray, 'b t'], target: Float[np.ndarray, 'n t'], half: int
) -> tuple[Float[np.ndarray, ' b'], Float[np.ndarray, ' b']]:
  """Returns squared errors and their denominators, after the first half of prompts."""
  error = np.square(predicted - target[half:]).sum(axis=1)
  whole = np.square(target[half:] - target[:half].mean(axis=0)).sum(axis=1)
  if whole.sum() <= ROUNDING * np.square(target[half:]).sum():
    whole = np.zeros_like(whole)  # It is rounding, of which R² would be a ratio.
  return error, whole


def one_minus(unexplained: Estimate) -> Estimate:
  """Returns R² from the share that is not explained."""
  return dataclasses.replace(unexplained, mean=1 - unexplained.mean)


def beside_untrained(
  error: Float[np.ndarray, ' b'],
  errors: Sequence[Float[np.ndarray, ' b']],
  whole: Float[np.ndarray, ' b'],
) -> dict[str, Any]:
  """Returns R² of one more untrained model, how far the model is above it, and p.

  Both are on the same prompts.
  """
  of_untrained = [1 - ratio(other, whole).mean for other in errors]
  control, n = one_more(of_untrained), len(errors)
  gap = ratio(np.mean(errors, axis=0) - error, whole)
  spread = float(np.var(of_untrained, ddof=1)) * (1 + 1 / n)  # of one more model
  above = welch_sum(gap.mean, [(gap.stderr**2, len(error) - 1), (spread, n - 1)])
  p_value = p_value_above_zero(above)
  return {'untrained': control, 'above_untrained': above, 'p_value': p_value}
