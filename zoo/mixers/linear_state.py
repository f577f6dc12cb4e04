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
  """A mixer's memory of the tokens that it has seen."""

  memory: Memory  # the state S of each head
  past: Past  # what else it keeps, such as the last tokens
  position: Int[Array, '']  # the number of tokens


class LinearState(Mixer):
  """A mixer that runs the recurrence; a subclass defines `inputs` and sets `out`.

  Its inputs are `Inputs`, or another tuple with `value` that its own `recur` takes.
  """

  def __init__(
    self, num_heads: int, key_size: int, value_size: int, convolved: Sequence[int] = ()
  ):
    """`convolved` has the number of channels of each short convolution."""
    self.num_heads, self.sizes = num_heads, (key_size, value_size)
    self.convolved = tuple(convolved)
    self.read_tap = Tap(axes='b n h v', kind='read')
    self.heads_tap = Tap(axes='b n h v', kind='heads')
    self.out: Linear

  @abc.abstractmethod
  def inputs(self, tokens: Tokens, state: State) -> tuple[Any, Past]:
    """The inputs of the recurrence, and the next `state.past`."""

  def outputs(self, read: Read, inputs: Any, tokens: Tokens) -> Tokens:
    """The mixer's output for each token, from what the heads read."""
    return self.out(merge_heads(self.heads_tap(read)).astype(tokens.dtype))

  def recur(self, inputs: Any, memory: Memory) -> tuple[Read, Memory]:
    """The outputs of the heads, and the last memory."""
    return recurrence(inputs, memory)

  def __call__(self, tokens: Tokens) -> Tokens:
    return self.run(tokens, self.initial_state(len(tokens)))[0]

  def run(self, tokens: Tokens, state: State) -> tuple[Tokens, State]:
    """The outputs of the tokens that come after a state, and the next state."""
    inputs, past = self.inputs(tokens, state)
    inputs = widen(inputs)
    # Those of tokens in float64 are, though the weights, and so the state, are not.
    dtype = np.promote_types(state.memory.dtype, inputs.value.dtype)
    read, memory = self.recur(inputs, state.memory.astype(dtype))
    position = state.position + tokens.shape[1]
    outputs = self.outputs(self.read_tap(read), inputs, tokens)
    return outputs, State(memory, past, position)

  def attention(self, tokens: Tokens) -> Float[Array, 'b h n n']:
    """The weights a of the values in the heads' outputs, `o_t = Σ_i a_ti v_i`.

    The outputs are linear in the values, so unit vectors as values give the weights.
    """
    b, n, _ = tokens.shape
    inputs = widen(self.inputs(tokens, self.initial_state(b))[0])
    units = jnp.eye(n, dtype=inputs.value.dtype)[None, :, None]
    inputs = self.with_values(
      inputs, jnp.broadcast_to(units, (b, n, self.num_heads, n))
    )
    value, key_size = inputs.value, self.sizes[0]
    memory = jnp.zeros((b, self.num_heads, key_size, value.shape[-1]), value.dtype)
    return jnp.swapaxes(self.recur(inputs, memory)[0], 1, 2)

  def with_values(self, inputs: Any, values: Read) -> Any:
    """The inputs with other values."""
    return inputs._replace(value=values)

  def initial_state(self, batch: int) -> State:
    """The state before the first token."""
    dtype = self.out.kernel[...].dtype
    return State(
      widen(jnp.zeros((batch, self.num_heads, *self.sizes), dtype)),
      tuple(jnp.zeros((batch, PAST, c), dtype) for c in self.convolved),
      jnp.zeros((), int),
    )

  def step(
    self, token: Float[Array, 'b w'], state: State
  ) -> tuple[Float[Array, 'b w'], State]:
    """The output of one token, and the next state."""
    output, state = self.run(token[:, None], state)
    return output[:, 0], state


# The projections that mixers may convolve.
QKV = 'query', 'key', 'value'


class HeadState(LinearState):
  """The recurrence for heads with queries, keys and values of the same size.

  Those named in `convolved` go through a short convolution and SiLU. The output of each
  head goes through an RMS norm if `norm`, and is multiplied by gate(W_g x) if `gate`;
  W_g goes through `gate_rank` features if that is given.
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
    """`steps` pairs of a key and a value per token.

    Raises UserError unless the heads share the width evenly.
    """
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
    each = 'n' if steps == 1 else 'm'  # an axis of tokens, or of steps
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
    """Query, key and value of each head, and the next `state.past`.

    Keys and values are those of the first step of a token, then of its next one.
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
    """Queries, keys and values as the recurrence takes them, through their taps."""
    return self.query_tap(query), self.key_tap(key), self.value_tap(value)

  def outputs(self, read: Read, inputs: Any, tokens: Tokens) -> Tokens:
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
