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
from jaxtyping import Array, Bool, Float, Int

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

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the means and then the variances of all entries, after each symbol.

    They are those of the posterior of a chain whose rows are Dirichlet(1, …, 1).
    """
    return jax.vmap(self._moments)(jnp.argmax(prompt.features, axis=-1))

  def _moments(self, symbols: Int[Array, ' t']) -> Float[Array, 't m']:
    context = contexts(symbols, self.num_symbols, self.order)
    place = context * self.num_symbols + jnp.roll(symbols, -1)
    # The transition from the last symbol is not known yet; −1 is no context.
    seen = jax.nn.one_hot(
      jnp.where(context >= 0, place, -1), self.num_symbols ** (self.order + 1)
    )
    counts = jnp.cumsum(seen, axis=0) - seen
    counts = counts.reshape(len(symbols), -1, self.num_symbols)
    mean, variance = dirichlet_moments(counts + 1)
    return jnp.stack([mean, variance], axis=1).reshape(len(symbols), -1)


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
    return self._read(symbols)[0]

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the posterior of the chains after each of the symbols."""
    return jax.vmap(self._read)(jnp.argmax(prompt.features, axis=-1))[1]

  def _read(
    self, symbols: Int[Array, ' t']
  ) -> tuple[Float[Array, 't k'], Float[Array, 't m']]:
    """Returns the log probabilities of the next symbol, and the posterior of chains."""
    # The context is the first axis: a step of the scan looks it up for all chains.
    rows = jnp.swapaxes(jnp.asarray(self.rows, float), 0, 1)
    logs, size = jnp.log(rows), rows.shape[-1]
    start = jnp.zeros_like(rows[0, :, 0])
    if self.first is not None:
      start += jnp.log(jnp.asarray(self.first, start.dtype))[:, symbols[0]]

    def step(
      scores: Array, now: tuple[Array, Array]
    ) -> tuple[Array, tuple[Array, Array]]:
      context, following = now
      chains = jax.nn.softmax(scores)
      law = jnp.matmul(chains, rows[context], precision='highest')
      law = jnp.where(context >= 0, law, 1 / size)
      gained = jnp.where(context >= 0, logs[context, :, following], 0)
      return scores + gained, (losses.log_probability(law), chains)

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
    return self._read(symbols)[0]

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the posterior of the distributions after each of the symbols."""
    return jax.vmap(self._read)(jnp.argmax(prompt.features, axis=-1))[1]

  def _read(
    self, symbols: Int[Array, ' t']
  ) -> tuple[Float[Array, 't k'], Float[Array, 't m']]:
    """Returns the log probabilities of the next symbol, and the posterior of laws."""
    laws = jnp.asarray(self.laws, float)
    # A prompt from another task may have a symbol whose probability rounds to 0.
    logs = jnp.log(jnp.maximum(laws, jnp.finfo(laws.dtype).tiny))

    def step(scores: Array, symbol: Array) -> tuple[Array, tuple[Array, Array]]:
      scores = scores + logs[:, symbol]
      chosen = jax.nn.softmax(scores)
      law = jnp.matmul(chosen, laws, precision='highest')
      return scores, (losses.log_probability(law), chosen)

    return jax.lax.scan(step, jnp.zeros_like(laws[:, 0]), symbols)[1]


def dirichlet_moments(
  counts: Float[Array, '*n s'],
) -> tuple[Float[Array, '*n s'], Float[Array, '*n s']]:
  """Returns the means and the variances of a Dirichlet distribution.

  Args:
    counts: Its parameters: counts with the pseudo-counts of the prior.
  """
  total = jnp.sum(counts, axis=-1, keepdims=True)
  mean = counts / total
  return mean, mean * (1 - mean) / (total + 1)


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
    leave_first, leave_other, is_first = self._leaving(examples, 1)
    p = jnp.where(is_first, leave_first, leave_other)
    x_query = examples.x_query
    return losses.log_probability(p * x_query[::-1] + (1 - p) * x_query)

  def belief(self, prompt: Prompt) -> Float[Array, 'b t 8']:
    """Returns the means of 0 → 0, 0 → 1, 1 → 0 and 1 → 1, and then the variances."""

    def of_one(examples: Examples) -> Float[Array, ' 8']:
      (u, v, _), (u_2, v_2, _) = (self._leaving(examples, power) for power in (1, 2))
      starts_at_0 = _first_of(examples)[0] > 0
      first, other = jnp.stack([u, u_2]), jnp.stack([v, v_2])
      leave_0, square_0 = jnp.where(starts_at_0, first, other)
      leave_1, square_1 = jnp.where(starts_at_0, other, first)
      of_0, of_1 = square_0 - leave_0**2, square_1 - leave_1**2
      means = 1 - leave_0, leave_0, leave_1, 1 - leave_1
      return jnp.stack([*means, of_0, of_0, of_1, of_1])

    return self._everywhere(of_one, prompt)

  def _leaving(
    self, examples: Examples, power: int
  ) -> tuple[Float[Array, ''], Float[Array, ''], Bool[Array, '']]:
    """Returns mean powers of u and v, and whether the query is the first symbol."""
    x, y, _, x_query = examples.zeroed()
    first = _first_of(examples)
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
    whole = of_first @ law @ of_other
    of_u = (of_first * leave**power) @ law @ of_other / whole
    of_v = of_first @ law @ (of_other * leave**power) / whole
    return of_u, of_v, first @ x_query > 0


def _first_of(examples: Examples) -> Float[Array, ' 2']:
  """Returns the first symbol of a sequence, one-hot."""
  return jnp.where(jnp.any(examples.seen), examples.x[0], examples.x_query)
