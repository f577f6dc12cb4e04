"""Baselines for the next symbol of a Markov chain, whose prompt is one sequence."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from zoo import losses
from zoo.estimators.baseline import Baseline, zeroed


@dataclasses.dataclass(frozen=True)
class Bigram(Baseline):
  """Predicts from the counts of symbols after the query's symbol, each plus 1."""

  def predict(
    self,
    x: Float[Array, 'c k'],
    y: Float[Array, 'c k'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' k'],
  ) -> Float[Array, ' k']:
    x, y = zeroed(x, y, seen)
    return jnp.log((x @ x_query) @ y + 1)


@dataclasses.dataclass(frozen=True)
class Unigram(Baseline):
  """Predicts from the counts of all symbols, the query's too, each plus 1."""

  def predict(
    self,
    x: Float[Array, 'c k'],
    y: Float[Array, 'c k'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' k'],
  ) -> Float[Array, ' k']:
    x, _ = zeroed(x, y, seen)
    return jnp.log(jnp.sum(x, axis=0) + x_query + 1)


@dataclasses.dataclass(frozen=True)
class TwoSymbolBayes(Baseline):
  """The Bayes predictor for two symbols, if the first one is from the stationary law.

  Let u and v be the probabilities of leaving the first symbol and the other one. The
  first symbol then has the probability `v/(u + v)`, which weights the Beta posteriors
  from the transitions. The integrals are computed by Gauss–Legendre quadrature.
  """

  def predict(
    self,
    x: Float[Array, 'c 2'],
    y: Float[Array, 'c 2'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' 2'],
  ) -> Float[Array, ' 2']:
    first = jnp.concatenate([x, x_query[None]])[0]
    first = jnp.where(jnp.any(seen), first, x_query)
    x, y = zeroed(x, y, seen)
    # Several nodes within the least standard deviation of a posterior, about 1/(2√c).
    nodes, weights = np.polynomial.legendre.leggauss(32 + 4 * math.isqrt(len(x)))
    leave, weights = (jnp.asarray(a, y.dtype) for a in ((1 + nodes) / 2, weights))
    law = leave[None] / (leave[:, None] + leave[None])

    def posterior(symbol: Array) -> Array:
      stays, leaves = (x @ symbol) @ (y @ symbol), (x @ symbol) @ (y @ symbol[::-1])
      logs = leaves * jnp.log(leave) + stays * jnp.log1p(-leave)
      return jax.nn.softmax(logs + jnp.log(weights))

    of_first, of_other = posterior(first), posterior(first[::-1])
    leaves_first = (of_first * leave) @ law @ of_other
    leaves_other = of_first @ law @ (of_other * leave)
    p = jnp.where(first @ x_query > 0, leaves_first, leaves_other)
    p = p / (of_first @ law @ of_other)
    return losses.log_probability(p * x_query[::-1] + (1 - p) * x_query)
