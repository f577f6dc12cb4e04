"""Tasks whose features have a fixed spectrum in a frame that is new for each prompt."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import UserError, check_count, check_number, check_vector
from zoo.theory.deep.feature_moments import feature_moments

_MOST_STEPS = 4  # the moments that more steps need are too many


def power_law(num_features: int, exponent: int | float) -> Float[np.ndarray, ' d']:
  """The eigenvalues `∝ k^−a` of a feature covariance, k = 1 … d, with the mean 1."""
  d = check_count('num_features', num_features)
  a = check_number('exponent', exponent)
  values = np.arange(1, d + 1.0) ** -a
  return values * d / values.sum()


def rotated_optimum(
  variances: ArrayLike | Sequence[Any],
  context_length: int,
  num_steps: int,
  noise_std: int | float = 0.0,
) -> float:
  """The least risk of k steps of gradient descent if each prompt has its own frame.

  Features of a prompt are `N(0, Q diag(variances) Qᵀ)` with a uniformly random
  orthogonal Q, and `ŵ ~ N(0, I)` (Bordelon, Letey & Pehlevan, arXiv 2510.01098). No
  fixed matrix step can then use the spectrum, so that more steps always help. Weights
  `Q(S) Xᵀy/C` rotate with the frame, so that their risk is that of one fixed frame,
  `E tr Σ P(S)² + (σ²/C) E tr Σ Q(S)² S` with `P = 1 − sQ`. The least over polynomials Q
  of degree k − 1 is exact at any d; for k = 1 no learning rule is better. `num_steps`
  is 1 to 4. Raises UserError naming the argument that is wrong.
  """
  shape = np.shape(variances)
  values = check_vector('variances', variances, shape[0] if shape else 1)
  if np.any(values < 0):
    raise UserError(f'variances has {values.min():g}; all of them must be ≥ 0')
  c = check_count('context_length', context_length)
  steps = check_count('num_steps', num_steps, maximum=_MOST_STEPS)
  noise = check_number('noise_std', noise_std, minimum=0.0) ** 2
  _, traces = feature_moments(values, c, steps + 1)  # E tr Σ Sⁱ, i ≤ 2k
  i = np.arange(1, steps + 1)
  order = i[:, None] + i
  gram = traces[order] + noise / c * traces[order - 1]
  scale = 1 / np.sqrt(np.diag(gram))  # high powers are much larger than low ones
  solved = np.linalg.solve(gram * scale[:, None] * scale, traces[i] * scale)
  return float(traces[0] - traces[i] * scale @ solved)
