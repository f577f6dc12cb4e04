"""A BERT encoder of sentences, and its weights from a Hugging Face file."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from zoo.core.errors import UserError
from zoo.core.fields import Fields
from zoo.language_models.tensors import SafetensorsFiles, check_finite, check_shapes

# Modules of the encoder: their names in the file, and the dimensions of their weights
# by letter, matrices as [out, in]. A bias has the first dimension.
_EMBEDDINGS = {
  'word': ('word_embeddings', 'vw'),
  'position': ('position_embeddings', 'pw'),
  'token_type': ('token_type_embeddings', 'tw'),
  'norm': ('LayerNorm', 'w'),
}
_LAYER = {
  'query': ('attention.self.query', 'ww'),
  'key': ('attention.self.key', 'ww'),
  'value': ('attention.self.value', 'ww'),
  'attended': ('attention.output.dense', 'ww'),
  'attention_norm': ('attention.output.LayerNorm', 'w'),
  'inner': ('intermediate.dense', 'iw'),
  'outer': ('output.dense', 'wi'),
  'norm': ('output.LayerNorm', 'w'),
}
# Tensors in files that the mean of the last layer does not need.
_UNUSED = 'pooler.dense.weight', 'pooler.dense.bias', 'embeddings.position_ids'


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
  """The sizes and constants of a BERT encoder."""

  vocab_size: int
  width: int
  inner: int
  num_layers: int
  num_heads: int
  max_length: int  # in tokens
  num_token_types: int
  norm_eps: float

  @classmethod
  def from_hf(cls, config: object, source: str) -> EncoderConfig:
    """Reads a Hugging Face `config.json`, which `source` names in messages.

    Raises UserError for another architecture, and for a field of a wrong type or range.
    """
    fields = Fields(config, source)
    fields.choice('model_type', ['bert'])
    fields.choice('hidden_act', ['gelu'])
    width = fields.integer('hidden_size', 1, 2**16)
    num_heads = fields.integer('num_attention_heads', 1, width)
    if width % num_heads:
      raise UserError(
        f'hidden_size of {source} is {width}; it must be divisible by '
        f'num_attention_heads, which is {num_heads}'
      )
    return cls(
      vocab_size=fields.integer('vocab_size', 1, 2**22),
      width=width,
      inner=fields.integer('intermediate_size', 1, 2**18),
      num_layers=fields.integer('num_hidden_layers', 1, 2**10),
      num_heads=num_heads,
      max_length=fields.integer('max_position_embeddings', 1, 2**20),
      num_token_types=fields.integer('type_vocab_size', 1, 2**10),
      norm_eps=fields.number('layer_norm_eps', 1e-15, 1.0),
    )

  def shapes(self) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of the file, by its name there."""
    sizes = {
      'v': self.vocab_size,
      'p': self.max_length,
      't': self.num_token_types,
      'w': self.width,
      'i': self.inner,
    }
    modules = {f'embeddings.{name}': dims for name, dims in _EMBEDDINGS.values()}
    for i in range(self.num_layers):
      modules |= {f'encoder.layer.{i}.{name}': dims for name, dims in _LAYER.values()}
    shapes = {}
    for name, dims in modules.items():
      shapes[f'{name}.weight'] = tuple(sizes[letter] for letter in dims)
      if not name.endswith('_embeddings'):
        shapes[f'{name}.bias'] = (sizes[dims[0]],)
    return shapes


class _Layer(nnx.Module):
  """One layer: attention, then an MLP, each added to its input and normalised.

  Equations (1) and (2) of Vaswani et al., arXiv 1706.03762, with GELU.
  """

  def __init__(self, width: int, inner: int, heads: int, eps: float, rngs: nnx.Rngs):
    self.heads = heads
    self.query = nnx.Linear(width, width, rngs=rngs)
    self.key = nnx.Linear(width, width, rngs=rngs)
    self.value = nnx.Linear(width, width, rngs=rngs)
    self.attended = nnx.Linear(width, width, rngs=rngs)
    self.attention_norm = nnx.LayerNorm(width, epsilon=eps, rngs=rngs)
    self.inner = nnx.Linear(width, inner, rngs=rngs)
    self.outer = nnx.Linear(inner, width, rngs=rngs)
    self.norm = nnx.LayerNorm(width, epsilon=eps, rngs=rngs)

  def __call__(
    self, x: Float[Array, 'b t w'], is_token: Bool[Array, 'b t']
  ) -> Float[Array, 'b t w']:
    split = (*x.shape[:2], self.heads, -1)
    attended = jax.nn.dot_product_attention(
      self.query(x).reshape(split),
      self.key(x).reshape(split),
      self.value(x).reshape(split),
      mask=is_token[:, None, None, :],
    )
    x = self.attention_norm(x + self.attended(attended.reshape(x.shape)))
    inner = jax.nn.gelu(self.inner(x), approximate=False)
    return self.norm(x + self.outer(inner))


class Encoder(nnx.Module):
  """BERT (Devlin et al., arXiv 1810.04805), followed by the mean over tokens."""

  def __init__(self, config: EncoderConfig, rngs: nnx.Rngs):
    width, eps = config.width, config.norm_eps
    self.word = nnx.Embed(config.vocab_size, width, rngs=rngs)
    self.position = nnx.Embed(config.max_length, width, rngs=rngs)
    self.token_type = nnx.Embed(config.num_token_types, width, rngs=rngs)
    self.norm = nnx.LayerNorm(width, epsilon=eps, rngs=rngs)
    self.layers = nnx.List(
      _Layer(width, config.inner, config.num_heads, eps, rngs)
      for _ in range(config.num_layers)
    )

  def __call__(
    self, tokens: Int[Array, 'b t'], lengths: Int[Array, ' b']
  ) -> Float[Array, 'b w']:
    """The mean of the last layer over each sentence's tokens, scaled to norm 1."""
    positions = jnp.arange(tokens.shape[1])[None]
    x = self.word(tokens) + self.position(positions)
    x = self.norm(x + self.token_type(jnp.zeros_like(positions)))
    is_token = positions < lengths[:, None]
    for layer in self.layers:
      x = layer(x, is_token)
    total = jnp.sum(x, axis=1, where=is_token[..., None])
    # The number of tokens cancels in the norm.
    return total / jnp.linalg.norm(total, axis=1, keepdims=True)


def load_encoder(config: EncoderConfig, path: pathlib.Path) -> Encoder:
  """Reads `model.safetensors`; raises UserError if tensors do not fit the config."""
  with contextlib.ExitStack() as stack:
    file = SafetensorsFiles([path], stack)
    found = {name: file.shapes[name] for name in file.shapes if name not in _UNUSED}
    check_shapes(str(path), found, config.shapes())
    graph, state = nnx.split(nnx.eval_shape(lambda: Encoder(config, nnx.Rngs(0))))
    loaded = []
    for weight, variable in nnx.to_flat_state(state):
      name = _name(weight)
      tensor = file.read(name).astype(np.float32)
      # PyTorch stores the matrices of linear layers as [out, in].
      array = tensor.T if weight[-1] == 'kernel' else tensor
      array = jnp.asarray(array, array.dtype)  # without its type a program for each
      check_finite(array, name, str(path))
      loaded.append((weight, variable.replace(array)))
  return nnx.merge(graph, nnx.from_flat_state(loaded))


def _name(path: Sequence[object]) -> str:
  """The name of an encoder weight in the file."""
  *modules, module, leaf = map(str, path)
  leaf = 'bias' if leaf == 'bias' else 'weight'
  if modules:
    return f'encoder.layer.{modules[1]}.{_LAYER[module][0]}.{leaf}'
  return f'embeddings.{_EMBEDDINGS[module][0]}.{leaf}'
