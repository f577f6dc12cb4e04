"""What the loops of a traced program carry from one iteration to the next."""

from collections.abc import Iterator
from typing import Any

import jax.extend.core


def carried(jaxpr: jax.extend.core.Jaxpr) -> Iterator[str]:
  """The type of each array that a scan carries, also of scans within operations."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'scan':
      first = equation.params['num_consts']
      last = first + equation.params['num_carry']
      carry: Any = equation.invars[first:last]
      yield from (str(one.aval.dtype) for one in carry)
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from carried(inner)
