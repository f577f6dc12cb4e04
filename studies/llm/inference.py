"""The weights of the guess in answers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.measure.statistics import least_squares


class Weights(NamedTuple):
  """The weights of the guess, and of the answer without it, in an answer.

  All are None if the two cannot be told apart.
  """

  guess_weight: float | None = None
  guess_weight_stderr: float | None = None
  own_weight: float | None = None
  own_weight_stderr: float | None = None


def weights(
  guess: Float[np.ndarray, ' n'],
  own: Float[np.ndarray, ' n'],
  answer: Float[np.ndarray, ' n'],
) -> Weights:
  """The least-squares fit `answer = a·guess + b·own + c` over prompts.

  Copying means a = 1 and b = 0. The standard errors are those of equal variances. The
  two weights cannot be told apart if guess or own answer does not vary, if both vary
  alike, or if there are too few prompts.
  """
  fit = least_squares(np.stack([guess, own, np.ones(len(answer))], axis=1), answer)
  if fit is None:
    return Weights()
  (a, b, _), (a_error, b_error, _) = fit.mean.tolist(), fit.stderr.tolist()
  return Weights(a, a_error, b, b_error)
