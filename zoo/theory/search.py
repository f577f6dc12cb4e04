"""Local searches for the least value of a function."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from zoo.core.learning_rule import AnyArray
from zoo.theory.precision import double_precision
from zoo.theory.trust import QUICK_TO_COMPILE


def lowest_point(
  function: Callable[[float], float], grid: Float[np.ndarray, ' n']
) -> float:
  """Returns the point where a function is lowest.

  A local search continues from the lowest point of the grid, between its neighbours.
  """
  import scipy.optimize  # It is slow to import, and rarely needed.

  values = [function(float(point)) for point in grid]
  lowest = int(np.argmin(values))
  valley = grid[max(lowest - 1, 0)], grid[min(lowest + 1, len(grid) - 1)]
  end: Any = scipy.optimize.minimize_scalar(
    function, bounds=valley, method='bounded', options={'xatol': 1e-12}
  )
  if end.fun >= values[lowest]:
    return float(grid[lowest])
  return float(end.x)


def checked_lower(lower: float, found: float, scale: float) -> float:
  """Returns a lower bound that is at most the lowest value found.

  Rounding may put a bound that is attained above this value.

  Args:
    lower: The lower bound.
    found: The lowest value that a search has found.
    scale: The scale of the values.

  Raises:
    RuntimeError: If the value is below the bound by more than rounding explains: then
      one of the two is wrong.
  """
  if found < lower - 1e-7 * scale:
    raise RuntimeError(
      f'a search found {found!r}, below the lower bound {lower!r}; one of them is '
      'wrong: please report this'
    )
  return min(lower, found)


def least_squares(
  residuals: Callable[[Float[AnyArray, ' p']], Float[AnyArray, ' r']],
  starts: Sequence[Float[np.ndarray, ' p']],
) -> list[Float[np.ndarray, ' p']]:
  """Returns the points at which Levenberg–Marquardt searches for the least squares end.

  There is a search from every start. JAX differentiates the residuals, in float64, and
  compiles them once for all starts.
  """
  import scipy.optimize  # It is slow to import, and rarely needed.

  def twice(point: Array) -> tuple[AnyArray, AnyArray]:
    values = residuals(point)
    return values, values

  slopes_and_values = jax.jit(
    jax.jacfwd(twice, has_aux=True), compiler_options=QUICK_TO_COMPILE
  )
  with double_precision():
    return [
      scipy.optimize.least_squares(
        lambda point: np.asarray(slopes_and_values(point)[1]),
        start,
        jac=lambda point: np.asarray(slopes_and_values(point)[0]),  # pyright: ignore
        method='lm',
        x_scale='jac',
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
        max_nfev=300,
      ).x
      for start in starts
    ]
