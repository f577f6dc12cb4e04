"""The sizes and constants of a decoder, read from the files of a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float64

from zoo.core.errors import UserError, in_one_line
from zoo.core.fields import MAX_INTEGER, Fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """What all decoders of one `model_type` have in common."""

  qkv_bias: bool = False
  head_norms: bool = False  # of each head's queries and keys
  output_norms: bool = False  # of what attention and feed-forward give
  offset_norms: bool = False  # norms scale by 1 + w, not by w
  scaled_embedding: bool = False  # by the square root of its width
  activation: str = 'silu'
  full_attention_every: int = 1  # the other layers have a sliding window
  no_rope_every: int | None = None  # these layers have no rotary positions
  # The defaults of transformers for fields that a config may lack.
  head_dim: int | None = None  # None: hidden_size / num_heads
  query_scalar: float | None = None  # None: always head_dim
  rope_theta: float = 10000.0
  local_rope_theta: float = 10000.0  # of layers with a window
  tied_head: bool = False


FAMILIES = {
  'llama': Family(),
  'qwen2': Family(qkv_bias=True),
  'qwen3': Family(head_norms=True, head_dim=128),
  'smollm3': Family(no_rope_every=4, rope_theta=2000000.0, tied_head=True),
  'gemma3_text': Family(
    head_norms=True,
    output_norms=True,
    offset_norms=True,
    scaled_embedding=True,
    activation='gelu_pytorch_tanh',
    full_attention_every=6,
    head_dim=256,
    query_scalar=256.0,
    rope_theta=1000000.0,
    tied_head=True,
  ),
}
# Gemma's GGUF files have a SentencePiece vocabulary, which `tokenizer` does not build.
GGUF_FAMILIES = 'llama', 'qwen2', 'qwen3', 'smollm3'
# The layers of transformers' `layer_types` that are supported.
_FULL, _SLIDING = 'full_attention', 'sliding_attention'

# The largest accepted sizes: they bound the work of comparing the names and shapes that
# follow from a config with those in the files of weights.
MAX_HEAD_DIM = 2**12
_MAX_LAYERS = 2**10
_LARGEST = {
  'vocab_size': 2**22,
  'hidden_size': 2**17,
  'intermediate_size': 2**20,
  'num_heads': 2**12,
  'num_kv_heads': 2**12,
  'head_dim': MAX_HEAD_DIM,
}


@dataclasses.dataclass(frozen=True)
class Rope:
  """Rotary positions: pair i of p features has the frequency θ^(−2i/p) / divisor i."""

  theta: float
  divisors: tuple[float, ...]

  def __post_init__(self):
    Fields(vars(self), 'the model').number('theta', 1.0, 1e12)
    if not all(0 < divisor < math.inf for divisor in self.divisors):
      raise UserError(
        'the rotary frequencies of the model are divided by numbers that are not all '
        'finite and > 0'
      )

  def frequencies(self) -> Float64[np.ndarray, ' q']:
    """The angle between two neighbouring positions, for each pair of features."""
    p = 2 * len(self.divisors)
    return self.theta ** (-np.arange(0, p, 2) / p) / np.asarray(self.divisors)


@dataclasses.dataclass(frozen=True)
class LayerConfig:
  """What distinguishes one layer of a decoder from another."""

  rope: Rope | None  # None: no positions (arXiv 2305.19466)
  window: int | None = None  # the tokens it sees, itself included; None: all before it


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
  """What distinguishes one decoder of the families from another.

  Raises UserError for values that are out of range or do not fit together.
  """

  family: Family
  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  query_scalar: float  # attention scores are divided by its square root
  norm_eps: float
  layers: tuple[LayerConfig, ...]
  tied_head: bool  # the output matrix is the embedding

  def __post_init__(self):
    fields = Fields(vars(self), 'the model')
    for name, largest in _LARGEST.items():
      fields.integer(name, 1, largest)
    fields.number('norm_eps', 1e-12, 1.0)
    fields.number('query_scalar', 1e-6, 1e6)
    if self.num_heads % self.num_kv_heads:
      raise UserError(
        f'the model has {self.num_heads} heads and {self.num_kv_heads} key-value '
        'heads; the first must be a multiple of the second'
      )
    for rope in {layer.rope for layer in self.layers}:
      if rope is not None and self.head_dim != 2 * len(rope.divisors):
        raise UserError(
          f'the model has heads of {self.head_dim} features and {len(rope.divisors)} '
          'rotary frequencies; it must have two features for each frequency'
        )

  @property
  def num_layers(self) -> int:
    """The number of layers."""
    return len(self.layers)

  @classmethod
  def from_hf(
    cls, config: object, source: str = 'the config of the model'
  ) -> DecoderConfig:
    """Reads a Hugging Face `config.json`, with the defaults of transformers.

    `source` names it in messages. Raises UserError for another architecture, for a part
    that is not supported, and for a field of another type or range.
    """
    fields = Fields(config, source)
    family = FAMILIES[fields.choice('model_type', list(FAMILIES))]
    _check_supported(fields, family)
    hidden_size, num_heads, head_dim = _head_sizes(
      fields, 'hidden_size', 'num_attention_heads', 'head_dim', family.head_dim
    )
    query_scalar = float(head_dim)
    if family.query_scalar is not None:
      query_scalar = fields.number(
        'query_pre_attn_scalar', 1e-6, 1e6, family.query_scalar
      )
    return cls(
      family=family,
      vocab_size=fields.integer('vocab_size', 1),
      hidden_size=hidden_size,
      intermediate_size=fields.integer('intermediate_size', 1),
      num_heads=num_heads,
      num_kv_heads=fields.integer('num_key_value_heads', 1, default=num_heads),
      head_dim=head_dim,
      query_scalar=query_scalar,
      norm_eps=fields.number('rms_norm_eps', 1e-12, 1.0, 1e-6),
      layers=_layers(fields, family, head_dim),
      tied_head=fields.choice('tie_word_embeddings', [False, True], family.tied_head),
    )

  @classmethod
  def from_gguf(
    cls,
    fields: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    rope_divisors: Sequence[float] | None,
  ) -> DecoderConfig:
    """Reads the metadata of a GGUF file.

    `shapes` are those of its tensors, by Hugging Face's names, and `rope_divisors` the
    content of its tensor `rope_freqs.weight`. Raises UserError as `from_hf` does.
    """
    name = fields.choice('general.architecture', GGUF_FAMILIES)
    family = FAMILIES[name]
    # Llama 3.1's scaling is in `rope_divisors`.
    fields.choice(f'{name}.rope.scaling.type', ['none'], 'none')
    hidden_size, num_heads, head_dim = _head_sizes(
      fields,
      f'{name}.embedding_length',
      f'{name}.attention.head_count',
      f'{name}.attention.key_length',
    )
    rope = Rope(
      fields.number(f'{name}.rope.freq_base', 1.0, 1e12, 10000.0),
      (1.0,) * (head_dim // 2) if rope_divisors is None else tuple(rope_divisors),
    )
    num_layers = fields.integer(f'{name}.block_count', 1, _MAX_LAYERS)
    embedding = shapes.get('model.embed_tokens.weight')
    return cls(
      family=family,
      vocab_size=embedding[0] if embedding else fields.integer(f'{name}.vocab_size', 1),
      hidden_size=hidden_size,
      intermediate_size=fields.integer(f'{name}.feed_forward_length', 1),
      num_heads=num_heads,
      num_kv_heads=fields.integer(
        f'{name}.attention.head_count_kv', 1, default=num_heads
      ),
      head_dim=head_dim,
      query_scalar=float(head_dim),
      norm_eps=fields.number(f'{name}.attention.layer_norm_rms_epsilon', 1e-12, 1.0),
      layers=tuple(
        LayerConfig(rope if rotates else None)
        for rotates in _rotates(num_layers, family.no_rope_every)
      ),
      tied_head='lm_head.weight' not in shapes,
    )

  def check_mesh(self, mesh: Mesh) -> None:
    """Raises UserError if the mesh's model axis does not divide the sizes it splits."""
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

  Frequencies of at least `high_freq_factor` turns within the original context stay;
  those of at most `low_freq_factor` turns are divided; between the two the frequency is
  interpolated linearly (arXiv 2407.21783, section 3.2).
  """
  frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
  turns = original_max_position_embeddings * frequencies / (2 * math.pi)
  share = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
  share = np.clip(share, 0.0, 1.0)  # of the original frequency
  return tuple((1 / (share + (1 - share) / factor)).tolist())


def _check_supported(fields: Fields, family: Family) -> None:
  for name in 'hidden_act', 'hidden_activation':
    fields.choice(name, [family.activation], family.activation)
  unsupported = [
    *('mlp_bias', 'use_sliding_window', 'use_bidirectional_attention'),
    *('attn_logit_softcapping', 'final_logit_softcapping'),
  ]
  if not family.qkv_bias:  # these biases would be on all four matrices
    unsupported.append('attention_bias')
  for name in unsupported:
    fields.choice(name, [False], False)


def _head_sizes(
  fields: Fields, hidden: str, heads: str, head_dim: str, default: int | None = None
) -> tuple[int, int, int]:
  """The hidden size, the number of heads, and the features of a head."""
  hidden_size = fields.integer(hidden, 1, _LARGEST['hidden_size'])
  num_heads = fields.integer(heads, 1, hidden_size)
  default = default or hidden_size // num_heads
  return (
    hidden_size,
    num_heads,
    fields.integer(head_dim, 2, MAX_HEAD_DIM, default),
  )


def _layers(fields: Fields, family: Family, head_dim: int) -> tuple[LayerConfig, ...]:
  """The layers of a `config.json`: which of them rotate, and which have a window."""
  n = fields.integer('num_hidden_layers', 1, _MAX_LAYERS)
  every, no_rope_every = family.full_attention_every, family.no_rope_every
  types = [_FULL]
  if every > 1:
    types.append(_SLIDING)
    every = fields.integer('sliding_window_pattern', 1, default=every)
  layer_types = fields.texts(
    'layer_types', [_FULL if (i + 1) % every == 0 else _SLIDING for i in range(n)]
  )
  rotates: Sequence[int] = _rotates(n, None)
  if no_rope_every is not None:
    interval = fields.integer('no_rope_layer_interval', 1, default=no_rope_every)
    rotates = fields.integers('no_rope_layers', 0, 1, _rotates(n, interval))
  for name, values in ('layer_types', layer_types), ('no_rope_layers', rotates):
    if len(values) != n:
      raise UserError(
        f'{name} of {fields.source} has {len(values)} items; it must have one for each '
        f'of the {n} layers'
      )
  for kind in layer_types:
    if kind not in types:
      raise UserError(
        f'layer_types of {fields.source} has {in_one_line(kind)!r}; each must be one '
        f'of {", ".join(map(repr, types))}'
      )
  ropes = _ropes(fields, family, head_dim)
  window = None
  if _SLIDING in layer_types:
    window = fields.integer('sliding_window', 1, default=4096)
  return tuple(
    LayerConfig(ropes[kind] if rotated else None, window if kind == _SLIDING else None)
    for kind, rotated in zip(layer_types, rotates, strict=True)
  )


def _rotates(num_layers: int, no_rope_every: int | None) -> list[int]:
  """1 for each layer that has rotary positions, and 0 for each that has none."""
  return [
    int(no_rope_every is None or (i + 1) % no_rope_every != 0)
    for i in range(num_layers)
  ]


def _ropes(fields: Fields, family: Family, head_dim: int) -> dict[str, Rope]:
  """The rotary positions of each type of layer."""
  theta = fields.number('rope_theta', 1.0, 1e12, family.rope_theta)
  # Since version 5 of transformers all RoPE parameters are in one object.
  new = 'rope_parameters' in fields
  rope = fields.nested('rope_parameters' if new else 'rope_scaling')
  if family.full_attention_every == 1:
    return {_FULL: _rope(rope, theta, head_dim)}
  local = fields.number('rope_local_base_freq', 1.0, 1e12, family.local_rope_theta)
  full, sliding = rope, Fields({}, fields.source)
  if new:
    for kind in _FULL, _SLIDING:
      if kind not in rope:
        raise UserError(f'{rope.source} lacks {kind!r}')
    full, sliding = rope.nested(_FULL), rope.nested(_SLIDING)
  return {
    _FULL: _rope(full, theta, head_dim),
    _SLIDING: _rope(sliding, local, head_dim),
  }


def _rope(fields: Fields, theta: float, head_dim: int) -> Rope:
  """The rotary positions of an object of parameters; `theta` is the default of θ."""
  theta = fields.number('rope_theta', 1.0, 1e12, theta)
  return Rope(theta, _rope_divisors(head_dim, theta, fields))


def _rope_divisors(head_dim: int, theta: float, rope: Fields) -> tuple[float, ...]:
  kind = rope.choice(
    'rope_type' if 'rope_type' in rope else 'type',
    ['default', 'linear', 'llama3'],
    'default',
  )
  if kind == 'default':
    return (1.0,) * (head_dim // 2)
  factor = rope.number('factor', 1.0, 1e6)
  if kind == 'linear':
    return (factor,) * (head_dim // 2)
  low = rope.number('low_freq_factor', 0.0, 1e6)
  return llama3_divisors(
    head_dim,
    theta,
    factor=factor,
    low_freq_factor=low,
    high_freq_factor=rope.number('high_freq_factor', low + 1e-6, 1e6),
    original_max_position_embeddings=rope.integer(
      'original_max_position_embeddings', 1, MAX_INTEGER
    ),
  )
