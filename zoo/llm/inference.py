"""Statistics of the ablation: weights of the guess, and comparisons."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from zoo.measure.statistics import estimate, interval


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
  n = len(answer)
  x = np.stack([guess, own, np.ones(n)], axis=1)
  sizes = np.maximum(np.abs(x).max(axis=0, initial=0.0), 1e-300)
  x /= sizes
  # Rounding may leave differences of 1e-15 in a constant column.
  if n <= 3 or np.linalg.matrix_rank(x, rtol=1e-9) < 3:
    return Weights()
  fitted, *_ = np.linalg.lstsq(x, answer)
  errors = answer - x @ fitted
  covariance = np.linalg.inv(x.T @ x) * (errors @ errors) / (n - 3)
  a, b, _ = (fitted / sizes).tolist()
  a_error, b_error, _ = (np.sqrt(np.diag(covariance)) / sizes).tolist()
  return Weights(a, a_error, b, b_error)


def p_value(differences: Float[np.ndarray, ' n']) -> float | None:
  """The two-sided p of a paired test; None for fewer than two differences.

  It is the t test, or the exact sign test if all differences but zeros have one size.
  Those of losses 0 and 1 do: then it is McNemar's exact test.
  """
  if len(differences) < 2:
    return None
  if not differences.any():
    return 1.0
  if (signs := _sign_test(differences)) is not None:
    return float(signs.pvalue)
  mean, stderr = estimate(differences)
  return float(2 * stats.t.sf(abs(mean) / stderr, len(differences) - 1))


def paired_interval(
  differences: Float[np.ndarray, ' n'], confidence: float
) -> tuple[float, float] | None:
  """The interval of the mean that belongs to the test of `p_value`.

  For the sign test it is Clopper and Pearson's for the share of positive signs, given
  the number of differences that are not 0. None if all are 0, or for fewer than two.
  """
  if len(differences) < 2 or not differences.any():
    return None
  if (signs := _sign_test(differences)) is not None:
    share = signs.proportion_ci(confidence)
    scale = float(np.abs(differences).sum()) / len(differences)
    return scale * (2 * share.low - 1), scale * (2 * share.high - 1)
  _, low, high = interval(differences, confidence)
  return low, high


def _sign_test(differences: Float[np.ndarray, ' n']) -> Any:
  """SciPy's test of signs, if all differences have one size or are 0; None for others.

  At least one must not be 0.
  """
  nonzero = differences[differences != 0]
  if len(np.unique(np.abs(nonzero))) > 1:
    return None
  return stats.binomtest(int((nonzero > 0).sum()), len(nonzero))
