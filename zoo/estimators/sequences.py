"""Predictors of the next symbol of a sequence, after each of its symbols in one pass.

Example i of a prompt is symbol i, one-hot, with the next symbol as its label, and the
query is the last symbol.
"""

from __future__ import annotations

import abc
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from zoo.core import losses
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.trees import Matrix
from zoo.estimators.baselines import Baseline, Examples, OfClasses

# A context is the last symbols, on which the next one depends. There may be at most
# this many different contexts.
MOST_CONTEXTS = 4096


class SequenceBaseline(OfClasses):
  """Base of baselines that read a sequence once, which are defined by `after_each`."""

  @abc.abstractmethod
  def after_each(self, symbols: Int[Array, ' t']) -> Float[Array, 't k']:
    """Returns the log probabilities of the next symbol, after each of the symbols."""

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    last = jnp.sum(examples.seen)
    x = jnp.concatenate([examples.x, examples.x_query[None]])
    symbols = jnp.argmax(x.at[last].set(examples.x_query), axis=1)
    return self.after_each(symbols)[last]

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t k']:
    """Predicts each example from those before it, and the query last."""
    prompt = checked_prompt(prompt)
    return jax.vmap(self.after_each)(jnp.argmax(prompt.features, axis=-1))


def contexts(symbols: Int[Array, ' t'], size: int, order: int) -> Int[Array, ' t']:
  """Returns the number of the context at each place; −1 after too few symbols.

  The last `order` symbols are the digits of the number to the base `size`, the last
  symbol the last digit.

  Args:
    symbols: Symbols `[t]`.
    size: Number of different symbols.
    order: Number of symbols of a context.
  """
  place = jnp.arange(len(symbols))
  digits = [size**j * jnp.roll(symbols, j) for j in range(order)]
  return jnp.where(place >= order - 1, sum(digits), -1)


@struct.dataclass(eq=False, repr=False)
class NGram(SequenceBaseline):
  """Prediction by counts of what followed the last `order` symbols, each plus 1.

  Before there are as many symbols, all symbols are equally probable.

  Args:
    num_symbols: Number of different symbols.
    order: Number of symbols of a context.
  """

  num_symbols: int = struct.field(pytree_node=False)
  order: int = struct.field(pytree_node=False)

  def after_each(self, symbols: Int[Array, ' t']) -> Float[Array, 't k']:
    context = contexts(symbols, self.num_symbols, self.order)
    place = jnp.arange(len(symbols))
    counted = (context[:, None] == context[None]) & (place[:, None] > place[None])
    counted &= (context >= 0)[None]
    following = jax.nn.one_hot(jnp.roll(symbols, -1), self.num_symbols)
    return jnp.log(counted.astype(following.dtype) @ following + 1)


@struct.dataclass(eq=False, repr=False)
class Retrieval(SequenceBaseline):
  """Prediction by the posterior over known Markov chains, with a uniform prior.

  The distribution of the next symbol is `Σ_m p_m T_m(context → ·)` with
  `p_m ∝ first_m(x_0) Π_i T_m(context_i → x_{i+1})`. It is uniform after fewer than
  `order` symbols.

  Args:
    rows: Law of the next symbol by chain and context, `[m, s^order, s]`.
    order: Number of symbols of a context.
    first: Law of the first symbol in each chain, `[m, s]`. None takes it to be the same
      in all chains, so that nothing follows from the first symbols.
  """

  rows: Matrix
  order: int = struct.field(pytree_node=False)
  first: Matrix = None

  def after_each(self, symbols: Int[Array, ' t']) -> Float[Array, 't k']:
    # The context is the first axis: a step of the scan looks it up for all chains.
    rows = jnp.swapaxes(jnp.asarray(self.rows, float), 0, 1)
    logs, size = jnp.log(rows), rows.shape[-1]
    start = jnp.zeros_like(rows[0, :, 0])
    if self.first is not None:
      start += jnp.log(jnp.asarray(self.first, start.dtype))[:, symbols[0]]

    def step(scores: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
      context, following = now
      law = jnp.matmul(jax.nn.softmax(scores), rows[context], precision='highest')
      law = jnp.where(context >= 0, law, 1 / size)
      gained = jnp.where(context >= 0, logs[context, :, following], 0)
      return scores + gained, losses.log_probability(law)

    context = contexts(symbols, size, self.order)
    return jax.lax.scan(step, start, (context, jnp.roll(symbols, -1)))[1]


@struct.dataclass(eq=False, repr=False)
class LawRetrieval(SequenceBaseline):
  """Prediction by the posterior over known distributions of independent symbols.

  The distribution of the next symbol is `Σ_m p_m law_m` with `p_m ∝ Π_i law_m(x_i)`.
  All distributions are equally probable a priori.

  Args:
    laws: The distributions, `[m, s]`.
  """

  laws: Matrix

  def after_each(self, symbols: Int[Array, ' t']) -> Float[Array, 't k']:
    laws = jnp.asarray(self.laws, float)
    # A prompt from another task may have a symbol whose probability rounds to 0.
    logs = jnp.log(jnp.maximum(laws, jnp.finfo(laws.dtype).tiny))

    def step(scores: Array, symbol: Array) -> tuple[Array, Array]:
      scores = scores + logs[:, symbol]
      law = jnp.matmul(jax.nn.softmax(scores), laws, precision='highest')
      return scores, losses.log_probability(law)

    return jax.lax.scan(step, jnp.zeros_like(laws[:, 0]), symbols)[1]


def stationary_laws(rows: Float[np.ndarray, 'm n s']) -> Float[np.ndarray, 'm s']:
  """Returns the stationary distribution of a symbol in each chain.

  Args:
    rows: Law of the next symbol by chain and context.
  """
  _, count, size = rows.shape
  context = np.arange(count)[:, None]
  after = (context * size + np.arange(size)[None]) % count
  laws = np.empty((len(rows), size))
  for m, row in enumerate(rows):
    moves = np.zeros((count, count))
    np.add.at(moves, (np.broadcast_to(context, after.shape), after), row)
    # The equations are μ = Pᵀ μ and Σ μ = 1.
    law = np.linalg.solve(np.eye(count) - moves.T + 1, np.ones(count))
    laws[m] = law.reshape(-1, size).sum(axis=0)
  return laws


@struct.dataclass(eq=False, repr=False)
class Bigram(Baseline):
  """Prediction by counts of what followed the query's symbol, each plus 1."""

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    x, y, _, x_query = examples.zeroed()
    return jnp.log((x @ x_query) @ y + 1)


@struct.dataclass(eq=False, repr=False)
class Unigram(Baseline):
  """Prediction by counts of all symbols, that of the query included, each plus 1."""

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    return jnp.log(jnp.sum(examples.zeroed().x, axis=0) + examples.x_query + 1)


@struct.dataclass(eq=False, repr=False)
class TwoSymbolBayes(OfClasses):
  """The Bayes predictor for two symbols; the first has the stationary distribution.

  Let u be the probability of leaving the first symbol, and v that of leaving the other
  one. The first symbol then has the probability `v/(u + v)`, which weights the Beta
  posteriors that follow from the transitions. The integrals are computed by
  Gauss–Legendre quadrature.
  """

  def predict(self, examples: Examples) -> Float[Array, ' 2']:
    x, y, seen, x_query = examples.zeroed()
    first = jnp.where(jnp.any(seen), x[0], x_query)
    # The least standard deviation of a posterior is about 1/(2√c). Several nodes lie
    # within it.
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
