"""Minimisation of a function of one number."""

from collections.abc import Callable

import numpy as np
import scipy.optimize
from jaxtyping import Float


def lowest_point(
  function: Callable[[float], float], grid: Float[np.ndarray, ' n']
) -> tuple[float, float]:
  """The point where a function is lowest, and the value there.

  A local search continues from the lowest point of the grid, between its neighbours.
  """
  values = [function(float(point)) for point in grid]
  lowest = int(np.argmin(values))
  valley = grid[max(lowest - 1, 0)], grid[min(lowest + 1, len(grid) - 1)]
  found = scipy.optimize.minimize_scalar(
    function, bounds=valley, method='bounded', options={'xatol': 1e-12}
  )
  if found.fun > values[lowest]:
    return float(grid[lowest]), values[lowest]
  return float(found.x), float(found.fun)
