"""The recurrence that linear attention, delta rules and state-space models share.

Vectors are rows. Each head has a state S `[k, v]`. At each token the state decays, a
part of it is erased, and a value is written to it:

  S_t = exp(g_t) ∘ S_{t−1} − e_tᵀ (a_t S_{t−1}) + k_tᵀ β_t v_t
  o_t = q_t S_t

The vector a_t reads the state before it decays, and what it reads is erased at e_t. A
delta rule erases what k_t reads of the decayed state: it has e_t = k_t and
a_t = β_t exp(g_t) ∘ k_t. A mixer defines q, k, v, g, β, a and e
(`LinearState.inputs` in `zoo/mixers/linear_state.py`). `mamba` and `longhorn` have a
scan of their own (`zoo/mixers/ssm.py`).

Shape letters in this file: `k` size of a key, `v` size of a value, `g` size of a decay
(k, or 1 for a scalar), `l` tokens of a chunk.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo.core.errors import UserError
from zoo.mixers.mixer import Memory, Read

# What has decayed by e^(−40), which is 4e-18, is lost in the roundings of what is
# written after it, also in float64.
LEAST_LOG_DECAY = -40.0


class Inputs(NamedTuple):
  """The inputs of the recurrence: how tokens change the states, and what reads them.

  The recurrence of a head, with a state S_t `[k, v]` and vectors as rows, is

    S_t = exp(g_t) ∘ S_{t−1} − e_tᵀ (a_t S_{t−1}) + k_tᵀ β_t v_t
    o_t = q_t S_t

  The shapes are those of all n tokens. For a single token the arrays lack the axis n.

  Attributes:
    query: q_t, which reads the state, `[b, n, h, k]`; or `[b, n, 1, k]` for all heads.
    key: k_t, where the value is written, `[b, n, h, k]` or `[b, n, 1, k]`.
    value: v_t, `[b, n, h, v]`.
    log_decay: g_t ≤ 0, the logarithm of the decay, `[b, n, h, k]`, or `[b, n, h, 1]`
      for the same decay in all entries of a key. g_t = −∞ resets the state to 0. None,
      the default, means no decay: g_t = 0.
    write: β_t, the strength of the write, `[b, n, h]`. None means 1.
    erase: a_t, which reads what is erased from the state before it decays,
      `[b, n, h, k]`. None means that nothing is erased.
    erase_key: e_t, where it is erased, `[b, n, h, k]`. None means the key.

  Example:
    >>> keys = jnp.ones((1, 5, 2, 4))
    >>> inputs = zoo.mixers.Inputs(query=keys, key=keys, value=keys)
    >>> inputs.log_decay is None
    True
  """

  query: Float[Array, 'b n h k']
  key: Float[Array, 'b n h k']
  value: Float[Array, 'b n h v']
  log_decay: Float[Array, 'b n h g'] | None = None
  write: Float[Array, 'b n h'] | None = None
  erase: Float[Array, 'b n h k'] | None = None
  erase_key: Float[Array, 'b n h k'] | None = None


def delta_rule(
  query: Float[Array, 'b n h k'],
  key: Float[Array, 'b n h k'],
  value: Float[Array, 'b n h v'],
  log_decay: Float[Array, 'b n h g'] | None,
  strength: Float[Array, 'b n h'],
) -> Inputs:
  """Returns the inputs of S_t = S'_t + β_t k_tᵀ (v_t − k_t S'_t).

  S'_t = exp(g_t) ∘ S_{t−1} is the decayed state, and β_t is `strength`.
  """
  erase = strength[..., None] * decayed(key, log_decay)
  return Inputs(query, key, value, log_decay, strength, erase)


def decayed(
  reader: Float[Array, 'b n h k'], log_decay: Float[Array, 'b n h g'] | None
) -> Float[Array, 'b n h k']:
  """Returns the vector that reads of a state what `reader` reads after the decay."""
  return reader if log_decay is None else jnp.exp(log_decay) * reader


def update(inputs: Inputs, state: Memory) -> Memory:
  """Returns S_t from S_{t−1} and the inputs of one token."""
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
  """Returns the output of one token, and the state after it."""
  state = update(inputs, state)
  return jnp.einsum('bhk,bhkv->bhv', inputs.query, state), state


def scan(inputs: Inputs, state: Memory) -> tuple[Read, Memory]:
  """Returns the outputs of all tokens and the last state, one token after another."""
  return over_tokens(step, inputs, state)


def over_tokens(function, inputs, state):
  """Returns the outputs `[b, n, …]` and the last state of a scan over tokens.

  `function(inputs, state)` takes the inputs of one token, and returns its output and
  the next state.
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

  Let S be the state before a chunk and G_i the sum of the chunk's log decays up to
  token i. Let D_ij(X, Y) = Σ_k X_ik Y_jk exp(G_ik − G_jk) for j ≤ i, and 0 otherwise.
  D' is the same with G_{i−1} in place of G_i, and so with j < i. What is read to be
  erased is then R = A' S + D'(A, K) V − D'(A, E) R, with A' = A ∘ exp(G_{i−1}). Hence

    R = (I + D'(A, E))⁻¹ (A' S + D'(A, K) V)
    O = (Q ∘ exp(G)) S + D(Q, K) V − D(Q, E) R

  For E = K these are the forms of arXiv 2406.06484 and 2412.06464. Sums of log decays
  g ≤ 0 give no exponent above 0, so nothing overflows. Log decays above 0 are allowed,
  since the model `sequential` trains them without a bound; they are not protected from
  overflow. Log decays below −40 count as −40, because the sums must be finite. The
  roundings of the sums grow with them: with several resets in a chunk, outputs are off
  by up to 1e-5 of the largest output in float32, where a scan is off by 3e-7.
  `chunk_size` must be a power of 2 if decays are vectors or if `inputs.erase` is given.

  Returns:
    What the heads read at each token, and the state after the last token.
  """
  b, n = inputs.query.shape[:2]
  chunk_size = min(chunk_size, 1 << (n - 1).bit_length())

  def chunks(array: Array) -> Array:
    """Returns `[c, h, l, …]` with c = b m; the padding leaves the state as it is."""
    array = jnp.moveaxis(in_chunks(array, chunk_size), 0, 1)
    return jnp.swapaxes(array.reshape(-1, *array.shape[2:]), 1, 2)

  def in_order(array: Array) -> Array:
    """Returns `[m, b, h, …]`, the chunks of each prompt in their order."""
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
  """The factors of a chunk, which multiply the state before it or what it writes.

  The axis w counts the rows that are written at the keys, which are `written − erased
  S`. If tokens erase at their keys, w = l. If they erase elsewhere, the rows of what
  they erase there follow, so that w = 2 l.

  Attributes:
    query: The queries, decayed from the start of the chunk.
    scores: The products of queries and places, decayed between them.
    written: The rows that are written, without what the chunk erases of the state S.
    erased: What reads the rows of S that are erased; None if nothing is erased.
    key: The places, decayed to the end of the chunk.
    decay: The decay of the state over the whole chunk.
  """

  query: Float[Array, 'c h l k']
  scores: Float[Array, 'c h l w']
  written: Float[Array, 'c h w v']
  erased: Float[Array, 'c h w k'] | None
  key: Float[Array, 'c h w k']
  decay: Float[Array, 'c h g 1']


def _within(inputs: Inputs) -> _Chunk:
  """Computes the factors of the chunks of inputs `[c, h, l, …]`.

  The axis c counts the chunks of all prompts. With separate axes for b and m, arrays
  would have seven axes when several models run side by side, and jaxlib 0.10.2 crashes
  on CPUs at sums over some axes of such arrays.

  Returns:
    The factors of each chunk.
  """
  query, key, _, log_decay, _, erase, erase_key = inputs
  if log_decay is None:
    log_decay = jnp.zeros_like(key[..., :1])
  # A log decay of −∞ resets the state, and differences of sums with it would be NaN.
  log_decay = jnp.maximum(log_decay, LEAST_LOG_DECAY)
  total = jnp.cumsum(log_decay, axis=-2)
  readers, reached = [query], [total]
  if erase is not None:
    # Token i reads what it erases from the state that has decayed up to token i − 1.
    readers.append(erase)
    reached.append(total - log_decay)
  places = jnp.stack([key] if erase_key is None else [key, erase_key], axis=-3)
  # All products are computed at once, because on CPUs the number of operations
  # determines the time of small programs.
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
  """Joins the rows of several readers or places one after another, w = s l."""
  return array.reshape(*array.shape[:-3], -1, array.shape[-1])


def _aligned(square: Array, rows: Array) -> Array:
  """Adds axes of length 1 before a matrix, so that it has as many axes as `rows`."""
  return square.reshape((1,) * (rows.ndim - 2) + square.shape)


def recurrence(inputs: Inputs, state: Memory) -> tuple[Read, Memory]:
  """Returns the outputs of all tokens and the last state, by the faster form.

  Args:
    inputs: The inputs of the n tokens.
    state: The state before the first token.

  Raises:
    UserError: If a field of the inputs has another shape than `Inputs` says.
  """
  _check_shapes(inputs, state)
  # Chunks are faster than a scan: on a CPU 2 to 7 times for 16 tokens.
  return (scan if inputs.query.shape[1] == 1 else chunkwise)(inputs, state)


def _check_shapes(inputs: Inputs, state: Memory) -> None:
  """Raises UserError if a field of the inputs does not fit the state."""
  b, h, k, v = state.shape
  fields = {
    name: () if array is None else jnp.shape(array)
    for name, array in inputs._asdict().items()
    if array is not None or name not in Inputs._field_defaults
  }
  # One field may be wrong, so the number of tokens is that of most fields.
  lengths = [shape[1] for shape in fields.values() if len(shape) > 1]
  n = max(lengths, key=lengths.count, default=0)
  last = {'value': [(v,)], 'log_decay': [(k,), (1,)], 'write': [()]}
  for name, shape in fields.items():
    allowed = [(b, n, h, *axes) for axes in last.get(name, [(k,)])]
    if name in ('query', 'key'):
      allowed.append((b, n, 1, k))  # All heads may share them.
    if shape not in allowed:
      raise UserError(
        f'Inputs.{name} has the shape {shape}; it must be '
        f'{" or ".join(map(str, allowed))}, because the state [b, h, k, v] has the '
        f'shape {state.shape} and there are n = {n} tokens'
      )


def in_chunks(array: Float[Array, 'b n *f'], size: int) -> Float[Array, 'm b l *f']:
  """Returns chunks of `size` tokens, of which the last is padded with zeros."""
  b, n, *features = array.shape
  padding = [(0, 0), (0, -n % size)] + [(0, 0)] * len(features)
  array = jnp.pad(array, padding).reshape(b, -1, size, *features)
  return jnp.moveaxis(array, 1, 0)


def joined(chunks: Float[Array, 'm b l *f'], n: int) -> Float[Array, 'b n *f']:
  """Returns the n tokens of chunks, without the padding."""
  m, b, size, *features = chunks.shape
  return jnp.moveaxis(chunks, 0, 1).reshape(b, m * size, *features)[:, :n]


def _to_write(inputs: Inputs) -> Array:
  """Returns β_t v_t."""
  if inputs.write is None:
    return inputs.value
  return inputs.write[..., None] * inputs.value


def _unit_lower_inverse(lower: Float[Array, 'c h l l']) -> Float[Array, 'c h l l']:
  """Returns (I + L)⁻¹ for L below the diagonal, by halving.

  The size must be a power of 2. On CPUs many small triangular solves are slow to run
  and to compile.
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
  """Returns Σ_k rows_i columns_j exp(reached_i − total_j) for j < i, else 0.

  The rows belong to r readers and the columns to p places. If decays are vectors, l
  must be a power of 2. The later half of the rows then meets the first half of the
  columns at the end of that half, so that no exponent is above 0. Each half is split
  again in the same way.
  """
  size, places = rows.shape[-2], columns.shape[2]
  if total.shape[-1] == 1:
    before = _aligned(jnp.tri(size, k=-1, dtype=bool), rows)
    between = reached - jnp.swapaxes(total, -1, -2)
    # A mask after the exponential would give ∞ · 0.
    decay = jnp.exp(jnp.where(before, between, -jnp.inf))
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
  """Returns the products of the rows of all readers with the columns of all places."""
  products = _merged(rows) @ jnp.swapaxes(_merged(columns), -1, -2)
  if factors is not None:
    products *= _merged(factors)
  return products.reshape(*rows.shape[:-1], *columns.shape[2:-1])


def _as_heads(first: Array, second: Array) -> Array:
  """Joins two arrays as twice as many heads.

  Heads so stay with the devices that have them.

  Returns:
    The joined array.
  """
  both = jnp.stack([first, second], axis=2)
  return both.reshape(first.shape[0], -1, *first.shape[2:])


def _of_heads(both: Array) -> tuple[Array, Array]:
  """Returns the two arrays that `_as_heads` has joined."""
  return both[:, ::2], both[:, 1::2]
