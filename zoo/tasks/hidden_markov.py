"""The next symbol of one fixed hidden Markov chain, and the forward algorithm."""

# A size that the base class declares as a field may be a property here.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, Key

from zoo.core import losses
from zoo.core.errors import UserError, check_count, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.trees import Number
from zoo.estimators.baselines import Zero
from zoo.estimators.sequences import SequenceBaseline, stationary_laws
from zoo.tasks.base import BaseTask, dot, inputs_are_labels, make_prompt, register_task


@register_task('hidden_markov')
@struct.dataclass(eq=False, repr=False)
class HiddenMarkov(BaseTask):
  """Prediction of the next symbol of one hidden Markov chain, the same in all prompts.

  A hidden state stays the same with the probability ρ = `persistence`, and is otherwise
  drawn by a row of a matrix R, so that the transition matrix is `T = ρ I + (1 − ρ) R`.
  Each state emits a symbol by its row of a matrix E. The rows of R and E are
  Dirichlet(1, …, 1), and depend only on `seed` and the sizes. For each prompt the
  states are drawn; the first one has the stationary distribution, which is that of R.
  The latents are the states.

  A prompt is one sequence of C + 1 symbols. An example is a symbol, one-hot, with the
  next symbol as its label, and the query is the last symbol. Targets are the
  distributions of the next symbol given the hidden state, which are rows of `T E`.

  The Bayes predictor is the mean of these distributions given the symbols, which the
  forward algorithm computes (baseline `bayes`). For a chain that is new in each prompt
  it would be an integral over all matrices without a closed form; this is why the chain
  is fixed. The properties `transitions` and `emissions` are T and E, and `law` is the
  stationary distribution of the states.

  Args:
    num_states: Number of states, ≥ 2.
    num_symbols: Number of symbols, ≥ 2.
    context_length: Number of examples C ≥ 1.
    persistence: Probability ρ that a state stays, 0 ≤ ρ < 1.
    seed: Seed of the transitions and the emissions, from 0 to 2³² − 1.

  Example:
    >>> task = zoo.create_task('hidden_markov', num_symbols=3, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((2, 5, 3), (2, 5, 3), (2, 3))

  References:
    Filtering in context: arXiv 2512.22471. Forward algorithm: Rabiner, Proceedings of
    the IEEE 77, 1989, section III.
  """

  num_states: int = struct.field(pytree_node=False, default=8)
  num_symbols: int = struct.field(pytree_node=False, default=8)
  context_length: int = struct.field(pytree_node=False, default=100)
  persistence: Number = 0.9
  seed: int = struct.field(pytree_node=False, default=0)
  label_kind = 'classes'
  stationary = True

  @property
  def num_features(self) -> int:
    """Number of features of an example, d; here the number of symbols."""
    return self.num_symbols

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k; here the number of symbols."""
    return self.num_symbols

  def check(self) -> None:
    check_count('num_states', self.num_states, minimum=2)
    check_count('num_symbols', self.num_symbols, minimum=2)
    super().check()
    if check_number('persistence', self.persistence, minimum=0.0) >= 1:
      raise UserError(f'persistence is {self.persistence}; it must be below 1')
    check_count('seed', self.seed, minimum=0, maximum=2**32 - 1)

  @property
  def transitions(self) -> Float[Array, 'n n']:
    """The transition matrix T, by state and next state."""
    moves = jnp.asarray(self._rows.moves, float)
    persistence = jnp.asarray(self.persistence, moves.dtype)
    return persistence * jnp.eye(len(moves)) + (1 - persistence) * moves

  @property
  def emissions(self) -> Float[np.ndarray, 'n s']:
    """The matrix E, by state and symbol, float64 and read-only."""
    return self._rows.emissions

  @property
  def law(self) -> Float[np.ndarray, ' n']:
    """The stationary distribution of the states, float64 and read-only."""
    return self._rows.law

  @property
  def _rows(self) -> _Rows:
    return _rows(self.seed, self.num_states, self.num_symbols)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    states_key, symbols_key = jax.random.split(key)
    moves = jnp.log(self.transitions)
    noise = jax.random.gumbel(states_key, (self.context_length + 1, self.num_states))

    def step(state: Array, noise: Array) -> tuple[Array, Array]:
      following = jnp.argmax(moves[state] + noise)
      return following, following

    first = jnp.argmax(jnp.log(jnp.asarray(self.law, moves.dtype)) + noise[0])
    _, others = jax.lax.scan(step, first, noise[1:])
    states = jnp.concatenate([first[None], others])
    return self._prompt_of(states, self._emit(symbols_key, states))

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, as `redraw` says: the states from the last one back.

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
    states_key, symbols_key = jax.random.split(key)
    moves = jnp.log(self.transitions)
    law = jnp.log(jnp.asarray(self.law, moves.dtype))
    emitted = dot(jnp.asarray(self.emissions, moves.dtype), prompt.x_query[None])
    noise = jax.random.gumbel(states_key, (self.context_length + 1, self.num_states))

    def step(state: Array, noise: Array) -> tuple[Array, Array]:
      before = jnp.argmax(law + moves[:, state] + noise)
      return before, before

    last = jnp.argmax(law + losses.log_probability(emitted) + noise[0])
    _, others = jax.lax.scan(step, last, noise[1:])
    states = jnp.append(others[::-1], last)
    x = self._emit(symbols_key, states).at[-1].set(prompt.x_query)
    return self._prompt_of(states, x)

  def log_density(self, x: Float[Array, 'n s']) -> Float[Array, '']:
    if len(x) > 1:
      return super().log_density(x)
    return jnp.log(dot(jnp.asarray(self.law @ self.emissions, x.dtype), x[0]))

  def _emit(self, key: Key[Array, ''], states: Int[Array, ' t']) -> Float[Array, 't s']:
    """Draws a symbol of each state, one-hot."""
    emissions = jnp.asarray(self.emissions, float)
    noise = jax.random.gumbel(key, (len(states), self.num_symbols))
    symbols = jnp.argmax(jnp.log(emissions)[states] + noise, axis=1)
    return jax.nn.one_hot(symbols, self.num_symbols, dtype=emissions.dtype)

  def _prompt_of(self, states: Int[Array, ' t'], x: Float[Array, 't s']) -> Prompt:
    emissions = jnp.asarray(self.emissions, float)
    following = dot(self.transitions[:, None], emissions.T[None])
    return make_prompt(x, jnp.roll(x, -1, axis=0), following[states], states)

  def baselines(self) -> dict[str, Predictor]:
    """Returns the baselines of this task, by name.

    `bayes` is the forward algorithm, which knows the chain and reads all symbols.
    `trigram`, `bigram` and `unigram` know the chain, too, and are the distributions of
    the next symbol given the last two symbols, the last one, or none. After one symbol
    `trigram` is `bigram`.
    """
    return {
      'bayes': Filtering(self),
      'trigram': Filtering(self, memory=2),
      'bigram': Filtering(self, memory=1),
      'unigram': Filtering(self, memory=0),
      'zero': Zero(),
    }


@struct.dataclass(eq=False, repr=False)
class Filtering(SequenceBaseline):
  """The distribution of the next symbol of a hidden Markov chain, given the last ones.

  This is the forward algorithm. The distribution b of the next state starts as the
  stationary distribution, and becomes `∝ Tᵀ (E_x ∘ b)` with each symbol x. The
  distribution of the next symbol is `Eᵀ b`.

  Args:
    task: The task with the chain.
    memory: Number of symbols that it reads, counted from the last one. None reads all.

  References:
    Rabiner, Proceedings of the IEEE 77, 1989, section III.
  """

  task: HiddenMarkov
  memory: int | None = struct.field(pytree_node=False, default=None)

  def after_each(self, symbols: Int[Array, ' t']) -> Float[Array, 't k']:
    moves = self.task.transitions
    emissions = jnp.asarray(self.task.emissions, moves.dtype)
    start = jnp.asarray(self.task.law, moves.dtype)

    def read(belief: Array, symbol: Array) -> tuple[Array, Array]:
      joint = belief * emissions[:, symbol]
      after = jnp.matmul(joint / jnp.sum(joint), moves, precision='highest')
      belief = jnp.where(symbol >= 0, after, belief)
      return belief, belief

    if self.memory is None:
      beliefs = jax.lax.scan(read, start, symbols)[1]
    else:
      # For each symbol, start anew before the last symbols. −1 stands for no symbol.
      padded = jnp.pad(symbols, (self.memory, 0), constant_values=-1)
      place = jnp.arange(len(symbols))[:, None] + jnp.arange(self.memory)[None] + 1
      last = jax.vmap(lambda window: jax.lax.scan(read, start, window)[0])
      beliefs = last(padded[place])
    return losses.log_probability(jnp.matmul(beliefs, emissions, precision='highest'))


class _Rows(NamedTuple):
  """The matrices R (`moves`) and E (`emissions`), and the states' stationary `law`."""

  moves: Float[np.ndarray, 'n n']
  emissions: Float[np.ndarray, 'n s']
  law: Float[np.ndarray, ' n']


@functools.lru_cache(maxsize=8)
def _rows(seed: int, num_states: int, num_symbols: int) -> _Rows:
  # NumPy guarantees the numbers of a RandomState for all its versions, but not those of
  # a Generator.
  random = np.random.RandomState(seed)
  moves = random.dirichlet(np.ones(num_states), num_states)
  emissions = random.dirichlet(np.ones(num_symbols), num_states)
  rows = _Rows(moves, emissions, stationary_laws(moves[None])[0])
  for array in rows:
    array.flags.writeable = False
  return rows
