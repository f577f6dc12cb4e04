"""The plateaus of gradient flow from saddle to saddle."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import UserError, check_count, check_vector


def plateaus(
  eigenvalues: ArrayLike | Sequence[Any], num_examples: int
) -> Float[np.ndarray, ' n']:
  """The risks `L_0, …, L_d` on which heads of rank-one keys and queries pause.

  `eigenvalues` are those of the feature covariance Λ, > 0 and in any order, of a task
  with `ŵ ~ N(0, I)`, no noise and N examples:

      L_m = tr Λ − Σ_{i≤m} λ_i / (1 + (1 + tr Λ/λ_i)/N)

  (Zhang, Singh, Latham & Saxe, arXiv 2501.16265). `L_m` is the exact risk of
  the best step matrix that is 0 but on the m largest eigenvalues, and `L_d` that of
  `optimal_rule`. Raises UserError naming the argument that is wrong.
  """
  values = check_vector('eigenvalues', eigenvalues, None)
  count = check_count('num_examples', num_examples)
  if not np.all(values > 0):
    raise UserError(f'eigenvalues has {values.min():g}; all of them must be > 0')
  values, trace = np.sort(values)[::-1], values.sum()
  learned = values / (1 + (1 + trace / values) / count)
  return trace - np.append(0.0, np.cumsum(learned))
