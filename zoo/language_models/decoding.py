"""Programs for padded batches that read prompts into a cache and continue from it.

No program changes the cache that it is given, so several can continue from one cache.
`positions` gives the position in the prompt of the token in each slot, or PADDING,
which is after all tokens. A token attends to the slots whose position is not after its
own and, in layers with a window, not too far before it.

Shape letters are those of the decoder, with `s` slots of the given cache and `t` tokens
that follow them, and also `m` new tokens and `n` nodes of a tree.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from zoo.language_models.decoder import Cache, Decoder
from zoo.language_models.decoder_config import DecoderConfig

# Batch and heads are split over the mesh, slots and features are not.
CACHE_AXES = P('data', 'model', None, None)
PADDING = 2**30

# Step, each row's last token, whether it has ended, all new tokens, the cache.
_State = tuple[Array, Array, Array, Array, Cache]


def empty_cache(config: DecoderConfig, rows: int, dtype: DTypeLike) -> Cache:
  """A cache without slots."""
  k, p = config.num_kv_heads, config.head_dim
  key, value = jnp.zeros((rows, k, p, 0), dtype), jnp.zeros((rows, k, 0, p), dtype)
  return [(key, value)] * config.num_layers


def extend(
  decoder: Decoder,
  cache: Cache,
  positions: Int[Array, 'b s'],
  tokens: Int[Array, 'b t'],
  token_positions: Int[Array, 'b t'],
) -> Cache:
  """The cache with t more slots, for the keys and values of the tokens."""
  (b, s), t = positions.shape, tokens.shape[1]
  slots_bs = jnp.concatenate([positions, token_positions], axis=1)
  seen_bts = _seen(slots_bs, token_positions)
  cache = _with_slots(cache, b, s, t)
  return decoder(tokens, token_positions, slots_bs, seen_bts, cache, s, read_from=t)[1]


def greedy(
  decoder: Decoder,
  cache: Cache,
  positions: Int[Array, 'b s'],
  tokens: Int[Array, 'b t'],
  token_positions: Int[Array, 'b t'],
  end_tokens: Int[Array, ' e'],
  *,
  num_new: int,
) -> Int[Array, 'b m']:
  """Appends the likeliest next token to each row until an end token.

  The tokens are padded on the left. Returns m = `num_new` tokens, with −1 after an end
  token.
  """
  (b, s), t = positions.shape, tokens.shape[1]
  cache = _with_slots(cache, b, s, t + num_new)
  after_b1 = token_positions[:, -1:] + 1
  new_positions = after_b1 + jnp.arange(num_new, dtype=after_b1.dtype)[None]
  slots_bs = jnp.concatenate([positions, token_positions, new_positions], axis=1)
  seen_bts = _seen(slots_bs, token_positions)
  logits, cache = decoder(
    tokens, token_positions, slots_bs, seen_bts, cache, s, read_from=t - 1
  )

  def append(
    step: Array, logits: Array, done_b: Array, new_bm: Array
  ) -> tuple[Array, Array, Array]:
    last_b = jnp.argmax(logits[:, -1], axis=-1).astype(tokens.dtype)
    shown_b1 = jnp.where(done_b, -1, last_b)[:, None]
    new_bm = jax.lax.dynamic_update_slice_in_dim(new_bm, shown_b1, step, axis=1)
    return last_b, done_b | jnp.isin(last_b, end_tokens), new_bm

  def unfinished(state: _State) -> Array:
    step, _, done_b, *_ = state
    return (step < num_new) & ~done_b.all()

  def next_token(state: _State) -> _State:
    step, last_b, done_b, new_bm, cache = state
    position_b1 = after_b1 + step - 1
    seen_b1s = _seen(slots_bs, position_b1)
    logits, cache = decoder(
      last_b[:, None], position_b1, slots_bs, seen_b1s, cache, s + t + step - 1
    )
    return step + 1, *append(step, logits, done_b, new_bm), cache

  done_b = jnp.zeros(b, bool)
  new_bm = jnp.full((b, num_new), -1, tokens.dtype)
  step = jnp.zeros((), tokens.dtype)
  start = step + 1, *append(step, logits, done_b, new_bm), cache
  return jax.lax.while_loop(unfinished, next_token, start)[3]


def tree_log_probabilities(
  decoder: Decoder,
  cache: Cache,
  positions: Int[Array, 'b s'],
  tokens: Int[Array, 'b t'],
  token_positions: Int[Array, 'b t'],
  nodes: Int[Array, ' n'],
  depths: Int[Array, ' n'],
  ancestors: Bool[Array, 'n n'],
  pairs: Int[Array, 'pairs 2'],
) -> Float[Array, 'b pairs']:
  """log p(token | node) of each pair, in a tree that follows each row's tokens.

  The tokens are padded on the left. Node 0 is the last token, and `nodes` has the
  others, each of which attends to its ancestors (arXiv 2305.09781, section 4).
  """
  (b, s), t = positions.shape, tokens.shape[1]
  node_positions = token_positions[:, -1:] + 1 + depths[None]
  new_positions = jnp.concatenate([token_positions, node_positions], axis=1)
  slots_bs = jnp.concatenate([positions, new_positions], axis=1)
  seen = _seen(slots_bs, new_positions)
  seen = seen.at[:, t:, s + t :].set(ancestors[None])
  nodes = jnp.broadcast_to(nodes[None], node_positions.shape)
  logits, _ = decoder(
    jnp.concatenate([tokens, nodes], axis=1),
    new_positions,
    slots_bs,
    seen,
    _with_slots(cache, b, s, new_positions.shape[1]),
    s,
    read_from=t - 1,
  )
  totals = jax.nn.logsumexp(logits, axis=-1)
  node, token = pairs[:, 0], pairs[:, 1]
  return logits[:, node, token] - totals[:, node]


def _seen(
  slot_positions: Int[Array, 'b s'], of: Int[Array, 'b t']
) -> Bool[Array, 'b t s']:
  """The slots that tokens at the positions `of` may attend to."""
  return slot_positions[:, None] <= of[:, :, None]


def _with_slots(cache: Cache, rows: int, used: int, free: int) -> Cache:
  """The first `used` slots of each row, then `free` ones; a single row is repeated."""

  def resized(part: Array, axis: int) -> Array:
    part = jax.lax.slice_in_dim(part, 0, used, axis=axis)
    if len(part) != rows:
      part = jnp.broadcast_to(part[:1], (rows, *part.shape[1:]))
    widths = [(0, free if i == axis else 0) for i in range(4)]
    return jax.lax.with_sharding_constraint(jnp.pad(part, widths), CACHE_AXES)

  return [(resized(key, 3), resized(value, 2)) for key, value in cache]
