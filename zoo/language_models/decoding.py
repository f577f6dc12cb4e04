"""Greedy decoding of a padded batch, in one compiled program.

Shape letters are those of the decoder, and `m` for new tokens.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

from zoo.language_models.decoder import Cache, Decoder

# Batch and heads are split over the mesh, slots and features are not.
CACHE_AXES = P('data', 'model', None, None)

# Step, each row's last token, whether it has ended, all new tokens, the cache.
_State = tuple[Array, Array, Array, Array, Cache]


def causal(
  tokens: Int[Array, 'b t'], lengths: Int[Array, ' b']
) -> tuple[Int[Array, 'b t'], Bool[Array, 'b t t']]:
  """Positions and causal mask of prompts that are padded on the left."""
  t = tokens.shape[1]
  pads_b1 = (t - lengths)[:, None]
  slots = jnp.arange(t)
  positions = jnp.maximum(slots[None] - pads_b1, 0)
  seen = (slots[None, :] <= slots[:, None])[None]
  return positions, seen & (slots[None] >= pads_b1)[:, None]


def greedy(
  decoder: Decoder,
  tokens: Int[Array, 'b t'],
  lengths: Int[Array, ' b'],
  end_tokens: Int[Array, ' n'],
  max_new_tokens: Int[Array, ''],
  *,
  num_slots: int,
) -> Int[Array, 'b m']:
  """Appends the likeliest next token to each prompt until it is an end token.

  `tokens` are padded on the left. The cache has `num_slots` slots, of which
  m = num_slots − t are for new tokens. Returns these, with −1 after an end token.
  """
  b, t = tokens.shape
  positions, mask = causal(tokens, lengths)
  logits, cache = decoder(tokens, positions, mask, read_from=t - 1)
  free_slots = ((0, 0), (0, 0), (0, num_slots - t), (0, 0))
  cache = jax.tree.map(
    lambda part: jax.lax.with_sharding_constraint(
      jnp.pad(part, free_slots), CACHE_AXES
    ),
    cache,
  )
  slots = jnp.arange(num_slots)

  def append(
    step: Array, logits: Array, done_b: Array, new_bm: Array
  ) -> tuple[Array, Array, Array]:
    last_b = jnp.argmax(logits[:, -1], axis=-1).astype(tokens.dtype)
    shown_b1 = jnp.where(done_b, -1, last_b)[:, None]
    new_bm = jax.lax.dynamic_update_slice_in_dim(new_bm, shown_b1, step, axis=1)
    return last_b, done_b | jnp.isin(last_b, end_tokens), new_bm

  def unfinished(state: _State) -> Array:
    step, _, done_b, *_ = state
    return (step < max_new_tokens) & ~done_b.all()

  def next_token(state: _State) -> _State:
    step, last_b, done_b, new_bm, cache = state
    slot = t + step - 1
    seen_bs = (slots[None] <= slot) & (slots[None] >= (t - lengths)[:, None])
    logits, cache = decoder(
      last_b[:, None], (lengths + step - 1)[:, None], seen_bs[:, None], cache, slot
    )
    return step + 1, *append(step, logits, done_b, new_bm), cache

  done_b = jnp.zeros(b, bool)
  new_bm = jnp.full((b, num_slots - t), -1, tokens.dtype)
  step = jnp.zeros((), tokens.dtype)
  start = step + 1, *append(step, logits, done_b, new_bm), cache
  return jax.lax.while_loop(unfinished, next_token, start)[3]
