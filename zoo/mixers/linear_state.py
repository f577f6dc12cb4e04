"""Mixers that run the recurrence of `zoo/mixers/recurrence.py`, and their states."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from zoo.core.errors import UserError, in_one_line
from zoo.core.taps import Tap
from zoo.mixers.mixer import (
  Activation,
  Linear,
  LowRank,
  Memory,
  Mixer,
  Read,
  RMSNorm,
  Slot,
  Tokens,
  merge_heads,
  project,
  project_back,
  split_heads,
  widen,
)
from zoo.mixers.recurrence import recurrence
from zoo.mixers.short_convolution import PAST, ShortConvolution

Past: TypeAlias = tuple[Array, ...]


class State(NamedTuple):
  """The state of a mixer after the tokens that it has seen.

  Attributes:
    memory: The state S of each head, `[b, h, k, v]`, in float32 or more precise.
    past: Other arrays that the mixer keeps. By default these are the last three inputs
      of each short convolution, `[b, 3, channels]`.
    position: The number of tokens seen, an integer.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=2)
    >>> mixer = zoo.mixers.LinearMixer(slot, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(3).memory.shape
    (3, 2, 4, 4)
  """

  memory: Memory
  past: Past
  position: Int[Array, '']


class LinearState(Mixer):
  """Base class of mixers that run the recurrence of `Inputs`.

  A subclass defines `inputs`, which turns tokens into the inputs of the recurrence, and
  sets `self.out`, the linear layer of the output. The outputs of all tokens, those of
  one token after another (`step`), and the attention weights follow from these. A
  subclass may also replace the recurrence: it then defines `recur`, and its `inputs`
  may return any named tuple with a field `value`.

  The state is a `State`, with a matrix S `[key_size, value_size]` for each head.

  Args:
    num_heads: Number of heads h.
    key_size: Number of entries k of a key, and so of rows of S.
    value_size: Number of entries v of a value, and so of columns of S.
    convolved: Number of channels of each short convolution, whose last inputs are part
      of the state; none by default. (`HeadState` takes the names of projections
      instead, and derives these numbers.)

  Example:
    >>> class Sum(zoo.mixers.LinearState):
    ...   def __init__(self, width, *, rngs):
    ...     super().__init__(num_heads=1, key_size=1, value_size=width)
    ...     self.out = nnx.Linear(width, width, rngs=rngs)
    ...   def inputs(self, tokens, state):
    ...     ones = jnp.ones((*tokens.shape[:2], 1, 1))
    ...     return zoo.mixers.Inputs(ones, ones, tokens[:, :, None]), ()
    >>> Sum(8, rngs=nnx.Rngs(0)).attention(jnp.ones((1, 3, 8)))[0, 0]
    Array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]], dtype=float32)
  """

  def __init__(
    self, num_heads: int, key_size: int, value_size: int, convolved: Sequence[int] = ()
  ):
    self.num_heads, self.sizes = num_heads, (key_size, value_size)
    self.convolved = tuple(convolved)
    self.read_tap = Tap(axes='b n h v', kind='read')
    self.heads_tap = Tap(axes='b n h v', kind='heads')
    self.out: Linear

  @abc.abstractmethod
  def inputs(self, tokens: Tokens, state: State) -> tuple[Any, Past]:
    """Returns the inputs of the recurrence, and the next `state.past`.

    Args:
      tokens: The tokens that follow the state, `[b, n, w]`.
      state: The state before them.

    Returns:
      `Inputs`, or what this class's `recur` takes; and a tuple of arrays with the
      shapes of those in `state.past`.
    """

  def outputs(self, read: Read, inputs: Any, tokens: Tokens) -> Tokens:
    """Returns the mixer's output for each token.

    Args:
      read: What the heads read from their states, `[b, n, h, v]`.
      inputs: The inputs of the recurrence.
      tokens: The tokens of the mixer, `[b, n, w]`.
    """
    return self.out(merge_heads(self.heads_tap(read)).astype(tokens.dtype))

  def recur(self, inputs: Any, memory: Memory) -> tuple[Read, Memory]:
    """Runs the recurrence.

    Args:
      inputs: What `inputs` returns, in float32 or more precise.
      memory: The states before the first token, `[b, h, k, v]`.

    Returns:
      What the heads read at each token, `[b, n, h, v]`, and the states after the last.
    """
    return recurrence(inputs, memory)

  def __call__(self, tokens: Tokens) -> Tokens:
    """Returns the output for each token, from the state before the first token."""
    return self.run(tokens, self.initial_state(len(tokens)))[0]

  def run(self, tokens: Tokens, state: State) -> tuple[Tokens, State]:
    """Returns the outputs of tokens that follow a state, and the next state.

    Args:
      tokens: The tokens, `[b, n, w]`.
      state: The state before the first of them.
    """
    inputs, past = self.inputs(tokens, state)
    inputs = self._checked(inputs)
    # Tokens in float64 give inputs in float64. The state has the type of the weights,
    # which may be less precise.
    dtype = np.promote_types(state.memory.dtype, inputs.value.dtype)
    read, memory = self.recur(inputs, state.memory.astype(dtype))
    position = state.position + tokens.shape[1]
    outputs = self.outputs(self.read_tap(read), inputs, tokens)
    return outputs, State(memory, past, position)

  def attention(self, tokens: Tokens) -> Float[Array, 'b h n n']:
    """Returns the weights a of the values in what the heads read, `o_t = Σ_i a_ti v_i`.

    What is read is linear in the values, so unit vectors as values give the weights.
    """
    b, n, _ = tokens.shape
    inputs = self._checked(self.inputs(tokens, self.initial_state(b))[0])
    units = jnp.eye(n, dtype=inputs.value.dtype)[None, :, None]
    inputs = self.with_values(
      inputs, jnp.broadcast_to(units, (b, n, self.num_heads, n))
    )
    value, key_size = inputs.value, self.sizes[0]
    memory = jnp.zeros((b, self.num_heads, key_size, value.shape[-1]), value.dtype)
    return jnp.swapaxes(self.recur(inputs, memory)[0], 1, 2)

  def _checked(self, inputs: Any) -> Any:
    """Returns the inputs in float32 or more precise.

    Raises:
      UserError: If there is no value, or if an input is not an array.
    """
    name = type(self).__name__
    if getattr(inputs, 'value', None) is None:
      raise UserError(
        f'{name}.inputs returns {in_one_line(repr(inputs), 80)} without a value; it '
        'must return Inputs, and the next state.past'
      )
    for path, leaf in jax.tree_util.tree_leaves_with_path(inputs):
      if not isinstance(leaf, jax.Array):
        raise UserError(
          f'{name}.inputs returns {in_one_line(repr(leaf), 80)} as '
          f'{jax.tree_util.keystr(path)}; it must be an array of JAX'
        )
    return widen(inputs)

  def with_values(self, inputs: Any, values: Read) -> Any:
    """Returns the inputs of the recurrence with other values.

    The method `attention` calls it with unit vectors as values.

    Args:
      inputs: What `inputs` has returned.
      values: The other values, `[b, n, h, v]`.
    """
    return inputs._replace(value=values)

  def initial_state(self, batch: int) -> State:
    """Returns the state before the first token: zeros.

    Args:
      batch: Number b of sequences.
    """
    dtype = self.out.kernel[...].dtype
    return State(
      widen(jnp.zeros((batch, self.num_heads, *self.sizes), dtype)),
      tuple(jnp.zeros((batch, PAST, c), dtype) for c in self.convolved),
      jnp.zeros((), int),
    )

  def step(
    self, token: Float[Array, 'b w'], state: State
  ) -> tuple[Float[Array, 'b w'], State]:
    """Returns the output of one token, and the next state.

    Args:
      token: One token of each sequence, `[b, w]`.
      state: The state before it.
    """
    output, state = self.run(token[:, None], state)
    return output[:, 0], state


# A mixer may convolve these projections.
QKV = 'query', 'key', 'value'


class HeadState(LinearState):
  """Base class of recurrent mixers whose heads have a query, a key and a value.

  Queries, keys and values are linear in the tokens and have s = width / num_heads
  entries in each head. A subclass defines `inputs`: it takes q, k and v from `heads`
  and adds the decay, what is written and what is erased. The output of the mixer is

    y_t = W_o (norm(o_t) ∘ gate(W_g x_t))

  with what the heads read, o_t, and without the norm or the gate if these are not asked
  for. The state is a `State`: a matrix S `[s, s]` for each head, and the last three
  inputs of each short convolution.

  Args:
    slot: Width of the tokens, number of heads, and initialisation.
    convolved: Names of the projections, some of 'query', 'key' and 'value', that go
      through a short causal convolution and SiLU; none by default. (`LinearState` takes
      numbers of channels instead.)
    steps: Number of pairs of a key and a value for each token; 1 by default.
    norm: Whether each head's output goes through an RMS norm; True by default.
    gate: The function of the gate, such as `jax.nn.silu`; None, the default, means that
      there is no gate.
    gate_rank: Rank of W_g; None, the default, means a full matrix.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `slot.num_heads` is not a positive integer or does not divide the
      width.

  Example:
    >>> class Fading(zoo.mixers.HeadState):
    ...   def inputs(self, tokens, state):
    ...     (query, key, value), past = self.heads(tokens, state)
    ...     log_decay = jnp.full((*key.shape[:3], 1), -0.1)
    ...     return zoo.mixers.Inputs(query, key, value, log_decay), past
    >>> mixer = Fading(zoo.mixers.Slot(width=8, num_heads=2), rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 2, 4, 4)
  """

  def __init__(
    self,
    slot: Slot,
    *,
    convolved: Sequence[str] = (),
    steps: int = 1,
    norm: bool = True,
    gate: Activation | None = None,
    gate_rank: int | None = None,
    rngs: nnx.Rngs,
  ):
    size, width, init = slot.head_size, slot.width, slot.init
    widths = {'query': width, 'key': steps * width, 'value': steps * width}
    super().__init__(slot.num_heads, size, size, [widths[name] for name in convolved])
    self.query, self.key, self.value = (
      project(width, widths[name], init, rngs=rngs) for name in QKV
    )
    self.out = project_back(width, width, init, rngs=rngs)
    self.convolutions = nnx.Dict(
      {name: ShortConvolution(widths[name], rngs=rngs) for name in convolved}
    )
    self.norm = RMSNorm(size) if norm else None
    each = 'n' if steps == 1 else 'm'  # The axis counts tokens, or the steps of all.
    self.query_tap = Tap(axes='b n h k', kind='query')
    self.key_tap = Tap(axes=f'b {each} h k', kind='key')
    self.value_tap = Tap(axes=f'b {each} h v', kind='value')
    if gate is not None:
      self.gate_tap = Tap(axes='b n h v', kind='gate')
    self.activation = gate
    if gate is None:
      self.gate = None
    elif gate_rank is None:
      self.gate = project(width, width, init, rngs=rngs)
    else:
      self.gate = LowRank(width, gate_rank, width, init, rngs=rngs)

  def heads(self, tokens: Tokens, state: State) -> tuple[list[Array], Past]:
    """Returns the query, key and value of each head, and the next `state.past`.

    With several steps for each token, the axis of tokens of keys and values has all
    steps of the first token, then those of the second, and so on.

    Args:
      tokens: The tokens that follow the state, `[b, n, w]`.
      state: The state before them.
    """
    heads, past = [], []
    b, size = len(tokens), tokens.shape[-1] // self.num_heads
    for name, layer in zip(QKV, (self.query, self.key, self.value), strict=True):
      features = layer(tokens)
      if name in self.convolutions:
        before = state.past[len(past)]
        features, after = self.convolutions[name](features, before)
        features = jax.nn.silu(features)
        past.append(after)
      heads.append(features.reshape(b, -1, self.num_heads, size))
    return heads, tuple(past)

  def tapped(self, query: Array, key: Array, value: Array) -> tuple[Array, ...]:
    """Returns queries, keys and values through their taps.

    A subclass calls it on those that enter the recurrence.

    Args:
      query: q, `[b, n, h, k]`.
      key: k, in the shape that enters the recurrence.
      value: v, in the shape that enters the recurrence.

    Returns:
      The three arrays, after possible edits.
    """
    return self.query_tap(query), self.key_tap(key), self.value_tap(value)

  def outputs(self, read: Read, inputs: Any, tokens: Tokens) -> Tokens:
    """Returns the mixer's output for each token, after the norm and the gate."""
    heads = read if self.norm is None else self.norm(read)
    heads = heads.astype(tokens.dtype)
    if self.gate is not None and self.activation is not None:
      gate = split_heads(self.activation(self.gate(tokens)), self.num_heads)
      heads *= self.gate_tap(gate)
    return self.out(merge_heads(self.heads_tap(heads)))


def normalize(features: Float[Array, '*n k']) -> Float[Array, '*n k']:
  """Scales vectors to length 1: x / √(|x|² + 10⁻⁶), with a finite gradient at 0."""
  features = widen(features)
  squares = jnp.sum(jnp.square(features), axis=-1, keepdims=True)
  return features * jax.lax.rsqrt(squares + 1e-6)
