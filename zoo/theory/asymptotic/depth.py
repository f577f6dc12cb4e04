"""Gradient descent, and deep linear attention, for many features and examples."""

import math

import scipy.special

from zoo.core.errors import check_count, check_number


def depth_limit(ratio: int | float, num_steps: int, shared: bool = False) -> float:
  """The share of the risk that L steps of gradient descent leave, as d → ∞.

  For isotropic features and weights, no noise, and C = `ratio` · d examples:
  with the best size for each step `1 / (1 + α + … + α^L)`, α being the ratio > 0; with
  one size for all steps, of which `α/(1 + α)` is the best for every L,
  `1 − α/(1 + α) Σ_{j<L} Cat_j (α/(1 + α)²)ʲ` with the Catalan numbers. The first, with
  `theory.deep.degree(L)` for L, bounds every polynomial in S that L layers of linear
  attention can compute. Proofs: docs/large_dimension.md, section 1. Raises UserError
  naming the argument that is wrong.
  """
  alpha = check_number('ratio', ratio, above=0.0)
  steps = check_count('num_steps', num_steps, minimum=0)
  if not shared:
    # Both forms are the same; neither overflows.
    low = min(alpha, 1 / alpha)
    total = math.fsum(low**k for k in range(steps + 1))
    return (1.0 if alpha <= 1 else low**steps) / total
  # The Catalan series sums to what all steps remove, so its tail is what is left: the
  # mass at 0, and positive terms.
  x = alpha / (1 + alpha) ** 2
  log_catalan = (
    scipy.special.gammaln(2 * steps + 1)
    - 2 * scipy.special.gammaln(steps + 1)
    - math.log(steps + 1)
  )
  first = math.exp(log_catalan + steps * math.log(x))
  tail = first * scipy.special.hyp2f1(1, steps + 0.5, steps + 2, 4 * x)
  return float(max(0.0, 1 - alpha) + alpha / (1 + alpha) * tail)
