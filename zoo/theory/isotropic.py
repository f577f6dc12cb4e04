"""The lowest known risk of multi-head LSA by number of heads, on isotropic tasks."""

import math

import numpy as np
from jaxtyping import Float

from zoo.core.errors import check_count, check_number
from zoo.theory.search import lowest_point

_ANGLES = np.linspace(0, math.pi, 2001)


def isotropic_head_limit(
  num_features: int, context_length: int, num_heads: int, distance: float
) -> float:
  """The lowest known risk for Σ = Λ = I, σ = 0 and β = 0, computed in milliseconds.

  `distance` is |w* − g|. Up to d − 1 heads the search is over one angle, between the
  hidden direction and the label's. That no other subspace is better is a conjecture:
  the search of `head_limited_risk` over all subspaces agrees for d = 3, 4, 5 and 10.
  From d heads on the result is proved to be the infimum,
  `d (d + 1) / (C + d + 1) + 2 distance² / (dC + 2)`.
  Raises UserError naming the argument that is wrong.
  """
  d = check_count('num_features', num_features)
  c = check_count('context_length', context_length)
  heads = check_count('num_heads', num_heads)
  delta = check_number('distance', distance, minimum=0.0)
  if heads >= d:
    return d * (d + 1) / (c + d + 1) + 2 * delta**2 / (d * c + 2)
  others, m, e = heads - 1, 1 + (d + 1) / c, d + 2 / c
  q = np.array([delta, delta * others, 2, delta * d])
  quadratic = np.array(
    [
      [1 + 2 / c, others, 0, e],
      [others, others**2 + 2 * others / c, 0, others * e],
      [0, 0, 4 * m, 0],
      [e, others * e, 0, (1 + 2 / c) * d * (d + 2)],
    ]
  )
  used = np.array([True, others > 0, True, True])
  q, inverse = q[used], np.linalg.inv(quadratic[used][:, used])

  def risks(angles: Float[np.ndarray, ' n']) -> Float[np.ndarray, ' n']:
    sine, cosine = np.sin(angles), np.cos(angles)
    zero = np.zeros_like(sine)
    a = np.stack([sine**2, zero, -2 * sine * cosine, cosine**2], axis=-1)[:, used]
    # min uᵀQu − 2qᵀu subject to aᵀu = 0.
    bound = np.square(a @ inverse @ q) / np.einsum('ni,ij,nj->n', a, inverse, a)
    first = delta**2 + 1 - q @ inverse @ q + bound
    # 1 − 1/(m + cot²θ/C) for each direction without a head.
    rest = 1 - sine**2 / (m * sine**2 + cosine**2 / c)
    return first + others * (1 - 1 / m) + (d - heads) * rest

  nearest = int(np.argmin(risks(_ANGLES)))
  valley = _ANGLES[max(nearest - 1, 0) : nearest + 2]
  _, lowest = lowest_point(lambda angle: float(risks(np.array([angle]))[0]), valley)
  return lowest
