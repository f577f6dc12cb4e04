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
from zoo.core.beliefs import Belief, values_of
from zoo.core.errors import UserError, check_count, check_name, check_number
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

  Two chains of Shai et al. are known by name, which `process` gives:

  - `mess3` has three states and three symbols. A state stays with the probability
    `1 − 2x`, goes to each other one with x, and emits its own symbol with α and each
    other one with `(1 − α)/2`. Beliefs fill a fractal in the triangle.
  - `rrxor` repeats two random bits and their exclusive or. Its machine has five states,
    S (the next bit is the first), 0 and 1 (the first bit was this), and T and F (the
    exclusive or is 1, or 0). The bit that is emitted depends on two states in a row, so
    a state of this task is a state of the machine together with the bit by which it is
    entered. There are eight of these.

  Args:
    num_states: Number of states, ≥ 2. For `mess3` it is 3, and for `rrxor` 8.
    num_symbols: Number of symbols, ≥ 2. For `mess3` it is 3, and for `rrxor` 2.
    context_length: Number of examples C ≥ 1.
    persistence: Probability ρ that a state stays, 0 ≤ ρ < 1; only for a random chain.
    seed: Seed of the transitions and the emissions, from 0 to 2³² − 1; only for a
      random chain.
    process: Which chain it is: 'random', 'mess3' or 'rrxor'.
    mess3_alpha: Probability α that a state of `mess3` emits its own symbol, 0 < α < 1.
    mess3_x: Probability x that a state of `mess3` goes to each of the others, from 0 to
      1/2, neither included.

  Example:
    >>> task = zoo.create_task('hidden_markov', num_symbols=3, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((2, 5, 3), (2, 5, 3), (2, 3))

  References:
    Filtering in context: arXiv 2512.22471. Forward algorithm: Rabiner, Proceedings of
    the IEEE 77, 1989, section III. Mess3 and RRXOR: Shai et al., arXiv 2405.15943.
  """

  num_states: int = struct.field(pytree_node=False, default=8)
  num_symbols: int = struct.field(pytree_node=False, default=8)
  context_length: int = struct.field(pytree_node=False, default=100)
  persistence: Number = 0.9
  seed: int = struct.field(pytree_node=False, default=0)
  process: str = struct.field(pytree_node=False, default='random')
  mess3_alpha: Number = 0.85
  mess3_x: Number = 0.05
  label_kind = 'classes'
  stationary = True

  def __post_init__(self):
    super().__post_init__()
    if isinstance(self.process, str) and self.process in _SIZES:
      num_states, num_symbols = _SIZES[self.process]
      object.__setattr__(self, 'num_states', num_states)
      object.__setattr__(self, 'num_symbols', num_symbols)

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
    check_name('process', self.process, PROCESSES)
    for name, most in (('mess3_alpha', 1.0), ('mess3_x', 0.5)):
      if check_number(name, value := getattr(self, name), above=0.0) >= most:
        raise UserError(f'{name} is {value}; it must be below {most:g}')

  @property
  def transitions(self) -> Float[Array, 'n n']:
    """The transition matrix T, by state and next state."""
    if self.process == 'rrxor':
      return jnp.asarray(_rrxor().moves, float)
    if self.process == 'mess3':
      moves, stays = jnp.full((3, 3), 1 / 3), 1 - 3 * self.mess3_x
    else:
      moves, stays = jnp.asarray(self._rows.moves, float), self.persistence
    persistence = jnp.asarray(stays, moves.dtype)
    return persistence * jnp.eye(len(moves)) + (1 - persistence) * moves

  @property
  def emissions(self) -> Float[Array, 'n s'] | Float[np.ndarray, 'n s']:
    """The matrix E, by state and symbol.

    It is float64 and read-only, except for `mess3`, where it follows from a number
    that compiled programs take as an argument.
    """
    if self.process == 'mess3':
      alpha = jnp.asarray(self.mess3_alpha, float)
      return jnp.where(jnp.eye(3, dtype=bool), alpha, (1 - alpha) / 2)
    return self._rows.emissions

  @property
  def law(self) -> Float[np.ndarray, ' n']:
    """The stationary distribution of the states, float64 and read-only."""
    return self._rows.law

  @property
  def _rows(self) -> _Rows:
    if self.process == 'rrxor':
      return _rrxor()
    if self.process == 'mess3':
      return _MESS3
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

    last = jnp.argmax(law + jnp.log(emitted) + noise[0])
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

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes the probabilities of the state at each symbol, given all so far.

    The state is the one that emits the symbol. For `rrxor` it is the state of the
    machine after the symbol, one of five.

    Args:
      prompt: Prompts `[b]`.

    Returns:
      The belief, with values `[b, c + 1, n]`.
    """
    names = tuple(f'state {i}' for i in range(self.num_states))
    if self.process == 'rrxor':
      names = RRXOR_STATES
    return Belief(values_of(Filtering(self), prompt), names)

  def belief_prediction(
    self, values: Float[Array, 'b k'], prompt: Prompt
  ) -> Float[Array, 'b s']:
    if self.process == 'rrxor':
      following = jnp.asarray(_RRXOR.sum(axis=2).T, values.dtype)
    else:
      emissions = jnp.asarray(self.emissions, values.dtype)
      following = self.transitions.astype(values.dtype) @ emissions
    return jnp.matmul(values, following, precision='highest')

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
    start = jnp.asarray(self.task.law, self.task.transitions.dtype)
    if self.memory is None:
      _, (beliefs, _) = jax.lax.scan(self._read, start, symbols)
    else:
      # For each symbol, start anew before the last symbols. −1 stands for no symbol.
      padded = jnp.pad(symbols, (self.memory, 0), constant_values=-1)
      place = jnp.arange(len(symbols))[:, None] + jnp.arange(self.memory)[None] + 1
      last = jax.vmap(lambda window: jax.lax.scan(self._read, start, window)[0])
      beliefs = last(padded[place])
    emissions = jnp.asarray(self.task.emissions, start.dtype)
    return losses.log_probability(jnp.matmul(beliefs, emissions, precision='highest'))

  def belief(self, prompt: Prompt) -> Float[Array, 'b t n']:
    """Returns the distribution of the state that emitted each symbol, given all so far.

    It does not depend on `memory`. For `rrxor` the states are those of the machine.
    """
    start = jnp.asarray(self.task.law, self.task.transitions.dtype)

    def of_one(symbols: Int[Array, ' t']) -> Float[Array, 't n']:
      _, (_, states) = jax.lax.scan(self._read, start, symbols)
      return _of_machine(states) if self.task.process == 'rrxor' else states

    return jax.vmap(of_one)(jnp.argmax(prompt.features, axis=-1))

  def _read(
    self, belief: Float[Array, ' n'], symbol: Int[Array, '']
  ) -> tuple[Float[Array, ' n'], tuple[Float[Array, ' n'], Float[Array, ' n']]]:
    """Returns the belief after a symbol, twice, and that of the state that emitted it.

    After a symbol that is impossible, all are 0.
    """
    moves = self.task.transitions
    joint = belief * jnp.asarray(self.task.emissions, moves.dtype)[:, symbol]
    total = jnp.sum(joint)
    state = joint / jnp.where(total > 0, total, 1)
    after = jnp.matmul(state, moves, precision='highest')
    belief = jnp.where(symbol >= 0, after, belief)
    return belief, (belief, state)


PROCESSES = 'random', 'mess3', 'rrxor'
_SIZES = {'mess3': (3, 3), 'rrxor': (8, 2)}  # States and symbols.
RRXOR_STATES = 'S', '0', '1', 'T', 'F'
# The probability of a symbol and the next state of the machine, by symbol, state and
# next state: Shai et al., appendix A.
_RRXOR = np.array(
  [
    [
      [0, 0.5, 0, 0, 0],
      [0, 0, 0, 0, 0.5],
      [0, 0, 0, 0.5, 0],
      [0, 0, 0, 0, 0],
      [1, 0, 0, 0, 0],
    ],
    [
      [0, 0, 0.5, 0, 0],
      [0, 0, 0, 0.5, 0],
      [0, 0, 0, 0, 0.5],
      [1, 0, 0, 0, 0],
      [0, 0, 0, 0, 0],
    ],
  ]
)
# The states of the machine with the symbols by which they are entered.
_ENTERED = [
  (state, symbol)
  for state in range(5)
  for symbol in range(2)
  if _RRXOR[symbol, :, state].any()
]


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


# All that is read of it is the law, which does not depend on α and x.
_MESS3 = _Rows(np.full((3, 3), 1 / 3), np.full((3, 3), 1 / 3), np.full(3, 1 / 3))
_MESS3.law.flags.writeable = False


@functools.cache
def _rrxor() -> _Rows:
  """Returns the matrices of the eight states of `rrxor`.

  A third of the time the next bit is the first, a third the second, a third the last.
  """
  moves = np.array(
    [
      [_RRXOR[symbol, before, after] for after, symbol in _ENTERED]
      for before, _ in _ENTERED
    ]
  )
  emissions = np.array(
    [[symbol == s for s in range(2)] for _, symbol in _ENTERED], float
  )
  rows = _Rows(moves, emissions, stationary_laws(moves[None])[0])
  for array in rows:
    array.flags.writeable = False
  return rows


def _of_machine(states: Float[Array, 't n']) -> Float[Array, 't 5']:
  """Returns the probabilities of the states of the machine of `rrxor`."""
  is_of = np.array([[state == s for s in range(5)] for state, _ in _ENTERED], float)
  return jnp.matmul(states, jnp.asarray(is_of, states.dtype), precision='highest')
