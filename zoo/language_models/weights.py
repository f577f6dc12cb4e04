"""Trained weights of a decoder, from safetensors or GGUF.

Both kinds of file are read in the convention of Hugging Face: its names, and matrices
as `[out, in]`. The host never holds more than one tensor. No pickle is read.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from tqdm import tqdm

from zoo.core.errors import RunError, UserError, in_one_line
from zoo.core.fields import Fields
from zoo.host.files import read_json
from zoo.language_models.decoder import Decoder, abstract_decoder
from zoo.language_models.decoder_config import MAX_HEAD_DIM, DecoderConfig
from zoo.language_models.gguf_file import GGUFFile
from zoo.language_models.tensors import (
  SafetensorsFiles,
  check_finite,
  check_shapes,
)

Path = str | pathlib.Path

# Each tensor of a file: its dimensions [out, in] by letter, and its path in the
# decoder, where the matrices of layers are [in, out].
_TENSORS = {
  'model.embed_tokens.weight': ('vd', ('embedding',)),
  'model.norm.weight': ('d', ('norm', 'scale')),
  'lm_head.weight': ('vd', ('head',)),
}
_LAYER_TENSORS = {
  'input_layernorm.weight': ('d', ('attention_norm', 'scale')),
  'self_attn.q_proj.weight': ('qd', ('attention', 'query')),
  'self_attn.k_proj.weight': ('kd', ('attention', 'key')),
  'self_attn.v_proj.weight': ('kd', ('attention', 'value')),
  'self_attn.o_proj.weight': ('dq', ('attention', 'out')),
  'mlp.gate_proj.weight': ('fd', ('feed_forward', 'gate')),
  'mlp.up_proj.weight': ('fd', ('feed_forward', 'up')),
  'mlp.down_proj.weight': ('df', ('feed_forward', 'down')),
}
_BIASES = {
  'self_attn.q_proj.bias': ('q', ('attention', 'query_bias')),
  'self_attn.k_proj.bias': ('k', ('attention', 'key_bias')),
  'self_attn.v_proj.bias': ('k', ('attention', 'value_bias')),
}
_HEAD_NORMS = {
  'self_attn.q_norm.weight': ('p', ('attention', 'query_norm', 'scale')),
  'self_attn.k_norm.weight': ('p', ('attention', 'key_norm', 'scale')),
}
_TWO_NORMS = {
  'post_attention_layernorm.weight': ('d', ('feed_forward_norm', 'scale')),
}
_FOUR_NORMS = {
  'post_attention_layernorm.weight': ('d', ('attention_output_norm', 'scale')),
  'pre_feedforward_layernorm.weight': ('d', ('feed_forward_norm', 'scale')),
  'post_feedforward_layernorm.weight': ('d', ('feed_forward_output_norm', 'scale')),
}
# GGUF's names of the same tensors.
_GGUF_NAMES = {
  'token_embd.weight': 'model.embed_tokens.weight',
  'output_norm.weight': 'model.norm.weight',
  'output.weight': 'lm_head.weight',
}
_GGUF_LAYER_NAMES = {
  'attn_norm.weight': 'input_layernorm.weight',
  'attn_output.weight': 'self_attn.o_proj.weight',
  'attn_q_norm.weight': 'self_attn.q_norm.weight',
  'attn_k_norm.weight': 'self_attn.k_norm.weight',
  'ffn_norm.weight': 'post_attention_layernorm.weight',
  'ffn_gate.weight': 'mlp.gate_proj.weight',
  'ffn_up.weight': 'mlp.up_proj.weight',
  'ffn_down.weight': 'mlp.down_proj.weight',
} | {
  f'attn_{x}.{part}': f'self_attn.{x}_proj.{part}'
  for x in 'qkv'
  for part in ('weight', 'bias')
}
# Of these families llama.cpp rotates pairs of neighbours, (2i, 2i + 1), and orders the
# rows so.
_NEIGHBOURS = 'llama', 'smollm3'


class SafetensorsWeights:
  """A folder with Hugging Face's `config.json` and `*.safetensors`."""

  def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack):
    self.name = folder.resolve().name
    path = folder / 'config.json'
    self.config = DecoderConfig.from_hf(read_json(path), str(path))
    self._tensors = SafetensorsFiles(_safetensors_files(folder), stack)
    self.shapes = {
      name: shape
      for name, shape in self._tensors.shapes.items()
      # Old versions of transformers saved the first; it ignores the second.
      if not name.endswith('rotary_emb.inv_freq')
      and not (name == 'lm_head.weight' and self.config.tied_head)
    }

  def read(self, name: str) -> np.ndarray:
    """One tensor; UserError unless it holds floating-point numbers."""
    return self._tensors.read(name)


class GGUFWeights:
  """A GGUF file of llama.cpp; tensors are dequantised to float32 when read."""

  def __init__(self, path: pathlib.Path, joined: str | None = None):
    """`joined` names the file in messages if it was joined from parts."""
    source = joined or str(path)
    file = GGUFFile(path, source)
    self.metadata = Fields(file.metadata, source)
    self.name = self.metadata.text('general.name', source) if joined else path.stem
    divisors = file.tensors.pop('rope_freqs.weight', None)
    self._tensors = {_hf_name(name): tensor for name, tensor in file.tensors.items()}
    self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
    if divisors is not None and math.prod(divisors.shape) > MAX_HEAD_DIM:
      raise UserError(
        f'rope_freqs.weight of {source} is {divisors.shape}; it may have '
        f'at most {MAX_HEAD_DIM} numbers'
      )
    self.config = DecoderConfig.from_gguf(
      self.metadata,
      self.shapes,
      None if divisors is None else divisors.read().ravel().tolist(),
    )
    family = self.metadata.text('general.architecture')
    self._has_neighbours = family in _NEIGHBOURS

  def read(self, name: str) -> np.ndarray:
    """One tensor, dequantised, with rotary pairs in the order of Hugging Face."""
    array = self._tensors[name].read()
    heads = {
      'q_proj.weight': self.config.num_heads,
      'k_proj.weight': self.config.num_kv_heads,
    }.get(name.partition('self_attn.')[2])
    if self._has_neighbours and heads:
      pairs = array.reshape(heads, self.config.head_dim // 2, 2, -1)
      array = pairs.swapaxes(1, 2).reshape(array.shape)
    return array


# Both have `name`, `config`, `shapes` by Hugging Face's names, and `read`.
Weights = SafetensorsWeights | GGUFWeights


@contextlib.contextmanager
def open_weights(path: Path | Sequence[Path]) -> Iterator[Weights]:
  """Opens a folder of safetensors, a GGUF file, or its parts.

  Parts are a list of files or a folder of `*.bin`, joined by the number in their names.
  Raises UserError if there are none, or if they are damaged or of another architecture.
  """
  with contextlib.ExitStack() as stack:
    if not isinstance(path, Sequence) or isinstance(path, str):
      path = pathlib.Path(path)
      if not os.path.exists(path):  # unlike Path.exists, False for too long a name
        raise UserError(f'{path} does not exist; it must be a folder or a GGUF file')
      if path.is_file():
        yield GGUFWeights(path)
        return
      if (path / 'config.json').exists():
        yield SafetensorsWeights(path, stack)
        return
      parts, name = sorted(path.glob('*.bin')), str(path)
      if not parts:
        raise UserError(
          f'{path} holds no model; it must hold config.json and *.safetensors, or the '
          'parts *.bin of a GGUF file'
        )
    else:
      parts = [pathlib.Path(part) for part in path]
      name = f'{parts[0].parent} and others' if parts else 'the list of parts'
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    yield GGUFWeights(_joined(parts, name, folder / 'model.gguf'), name)


def load_decoder(weights: Weights, mesh: Mesh, dtype: DTypeLike) -> Decoder:
  """The decoder with its trained weights; each array is put on the mesh once read.

  Raises UserError for tensors that are missing, surplus, of another shape, or not
  finite.
  """
  config = weights.config
  targets = _targets(config)
  sizes = {
    'v': config.vocab_size,
    'd': config.hidden_size,
    'f': config.intermediate_size,
    'q': config.num_heads * config.head_dim,
    'k': config.num_kv_heads * config.head_dim,
    'p': config.head_dim,
  }
  check_shapes(
    weights.name,
    weights.shapes,
    {name: tuple(sizes[x] for x in dims) for name, (dims, _) in targets.items()},
  )
  graph, abstract = abstract_decoder(config, mesh, dtype)
  flat = dict(nnx.to_flat_state(abstract))
  for name, (_, path) in tqdm(
    targets.items(), f'reading {weights.name}', unit=' tensors', disable=None
  ):
    array = weights.read(name)
    # Embedding and head stay [v, d]; transposing a vector changes nothing.
    array = array.T if path[0] == 'layers' else array
    sharded = _sharded(array, flat[path].get_raw_value())
    check_finite(sharded, name, weights.name)
    flat[path] = flat[path].replace(sharded)
  return nnx.merge(graph, nnx.from_flat_state(flat))


def _safetensors_files(folder: pathlib.Path) -> list[pathlib.Path]:
  index = folder / 'model.safetensors.index.json'
  there = {path.name for path in folder.glob('*.safetensors') if path.is_file()}
  names = {'model.safetensors'} & there or there
  if index.exists():
    weight_map = Fields(read_json(index), str(index)).nested('weight_map')
    names = {weight_map.text(name) for name in weight_map.names()}
  if not names:
    raise UserError(
      f'{folder} holds no *.safetensors; pickled weights (*.bin, *.pt) are never read'
    )
  for name in sorted(names - there):
    raise UserError(f'{folder} lacks {in_one_line(name)}, which {index.name} names')
  return [folder / name for name in sorted(names)]


def _joined(
  parts: Sequence[pathlib.Path], name: str, whole: pathlib.Path
) -> pathlib.Path:
  """The parts one after another, in the order of the last number in their names."""
  numbered = {}
  for part in parts:
    digits = re.findall(r'[0-9]+', part.name)
    if not digits or not part.is_file():
      raise UserError(
        f'{part} is not a part of a GGUF file; it must exist and have a number in its '
        'name'
      )
    numbered[int(digits[-1])] = part
  first, last = min(numbered, default=0), max(numbered, default=-1)
  if not parts or last - first + 1 != len(numbered) or len(numbered) != len(parts):
    raise UserError(
      f'{name} has {len(parts)} parts numbered {first} to {last}; there must be each '
      'number once'
    )
  try:
    with whole.open('wb') as file:
      for number in sorted(numbered):
        with numbered[number].open('rb') as part:
          shutil.copyfileobj(part, file, 1 << 20)
  except OSError as error:
    raise RunError(
      f'the parts of {name} cannot be joined: {in_one_line(error)}'
    ) from None
  return whole


def _hf_name(name: str) -> str:
  """Hugging Face's name for a GGUF tensor; an unknown name stays as it is."""
  if layer := re.fullmatch(r'blk\.(\d+)\.(.+)', name):
    number, part = layer.groups()
    if part in _GGUF_LAYER_NAMES:
      return f'model.layers.{number}.{_GGUF_LAYER_NAMES[part]}'
  return _GGUF_NAMES.get(name, name)


def _targets(
  config: DecoderConfig,
) -> dict[str, tuple[str, tuple[str | int, ...]]]:
  """Each tensor of a file: its dimensions, and its path in the decoder's state."""
  targets: dict[str, tuple[str, tuple[str | int, ...]]] = dict(_TENSORS)
  if config.tied_head:
    del targets['lm_head.weight']
  family = config.family
  layer_tensors = (
    _LAYER_TENSORS
    | (_FOUR_NORMS if family.output_norms else _TWO_NORMS)
    | (_BIASES if family.qkv_bias else {})
    | (_HEAD_NORMS if family.head_norms else {})
  )
  for i in range(config.num_layers):
    for name, (dims, path) in layer_tensors.items():
      targets[f'model.layers.{i}.{name}'] = dims, ('layers', i, *path)
  return targets


def _sharded(array: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
  """The array on the mesh; each device gets a copy of only its part."""
  return jax.make_array_from_callback(
    like.shape,
    like.sharding,
    lambda part: np.array(array[part], like.dtype, order='C'),
  )
