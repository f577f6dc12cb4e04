"""State-space models with a state for each channel."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_count, check_truth
from zoo.core.registry import register_mixer
from zoo.core.taps import Tap
from zoo.mixers.convolution import causal_convolution, toeplitz
from zoo.mixers.decay import log_rates, rate_bias
from zoo.mixers.linear_state import LinearState, Past, State
from zoo.mixers.mixer import (
  Memory,
  Mixer,
  Read,
  Slot,
  Tokens,
  merge_heads,
  project,
  project_back,
  split,
  split_heads,
  unsplit,
  widen,
  widened,
)
from zoo.mixers.recurrence import over_tokens
from zoo.mixers.short_convolution import ShortConvolution


class _Selected(NamedTuple):
  """What the recurrence of the channels reads; the arrays of one token lack the axis n.

  All channels have the same keys and queries. The decay is a function of the key and
  the write strength, so that no input has tokens, channels and state sizes as its axes.
  """

  query: Float[Array, 'b *n k']
  key: Float[Array, 'b *n k']
  value: Float[Array, 'b *n h v']
  write: Float[Array, 'b *n h']  # β_t


class _Channels(LinearState):
  """The block of Mamba, in which each of 2 · width inner channels has its own state.

  x = silu(conv(W_x u)) and z = W_z u. In the recurrence each channel is a head with
  values of size 1. B_t and C_t, linear in x_t, are the keys and queries of all
  channels. The output is W_o ((o + D ∘ x) ∘ silu(z)). `slot.num_heads` has no effect.
  The constructor raises UserError if `state_size` is not a positive integer or
  `convolution` is not a truth value.
  """

  def __init__(
    self,
    slot: Slot,
    state_size: int = 16,
    convolution: bool = True,
    *,
    rngs: nnx.Rngs,
  ):
    check_count('state_size', state_size)
    check_truth('convolution', convolution)
    width, init = slot.width, slot.init
    inner, rank = 2 * width, math.ceil(width / 16)
    super().__init__(inner, state_size, 1, [inner] if convolution else [])
    self.value = project(width, inner, init, rngs=rngs)
    self.gate = project(width, inner, init, rngs=rngs)
    self.convolution = ShortConvolution(inner, rngs=rngs) if convolution else None
    self.key_query = unsplit(inner, 2 * state_size, init, rngs=rngs)
    self.rate_in = unsplit(inner, rank, init, rngs=rngs)
    self.rate = project(rank, inner, init, use_bias=False, rngs=rngs)
    self.rate_bias = nnx.Param(self.first_rates(inner, rngs), **split('model'))
    self.query_tap, self.key_tap = (
      Tap(axes='b n k', kind=kind) for kind in ('query', 'key')
    )
    self.value_tap = Tap(axes='b n h v', kind='value')
    self.strength_tap = Tap(axes='b n h', kind='strength')
    self.gate_tap = Tap(axes='b n h', kind='gate')
    self.skip = nnx.Param(jnp.ones(inner), **split('model'))
    self.out = project_back(inner, width, init, rngs=rngs)

  @abc.abstractmethod
  def first_rates(self, inner: int, rngs: nnx.Rngs) -> Float[Array, ' h']:
    """Returns the initial bias of the rates.

    Args:
      inner: Number of channels.
      rngs: Random keys.
    """

  @abc.abstractmethod
  def strength(
    self, rate: Float[Array, 'b n h'], key: Float[Array, 'b n k']
  ) -> Float[Array, 'b n h']:
    """Returns the write strength β of each channel.

    Args:
      rate: Any real number for each channel, `[b, n, h]`.
      key: The keys, `[b, n, k]`.
    """

  @abc.abstractmethod
  def decay(
    self, write: Float[Array, 'b h'], key: Float[Array, 'b k']
  ) -> Float[Array, 'b k h']:
    """Returns the factor by which one token multiplies the states of all channels.

    Args:
      write: β of the token, `[b, h]`.
      key: The key of the token, `[b, k]`.
    """

  def inputs(self, tokens: Tokens, state: State) -> tuple[_Selected, Past]:
    """Returns what the recurrence reads, and the next `state.past`."""
    x, past = self.value(tokens), ()
    if self.convolution is not None:
      x, last = self.convolution(x, state.past[0])
      past = (last,)
    x = jax.nn.silu(x)
    key, query = jnp.split(self.key_query(x), 2, axis=-1)
    rate, bias, key = widen((self.rate(self.rate_in(x)), self.rate_bias[...], key))
    key = self.key_tap(key)
    write = self.strength_tap(self.strength(rate + bias[None, None], key))
    value = self.value_tap(x[..., None])
    return _Selected(self.query_tap(query), key, value, write), past

  def recur(self, inputs: _Selected, memory: Memory) -> tuple[Read, Memory]:
    """Runs the recurrence of all channels."""
    # The channels are the last axis of the state, without an axis of length 1 after
    # them, so that XLA:CPU vectorises over them. The backward pass computes the decay
    # again, so that it need not be stored. A scan needs no prevent_cse.
    b, _, key_size, value_size = memory.shape
    state = jnp.swapaxes(memory, 1, 2).reshape(b, key_size, -1)
    # The loop sums the gradient of a weight in the weight's type, so the weights are
    # widened first.
    function = jax.checkpoint(widened(self)._next, prevent_cse=False)
    read, state = over_tokens(function, inputs, state)
    state = state.reshape(b, key_size, -1, value_size)
    return read, jnp.swapaxes(state, 1, 2)

  def _next(
    self, token: _Selected, state: Float[Array, 'b k c']
  ) -> tuple[Float[Array, 'b h v'], Float[Array, 'b k c']]:
    """Returns the output of one token, and the next state; `c` counts h · v values."""
    query, key, value, write = token
    written = (write[..., None] * value).reshape(len(value), 1, -1)
    decay = jnp.repeat(self.decay(write, key), value.shape[-1], axis=-1)
    state = decay * state + key[..., None] * written
    return jnp.einsum('bk,bkc->bc', query, state).reshape(value.shape), state

  def outputs(self, read: Read, inputs: _Selected, tokens: Tokens) -> Tokens:
    """Returns the output for each token, after the skip and the gate."""
    read += widen(self.skip[...])[None, None, :, None] * inputs.value
    gate = self.gate_tap(jax.nn.silu(self.gate(tokens)))
    gated = merge_heads(read).astype(tokens.dtype) * gate
    heads = self.heads_tap(split_heads(gated, self.num_heads))
    return self.out(merge_heads(heads))


@register_mixer('mamba')
class Mamba(_Channels):
  """Mamba (S6), with a state for each of 2 · width inner channels.

    Δ_t = softplus(W_2 W_1 x_t + b)                      a number for each channel
    h_t = e^(Δ_t A) ∘ h_{t−1} + Δ_t B_t x_t              a vector for each channel
    o_t = C_t·h_t + D x_t
    y_t = W_o (o_t ∘ silu(W_z u_t))

  Here u are the tokens. x is linear in u, and then goes through a causal convolution
  over four tokens and SiLU. B and C, of N = `state_size` features, are linear in x and
  the same in all channels. A starts at −(1, …, N), and A, b and D are learned for each
  channel. There are no heads: `slot.num_heads` has no effect.

  The state is a `State` with h as `[b, 2 · width, N, 1]`, and the last three inputs of
  the convolution.

  Differences from the authors' code: W_2 starts from N(0, 1/rank), or with the
  model's `init_scale`. Theirs starts from uniform numbers, whatever the other scales.

  The NumPy loop that defines it is `tests/mixers/reference/mamba.py`.

  Args:
    slot: Width of the tokens, and initialisation.
    state_size: Number N of entries of the state of a channel, ≥ 1; 16 by default.
    convolution: Whether x goes through the convolution; True by default. False gives
      x = silu(W_x u), for comparison.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `state_size` is not a positive integer, or `convolution` is not True
      or False.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=1)
    >>> mixer = zoo.mixers.Mamba(slot, state_size=6, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 16, 6, 1)

  References:
    Gu & Dao, arXiv 2312.00752, algorithm 2.
  """

  roles = {'log_a': 'vector'}

  def __init__(
    self,
    slot: Slot,
    state_size: int = 16,
    convolution: bool = True,
    *,
    rngs: nnx.Rngs,
  ):
    super().__init__(slot, state_size, convolution, rngs=rngs)
    log_a = jnp.log(jnp.arange(1.0, state_size + 1))
    log_a = jnp.broadcast_to(log_a[None], (2 * slot.width, state_size))
    self.log_a = nnx.Param(log_a, **split('model', None))

  def first_rates(self, inner: int, rngs: nnx.Rngs) -> Float[Array, ' h']:
    """Returns the initial bias b, so that Δ is log-uniform from 0.001 to 0.1."""
    return rate_bias(inner, rngs)

  def strength(
    self, rate: Float[Array, 'b n h'], key: Float[Array, 'b n k']
  ) -> Float[Array, 'b n h']:
    """Returns Δ."""
    return jax.nn.softplus(rate)

  def decay(
    self, write: Float[Array, 'b h'], key: Float[Array, 'b k']
  ) -> Float[Array, 'b k h']:
    """Returns e^(Δ A)."""
    return jnp.exp(-write[:, None] * jnp.exp(self.log_a[...]).T[None])


@register_mixer('longhorn')
class Longhorn(_Channels):
  """Longhorn, the closed form of an online regression, in the block of Mamba.

    β_t = sigmoid(W_2 W_1 x_t + b)                       a number for each channel
    D_t = β_t / (1 + β_t |k_t|²)
    S_t = (1 − D_t k_t²) ∘ S_{t−1} + D_t x_t k_t         a vector for each channel
    o_t = q_t·S_t + E x_t
    y_t = W_o (o_t ∘ silu(W_z u_t))

  For each channel S_t minimises `|S − S_{t−1}|² + β_t (k_t·S − x_t)²`, with k_tᵀ k_t
  reduced to its diagonal. Here u are the tokens. x is linear in u, and then goes
  through a causal convolution over four tokens and SiLU. k and q, of N = `state_size`
  features, are linear in x and the same in all channels; b and the skip E are learned
  for each channel. There are no heads: `slot.num_heads` has no effect.

  The state is a `State` with S as `[b, 2 · width, N, 1]`, and the last three inputs of
  the convolution.

  The NumPy loop that defines it is `tests/mixers/reference/longhorn.py`.

  Args:
    slot: Width of the tokens, and initialisation.
    state_size: Number N of entries of the state of a channel, ≥ 1; 16 by default.
    convolution: Whether x goes through the convolution; True by default. False gives
      x = silu(W_x u), for comparison.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `state_size` is not a positive integer, or `convolution` is not True
      or False.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=1)
    >>> mixer = zoo.mixers.Longhorn(slot, state_size=6, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).memory.shape
    (1, 16, 6, 1)

  References:
    Liu et al., arXiv 2407.14207, algorithm 1.
  """

  def first_rates(self, inner: int, rngs: nnx.Rngs) -> Float[Array, ' h']:
    """Returns the initial bias b, which is 0."""
    return jnp.zeros(inner)

  def strength(
    self, rate: Float[Array, 'b n h'], key: Float[Array, 'b n k']
  ) -> Float[Array, 'b n h']:
    """Returns D."""
    beta = jax.nn.sigmoid(rate)
    return beta / (1 + beta * jnp.square(key).sum(axis=-1, keepdims=True))

  def decay(
    self, write: Float[Array, 'b h'], key: Float[Array, 'b k']
  ) -> Float[Array, 'b k h']:
    """Returns 1 − D k²."""
    return 1 - write[:, None] * jnp.square(key)[..., None]


class _Diagonal(NamedTuple):
  """A complex number for each channel and state, as real and imaginary parts."""

  real: Float[Array, '*n w s']
  imaginary: Float[Array, '*n w s']

  def __mul__(self, other: _Diagonal) -> _Diagonal:  # pyright: ignore
    real = self.real * other.real - self.imaginary * other.imaginary
    return _Diagonal(real, self.real * other.imaginary + self.imaginary * other.real)


@register_mixer('s4d')
class S4D(Mixer):
  """S4D-Lin: a linear system with a diagonal matrix for each channel.

    x_t = Ā x_{t−1} + B̄ u_t,  Ā = e^(ΔA),  B̄ = (Ā − 1)/A
    g_t = gelu(2 Re(C x_t) + D u_t)
    y_t = (W_o g_t) ∘ sigmoid(W_g g_t)

  Here u are the tokens, one system for each of their channels, and x has N/2 complex
  entries, N = `state_size`. B̄ is the zero-order hold with B = 1. A_n starts at
  −1/2 + iπn for n < N/2, and A, C, D and Δ are learned. All tokens at once are
  convolved with 2 Re(C Ā^t B̄). There are no heads: `slot.num_heads` has no effect.

  The state has the real and the imaginary part of x, `[b, width, N/2]` each.

  Differences from the authors' code: it trains A and Δ at a lower rate and without
  weight decay.

  The NumPy loop that defines it is `tests/mixers/reference/s4d.py`.

  Args:
    slot: Width of the tokens, and initialisation.
    state_size: Number N of real entries of the state of a channel, an even number from
      2 to 10⁶; 64 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If `state_size` is not an even integer from 2 to 10⁶.

  Example:
    >>> slot = zoo.mixers.Slot(width=8, num_heads=1)
    >>> mixer = zoo.mixers.S4D(slot, state_size=6, rngs=nnx.Rngs(0))
    >>> mixer.initial_state(1).real.shape
    (1, 8, 3)

  References:
    Gu et al., arXiv 2206.11893, section 4.
  """

  # A and C are numbers of each channel, and no matrices.
  roles = {
    'log_real': 'vector',
    'frequency': 'vector',
    'read_real': 'vector',
    'read_imaginary': 'vector',
  }

  def __init__(self, slot: Slot, state_size: int = 64, *, rngs: nnx.Rngs):
    check_count('state_size', state_size, minimum=2, maximum=10**6)
    width, init = slot.width, slot.init
    if state_size % 2:
      raise UserError(f'state_size is {state_size}; it must be even')
    shape, by_channel = (width, state_size // 2), split('model', None)
    self.log_rate = nnx.Param(log_rates(width, rngs), **split('model'))
    self.log_real = nnx.Param(jnp.full(shape, math.log(0.5)), **by_channel)
    frequencies = jnp.asarray(np.pi * np.arange(state_size // 2), float)[None]
    self.frequency = nnx.Param(jnp.broadcast_to(frequencies, shape), **by_channel)
    self.read_real, self.read_imaginary = (
      nnx.Param(math.sqrt(0.5) * jax.random.normal(rngs.params(), shape), **by_channel)
      for _ in range(2)
    )
    self.out = project_back(width, width, init, rngs=rngs)
    # The gate is split like `out`, because it multiplies the outputs of `out`.
    self.gate = project_back(
      width, width, dataclasses.replace(init, residual=1.0), rngs=rngs
    )
    # D starts from N(0, 1), as in the authors' code.
    skip = jax.random.normal(rngs.params(), (width,))
    self.skip = nnx.Param(skip, **split('model'))

  def __call__(self, tokens: Tokens) -> Tokens:
    """Returns the output for each token, by a convolution."""
    kernels = self._kernels(tokens.shape[1])
    return self._outputs(causal_convolution(tokens, kernels), tokens)

  def attention(self, tokens: Tokens) -> Float[Array, 'b w n n']:
    """Returns the weights a in what each channel reads, `2 Re(C x_t) = Σ_i a_ti u_i`.

    They do not depend on the tokens.
    """
    b, n, width = tokens.shape
    return jnp.broadcast_to(toeplitz(self._kernels(n))[None], (b, width, n, n))

  def initial_state(self, batch: int) -> _Diagonal:
    """Returns the state before the first token: zeros.

    Args:
      batch: Number b of sequences.
    """
    zeros = jnp.zeros((batch, *self.log_real.shape), self._poles().real.dtype)
    return _Diagonal(zeros, zeros)

  def step(
    self, token: Float[Array, 'b w'], state: _Diagonal
  ) -> tuple[Float[Array, 'b w'], _Diagonal]:
    """Returns the output of one token, and the next state.

    Args:
      token: One token of each sequence, `[b, w]`.
      state: The state before it.
    """
    kept, write = self._powers(np.ones(1)) * state, self._write()
    added = widen(token)[..., None]
    state = jax.tree.map(lambda old, new: old + added * new, kept, write)
    read = self._read(state)
    return self._outputs(read[:, None].astype(token.dtype), token[:, None])[:, 0], state

  def _kernels(self, n: int) -> Float[Array, 'n w']:
    """Returns 2 Re(C Ā^t B̄) for t = 0, …, n − 1."""
    return self._read(self._write() * self._powers(np.arange(n)))

  def _poles(self) -> _Diagonal:
    """Returns A, with an axis of length 1 before the channels."""
    # A is multiplied by the time, and the angles may be many turns: bfloat16 would not
    # be precise enough.
    log_real, frequency = widen((self.log_real[...], self.frequency[...]))
    return _Diagonal(-jnp.exp(log_real)[None], frequency[None])

  def _powers(self, times: np.ndarray) -> _Diagonal:
    """Returns Ā^t, `[t, w, s]`."""
    real, frequency = self._poles()
    time = jnp.asarray(times, real.dtype)[:, None, None]
    time = time * jnp.exp(widen(self.log_rate[...]))[None, :, None]
    size, angle = jnp.exp(time * real), time * frequency
    return _Diagonal(size * jnp.cos(angle), size * jnp.sin(angle))

  def _write(self) -> _Diagonal:
    """Returns B̄."""
    real, frequency = self._poles()
    squares = jnp.square(real) + jnp.square(frequency)
    kept = self._powers(np.ones(1))
    inverse = _Diagonal(real / squares, -frequency / squares)
    return _Diagonal(kept.real - 1, kept.imaginary) * inverse

  def _read(self, state: _Diagonal) -> Float[Array, '*n w']:
    """Returns 2 Re(C x)."""
    read = _Diagonal(
      *widen((self.read_real[...][None], self.read_imaginary[...][None]))
    )
    return 2 * jnp.sum((read * state).real, axis=-1)

  def _outputs(self, read: Tokens, tokens: Tokens) -> Tokens:
    """Returns the output for each token, from 2 Re(C x) and the tokens."""
    hidden = read + self.skip[...][None, None] * tokens
    hidden = jax.nn.gelu(hidden, approximate=False)
    return self.out(hidden) * jax.nn.sigmoid(self.gate(hidden))
