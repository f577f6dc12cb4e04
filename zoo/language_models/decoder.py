"""A decoder of the Llama and Qwen2 families, and greedy decoding in one program.

Shape letters besides the usual: `t` tokens, `s` cache slots (what a token may look at),
`d` hidden features, `f` feed-forward features, `v` vocabulary, `k` key-value heads, `g`
query heads a key-value head, `p` features of a head.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from zoo.errors import UserError, check_count, check_number

FAMILIES = 'llama', 'qwen2'

# So many queries look at the slots at once.
QUERY_BLOCK = 64

# Batch and heads are split over the mesh, slots and features are not.
CACHE_AXES = P('data', 'model', None, None)

# A layer's keys and values, each [b, k, s, p]: heads before slots, so that a head's
# slots lie side by side, which a CPU reads twice as fast.
Cache = list[tuple[Float[Array, 'b k s p'], Float[Array, 'b k s p']]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
  """What distinguishes one decoder of the two families from another."""

  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  norm_eps: float
  rope_theta: float
  rope_divisors: tuple[float, ...]  # by how much each pair of features turns slower
  qkv_bias: bool
  tied_head: bool  # the output matrix is the embedding

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if field.type is int:
        check_count(field.name, getattr(self, field.name))
    check_number('norm_eps', self.norm_eps, above=0.0)
    check_number('rope_theta', self.rope_theta, above=0.0)
    if self.num_heads % self.num_kv_heads:
      raise UserError(
        f'the model has {self.num_heads} heads and {self.num_kv_heads} key-value '
        'heads; the first must be a multiple of the second'
      )
    if self.head_dim % 2 or len(self.rope_divisors) != self.head_dim // 2:
      raise UserError(
        f'the model has heads of {self.head_dim} features and '
        f'{len(self.rope_divisors)} rotary frequencies; it must have two features for '
        'each frequency'
      )

  @classmethod
  def from_hf(cls, config: Mapping[str, Any]) -> 'DecoderConfig':
    """Reads a Hugging Face `config.json`, with the defaults that its library has.

    Raises UserError for another architecture, or for a part that is not built.
    """
    family = config.get('model_type')
    if family not in FAMILIES:
      raise UserError(
        f'the architecture of the model is {family!r}; it must be one of '
        f'{", ".join(FAMILIES)}'
      )
    built = {'hidden_act': 'silu', 'mlp_bias': False, 'use_sliding_window': False}
    if family == 'llama':
      built['attention_bias'] = False  # its biases would be on all four matrices
    for field, value in built.items():
      if config.get(field, value) != value:
        raise UserError(
          f'{field} of the model is {config[field]!r}; it must be {value!r}'
        )
    try:
      hidden_size = check_count('hidden_size', config['hidden_size'])
      num_heads = check_count('num_attention_heads', config['num_attention_heads'])
      # Since version 5 of transformers all of RoPE is in one place.
      rope = config.get('rope_parameters') or config.get('rope_scaling') or {}
      theta = rope.get('rope_theta', config.get('rope_theta', 10000.0))
      theta = check_number('rope_theta', theta, above=0.0)
      head_dim = config.get('head_dim') or hidden_size // num_heads
      return cls(
        vocab_size=config['vocab_size'],
        hidden_size=hidden_size,
        intermediate_size=config['intermediate_size'],
        num_layers=config['num_hidden_layers'],
        num_heads=num_heads,
        num_kv_heads=config.get('num_key_value_heads') or num_heads,
        head_dim=head_dim,
        norm_eps=check_number('rms_norm_eps', config.get('rms_norm_eps', 1e-6)),
        rope_theta=theta,
        rope_divisors=_rope_divisors(head_dim, theta, rope),
        qkv_bias=family == 'qwen2',
        tied_head=config.get('tie_word_embeddings', False),
      )
    except KeyError as error:
      raise UserError(f'the config of the model lacks {error}') from None

  def check_mesh(self, mesh: Mesh) -> None:
    """Raises UserError if the mesh's model axis does not divide what it splits."""
    size = mesh.shape['model']
    for field in 'num_kv_heads', 'num_heads', 'intermediate_size', 'vocab_size':
      value = getattr(self, field)
      if value % size:
        raise UserError(
          f'{field} of the model is {value}; it must be divisible by the model axis of '
          f'the mesh, which is {size}'
        )


def llama3_divisors(
  head_dim: int,
  theta: float,
  *,
  factor: float,
  low_freq_factor: float,
  high_freq_factor: float,
  original_max_position_embeddings: int,
) -> tuple[float, ...]:
  """Llama 3.1's RoPE scaling: slow frequencies are divided by `factor`.

  Those that turn `high_freq_factor` times or more within the original context stay;
  those that turn `low_freq_factor` times or less are divided; the frequency goes
  linearly from one to the other between (arXiv 2407.21783, section 3.2).
  """
  frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
  turns = original_max_position_embeddings * frequencies / (2 * math.pi)
  kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
  kept = np.clip(kept, 0.0, 1.0)
  return tuple((1 / (kept + (1 - kept) / factor)).tolist())


def _rope_divisors(
  head_dim: int, theta: float, rope: Mapping[str, Any]
) -> tuple[float, ...]:
  kind = rope.get('rope_type', rope.get('type', 'default'))
  if kind == 'default':
    return (1.0,) * (head_dim // 2)
  if kind == 'llama3':
    fields = (
      'factor',
      'low_freq_factor',
      'high_freq_factor',
      'original_max_position_embeddings',
    )
    return llama3_divisors(head_dim, theta, **{name: rope[name] for name in fields})
  raise UserError(
    f'rope_type of the model is {kind!r}; it must be one of default, llama3'
  )


def rotate(
  x: Float[Array, 'b t *h p'], angles: Float[Array, 'b t q']
) -> Float[Array, 'b t *h p']:
  """Turns the pairs (i, i + p/2) of features by the angles (arXiv 2104.09864)."""
  angles = angles.reshape(*angles.shape[:2], *(1,) * (x.ndim - 3), -1)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = first * cos - second * sin, second * cos + first * sin
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _normal(
  rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DTypeLike, *axes: str | None
) -> nnx.Param:
  # The families' own initialisation; a model that is loaded never computes it.
  value = 0.02 * jax.random.normal(rngs.params(), shape)
  return nnx.Param(value.astype(dtype), out_sharding=axes, eager_sharding=False)


class Norm(nnx.Module):
  """x / sqrt(mean(x²) + ε) · scale, in float32 (arXiv 1910.07467)."""

  def __init__(self, config: DecoderConfig, dtype: DTypeLike):
    self.eps = config.norm_eps
    self.scale = nnx.Param(
      jnp.ones(config.hidden_size, dtype), out_sharding=(None,), eager_sharding=False
    )

  def __call__(self, x: Float[Array, 'b t d']) -> Float[Array, 'b t d']:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(
      jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps
    )
    return wide.astype(x.dtype) * self.scale[...][None, None]


def attend(
  query: Float[Array, 'b t k g p'],
  key: Float[Array, 'b k s p'],
  value: Float[Array, 'b k s p'],
  mask: Bool[Array, 'b t s'],
) -> Float[Array, 'b t k g p']:
  """softmax(q·k / √p) v over the slots that the mask shows to each query, in float32.

  Long prompts go by blocks of queries: scores of all at once would not stay in a CPU's
  cache, and would be most of an accelerator's memory.
  """
  b, t, k, g, p = query.shape
  query_bkgtp = query.transpose(0, 2, 3, 1, 4) / math.sqrt(p)

  def block(query_bkgtp: Array, mask_bts: Array) -> Array:
    scores = jnp.einsum(
      'bkgtp,bksp->bkgts', query_bkgtp, key, preferred_element_type=jnp.float32
    )
    # Not −∞: padding looks at nothing, and must not become NaN.
    scores = jnp.where(mask_bts[:, None, None], scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum('bkgts,bksp->bkgtp', weights, value)

  if t <= QUERY_BLOCK:
    out_bkgtp = block(query_bkgtp, mask)
  else:
    n = -(-t // QUERY_BLOCK)
    fill = n * QUERY_BLOCK - t
    query_bkgtp = jnp.pad(query_bkgtp, ((0, 0),) * 3 + ((0, fill), (0, 0)))
    mask = jnp.pad(mask, ((0, 0), (0, fill), (0, 0)))
    blocks = (
      jnp.moveaxis(query_bkgtp.reshape(b, k, g, n, QUERY_BLOCK, p), 3, 0),
      jnp.moveaxis(mask.reshape(b, n, QUERY_BLOCK, -1), 1, 0),
    )
    out = jax.lax.map(lambda each: block(*each), blocks)
    out_bkgtp = jnp.moveaxis(out, 0, 3).reshape(query_bkgtp.shape)[:, :, :, :t]
  return out_bkgtp.transpose(0, 3, 1, 2, 4)


class Attention(nnx.Module):
  """Grouped-query attention with rotary positions (arXiv 2305.13245)."""

  def __init__(self, config: DecoderConfig, dtype: DTypeLike, *, rngs: nnx.Rngs):
    self.num_kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
    d = config.hidden_size
    all_, kept = config.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
    self.query = _normal(rngs, (d, all_), dtype, None, 'model')
    self.key = _normal(rngs, (d, kept), dtype, None, 'model')
    self.value = _normal(rngs, (d, kept), dtype, None, 'model')
    self.out = _normal(rngs, (all_, d), dtype, 'model', None)

    def bias(size: int) -> nnx.Param | None:
      return _normal(rngs, (size,), dtype, 'model') if config.qkv_bias else None

    self.query_bias, self.key_bias, self.value_bias = bias(all_), bias(kept), bias(kept)

  def __call__(
    self,
    x: Float[Array, 'b t d'],
    angles: Float[Array, 'b t q'],
    mask: Bool[Array, 'b t s'],
    cache: tuple[Array, Array] | None,
    slot: Int[Array, ''] | int,
  ) -> tuple[Float[Array, 'b t d'], tuple[Array, Array]]:
    """What the heads add, and keys and values: the cache's with these at `slot`."""

    def heads(weight: nnx.Param, bias: nnx.Param | None, *shape: int) -> Array:
      projected = x @ weight[...]
      if bias is not None:
        projected += bias[...][None, None]
      return projected.reshape(*x.shape[:2], *shape, self.head_dim)

    k = self.num_kv_heads
    query_btkgp = rotate(heads(self.query, self.query_bias, k, -1), angles)
    key_btkp = rotate(heads(self.key, self.key_bias, k), angles)
    value_btkp = heads(self.value, self.value_bias, k)
    key_bksp, value_bksp = key_btkp.swapaxes(1, 2), value_btkp.swapaxes(1, 2)
    if cache is not None:
      key_bksp, value_bksp = (
        jax.lax.dynamic_update_slice_in_dim(kept, new, slot, axis=2)
        for kept, new in zip(cache, (key_bksp, value_bksp), strict=True)
      )
    mixed_btkgp = attend(query_btkgp, key_bksp, value_bksp, mask)
    return mixed_btkgp.reshape(*x.shape[:2], -1) @ self.out[...], (key_bksp, value_bksp)


class FeedForward(nnx.Module):
  """SwiGLU: (silu(x W_gate) ⊙ x W_up) W_down (arXiv 2002.05202, eq. 6)."""

  def __init__(self, config: DecoderConfig, dtype: DTypeLike, *, rngs: nnx.Rngs):
    d, f = config.hidden_size, config.intermediate_size
    self.gate = _normal(rngs, (d, f), dtype, None, 'model')
    self.up = _normal(rngs, (d, f), dtype, None, 'model')
    self.down = _normal(rngs, (f, d), dtype, 'model', None)

  def __call__(self, x: Float[Array, 'b t d']) -> Float[Array, 'b t d']:
    hidden_btf = jax.nn.silu(x @ self.gate[...]) * (x @ self.up[...])
    return hidden_btf @ self.down[...]


class Layer(nnx.Module):
  """Attention and feed-forward, each on the normalised stream and added to it."""

  def __init__(self, config: DecoderConfig, dtype: DTypeLike, *, rngs: nnx.Rngs):
    self.attention_norm = Norm(config, dtype)
    self.attention = Attention(config, dtype, rngs=rngs)
    self.feed_forward_norm = Norm(config, dtype)
    self.feed_forward = FeedForward(config, dtype, rngs=rngs)

  def __call__(
    self, x: Float[Array, 'b t d'], *attended: Any
  ) -> tuple[Float[Array, 'b t d'], tuple[Array, Array]]:
    """The updated stream, and the layer's keys and values."""
    update, cache = self.attention(self.attention_norm(x), *attended)
    x = x + update
    return x + self.feed_forward(self.feed_forward_norm(x)), cache


class Decoder(nnx.Module):
  """The next token's logits, for Llama (arXiv 2407.21783) and Qwen2 (2407.10671)."""

  def __init__(
    self,
    config: DecoderConfig,
    *,
    dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Draws random weights; `load_decoder` puts trained ones in their place."""
    self.config = config
    shape = config.vocab_size, config.hidden_size
    self.embedding = _normal(rngs, shape, dtype, 'model', None)
    self.layers = nnx.List(
      [Layer(config, dtype, rngs=rngs) for _ in range(config.num_layers)]
    )
    self.norm = Norm(config, dtype)
    self.head = None if config.tied_head else _normal(rngs, shape, dtype, 'model', None)

  def __call__(
    self,
    tokens: Int[Array, 'b t'],
    positions: Int[Array, 'b t'],
    mask: Bool[Array, 'b t s'],
    cache: Cache | None = None,
    slot: Int[Array, ''] | int = 0,
    *,
    read_from: int = 0,
  ) -> tuple[Float[Array, 'b r v'], Cache]:
    """Logits in float32 of the tokens from `read_from` on, and all keys and values.

    Without a cache tokens look at each other, where the mask says so (s = t). With one
    their keys and values go to its slots from `slot` on, and they look at the cache.
    """
    frequencies = self.config.rope_theta ** (
      -np.arange(0, self.config.head_dim, 2) / self.config.head_dim
    ) / np.asarray(self.config.rope_divisors)
    angles_btq = positions[..., None].astype(jnp.float32) * jnp.asarray(
      frequencies, jnp.float32
    ).reshape(1, 1, -1)
    x_btd = self.embedding[...][tokens]
    kept = []
    for layer, layer_cache in zip(
      self.layers, cache or [None] * len(self.layers), strict=True
    ):
      x_btd, layer_cache = layer(x_btd, angles_btq, mask, layer_cache, slot)
      kept.append(layer_cache)
    head_vd = self.embedding if self.head is None else self.head
    return (
      jnp.einsum(
        'brd,vd->brv',
        self.norm(x_btd[:, read_from:]),
        head_vd[...],
        preferred_element_type=jnp.float32,
      ),
      kept,
    )


def abstract_decoder(
  config: DecoderConfig, mesh: Mesh, dtype: DTypeLike
) -> tuple[nnx.GraphDef, Any]:
  """The decoder's graph, and its state as shapes with shardings: nothing is made.

  Raises UserError if the mesh does not divide the model.
  """
  config.check_mesh(mesh)
  return nnx.get_abstract_model(
    lambda: Decoder(config, dtype=dtype, rngs=nnx.Rngs(0)), mesh
  )


def causal(
  tokens: Int[Array, 'b t'], lengths: Int[Array, ' b']
) -> tuple[Int[Array, 'b t'], Bool[Array, 'b t t']]:
  """Positions and mask of prompts that are padded on the left."""
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
  """The likeliest next token again and again, until each prompt has met an end token.

  `tokens` are padded on the left. The cache has `num_slots` slots, so that there is
  room for m = num_slots − t new tokens. What follows an end token is −1.
  """
  b, t = tokens.shape
  positions, mask = causal(tokens, lengths)
  logits, cache = decoder(tokens, positions, mask, read_from=t - 1)
  room = ((0, 0), (0, 0), (0, num_slots - t), (0, 0))
  cache = jax.tree.map(
    lambda kept: jax.lax.with_sharding_constraint(jnp.pad(kept, room), CACHE_AXES),
    cache,
  )
  slots = jnp.arange(num_slots)

  def note(
    step: Array, logits: Array, done_b: Array, new_bm: Array
  ) -> tuple[Array, Array, Array]:
    last_b = jnp.argmax(logits[:, -1], axis=-1).astype(tokens.dtype)
    noted_b1 = jnp.where(done_b, -1, last_b)[:, None]
    new_bm = jax.lax.dynamic_update_slice_in_dim(new_bm, noted_b1, step, axis=1)
    return last_b, done_b | jnp.isin(last_b, end_tokens), new_bm

  def going_on(state: tuple) -> Array:
    step, _, done_b, *_ = state
    return (step < max_new_tokens) & ~done_b.all()

  def body(state: tuple) -> tuple:
    step, last_b, done_b, new_bm, cache = state
    slot = t + step - 1
    seen_bs = (slots[None] <= slot) & (slots[None] >= (t - lengths)[:, None])
    logits, cache = decoder(
      last_b[:, None], (lengths + step - 1)[:, None], seen_bs[:, None], cache, slot
    )
    return step + 1, *note(step, logits, done_b, new_bm), cache

  done_b = jnp.zeros(b, bool)
  new_bm = jnp.full((b, num_slots - t), -1, tokens.dtype)
  step = jnp.zeros((), tokens.dtype)
  start = step + 1, *note(step, logits, done_b, new_bm), cache
  return jax.lax.while_loop(going_on, body, start)[3]
