"""A decoder of the Llama, Qwen, SmolLM3 and Gemma 3 families.

Shape letters besides the usual: `t` tokens, `s` cache slots (what a token may attend
to), `d` hidden features, `f` feed-forward features, `v` vocabulary, `k` key-value
heads, `g` query heads per key-value head, `p` features of a head, `q` pairs of these.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from zoo.language_models.decoder_config import DecoderConfig, Rope

_ACTIVATIONS = {
  'silu': jax.nn.silu,
  'gelu_pytorch_tanh': functools.partial(jax.nn.gelu, approximate=True),
}
# Attention is computed for this many queries at a time.
QUERY_BLOCK = 64

# A layer's keys, [b, k, p, s], and values, [b, k, s, p]: a head's slots lie side by
# side, in the keys those of each feature, which a CPU reads twice as fast.
LayerCache = tuple[Float[Array, '_ k p _'], Float[Array, '_ k _ p']]
Cache = list[LayerCache]


def rotate(
  x: Float[Array, 'b t *h p'], angles: Float[Array, 'b t q']
) -> Float[Array, 'b t *h p']:
  """Rotates the pairs (i, i + p/2) of features by the angles (arXiv 2104.09864)."""
  angles = angles.reshape(*angles.shape[:2], *(1,) * (x.ndim - 3), -1)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  rotated = first * cos - second * sin, second * cos + first * sin
  return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def _normal(
  rngs: nnx.Rngs, shape: tuple[int, ...], dtype: DTypeLike, *axes: str | None
) -> nnx.Param:
  # The initialisation of all families; loading a model never computes it.
  value = 0.02 * jax.random.normal(rngs.params(), shape)
  return nnx.Param(value.astype(dtype), out_sharding=axes, eager_sharding=False)


class Norm(nnx.Module):
  """x / sqrt(mean(x²) + ε) · scale, in float32 (arXiv 1910.07467).

  With `offset_norms`, Gemma's, the scale is 1 + w, and the product in float32, too.
  """

  def __init__(self, config: DecoderConfig, dtype: DTypeLike, size: int):
    self.eps, self.offset = config.norm_eps, config.family.offset_norms
    start = jnp.zeros(size, dtype) if self.offset else jnp.ones(size, dtype)
    self.scale = nnx.Param(start, out_sharding=(None,), eager_sharding=False)

  def __call__(self, x: Float[Array, 'b t *h d']) -> Float[Array, 'b t *h d']:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(
      jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps
    )
    scale = self.scale[...].reshape((1,) * (x.ndim - 1) + (-1,))
    if self.offset:
      return (wide * (1 + scale.astype(jnp.float32))).astype(x.dtype)
    return wide.astype(x.dtype) * scale


def attend(
  query: Float[Array, 'b t k g p'],
  key: Float[Array, 'b k p s'],
  value: Float[Array, 'b k s p'],
  mask: Bool[Array, 'b t s'],
  scalar: float,
) -> Float[Array, 'b t k g p']:
  """softmax(q·k / √scalar) v over the slots that each query's mask allows, in float32.

  Long prompts are computed in blocks of queries: the scores of all queries at once
  would exceed a CPU's cache, and fill most of an accelerator's memory.
  """
  b, t, k, g, p = query.shape
  query_bkgtp = query.transpose(0, 2, 3, 1, 4) / math.sqrt(scalar)

  def block(query_bkgtp: Array, mask_bts: Array) -> Array:
    scores = jnp.einsum(
      'bkgtp,bkps->bkgts', query_bkgtp, key, preferred_element_type=jnp.float32
    )
    # Not −∞: padding attends to nothing, and its softmax would be NaN.
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
  """Grouped-query attention (arXiv 2305.13245), most often with rotary positions."""

  def __init__(self, config: DecoderConfig, dtype: DTypeLike, *, rngs: nnx.Rngs):
    self.num_kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
    self.query_scalar = config.query_scalar
    d, family = config.hidden_size, config.family
    query_width = config.num_heads * self.head_dim
    kv_width = self.num_kv_heads * self.head_dim
    self.query = _normal(rngs, (d, query_width), dtype, None, 'model')
    self.key = _normal(rngs, (d, kv_width), dtype, None, 'model')
    self.value = _normal(rngs, (d, kv_width), dtype, None, 'model')
    self.out = _normal(rngs, (query_width, d), dtype, 'model', None)

    def bias(size: int) -> nnx.Param | None:
      return _normal(rngs, (size,), dtype, 'model') if family.qkv_bias else None

    def norm() -> Norm | None:
      return Norm(config, dtype, self.head_dim) if family.head_norms else None

    self.query_bias = bias(query_width)
    self.key_bias, self.value_bias = bias(kv_width), bias(kv_width)
    self.query_norm, self.key_norm = norm(), norm()

  def __call__(
    self,
    x: Float[Array, 'b t d'],
    angles: Float[Array, 'b t q'] | None,
    mask: Bool[Array, 'b t s'],
    cache: LayerCache | None,
    slot: Int[Array, ''] | int,
  ) -> tuple[Float[Array, 'b t d'], LayerCache]:
    """The heads' output, and all keys and values: the cache with new ones at `slot`."""

    def heads(weight: nnx.Param, bias: nnx.Param | None, *shape: int) -> Array:
      projected = x @ weight[...]
      if bias is not None:
        projected += bias[...][None, None]
      return projected.reshape(*x.shape[:2], *shape, self.head_dim)

    k = self.num_kv_heads
    query_btkgp = heads(self.query, self.query_bias, k, -1)
    key_btkp = heads(self.key, self.key_bias, k)
    value_btkp = heads(self.value, self.value_bias, k)
    if self.query_norm is not None and self.key_norm is not None:
      query_btkgp, key_btkp = self.query_norm(query_btkgp), self.key_norm(key_btkp)
    if angles is not None:
      query_btkgp, key_btkp = rotate(query_btkgp, angles), rotate(key_btkp, angles)
    key_bkps, value_bksp = key_btkp.transpose(0, 2, 3, 1), value_btkp.swapaxes(1, 2)
    if cache is not None:
      write = jax.lax.dynamic_update_slice_in_dim
      key_bkps = write(cache[0], key_bkps, slot, axis=3)
      value_bksp = write(cache[1], value_bksp, slot, axis=2)
    mixed_btkgp = attend(query_btkgp, key_bkps, value_bksp, mask, self.query_scalar)
    return mixed_btkgp.reshape(*x.shape[:2], -1) @ self.out[...], (key_bkps, value_bksp)


class FeedForward(nnx.Module):
  """(act(x W_gate) ⊙ x W_up) W_down; SwiGLU with silu (arXiv 2002.05202, eq. 6)."""

  def __init__(self, config: DecoderConfig, dtype: DTypeLike, *, rngs: nnx.Rngs):
    d, f = config.hidden_size, config.intermediate_size
    self.activation = config.family.activation
    self.gate = _normal(rngs, (d, f), dtype, None, 'model')
    self.up = _normal(rngs, (d, f), dtype, None, 'model')
    self.down = _normal(rngs, (f, d), dtype, 'model', None)

  def __call__(self, x: Float[Array, 'b t d']) -> Float[Array, 'b t d']:
    gate_btf = _ACTIVATIONS[self.activation](x @ self.gate[...])
    return (gate_btf * (x @ self.up[...])) @ self.down[...]


class Layer(nnx.Module):
  """Attention and feed-forward, each added to the residual stream it normalises.

  With `output_norms`, Gemma's, what is added is normalised as well.
  """

  def __init__(self, config: DecoderConfig, dtype: DTypeLike, *, rngs: nnx.Rngs):
    def norm() -> Norm:
      return Norm(config, dtype, config.hidden_size)

    self.attention_norm, self.feed_forward_norm = norm(), norm()
    self.attention = Attention(config, dtype, rngs=rngs)
    self.feed_forward = FeedForward(config, dtype, rngs=rngs)
    output_norms = config.family.output_norms
    self.attention_output_norm = norm() if output_norms else None
    self.feed_forward_output_norm = norm() if output_norms else None

  def __call__(
    self,
    x: Float[Array, 'b t d'],
    angles: Float[Array, 'b t q'] | None,
    mask: Bool[Array, 'b t s'],
    cache: LayerCache | None,
    slot: Int[Array, ''] | int,
  ) -> tuple[Float[Array, 'b t d'], LayerCache]:
    """The updated stream, and the layer's keys and values."""
    update, cache = self.attention(self.attention_norm(x), angles, mask, cache, slot)
    if self.attention_output_norm is not None:
      update = self.attention_output_norm(update)
    x = x + update
    update = self.feed_forward(self.feed_forward_norm(x))
    if self.feed_forward_output_norm is not None:
      update = self.feed_forward_output_norm(update)
    return x + update, cache


class Decoder(nnx.Module):
  """The next token's logits, for all `FAMILIES` of decoders.

  Llama (arXiv 2407.21783), Qwen2 (2407.10671), Qwen3 (2505.09388), SmolLM3, and the
  text part of Gemma 3 (2503.19786).
  """

  def __init__(
    self,
    config: DecoderConfig,
    *,
    dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
  ):
    """Initialises random weights, which `load_decoder` replaces by trained ones."""
    self.config = config
    shape = config.vocab_size, config.hidden_size
    self.embedding = _normal(rngs, shape, dtype, 'model', None)
    self.layers = nnx.List(
      [Layer(config, dtype, rngs=rngs) for _ in range(config.num_layers)]
    )
    self.norm = Norm(config, dtype, config.hidden_size)
    self.head = None if config.tied_head else _normal(rngs, shape, dtype, 'model', None)

  def __call__(
    self,
    tokens: Int[Array, 'b t'],
    positions: Int[Array, 'b t'],
    slot_positions: Int[Array, 'b s'],
    mask: Bool[Array, 'b t s'],
    cache: Cache | None = None,
    slot: Int[Array, ''] | int = 0,
    *,
    read_from: int = 0,
  ) -> tuple[Float[Array, 'b r v'], Cache]:
    """Logits in float32 of the tokens from `read_from` on, and all keys and values.

    Without a cache, tokens attend to each other where the mask allows (s = t). With a
    cache, their keys and values go to its slots from `slot` on, and they attend to it.
    A layer with a window also needs the positions of what is in the slots.
    """
    config = self.config
    angles = {
      rope: _angles(rope, positions)
      for rope in dict.fromkeys(layer.rope for layer in config.layers)
    }
    masks = {
      window: _within(window, mask, positions, slot_positions)
      for window in dict.fromkeys(layer.window for layer in config.layers)
    }
    x_btd = self.embedding[...][tokens]
    if config.family.scaled_embedding:  # transformers rounds the factor, too
      x_btd *= jnp.asarray(math.sqrt(config.hidden_size), x_btd.dtype)
    new_cache: Cache = []
    for layer, kind, layer_cache in zip(
      self.layers, config.layers, cache or [None] * len(self.layers), strict=True
    ):
      x_btd, layer_cache = layer(
        x_btd, angles[kind.rope], masks[kind.window], layer_cache, slot
      )
      new_cache.append(layer_cache)
    head_vd = self.embedding if self.head is None else self.head
    return (
      jnp.einsum(
        'brd,vd->brv',
        self.norm(x_btd[:, read_from:]),
        head_vd[...],
        preferred_element_type=jnp.float32,
      ),
      new_cache,
    )


def _angles(
  rope: Rope | None, positions: Int[Array, 'b t']
) -> Float[Array, 'b t q'] | None:
  """The angle of each pair of features at each position."""
  if rope is None:
    return None
  frequencies = jnp.asarray(rope.frequencies(), jnp.float32).reshape(1, 1, -1)
  return positions[..., None].astype(jnp.float32) * frequencies


def _within(
  window: int | None,
  mask: Bool[Array, 'b t s'],
  positions: Int[Array, 'b t'],
  slot_positions: Int[Array, 'b s'],
) -> Bool[Array, 'b t s']:
  """The mask without the slots that are `window` or more positions back."""
  if window is None:
    return mask
  return mask & (slot_positions[:, None] > positions[:, :, None] - window)


def abstract_decoder(
  config: DecoderConfig, mesh: Mesh, dtype: DTypeLike
) -> tuple[nnx.GraphDef, PyTree]:
  """The decoder's graph, and its state as shapes with shardings; allocates nothing.

  Raises UserError if the mesh does not divide the model.
  """
  config.check_mesh(mesh)
  return nnx.get_abstract_model(
    lambda: Decoder(config, dtype=dtype, rngs=nnx.Rngs(0)), mesh
  )
