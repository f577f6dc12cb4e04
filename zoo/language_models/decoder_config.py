"""The sizes and constants of a decoder, read from the files of a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jax.sharding import Mesh

from zoo.errors import UserError
from zoo.fields import MAX_INTEGER, Fields

FAMILIES = 'llama', 'qwen2'

# The largest accepted sizes: they bound the work of comparing the names and shapes that
# follow from a config with those in the files of weights.
MAX_HEAD_DIM = 2**12
_LARGEST = {
  'vocab_size': 2**22,
  'hidden_size': 2**17,
  'intermediate_size': 2**20,
  'num_layers': 2**10,
  'num_heads': 2**12,
  'num_kv_heads': 2**12,
  'head_dim': MAX_HEAD_DIM,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
  """What distinguishes one decoder of the two families from another.

  Raises UserError for values that are out of range or do not fit together.
  """

  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  norm_eps: float
  rope_theta: float
  rope_divisors: tuple[float, ...]  # what divides the frequency of each feature pair
  qkv_bias: bool
  tied_head: bool  # the output matrix is the embedding

  def __post_init__(self):
    fields = Fields(vars(self), 'the model')
    for name, largest in _LARGEST.items():
      fields.integer(name, 1, largest)
    fields.number('norm_eps', 1e-12, 1.0)
    fields.number('rope_theta', 1.0, 1e12)
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
    if not all(0 < divisor < math.inf for divisor in self.rope_divisors):
      raise UserError(
        'the rotary frequencies of the model are divided by numbers that are not all '
        'finite and > 0'
      )

  @classmethod
  def from_hf(
    cls, config: object, source: str = 'the config of the model'
  ) -> DecoderConfig:
    """Reads a Hugging Face `config.json`, with the defaults of transformers.

    `source` names it in messages. Raises UserError for another architecture, for a part
    that is not supported, and for a field of another type or range.
    """
    fields = Fields(config, source)
    family = fields.choice('model_type', FAMILIES)
    fields.choice('hidden_act', ['silu'], 'silu')
    # Llama's attention biases would be on all four matrices.
    unsupported = 'mlp_bias', 'use_sliding_window', 'attention_bias'
    for name in unsupported if family == 'llama' else unsupported[:2]:
      fields.choice(name, [False], False)
    hidden_size, num_heads, head_dim = _head_sizes(
      fields, 'hidden_size', 'num_attention_heads', 'head_dim'
    )
    # Since version 5 of transformers all RoPE parameters are in one object.
    rope = fields.nested(
      'rope_parameters' if 'rope_parameters' in fields else 'rope_scaling'
    )
    theta = (rope if 'rope_theta' in rope else fields).number(
      'rope_theta', 1.0, 1e12, 10000.0
    )
    return cls(
      vocab_size=fields.integer('vocab_size', 1),
      hidden_size=hidden_size,
      intermediate_size=fields.integer('intermediate_size', 1),
      num_layers=fields.integer('num_hidden_layers', 1),
      num_heads=num_heads,
      num_kv_heads=fields.integer('num_key_value_heads', 1, default=num_heads),
      head_dim=head_dim,
      norm_eps=fields.number('rms_norm_eps', 1e-12, 1.0, 1e-6),
      rope_theta=theta,
      rope_divisors=_rope_divisors(head_dim, theta, rope),
      qkv_bias=family == 'qwen2',
      tied_head=fields.choice('tie_word_embeddings', [False, True], False),
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
    family = fields.choice('general.architecture', FAMILIES)
    # Llama 3.1's scaling is in `rope_divisors`.
    fields.choice(f'{family}.rope.scaling.type', ['none'], 'none')
    hidden_size, num_heads, head_dim = _head_sizes(
      fields,
      f'{family}.embedding_length',
      f'{family}.attention.head_count',
      f'{family}.attention.key_length',
    )
    embedding = shapes.get('model.embed_tokens.weight')
    return cls(
      vocab_size=embedding[0]
      if embedding
      else fields.integer(f'{family}.vocab_size', 1),
      hidden_size=hidden_size,
      intermediate_size=fields.integer(f'{family}.feed_forward_length', 1),
      num_layers=fields.integer(f'{family}.block_count', 1),
      num_heads=num_heads,
      num_kv_heads=fields.integer(
        f'{family}.attention.head_count_kv', 1, default=num_heads
      ),
      head_dim=head_dim,
      norm_eps=fields.number(f'{family}.attention.layer_norm_rms_epsilon', 1e-12, 1.0),
      rope_theta=fields.number(f'{family}.rope.freq_base', 1.0, 1e12, 10000.0),
      rope_divisors=(1.0,) * (head_dim // 2)
      if rope_divisors is None
      else tuple(rope_divisors),
      qkv_bias=family == 'qwen2',
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


def _head_sizes(
  fields: Fields, hidden: str, heads: str, head_dim: str
) -> tuple[int, int, int]:
  """The hidden size, the number of heads, and the features of a head."""
  hidden_size = fields.integer(hidden, 1, _LARGEST['hidden_size'])
  num_heads = fields.integer(heads, 1, hidden_size)
  return (
    hidden_size,
    num_heads,
    fields.integer(head_dim, 2, MAX_HEAD_DIM, hidden_size // num_heads),
  )


def _rope_divisors(head_dim: int, theta: float, rope: Fields) -> tuple[float, ...]:
  kind = rope.choice(
    'rope_type' if 'rope_type' in rope else 'type', ['default', 'llama3'], 'default'
  )
  if kind == 'default':
    return (1.0,) * (head_dim // 2)
  factor = rope.number('factor', 1.0, 1e6)
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
