"""Ratios of sizes that grow together."""

import math

from zoo.core.errors import UserError, check_number


def check_ratio(name: str, value: int | float, infinite: bool = False) -> float:
  """Returns a number > 0, or math.inf where it may be; raises UserError otherwise."""
  if infinite and value == math.inf:
    return math.inf
  number = check_number(name, value)
  if number <= 0:
    raise UserError(f'{name} is {number:g}; it must be > 0')
  return number
