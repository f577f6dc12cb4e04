"""What the operations of a traced program are."""

from collections.abc import Iterator
from typing import Any

import jax.extend.core


def equations(jaxpr: jax.extend.core.Jaxpr) -> Iterator[Any]:
  """All operations, also those within others."""
  for equation in jaxpr.eqns:
    yield equation
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from equations(inner)


def carried(jaxpr: jax.extend.core.Jaxpr) -> Iterator[str]:
  """The type of each array that a scan carries from one iteration to the next."""
  for equation in equations(jaxpr):
    if equation.primitive.name == 'scan':
      first = equation.params['num_consts']
      last = first + equation.params['num_carry']
      yield from (str(variable.aval.dtype) for variable in equation.invars[first:last])
