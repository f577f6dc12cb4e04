"""Tasks whose features have a fixed spectrum in a frame that is new for each prompt."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import ArrayLike, Float

from zoo.core.errors import UserError, check_count, check_number, check_vector
from zoo.theory.deep.feature_moments import feature_moments

_MOST_STEPS = 4  # the moments that more steps need are too many
_RESOLVED = 1e-8  # of the risk without examples; rounding errors are 1e-13 of it


def rotated_optimum(
  variances: ArrayLike | Sequence[Any],
  context_length: int,
  num_steps: int,
  noise_std: int | float = 0.0,
) -> float:
  """The least risk of k steps of gradient descent if each prompt has its own frame.

  The task is `rotated_regression`: features of a prompt are `N(0, Q diag(variances)
  Qᵀ)` with a uniformly random orthogonal Q, and `ŵ ~ N(0, I)` (Bordelon, Letey &
  Pehlevan, arXiv 2510.01098). No fixed matrix step can then use the spectrum, so that
  more steps always help. Weights `Q(S) Xᵀy/C` rotate with the frame, so that their risk
  is that of one fixed frame, `E tr Σ P(S)² + (σ²/C) E tr Σ Q(S)² S` with `P = 1 − sQ`.
  The least over polynomials Q of degree k − 1 is exact at any d; for k = 1 no learning
  rule is better. `num_steps` is 1 to 4. Raises UserError naming the argument that is
  wrong.
  """
  values = _checked(variances)
  c = check_count('context_length', context_length)
  steps = check_count('num_steps', num_steps, maximum=_MOST_STEPS)
  noise = check_number('noise_std', noise_std, minimum=0.0) ** 2
  _, traces = feature_moments(values, c, steps + 1)  # E tr Σ Sⁱ, i ≤ 2k
  return _least(traces, noise / c)


def rotated_limit(
  variances: ArrayLike | Sequence[Any],
  ratio: int | float,
  num_steps: int,
  noise_ratio: int | float = 0.0,
) -> float:
  """`rotated_optimum/d` as d → ∞, with C = `ratio` · d and σ² = `noise_ratio` · d.

  The eigenvalues have the distribution of `variances`. With `h_k` its moments the
  traces `T(z) = Σ_i zⁱ lim E tr ΣSⁱ/d` solve `T = Σ_k h_(k+1) (zg)^k`,
  `g = 1/(1 − zT/α)` (docs/large_dimension.md, section 3). Raises UserError naming the
  argument that is wrong.
  """
  values = _checked(variances)
  alpha = check_number('ratio', ratio, above=0.0)
  steps = check_count('num_steps', num_steps, maximum=_MOST_STEPS)
  noise = check_number('noise_ratio', noise_ratio, minimum=0.0)
  size = 2 * steps + 1
  moments = [np.mean(values ** (k + 1)) for k in range(size)]
  one = np.eye(size)[0]
  traces, moved = 0 * one, np.eye(size, k=-1)  # `moved` multiplies a series by z
  for _ in range(size):  # each time one more coefficient is right
    g = scipy.linalg.solve_triangular(
      scipy.linalg.toeplitz(one - moved @ traces / alpha, 0 * one), one, lower=True
    )
    term, traces = one, 0 * one
    for moment in moments:
      traces = traces + moment * term
      term = moved @ np.convolve(term, g)[:size]
  return _least(traces, noise / alpha)


def _checked(variances: ArrayLike | Sequence[Any]) -> Float[np.ndarray, ' d']:
  values = check_vector('variances', variances, None)
  if np.any(values < 0):
    raise UserError(f'variances has {values.min():g}; all of them must be ≥ 0')
  return values


def _least(traces: Float[np.ndarray, ' m'], noise: float) -> float:
  """The least risk over polynomials, from `E tr ΣSⁱ`, i ≤ 2k, and σ²/C."""
  i = np.arange(1, (len(traces) + 1) // 2)
  order = i[:, None] + i
  if traces[0] == 0:  # there are no features
    return 0.0
  gram = traces[order] + noise * traces[order - 1]
  scale = 1 / np.sqrt(np.diag(gram))  # high powers are much larger than low ones
  solved = np.linalg.lstsq(gram * scale[:, None] * scale, traces[i] * scale)[0]
  risk = float(traces[0] - traces[i] * scale @ solved)
  if risk < _RESOLVED * traces[0]:
    raise UserError(
      f'num_steps is {len(i)}; so many steps leave less than {_RESOLVED:g} of the risk '
      'without examples, which float64 does not resolve here; ask for fewer'
    )
  return risk
