"""The plateaus of gradient flow from saddle to saddle."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from zoo.core.errors import UserError, check_count, check_vector


def plateaus(
  eigenvalues: ArrayLike | Sequence[Any], num_examples: int
) -> Float[np.ndarray, ' n']:
  """Returns the risks of the saddles near which gradient flow may pause.

  The flow is that of heads with keys and queries of rank one, on a task with
  `ŵ ~ N(0, I)`, feature covariance Λ, no noise and N examples. From small weights it
  goes from saddle to saddle and learns one eigenvector of Λ after the other, the
  largest eigenvalue first. It may fall past some of the saddles without a pause. Their
  risks are

      L_m = tr Λ − Σ_{i≤m} λ_i / (1 + (1 + tr Λ/λ_i)/N).

  `L_m` is the exact risk of the best step matrix that is 0 except on the m largest
  eigenvalues. `L_d` is the risk of `optimal_rule`.

  Args:
    eigenvalues: The eigenvalues λ_1, …, λ_d > 0 of Λ, in any order.
    num_examples: N ≥ 1.

  Returns:
    The risks `L_0, …, L_d`, `[d + 1]`.

  Raises:
    UserError: If an eigenvalue is not > 0, or `num_examples` is out of its range.

  Example:
    >>> zoo.theory.plateaus([0.4, 0.3, 0.2, 0.1], num_examples=31).round(4).tolist()
    [1.0, 0.6406, 0.3774, 0.2098, 0.136]

  References:
    Zhang, Singh, Latham & Saxe, arXiv 2501.16265. docs/dynamics.md, section 2.
  """
  values = check_vector('eigenvalues', eigenvalues, None)
  count = check_count('num_examples', num_examples)
  if not np.all(values > 0):
    raise UserError(f'eigenvalues has {values.min():g}; all of them must be > 0')
  values, trace = np.sort(values)[::-1], values.sum()
  learned = values / (1 + (1 + trace / values) / count)
  return trace - np.append(0.0, np.cumsum(learned))
