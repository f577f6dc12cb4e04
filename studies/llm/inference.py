"""The weight that an answer gives to the guess."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.measure.statistics import least_squares


class Weights(NamedTuple):
  """The weights of a least-squares fit of answers, all None if not determined.

  Attributes:
    guess_weight: The weight of the guess.
    guess_weight_stderr: Its standard error.
    own_weight: The weight of the answer to the same prompt without guesses.
    own_weight_stderr: Its standard error.
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
  """Fits `answer = a·guess + b·own + c` over prompts, by least squares.

  Copying the guess means a = 1 and b = 0, ignoring it a = 0 and b = 1.

  Args:
    guess: The guess of each query.
    own: The answer to each prompt without guesses.
    answer: The answer to each prompt with guesses.

  Returns:
    The weights a and b with standard errors that assume equal variances. All are None
    if the guess or the own answer is constant, if one is a linear function of the
    other, or if there are too few prompts.
  """
  fit = least_squares(np.stack([guess, own, np.ones(len(answer))], axis=1), answer)
  if fit is None:
    return Weights()
  (a, b, _), (a_error, b_error, _) = fit.mean.tolist(), fit.stderr.tolist()
  return Weights(a, a_error, b, b_error)
