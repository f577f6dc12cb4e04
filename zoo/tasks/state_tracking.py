"""Tasks that need a state: an automaton reads symbols, and answers after each of them.

There is no noise, so a model that keeps the state has the loss 0 from the first symbol
on. At finite precision, attention alone and linear recurrences whose transitions have
eigenvalues in [0, 1] cannot keep the state of a long parity (Grazzi et al., arXiv
2411.12537; Merrill et al., arXiv 2404.08819).
"""

# A size that the base class declares as a field may be a property here.
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

# A certain answer has this logit; e^−30 is less than a rounding error of float32.
_CERTAIN = 30.0


class Automaton(NamedTuple):
  """A finite automaton that starts in state 0.

  Attributes:
    transitions: Next state, by state and symbol.
    answers: Answer in each state.
  """

  transitions: Int[np.ndarray, 's a']
  answers: Int[np.ndarray, ' s']


@struct.dataclass(eq=False, repr=False)
class StateTracking(BaseTask):
  """Base of the tasks in which the answers of an automaton are the targets.

  Symbols are drawn independently and uniformly. Features are symbols, one-hot. The
  target of an example is the answer after its own symbol and all symbols before it,
  one-hot. Labels are 0, since an answer that is shown would tell the state. There are
  no latents. A subclass defines `automaton`.
  """

  label_kind = 'classes'
  shows_labels = False
  # Prompts show the symbols alone, which are independent and uniform.
  stationary = True

  @property
  def num_features(self) -> int:
    """Number of features of an example, d; here the number of symbols."""
    return self.automaton().transitions.shape[1]

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k; here the number of answers."""
    return int(self.automaton().answers.max()) + 1

  @abc.abstractmethod
  def automaton(self) -> Automaton:
    """Returns the automaton whose answers are the targets."""

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
    """Returns the prompt of these symbols."""
    answers = answers_after(self.automaton(), symbols, jnp.ones(len(symbols), bool))
    x = jax.nn.one_hot(symbols, self.num_features)
    targets = jax.nn.one_hot(answers, self.num_outputs)
    return make_prompt(x, jnp.zeros_like(targets), targets)

  def baselines(self) -> dict[str, Predictor]:
    """Returns `bayes`, which runs the automaton, and `zero`, which is chance."""
    return {'bayes': Tracking(self), 'zero': Zero()}


@register_task('parity_prefix')
@struct.dataclass(eq=False, repr=False)
class ParityPrefix(StateTracking):
  """Parity of the number of ones so far in a sequence of bits: the group ℤ_2.

  Symbols are drawn uniformly. Features are symbols, one-hot. The target of an example
  and of the query is the parity of the number of ones up to its symbol (0 is even, 1 is
  odd), one-hot. Labels are 0, so that a model sees the symbols alone. There are no
  latents. The Bayes predictor runs the automaton, with the loss 0 (baseline `bayes`).

  Args:
    context_length: Number of examples C ≥ 1.

  Example:
    >>> task = zoo.create_task('parity_prefix', context_length=4)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((2, 4, 2), (2, 4, 2), (2, 2))

  References:
    Grazzi et al., arXiv 2411.12537.
  """

  context_length: int = struct.field(pytree_node=False, default=39)

  def automaton(self) -> Automaton:
    return _sums(2)


@register_task('modular_addition')
@struct.dataclass(eq=False, repr=False)
class ModularAddition(StateTracking):
  """Sum of the numbers so far, modulo m: the group ℤ_m.

  Symbols are drawn uniformly. Features are symbols, one-hot. The target of an example
  and of the query is the sum modulo m of the numbers up to its symbol, one-hot. Labels
  are 0, so that a model sees the symbols alone. There are no latents. The Bayes
  predictor runs the automaton, with the loss 0 (baseline `bayes`).

  Args:
    modulus: Modulus m, from 2 to 1000. Symbols are the numbers from 0 to m − 1.
    context_length: Number of examples C ≥ 1.

  Example:
    >>> task = zoo.create_task('modular_addition', context_length=4, modulus=3)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((2, 4, 3), (2, 4, 3), (2, 3))

  References:
    Merrill et al., arXiv 2404.08819; Grazzi et al., arXiv 2411.12537.
  """

  modulus: int = struct.field(pytree_node=False, default=3)
  context_length: int = struct.field(pytree_node=False, default=39)

  def check(self) -> None:
    check_count('modulus', self.modulus, minimum=2, maximum=1000)
    super().check()

  def automaton(self) -> Automaton:
    return _sums(self.modulus)


@register_task('permutations')
@struct.dataclass(eq=False, repr=False)
class Permutations(StateTracking):
  """Product of the permutations so far: the word problem of the symmetric group S_k.

  Symbols are drawn uniformly. Features are symbols, one-hot. The target of an example
  and of the query is the product of the permutations up to its symbol, one-hot. Labels
  are 0, so that a model sees the symbols alone. There are no latents. The Bayes
  predictor runs the automaton, with the loss 0 (baseline `bayes`).

  Permutations are numbered in lexicographic order, and a symbol is applied after those
  before it. For k = 5 the problem is complete for the class NC¹ (Barrington, 1989). It
  is therefore beyond threshold circuits of constant depth, unless these are all of NC¹.

  Args:
    num_elements: Number of elements k, from 2 to 5.
    context_length: Number of examples C ≥ 1.
    transpositions: Whether the symbols are only the k (k − 1)/2 exchanges of two
      elements, not all k! permutations.

  Example:
    >>> task = zoo.create_task('permutations', context_length=4, num_elements=3)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((2, 4, 6), (2, 4, 6), (2, 6))

  References:
    Merrill et al., arXiv 2404.08819; Grazzi et al., arXiv 2411.12537.
  """

  num_elements: int = struct.field(pytree_node=False, default=3)
  context_length: int = struct.field(pytree_node=False, default=39)
  transpositions: bool = struct.field(pytree_node=False, default=False)

  def check(self) -> None:
    check_count('num_elements', self.num_elements, minimum=2, maximum=5)
    check_truth('transpositions', self.transpositions)
    super().check()

  def automaton(self) -> Automaton:
    # A state says where each element is. The first state leaves each in its place.
    k = self.num_elements
    states = np.asarray([*itertools.permutations(range(k))])
    symbols = states
    if self.transpositions:
      symbols = states[np.sum(states != np.arange(k)[None], axis=1) == 2]
    after = np.swapaxes(symbols[:, states], 0, 1)  # [states, symbols, elements]
    # Permutations that are read as numbers keep their order.
    digits = k ** np.arange(k)[::-1]
    transitions = np.searchsorted(states @ digits, after @ digits)
    return Automaton(transitions, np.arange(len(states)))


@register_task('modular_arithmetic')
@struct.dataclass(eq=False, repr=False)
class ModularArithmetic(StateTracking):
  """Value of an arithmetic expression so far, modulo m, where × binds before + and −.

  Symbols are drawn uniformly. Features are symbols, one-hot. The target of an example
  and of the query is the value of the expression up to its symbol, one-hot. Labels are
  0, so that a model sees the symbols alone. There are no latents. The Bayes predictor
  runs the automaton, with the loss 0 (baseline `bayes`).

  The expression starts with 0, and has no brackets. A symbol is an operation with the
  number after it, as in 0 | + 3 | × 2 | − 4. With a number d from 0 to m − 1, the
  symbol `+ d` is numbered d, `− d` is m + d and `× d` is 2 m + d. (In Grazzi et al.
  operations and numbers are tokens of their own, and only the value at the end is asked
  for.)

  Args:
    modulus: Modulus m, from 2 to 30.
    context_length: Number of examples C ≥ 1.

  Example:
    >>> task = zoo.create_task('modular_arithmetic', context_length=4, modulus=3)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((2, 4, 9), (2, 4, 3), (2, 3))

  References:
    Grazzi et al., arXiv 2411.12537.
  """

  modulus: int = struct.field(pytree_node=False, default=5)
  context_length: int = struct.field(pytree_node=False, default=39)

  def check(self) -> None:
    check_count('modulus', self.modulus, minimum=2, maximum=30)
    super().check()

  def automaton(self) -> Automaton:
    # The state m s + p belongs to an expression s + p whose last product is p.
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
  """The Bayes predictor of these tasks: it runs the automaton.

  Args:
    task: The task with the automaton.
  """

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
  """Returns the answer after each symbol.

  Args:
    automaton: The automaton.
    symbols: Symbols `[t]`.
    read: Whether each symbol is read `[t]`; symbols that are not read change nothing.
  """
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
