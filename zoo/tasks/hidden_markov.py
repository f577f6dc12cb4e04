"""The next symbol of one fixed hidden Markov chain, and the forward algorithm."""

# A size that follows from fields is a property.
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
  """The next symbol of a hidden Markov chain, the same one in all prompts.

  A state stays with the probability ρ = `persistence`, and is otherwise drawn by a row
  of a matrix R, so that `T = ρ I + (1 − ρ) R`; each state emits a symbol by a row of E.
  Rows are Dirichlet(1, …, 1), and depend only on `seed` and the sizes. The first state
  has the stationary law, which is that of R. (Filtering in context: arXiv 2512.22471.)

  An example is a symbol, one-hot, with the next symbol as its label; the query is the
  last symbol. Targets are the laws of the next symbol given the hidden state, rows of
  `T E`: their mean given the symbols alone is what the forward algorithm predicts. The
  chain is fixed, since the Bayes predictor for a new chain in each prompt would be an
  integral over all matrices, which has no closed form.
  """

  num_states: int = struct.field(pytree_node=False, default=8)  # ≥ 2
  num_symbols: int = struct.field(pytree_node=False, default=8)  # ≥ 2
  context_length: int = struct.field(pytree_node=False, default=100)
  persistence: Number = 0.9  # ρ, 0 ≤ ρ < 1
  seed: int = struct.field(pytree_node=False, default=0)  # of R and E, 0 to 2³² − 1
  label_kind = 'classes'
  stationary = True

  @property
  def num_features(self) -> int:
    """Features of an example, d."""
    return self.num_symbols

  @property
  def num_outputs(self) -> int:
    """Outputs of a prediction, k."""
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
    """T, by state and next state."""
    moves = jnp.asarray(self._rows.moves, float)
    persistence = jnp.asarray(self.persistence, moves.dtype)
    return persistence * jnp.eye(len(moves)) + (1 - persistence) * moves

  @property
  def emissions(self) -> Float[np.ndarray, 'n s']:
    """E, by state and symbol, float64 and read-only."""
    return self._rows.emissions

  @property
  def law(self) -> Float[np.ndarray, ' n']:
    """The stationary law of states, float64 and read-only."""
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
    """Draws the states from the last one back; the chain is the same in all prompts."""
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
    """A symbol of each state, one-hot."""
    emissions = jnp.asarray(self.emissions, float)
    noise = jax.random.gumbel(key, (len(states), self.num_symbols))
    symbols = jnp.argmax(jnp.log(emissions)[states] + noise, axis=1)
    return jax.nn.one_hot(symbols, self.num_symbols, dtype=emissions.dtype)

  def _prompt_of(self, states: Int[Array, ' t'], x: Float[Array, 't s']) -> Prompt:
    emissions = jnp.asarray(self.emissions, float)
    following = dot(self.transitions[:, None], emissions.T[None])
    return make_prompt(x, jnp.roll(x, -1, axis=0), following[states], states)

  def baselines(self) -> dict[str, Predictor]:
    """`bayes` is the forward algorithm, which knows the chain and sees all symbols.

    `trigram`, `bigram` and `unigram` are the laws of the next symbol in the same chain
    given the last two (at first the only symbol that is known), the last, or none.
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
  """The law of the next symbol given the last `memory` symbols, or all of them.

  The forward algorithm: the law b of the next state, which starts as the stationary
  law, becomes `∝ Tᵀ (E_x ∘ b)` with each symbol x, and `Eᵀ b` is the law of the next
  symbol. (Rabiner, Proceedings of the IEEE 77, 1989, section III.)
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
    else:  # starting anew before the last symbols, of which −1 is none
      padded = jnp.pad(symbols, (self.memory, 0), constant_values=-1)
      place = jnp.arange(len(symbols))[:, None] + jnp.arange(self.memory)[None] + 1
      last = jax.vmap(lambda window: jax.lax.scan(read, start, window)[0])
      beliefs = last(padded[place])
    return losses.log_probability(jnp.matmul(beliefs, emissions, precision='highest'))


class _Rows(NamedTuple):
  moves: Float[np.ndarray, 'n n']  # R
  emissions: Float[np.ndarray, 'n s']
  law: Float[np.ndarray, ' n']


@functools.lru_cache(maxsize=8)
def _rows(seed: int, num_states: int, num_symbols: int) -> _Rows:
  # NumPy guarantees that the numbers of a RandomState, unlike a Generator's, stay.
  random = np.random.RandomState(seed)
  moves = random.dirichlet(np.ones(num_states), num_states)
  emissions = random.dirichlet(np.ones(num_symbols), num_states)
  rows = _Rows(moves, emissions, stationary_laws(moves[None])[0])
  for array in rows:
    array.flags.writeable = False
  return rows
