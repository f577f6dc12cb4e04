"""Tasks that need a state: a machine reads symbols and says where it is after each.

Without noise, so that who keeps the state answers without loss from the first symbol
on. Attention alone and states with eigenvalues ≥ 0 cannot keep the state of a long
parity (Grazzi et al., arXiv 2411.12537; Merrill et al., arXiv 2404.08819).
"""

# A size that follows from fields is a property.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import abc
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from zoo.core.errors import UserError, check_count, check_truth
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.estimators.baselines import Examples, OfClasses, Zero
from zoo.tasks.base import BaseTask, make_prompt, register_task

# The logit of what is certain: e^−30 is less than a rounding of float32.
_CERTAIN = 30.0


class Automaton(NamedTuple):
  """A finite automaton that starts in state 0."""

  transitions: Int[np.ndarray, 's a']  # the next state, by state and symbol
  answers: Int[np.ndarray, ' s']  # what each state answers


@struct.dataclass(eq=False, repr=False)
class StateTracking(BaseTask):
  """The base of these tasks: symbols drawn uniformly, and the automaton's answers.

  Features are symbols, one-hot; the target of an example is the answer after its own
  symbol and all before it, one-hot. Labels are 0, as an answer that is shown would tell
  the state.
  """

  label_kind = 'classes'
  shows_labels = False
  stationary = True  # in what prompts show, the symbols

  @property
  def num_features(self) -> int:
    """Features of an example, d."""
    return self.automaton().transitions.shape[1]

  @property
  def num_outputs(self) -> int:
    """Outputs of a prediction, k."""
    return int(self.automaton().answers.max()) + 1

  @abc.abstractmethod
  def automaton(self) -> Automaton:
    """The automaton whose answers are the targets."""

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    length, symbols = self.context_length + 1, self.num_features
    return self._prompt_of(jax.random.randint(key, (length,), 0, symbols))

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    if keep == 'inputs':
      raise UserError(
        f'{type(self).__name__} has one automaton, whose answers follow from the '
        "inputs; there are no others with the same inputs. keep='query' draws other "
        'symbols before the same last one'
      )
    length, symbols = self.context_length + 1, self.num_features
    drawn = jax.random.randint(key, (length,), 0, symbols)
    return self._prompt_of(drawn.at[-1].set(jnp.argmax(prompt.x_query)))

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    return jnp.asarray(-len(x) * math.log(self.num_features), x.dtype)

  def _prompt_of(self, symbols: Int[Array, ' t']) -> Prompt:
    """The prompt of these symbols."""
    answers = answers_after(self.automaton(), symbols, jnp.ones(len(symbols), bool))
    x = jax.nn.one_hot(symbols, self.num_features)
    targets = jax.nn.one_hot(answers, self.num_outputs)
    return make_prompt(x, jnp.zeros_like(targets), targets)

  def baselines(self) -> dict[str, Predictor]:
    """`bayes` is the automaton; `zero` is chance."""
    return {'bayes': Tracking(self), 'zero': Zero()}


@register_task('parity_prefix')
@struct.dataclass(eq=False, repr=False)
class ParityPrefix(StateTracking):
  """Whether the number of ones so far is odd: S_2, and so ℤ_2."""

  context_length: int = struct.field(pytree_node=False, default=39)

  def automaton(self) -> Automaton:
    return _sums(2)


@register_task('modular_addition')
@struct.dataclass(eq=False, repr=False)
class ModularAddition(StateTracking):
  """The sum of the numbers so far, modulo `modulus`."""

  modulus: int = struct.field(pytree_node=False, default=3)  # m of ℤ_m, 2 to 1000
  context_length: int = struct.field(pytree_node=False, default=39)

  def check(self) -> None:
    check_count('modulus', self.modulus, minimum=2, maximum=1000)
    super().check()

  def automaton(self) -> Automaton:
    return _sums(self.modulus)


@register_task('permutations')
@struct.dataclass(eq=False, repr=False)
class Permutations(StateTracking):
  """The word problem of S_k: the permutation that a sequence of permutations makes.

  Permutations are numbered in lexicographic order, and a symbol is applied after those
  before it. For k = 5 the problem is complete for NC¹ (Barrington, 1989), and so beyond
  threshold circuits of constant depth, if these are not all of NC¹.
  """

  num_elements: int = struct.field(pytree_node=False, default=3)  # k of S_k, 2 to 5
  context_length: int = struct.field(pytree_node=False, default=39)
  # Whether symbols are the swaps of two elements alone.
  transpositions: bool = struct.field(pytree_node=False, default=False)

  def check(self) -> None:
    check_count('num_elements', self.num_elements, minimum=2, maximum=5)
    check_truth('transpositions', self.transpositions)
    super().check()

  def automaton(self) -> Automaton:
    # A state is where each element is; the first leaves each in its place.
    k = self.num_elements
    states = np.asarray([*itertools.permutations(range(k))])
    symbols = states
    if self.transpositions:
      symbols = states[np.sum(states != np.arange(k)[None], axis=1) == 2]
    after = np.swapaxes(symbols[:, states], 0, 1)  # [states, symbols, elements]
    # Read as numbers, permutations keep their order.
    digits = k ** np.arange(k)[::-1]
    transitions = np.searchsorted(states @ digits, after @ digits)
    return Automaton(transitions, np.arange(len(states)))


@register_task('modular_arithmetic')
@struct.dataclass(eq=False, repr=False)
class ModularArithmetic(StateTracking):
  """The value of an expression so far, modulo `modulus`, where × binds before + and −.

  The expression starts with 0. A symbol is an operation with the number after it, as in
  0 | + 3 | × 2 | − 4: the number of `+ d` is d, of `− d` m + d and of `× d` 2 m + d.
  Without brackets, as in Grazzi et al., who have operations and numbers as tokens of
  their own and ask for the value at the end alone.
  """

  modulus: int = struct.field(pytree_node=False, default=5)  # m of ℤ_m, 2 to 30
  context_length: int = struct.field(pytree_node=False, default=39)

  def check(self) -> None:
    check_count('modulus', self.modulus, minimum=2, maximum=30)
    super().check()

  def automaton(self) -> Automaton:
    # The state m s + p is that of an expression s + p, whose last product is p.
    m = self.modulus
    done, product = (part[:, None] for part in np.divmod(np.arange(m * m), m))
    total, numbers = (done + product) % m, np.arange(m)[None]
    after = [
      m * total + numbers,
      m * total + -numbers % m,
      m * done + product * numbers % m,
    ]
    return Automaton(np.concatenate(after, axis=1), total[:, 0])


@struct.dataclass(eq=False, repr=False)
class Tracking(OfClasses):
  """The Bayes predictor of these tasks: it runs the automaton."""

  task: Any

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    x, y, seen, x_query = examples
    symbols = jnp.argmax(jnp.concatenate([x, x_query[None]]), axis=1)
    read = jnp.concatenate([seen, jnp.ones(1, bool)])
    answer = answers_after(self.task.automaton(), symbols, read)[-1]
    return _CERTAIN * jax.nn.one_hot(answer, y.shape[1], dtype=x.dtype)


def answers_after(
  automaton: Automaton, symbols: Int[Array, ' t'], read: Bool[Array, ' t']
) -> Int[Array, ' t']:
  """The answer after each symbol; symbols that are not read change nothing."""
  transitions, answers = map(jnp.asarray, automaton)

  def step(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
    symbol, is_read = now
    state = jnp.where(is_read, transitions[state, symbol], state)
    return state, answers[state]

  start = jnp.zeros((), transitions.dtype)
  return jax.lax.scan(step, start, (symbols, read))[1]


def _sums(modulus: int) -> Automaton:
  numbers = np.arange(modulus)
  return Automaton((numbers[:, None] + numbers[None]) % modulus, numbers)
