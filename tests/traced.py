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
  """The type of each array that a scan carries from one iteration to the next.

  An array that is carried has the same shape within the scan and after it. Other
  results are stacked, so that they have one more axis after it.
  """
  for equation in equations(jaxpr):
    if equation.primitive.name == 'scan':
      within = equation.params['jaxpr'].jaxpr.outvars
      for inner, outer in zip(within, equation.outvars, strict=True):
        if inner.aval.shape == outer.aval.shape:
          yield str(outer.aval.dtype)
