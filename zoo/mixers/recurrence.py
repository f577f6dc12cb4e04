"""The recurrence that linear attention, delta rules and state-space models share.

Vectors are rows, and each head has a state S `[k, v]`, which at each token decays, is
erased, and is written to:

  S_t = exp(g_t) ∘ S_{t−1} − e_tᵀ (a_t S_{t−1}) + k_tᵀ β_t v_t,   o_t = q_t S_t.

a_t S_{t−1} is what is read of the state before it decays, and e_t is where that is
erased. A delta rule, which erases what k_t reads of the decayed state, has e_t = k_t
and a_t = β_t exp(g_t) ∘ k_t. A mixer defines q, k, v, g, β, a and e
(`LinearState.inputs` in `zoo/mixers/linear_state.py`); `mamba` and `longhorn` have a
scan of their own (`zoo/mixers/ssm.py`). Shape letters here: `k` size of a key, `v` size
of a value, `g` size of a decay (k, or 1 for a scalar), `l` tokens of a chunk.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo.mixers.mixer import Memory, Read


class Inputs(NamedTuple):
  """How tokens change the heads' states, and the queries that read the states.

  The arrays of one token lack the axis n.
  """

  query: Float[Array, 'b n h k']
  key: Float[Array, 'b n h k']
  value: Float[Array, 'b n h v']
  log_decay: Float[Array, 'b n h g'] | None = None  # g_t ≤ 0; None is 0
  write: Float[Array, 'b n h'] | None = None  # β_t; None is 1
  erase: Float[Array, 'b n h k'] | None = None  # a_t; None is 0
  erase_key: Float[Array, 'b n h k'] | None = None  # e_t; None is the key


def delta_rule(
  query: Float[Array, 'b n h k'],
  key: Float[Array, 'b n h k'],
  value: Float[Array, 'b n h v'],
  log_decay: Float[Array, 'b n h g'] | None,
  strength: Float[Array, 'b n h'],
) -> Inputs:
  """S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t), S'_t = exp(g_t) ∘ S_{t−1}."""
  erase = strength[..., None] * decayed(key, log_decay)
  return Inputs(query, key, value, log_decay, strength, erase)


def decayed(
  reader: Float[Array, 'b n h k'], log_decay: Float[Array, 'b n h g'] | None
) -> Float[Array, 'b n h k']:
  """What reads of a state what `reader` reads of it after the decay."""
  return reader if log_decay is None else jnp.exp(log_decay) * reader


def update(inputs: Inputs, state: Memory) -> Memory:
  """S_t from S_{t−1} and the inputs of one token."""
  _, key, _, log_decay, _, erase, erase_key = inputs
  kept = state if log_decay is None else jnp.exp(log_decay)[..., None] * state
  written = _to_write(inputs)
  if erase is not None:
    read = jnp.einsum('bhk,bhkv->bhv', erase, state)
    if erase_key is None:
      written -= read
    else:
      kept -= erase_key[..., None] * read[..., None, :]
  return kept + key[..., None] * written[..., None, :]


def step(inputs: Inputs, state: Memory) -> tuple[Float[Array, 'b h v'], Memory]:
  """The output of one token, and the state after it."""
  state = update(inputs, state)
  return jnp.einsum('bhk,bhkv->bhv', inputs.query, state), state


def scan(inputs: Inputs, state: Memory) -> tuple[Read, Memory]:
  """The outputs of all tokens, computed one after another, and the last state."""
  return over_tokens(step, inputs, state)


def over_tokens(function, inputs, state):
  """Outputs `[b, n, …]` and the last state of `function(inputs, state)` of one token.

  `function` takes the inputs of one token, and returns its output and the next state.
  """

  def body(state, inputs):
    output, state = function(inputs, state)
    return state, output

  inputs = jax.tree.map(lambda array: jnp.moveaxis(array, 1, 0), inputs)
  state, outputs = jax.lax.scan(body, state, inputs)
  return jnp.moveaxis(outputs, 0, 1), state


@functools.partial(jax.jit, static_argnames='chunk_size')
def chunkwise(
  inputs: Inputs, state: Memory, chunk_size: int = 16
) -> tuple[Read, Memory]:
  """Computes what `scan` returns, by matrix products within chunks of tokens.

  With S the state before a chunk, G_i the sum of its log decays up to token i, and
  D_ij(X, Y) = Σ_k X_ik Y_jk exp(G_ik − G_jk) for j ≤ i, else 0, what is read to be
  erased is R = A' S + D'(A, K) V − D'(A, E) R, in which G_{i−1} stands in place of G_i,
  and so j < i. Then

    R = (I + D'(A, E))⁻¹ (A' S + D'(A, K) V),   A' = A ∘ exp(G_{i−1}),
    O = (Q ∘ exp(G)) S + D(Q, K) V − D(Q, E) R

  (the forms of arXiv 2406.06484 and 2412.06464 for E = K). No exponent is above 0, so
  that nothing overflows. `chunk_size` must be a power of 2 if decays are vectors or
  `inputs.erase` is given.
  """
  b, n = inputs.query.shape[:2]
  chunk_size = min(chunk_size, 1 << (n - 1).bit_length())

  def chunks(array: Array) -> Array:
    """`[c, h, l, …]`, c = b m; the padding neither decays, writes nor erases."""
    array = jnp.moveaxis(in_chunks(array, chunk_size), 0, 1)
    return jnp.swapaxes(array.reshape(-1, *array.shape[2:]), 1, 2)

  def in_order(array: Array) -> Array:
    """`[m, b, h, …]`."""
    return jnp.moveaxis(array.reshape(b, -1, *array.shape[1:]), 1, 0)

  def body(state: Array, parts: _Chunk) -> tuple[Array, Array]:
    written = parts.written
    if parts.erased is not None:
      written -= parts.erased @ state
    outputs = parts.query @ state + parts.scores @ written
    return parts.decay * state + jnp.swapaxes(parts.key, -1, -2) @ written, outputs

  parts = _within(jax.tree.map(chunks, inputs))
  state, outputs = jax.lax.scan(body, state, jax.tree.map(in_order, parts))
  return joined(jnp.moveaxis(outputs, 2, 3), n), state


class _Chunk(NamedTuple):
  """What the state before a chunk is multiplied with; w counts what is written.

  That is `written − erased S` at the keys, w = l; if tokens erase elsewhere, what they
  erase there comes after it, w = 2 l.
  """

  query: Float[Array, 'c h l k']  # decayed from the start of the chunk
  scores: Float[Array, 'c h l w']
  written: Float[Array, 'c h w v']
  erased: Float[Array, 'c h w k'] | None
  key: Float[Array, 'c h w k']  # decayed to the end of the chunk
  decay: Float[Array, 'c h g 1']  # of the state


def _within(inputs: Inputs) -> _Chunk:
  """The chunks of inputs `[c, h, l, …]`.

  With an axis each for b and m, arrays would have seven with models side by side, and
  jaxlib 0.10.2 crashes on CPUs at sums over some axes of those.
  """
  query, key, _, log_decay, _, erase, erase_key = inputs
  if log_decay is None:
    log_decay = jnp.zeros_like(key[..., :1])
  total = jnp.cumsum(log_decay, axis=-2)
  readers, reached = [query], [total]
  if erase is not None:
    # What token i reads to be erased has decayed up to token i − 1.
    readers.append(erase)
    reached.append(total - log_decay)
  places = jnp.stack([key] if erase_key is None else [key, erase_key], axis=-3)
  # All at once: on CPUs, the number of operations sets the time of small programs.
  products = _products(
    jnp.stack(readers, axis=-3),
    places,
    jnp.stack(reached, axis=-3),
    total[..., None, :, :],
  )
  # A query also reads what its own token writes and erases.
  own = jnp.sum(query[..., None, :, :] * places, axis=-1)[..., None]
  own *= _aligned(jnp.eye(key.shape[-2], dtype=own.dtype), places)
  scores = products[..., 0, :, :, :] + jnp.swapaxes(own, -3, -2)
  written, erased = _to_write(inputs), None
  if erase is not None:
    inverse = _unit_lower_inverse(products[..., 1, :, -1, :])
    erased = inverse @ (jnp.exp(reached[1]) * erase)
    if erase_key is None:
      written = inverse @ written
    else:
      read = inverse @ (products[..., 1, :, 0, :] @ written)
      written = jnp.concatenate([written, -read], axis=-2)
      erased = jnp.concatenate([jnp.zeros_like(erased), erased], axis=-2)
  last = total[..., -1:, :]
  return _Chunk(
    query=jnp.exp(total) * query,
    scores=scores.reshape(*scores.shape[:-2], -1),
    written=written,
    erased=erased,
    key=_merged(jnp.exp(last - total)[..., None, :, :] * places),
    decay=jnp.exp(last)[..., 0, :, None],
  )


def _merged(array: Float[Array, 'c h s l k']) -> Float[Array, 'c h w k']:
  """The rows of several readers or places one after another, w = s l."""
  return array.reshape(*array.shape[:-3], -1, array.shape[-1])


def _aligned(square: Array, rows: Array) -> Array:
  """A matrix with axes of length 1 before it, so that it has as many as `rows`."""
  return square.reshape((1,) * (rows.ndim - 2) + square.shape)


def recurrence(inputs: Inputs, state: Memory) -> tuple[Read, Memory]:
  """The outputs of all tokens and the last state, by the faster form."""
  # Chunks are faster than a scan, on a CPU 2 to 7 times for 16 tokens.
  return (scan if inputs.query.shape[1] == 1 else chunkwise)(inputs, state)


def in_chunks(array: Float[Array, 'b n *f'], size: int) -> Float[Array, 'm b l *f']:
  """Chunks of `size` tokens; the last is padded with zeros."""
  b, n, *features = array.shape
  padding = [(0, 0), (0, -n % size)] + [(0, 0)] * len(features)
  array = jnp.pad(array, padding).reshape(b, -1, size, *features)
  return jnp.moveaxis(array, 1, 0)


def joined(chunks: Float[Array, 'm b l *f'], n: int) -> Float[Array, 'b n *f']:
  """The n tokens of chunks, without the padding."""
  m, b, size, *features = chunks.shape
  return jnp.moveaxis(chunks, 0, 1).reshape(b, m * size, *features)[:, :n]


def _to_write(inputs: Inputs) -> Array:
  """β_t v_t."""
  if inputs.write is None:
    return inputs.value
  return inputs.write[..., None] * inputs.value


def _unit_lower_inverse(lower: Float[Array, 'c h l l']) -> Float[Array, 'c h l l']:
  """(I + L)⁻¹ for L below the diagonal, of a size that is a power of 2, by halving.

  On CPUs many small triangular solves are slow to run and to compile.
  """
  size = lower.shape[-1]
  if size <= 2:  # L² = 0
    return jnp.broadcast_to(jnp.eye(size, dtype=lower.dtype), lower.shape) - lower
  half = size // 2
  corners = _as_heads(lower[..., :half, :half], lower[..., half:, half:])
  first, second = _of_heads(_unit_lower_inverse(corners))
  below = -second @ lower[..., half:, :half] @ first
  return jnp.block([[first, jnp.zeros_like(first)], [below, second]])


def _products(
  rows: Float[Array, 'c h r l k'],
  columns: Float[Array, 'c h p l k'],
  reached: Float[Array, 'c h r l g'],
  total: Float[Array, 'c h 1 l g'],
) -> Float[Array, 'c h r l p l']:
  """Σ_k rows_i columns_j exp(reached_i − total_j) for j < i, else 0.

  The rows are those of r readers, the columns those of p places. If decays are vectors,
  l must be a power of 2: the later half of the rows meets the first half of the columns
  at the end of that half, so that no exponent is above 0, and each half is treated
  likewise.
  """
  size, places = rows.shape[-2], columns.shape[2]
  if total.shape[-1] == 1:
    before = _aligned(jnp.tri(size, k=-1, dtype=bool), rows)
    between = reached - jnp.swapaxes(total, -1, -2)
    decay = jnp.exp(jnp.where(before, between, -jnp.inf))  # else ∞ · 0 would occur
    return _all_products(rows, columns, jnp.concatenate([decay] * places, axis=-1))
  if size == 1:
    return jnp.zeros((*rows.shape[:-1], places, 1), rows.dtype)
  half = size // 2
  middle = total[..., half - 1 : half, :]
  later = rows[..., half:, :] * jnp.exp(reached[..., half:, :] - middle)
  earlier = columns[..., :half, :] * jnp.exp(middle - total[..., :half, :])
  halves = (
    _as_heads(array[..., :half, :], array[..., half:, :])
    for array in (rows, columns, reached, total)
  )
  first, second = _of_heads(_products(*halves))
  below = _all_products(later, earlier)
  above = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
  return jnp.concatenate([above, jnp.concatenate([below, second], axis=-1)], axis=-3)


def _all_products(
  rows: Float[Array, 'c h r l k'],
  columns: Float[Array, 'c h p m k'],
  factors: Float[Array, 'c h r l w'] | None = None,
) -> Float[Array, 'c h r l p m']:
  """The products of the rows of all readers with the columns of all places."""
  products = _merged(rows) @ jnp.swapaxes(_merged(columns), -1, -2)
  if factors is not None:
    products *= _merged(factors)
  return products.reshape(*rows.shape[:-1], *columns.shape[2:-1])


def _as_heads(first: Array, second: Array) -> Array:
  """Both as twice as many heads, so that heads stay with the devices that have them."""
  both = jnp.stack([first, second], axis=2)
  return both.reshape(first.shape[0], -1, *first.shape[2:])


def _of_heads(both: Array) -> tuple[Array, Array]:
  """What `_as_heads` has joined."""
  return both[:, ::2], both[:, 1::2]
