"""The Bayes predictor for regression among identical outliers."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from zoo.estimators.baseline import Baseline
from zoo.estimators.regression import LeastSquares


@dataclasses.dataclass(frozen=True)
class WithoutOnes(Baseline):
  """Least squares without the examples whose features are all 1, whose label is 1.

  This is the posterior mean of the task `outlier_regression` of the kind `many`: other
  examples have such features with probability 0, so that the outliers are known, and
  the outliers do not depend on w. The rest is linear regression without noise.
  """

  def predict(
    self,
    x: Float[Array, 'c d'],
    y: Float[Array, ' c'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' d'],
  ) -> Float[Array, '']:
    rest = seen & jnp.any(x != 1, axis=1)
    prediction = LeastSquares().predict(x, y, rest, x_query)
    return jnp.where(jnp.all(x_query == 1), 1, prediction)
