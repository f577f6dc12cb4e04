"""Sequences of symbols from random Markov chains."""

# A size that the base class declares as a field may be a property here.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, Key

from zoo.core.beliefs import Belief, values_of
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.estimators.baselines import Zero
from zoo.estimators.sequences import (
  MOST_CONTEXTS,
  Bigram,
  LawRetrieval,
  NGram,
  Retrieval,
  TwoSymbolBayes,
  Unigram,
  contexts,
  stationary_laws,
)
from zoo.tasks.base import (
  BaseTask,
  dot,
  exchanged,
  inputs_are_labels,
  make_prompt,
  register_task,
)


@register_task('markov_chain')
@struct.dataclass(eq=False, repr=False)
class MarkovChain(BaseTask):
  """Prediction of the next symbol of a random Markov chain of order k.

  A chain has a row for each of the `S^k` contexts, the last k of S symbols. The row is
  the distribution of the next symbol, drawn from Dirichlet(1, …, 1). Each prompt has a
  new chain or, with `num_chains`, one of a pool that depends only on `seed` and the
  sizes. The latents are the rows of the chain.

  A prompt is one sequence of C + 1 symbols. An example is a transition: its features
  are symbol i, one-hot `[S]`, and its label is symbol i + 1. The query is the last
  symbol. After n examples n + 1 symbols are therefore known. Targets are rows of the
  chain.

  For k = 1 the first symbol is drawn from the stationary distribution of the chain.
  (For up to four symbols the authors' code draws it uniformly instead.) For k > 1 the
  first k symbols are uniform, and so is the target of the first k − 1 examples.

  The Bayes predictor is known for k > 1, for pools, and for S = 2 (baseline `bayes`).
  It is not known for new chains of order 1 with S > 2. There the baseline `bigram`
  would be the Bayes predictor if the first symbol said nothing about the chain.

  The property `pool` has the rows of the chains of a pool, and `laws` the stationary
  distribution of a symbol in each of them.

  Args:
    num_symbols: Number of symbols S ≥ 2.
    context_length: Number of examples C ≥ 1.
    order: Order k of the chains, from 1 to C. For k > 1 `S^k` must be at most 4096.
    num_chains: Number of chains in the pool, ≥ 1. None draws a new chain for each
      prompt.
    seed: Seed of the pool, from 0 to 2³² − 1.

  Example:
    >>> task = zoo.create_task('markov_chain', num_symbols=3, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((2, 5, 3), (2, 5, 3), (2, 3))

  References:
    Edelman et al., arXiv 2402.11004. Pools of chains: Park et al., arXiv 2412.01003.
  """

  num_symbols: int = struct.field(pytree_node=False, default=2)
  context_length: int = struct.field(pytree_node=False, default=100)
  order: int = struct.field(pytree_node=False, default=1)
  num_chains: int | None = struct.field(pytree_node=False, default=None)
  seed: int = struct.field(pytree_node=False, default=0)
  label_kind = 'classes'

  @property
  def stationary(self) -> bool:
    """Whether the first symbol has the stationary distribution of the chain."""
    return self.order == 1

  @property
  def num_features(self) -> int:
    """Number of features of an example, d; here the number of symbols."""
    return self.num_symbols

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k; here the number of symbols."""
    return self.num_symbols

  @property
  def pool(self) -> Float[np.ndarray, 'm n s']:
    """The rows of the chains of the pool, float64 and read-only.

    The number of a row has the symbols of its context as digits, the last symbol as the
    last digit. All chains are equally probable.
    """
    return _pool(self.seed, self.num_chains or 0, self.num_symbols, self.order)[0]

  @property
  def laws(self) -> Float[np.ndarray, 'm s']:
    """The stationary distribution of a symbol in each chain of the pool."""
    return _pool(self.seed, self.num_chains or 0, self.num_symbols, self.order)[1]

  def check(self) -> None:
    check_count('num_symbols', self.num_symbols, minimum=2)
    super().check()
    check_count('order', self.order, maximum=self.context_length)
    if self.num_chains is not None:
      check_count('num_chains', self.num_chains)
    check_count('seed', self.seed, minimum=0, maximum=2**32 - 1)
    if self.order > 1 and self.order * math.log2(self.num_symbols) > 12:
      raise UserError(
        f'order is {self.order} with {self.num_symbols} symbols; num_symbols to the '
        f'power of order must be at most {MOST_CONTEXTS}'
      )

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    chain_key, symbols_key = jax.random.split(key)
    rows = self._sample_rows(chain_key)
    return self._prompt_of(rows, self._sample_symbols(symbols_key, rows))

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, as `redraw` says, given its last symbol.

    New chains are as probable with any two symbols exchanged. A chain of a pool is
    drawn by the probability that it gives the last symbol, and the symbols before are
    drawn back from the last one.

    Args:
      key: Random key.
      prompt: One prompt, without the axis b.
      keep: 'query'.

    Returns:
      One prompt, without the axis b.

    Raises:
      UserError: `keep` is 'inputs'. The labels are symbols of the sequence, which are
        inputs.
    """  # noqa: DOC501
    if keep == 'inputs':
      raise inputs_are_labels(self)
    chain_key, symbols_key = jax.random.split(key)
    last = jnp.argmax(prompt.x_query)
    if self.num_chains is None:
      rows = self._sample_rows(chain_key)
      symbols = self._sample_symbols(symbols_key, rows)
      names = exchanged(jnp.arange(self.num_symbols), symbols[-1], last)
      digits = self.num_symbols ** np.arange(self.order)
      of_context = np.arange(len(rows))[:, None] // digits[None] % self.num_symbols
      places = jnp.sum(names[of_context] * digits[None], axis=1)
      return self._prompt_of(rows[places][:, names], names[symbols])
    scores = jnp.log(self._last_laws()[:, last])
    rows = jnp.asarray(self.pool, float)
    chosen = jax.random.categorical(chain_key, scores)
    rows, laws = rows[chosen], self._laws_of_contexts(rows)[:, chosen]
    return self._prompt_of(rows, self._symbols_before(symbols_key, rows, laws, last))

  def log_density(self, x: Float[Array, 'n s']) -> Float[Array, '']:
    if len(x) > 1:
      return super().log_density(x)
    if self.num_chains is None:
      return jnp.asarray(-math.log(self.num_symbols), x.dtype)
    return jnp.log(dot(jnp.mean(self._last_laws(), axis=0), x[0]))

  def _laws_of_contexts(self, rows: Float[Array, 'm n s']) -> Float[Array, 'p m n']:
    """Returns the distribution of the context at each place, in chains of the pool."""
    chains, count, size = rows.shape
    start = jnp.full((chains, count), 1 / count, rows.dtype)
    if self.order == 1:
      start = jnp.asarray(self.laws, rows.dtype)

    def step(laws: Array, _: None) -> tuple[Array, Array]:
      # The first digit of a context is forgotten.
      joint = laws[..., None] * rows
      after = joint.reshape(chains, size, -1, size).sum(axis=1).reshape(chains, count)
      return after, after

    length = self.context_length + 1 - self.order
    return jnp.concatenate([start[None], jax.lax.scan(step, start, length=length)[1]])

  def _last_laws(self) -> Float[Array, 'm s']:
    """Returns the distribution of the last symbol in each chain of the pool."""
    last = self._laws_of_contexts(jnp.asarray(self.pool, float))[-1]
    return last.reshape(len(last), -1, self.num_symbols).sum(axis=1)

  def _symbols_before(
    self,
    key: Key[Array, ''],
    rows: Float[Array, 'n s'],
    laws: Float[Array, 'p n'],
    last: Int[Array, ''],
  ) -> Int[Array, ' t']:
    """Draws the symbols of a chain given the last one, from the last context back."""
    last_key, before_key = jax.random.split(key)
    count, size = rows.shape
    others = count // size
    ends = jnp.arange(count) % size == last
    end = jax.random.categorical(last_key, jnp.where(ends, jnp.log(laws[-1]), -jnp.inf))
    logits = jnp.log(rows)

    def step(context: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
      law, noise = now
      # This context may follow each of the `possible` ones, which differ in the digit
      # that this context has forgotten.
      possible = jnp.arange(size) * others + context // size
      scores = jnp.log(law)[possible] + logits[possible, context % size]
      before = possible[jnp.argmax(scores + noise)]
      return before, before

    noise = jax.random.gumbel(before_key, (len(laws) - 1, size))
    _, back = jax.lax.scan(step, end, (laws[:-1][::-1], noise))
    in_order = jnp.concatenate([end[None], back])[::-1]
    digits = size ** np.arange(self.order)[::-1]
    first = in_order[0] // digits % size
    return jnp.concatenate([first, in_order[1:] % size])

  def _sample_symbols(
    self, key: Key[Array, ''], rows: Float[Array, 'n s']
  ) -> Int[Array, ' t']:
    """Draws the symbols of a prompt with this chain."""
    size, order = self.num_symbols, self.order
    logits = jnp.log(rows)
    law = jnp.log(_stationary_law(rows)) if order == 1 else jnp.zeros_like(rows[0])
    gumbel = jax.random.gumbel(key, (self.context_length + 1, size))

    def step(context: Array, noise: Array) -> tuple[Array, Array]:
      following = jnp.argmax(logits[context] + noise)
      return (size * context + following) % len(logits), following

    first = jnp.argmax(law[None] + gumbel[:order], axis=-1)
    start = contexts(first, size, order)[-1]
    _, others = jax.lax.scan(step, start, gumbel[order:])
    return jnp.concatenate([first, others])

  def _prompt_of(self, rows: Float[Array, 'n s'], symbols: Int[Array, ' t']) -> Prompt:
    size, order = self.num_symbols, self.order
    x = jax.nn.one_hot(symbols, size, dtype=rows.dtype)
    known = contexts(symbols, size, order)
    targets = jnp.where((known >= 0)[:, None], rows[known], 1 / size)
    # The label of an example is the next symbol. The label of the query is not part of
    # a prompt.
    return make_prompt(x, jnp.roll(x, -1, axis=0), targets, rows)

  def _sample_rows(self, key: Key[Array, '']) -> Float[Array, 'n s']:
    if self.num_chains is not None:
      index = jax.random.randint(key, (), 0, self.num_chains)
      return jnp.asarray(self.pool, float)[index]
    # Independent exponentials, divided by their sum, are Dirichlet(1, …, 1).
    rows = jax.random.exponential(key, (self.num_symbols**self.order, self.num_symbols))
    return rows / dot(rows, jnp.ones_like(rows))[:, None]

  def baselines(self) -> dict[str, Predictor]:
    """Returns the baselines of this task, by name.

    Some take the chain for a new one. `unigram` counts all symbols and adds 1. `bigram`
    counts the symbols after the last symbol and adds 1. For k > 1 `ngram` does so after
    the last k symbols.

    Others know the chains of a pool. `bigram_retrieval` (for k > 1 `ngram_retrieval`)
    weighs the chains by the likelihood of the transitions, and mixes their rows.
    `unigram_retrieval` weighs them by the counts of symbols, as if these were drawn
    independently from the stationary distribution, and mixes these distributions.

    `bayes` is the exact Bayes predictor:

    - For a pool of order 1 it is `bigram_retrieval`, but also uses the distribution of
      the first symbol.
    - For a pool of order k > 1 the first symbols say nothing, and it is
      `ngram_retrieval`.
    - For new chains of order k > 1 it is `ngram`.
    - For new chains of order 1 it is here only if S = 2. `bigram` would be it if the
      first symbol said nothing about the transitions. For S = 2 the loss of `bigram`
      exceeds that of `bayes` by 0.0166 nats before the first example, by 0.0031 after
      9, and by less than 0.0001 after 99.
    """
    counts: dict[str, Predictor] = {'bigram': Bigram()}
    bayes: dict[str, Predictor] = {}
    if self.order > 1:
      ngram = NGram(self.num_symbols, self.order)
      counts = {'ngram': ngram, **counts}
      bayes = {'bayes': ngram}
    if self.num_chains is not None:
      bayes = self._retrieval()
    elif self.order == 1:
      # `bigram` comes first, since chains of any size have it.
      two = {'bayes': TwoSymbolBayes()} if self.num_symbols == 2 else {}
      counts, bayes = {}, {'bigram': Bigram(), **two}
    return {**bayes, **counts, 'unigram': Unigram(), 'zero': Zero()}

  def _retrieval(self) -> dict[str, Predictor]:
    retrieval = Retrieval(self.pool, self.order)
    bayes, name = retrieval, 'ngram_retrieval'
    if self.order == 1:
      bayes, name = Retrieval(self.pool, 1, self.laws), 'bigram_retrieval'
    return {
      'bayes': bayes,
      name: retrieval,
      'unigram_retrieval': LawRetrieval(self.laws),
    }

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes the probabilities of the chains of a pool, or moments of a new chain.

    For new chains the values are the posterior means of all entries of the chain's
    rows, and then their variances. For k > 1 the rows have Dirichlet distributions. For
    k = 1 and two symbols the moments are integrals, since the first symbol says
    something about the chain, too.

    Args:
      prompt: Prompts `[b]`.

    Returns:
      The belief, with values `[b, c + 1, num_chains]`, or `[b, c + 1, 2 S^(k + 1)]`.

    Raises:
      UserError: If chains are new, of order 1, and have more than two symbols.
    """
    if self.num_chains is not None:
      first = self.laws if self.order == 1 else None
      names = tuple(f'chain {i}' for i in range(self.num_chains))
      return Belief(values_of(Retrieval(self.pool, self.order, first), prompt), names)
    if self.order == 1 and self.num_symbols > 2:
      raise self.no_belief(
        'a new chain of order 1 has no closed posterior for more than two symbols; '
        'order = 2, num_symbols = 2 or num_chains has one'
      )
    new = TwoSymbolBayes() if self.order == 1 else NGram(self.num_symbols, self.order)
    return Belief(values_of(new, prompt), self._moment_names(), 'moments')

  def _moment_names(self) -> tuple[str, ...]:
    size = self.num_symbols
    contexts = itertools.product(range(size), repeat=self.order)
    entries = [
      f'{" ".join(map(str, of))} → {to}' for of in contexts for to in range(size)
    ]
    return tuple(f'{what} of {of}' for what in ('mean', 'variance') for of in entries)

  def belief_prediction(
    self, values: Float[Array, 'b m'], prompt: Prompt
  ) -> Float[Array, 'b s']:
    """Returns the distribution of the next symbol, for a belief of any of these chains.

    Args:
      values: A belief for each prompt.
      prompt: Prompts `[b]`, of which the last symbols are used.

    Returns:
      The distribution `[b, s]`.

    Raises:
      UserError: If the last symbols are fewer than the order of the chain.
    """
    size, order = self.num_symbols, self.order
    symbols = jnp.argmax(prompt.features, axis=-1)
    if symbols.shape[1] < order:
      raise UserError(
        f'the prompts have {symbols.shape[1]} symbols; a chain of order {order} needs '
        'as many to predict the next one'
      )
    context = jax.vmap(lambda of: contexts(of, size, order)[-1])(symbols)
    if self.num_chains is None:
      rows = values[:, : values.shape[1] // 2].reshape(len(values), -1, size)
      return rows[jnp.arange(len(rows)), context]
    pool = jnp.asarray(self.pool, values.dtype)
    return jnp.einsum('bm,mbs->bs', values, pool[:, context], precision='highest')

  def shifts(self) -> dict[str, Task]:
    """Returns longer contexts and, for a pool, `fresh_chains`, new in each prompt."""
    fresh: dict[str, Task] = {}
    if self.num_chains is not None:
      fresh = {'fresh_chains': dataclasses.replace(self, num_chains=None)}  # pyright: ignore
    return fresh | super().shifts()


@functools.lru_cache(maxsize=8)
def _pool(
  seed: int, num_chains: int, num_symbols: int, order: int
) -> tuple[Float[np.ndarray, 'm n s'], Float[np.ndarray, 'm s']]:
  """Returns the rows of the chains, and their stationary distributions."""
  # NumPy guarantees the numbers of a RandomState for all its versions, but not those of
  # a Generator.
  random = np.random.RandomState(seed)
  shape = num_chains, num_symbols**order
  rows = random.dirichlet(np.ones(num_symbols), shape)
  laws = stationary_laws(rows)
  for array in (rows, laws):
    array.flags.writeable = False
  return rows, laws


def _stationary_law(matrix: Float[Array, 's s']) -> Float[Array, ' s']:
  """Returns the stationary distribution of a transition matrix, up to a factor.

  States are eliminated one by one, without subtractions (Grassmann, Taksar & Heyman,
  Operations Research 33, 1985).
  """
  size = len(matrix)
  states = jnp.arange(size)

  def eliminate(i: Array, p: Array) -> Array:
    last = size - 1 - i
    kept = states < last
    leave = jnp.where(kept, p[last], 0)
    enter = jnp.where(kept, p[:, last], 0) / dot(leave, jnp.ones_like(leave))
    return (p + enter[:, None] * leave[None]).at[:, last].set(enter)

  p = jax.lax.fori_loop(0, size - 1, eliminate, matrix)
  law = jnp.zeros_like(matrix[0]).at[0].set(1)
  # The entries that are not known yet are 0.
  return jax.lax.fori_loop(
    1, size, lambda n, law: law.at[n].set(dot(law, p[:, n])), law
  )
