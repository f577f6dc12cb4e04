"""Local searches for the least value of a function."""

import functools
from collections.abc import Callable

import numpy as np
import scipy.optimize
from jaxtyping import Float, Inexact


def lowest_point(
  function: Callable[[float], float], grid: Float[np.ndarray, ' n']
) -> float:
  """The point where a function is lowest.

  A local search continues from the lowest point of the grid, between its neighbours.
  """
  values = [function(float(point)) for point in grid]
  lowest = int(np.argmin(values))
  valley = grid[max(lowest - 1, 0)], grid[min(lowest + 1, len(grid) - 1)]
  found = scipy.optimize.minimize_scalar(
    function, bounds=valley, method='bounded', options={'xatol': 1e-12}
  )
  if found.fun > values[lowest]:
    return float(grid[lowest])
  return float(found.x)


def least_squares(
  residuals: Callable[[Inexact[np.ndarray, '*n p']], Inexact[np.ndarray, '*n r']],
  start: Float[np.ndarray, ' p'],
) -> Float[np.ndarray, ' p']:
  """The point that Levenberg and Marquardt's search for the least squares ends at.

  The residuals must be analytic: the derivative in each coordinate is the imaginary
  part that a step along it, too small to change the real part, gives.
  """
  steps = 1e-30j * np.eye(start.size)

  @functools.lru_cache(1)  # the search asks for both outputs at each point
  def evaluate(point: bytes) -> tuple[np.ndarray, np.ndarray]:
    found = residuals(np.frombuffer(point) + steps)
    return found[0].real, np.imag(found).T * 1e30

  found = scipy.optimize.least_squares(
    lambda point: evaluate(point.tobytes())[0],
    start,
    jac=lambda point: evaluate(point.tobytes())[1],  # pyright: ignore
    method='lm',
    x_scale='jac',
    xtol=1e-12,
    ftol=1e-12,
    gtol=1e-12,
    max_nfev=300,
  )
  return found.x
