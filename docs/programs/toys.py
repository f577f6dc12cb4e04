"""Two toys of how mechanisms form: products of factors, and mechanisms that compete."""

from typing import Any

import numpy as np
from jaxtyping import Float

from zoo.core.errors import UserError, check_array
from zoo.theory.dynamics.flow import Numbers, increasing, integrate


def product_flow(
  start: Numbers, target: Numbers, times: Numbers, clamped: int | None = None
) -> Float[np.ndarray, ' t']:
  """The loss `½ mean (abc − target)²` of three vectors `[3, n]` under gradient flow.

  A model of an induction circuit of three parts (Singh et al., arXiv 2404.07129): from
  small values nothing seems to happen until all three have grown. A `clamped` factor, 0
  to 2, does not train; the plateau goes if it is held at its final value. `target` is
  `[n]` and `times` are ≥ 0. Raises UserError naming the argument that is wrong.
  """
  width = np.shape(start)[-1] if np.ndim(start) == 2 else 1
  factors = check_array('start', start, [(3, width)])
  wanted = check_array('target', target, [(width,)])
  if clamped not in (None, 0, 1, 2):
    raise UserError(f'clamped is {clamped}; it must be 0, 1, 2 or None')
  free = np.array([[index != clamped] for index in range(3)])

  def slope(a: np.ndarray) -> np.ndarray:
    others = np.stack([a[1] * a[2], a[0] * a[2], a[0] * a[1]])
    return free * others * (wanted - a.prod(axis=0)) / width

  states = _flow(slope, factors, times)
  return np.mean((states.prod(axis=1) - wanted) ** 2, axis=1) / 2


def competition_flow(
  start: Numbers, floors: Numbers, cost: float, times: Numbers
) -> Float[np.ndarray, 't 2']:
  """The losses `L_1, L_2` of two mechanisms under gradient flow of a common loss.

  `(L_1 + μ_1)(L_2 + μ_2) + (α/2) |all factors|²` with `L_i = ½ (a_i b_i c_i − 1)²`,
  the `floors` μ `[2]`, the `cost` α and the `start` `[2, 3]` (after Singh et al., arXiv
  2503.05631). A mechanism that forms early and has the higher floor is transient: once
  the other has formed, its own slope is no longer worth its cost. Raises UserError
  naming the argument that is wrong.
  """
  factors = check_array('start', start, [(2, 3)])
  low = check_array('floors', floors, [(2,)])
  price = float(check_array('cost', cost, [()]))

  def slope(a: np.ndarray) -> np.ndarray:
    gap = a.prod(axis=1) - 1
    others = np.stack([a[:, 1] * a[:, 2], a[:, 0] * a[:, 2], a[:, 0] * a[:, 1]], axis=1)
    weight = (gap**2 / 2 + low)[::-1]
    return -(weight * gap)[:, None] * others - price * a

  states = _flow(slope, factors, times)
  return (states.prod(axis=2) - 1) ** 2 / 2


def _flow(slope: Any, start: Float[np.ndarray, 'n m'], times: Numbers) -> np.ndarray:
  at, shape = increasing('times', times), start.shape
  states = integrate(
    lambda state: slope(state.reshape(shape)).ravel(), start.ravel(), at, 1e-10
  )
  return states.reshape(-1, *shape)
