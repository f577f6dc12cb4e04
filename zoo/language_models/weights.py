"""Trained weights of a decoder, from safetensors or GGUF, each straight to its place.

Both kinds of file are read as if they were Hugging Face's: its names, and matrices as
`[out, in]`. At no time is more than one tensor held on the host. No pickle is read.
"""

import contextlib
import json
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gguf
import jax
import numpy as np
import safetensors
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from tqdm import tqdm

from zoo.errors import RunError, UserError, check_count
from zoo.language_models.decoder import (
  FAMILIES,
  Decoder,
  DecoderConfig,
  abstract_decoder,
)

Path = str | pathlib.Path

# Where a tensor of a file goes. Matrices of layers are [in, out] there.
_TENSORS = {
  'model.embed_tokens.weight': ('embedding',),
  'model.norm.weight': ('norm', 'scale'),
  'lm_head.weight': ('head',),
}
_LAYER_TENSORS = {
  'input_layernorm.weight': ('attention_norm', 'scale'),
  'self_attn.q_proj.weight': ('attention', 'query'),
  'self_attn.k_proj.weight': ('attention', 'key'),
  'self_attn.v_proj.weight': ('attention', 'value'),
  'self_attn.o_proj.weight': ('attention', 'out'),
  'self_attn.q_proj.bias': ('attention', 'query_bias'),
  'self_attn.k_proj.bias': ('attention', 'key_bias'),
  'self_attn.v_proj.bias': ('attention', 'value_bias'),
  'post_attention_layernorm.weight': ('feed_forward_norm', 'scale'),
  'mlp.gate_proj.weight': ('feed_forward', 'gate'),
  'mlp.up_proj.weight': ('feed_forward', 'up'),
  'mlp.down_proj.weight': ('feed_forward', 'down'),
}
# GGUF's names for the same.
_GGUF_NAMES = {
  'token_embd.weight': 'model.embed_tokens.weight',
  'output_norm.weight': 'model.norm.weight',
  'output.weight': 'lm_head.weight',
}
_GGUF_LAYER_NAMES = {
  'attn_norm.weight': 'input_layernorm.weight',
  'attn_output.weight': 'self_attn.o_proj.weight',
  'ffn_norm.weight': 'post_attention_layernorm.weight',
  'ffn_gate.weight': 'mlp.gate_proj.weight',
  'ffn_up.weight': 'mlp.up_proj.weight',
  'ffn_down.weight': 'mlp.down_proj.weight',
} | {
  f'attn_{x}.{part}': f'self_attn.{x}_proj.{part}'
  for x in 'qkv'
  for part in ('weight', 'bias')
}


class SafetensorsWeights:
  """A folder with Hugging Face's `config.json` and `*.safetensors`."""

  def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack):
    self.name = folder.resolve().name
    self.config = DecoderConfig.from_hf(read_json(folder / 'config.json'))
    self._files = {}
    for path in _safetensors_files(folder):
      try:
        file = stack.enter_context(safetensors.safe_open(path, framework='numpy'))
        self._files |= dict.fromkeys(file.keys(), file)
      except (safetensors.SafetensorError, OSError) as error:
        raise UserError(
          f'{path} is not a whole safetensors file: {_one_line(error)}'
        ) from None
    self.shapes = {
      name: tuple(file.get_slice(name).get_shape())
      for name, file in self._files.items()
      # What old versions of transformers saved beside the weights, or what it ignores.
      if not name.endswith('rotary_emb.inv_freq')
      and not (name == 'lm_head.weight' and self.config.tied_head)
    }

  def read(self, name: str) -> np.ndarray:
    """One tensor."""
    return self._files[name].get_tensor(name)


class GGUFWeights:
  """A GGUF file of llama.cpp; what is quantised is widened to float32 when read."""

  def __init__(self, path: pathlib.Path, origin: str | None = None):
    """`origin` is what to call the file if it was joined from parts."""
    name = origin or str(path)
    try:
      self._reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
      raise UserError(
        f'{name} is not a whole GGUF file (it has {path.stat().st_size} bytes): '
        f'{_one_line(error)}'
      ) from None
    self._family = self.metadata('general.architecture')
    if self._family not in FAMILIES:
      raise UserError(
        f'the architecture of {name} is {self._family!r}; it must be one of '
        f'{", ".join(FAMILIES)}'
      )
    self.name = self.metadata('general.name', name) if origin else path.stem
    stored = {tensor.name: tensor for tensor in self._reader.tensors}
    divisors = stored.pop('rope_freqs.weight', None)
    self._tensors = {_hf_name(name): tensor for name, tensor in stored.items()}
    # GGUF counts dimensions from the innermost.
    self.shapes = {
      name: tuple(int(size) for size in reversed(tensor.shape))
      for name, tensor in self._tensors.items()
    }
    self.config = self._read_config(divisors)

  def metadata(self, key: str, default: Any = None) -> Any:
    """The value of a metadata key."""
    field = self._reader.get_field(key)
    return default if field is None else field.contents()

  def read(self, name: str) -> np.ndarray:
    """One tensor, dequantised, with rotary pairs where Hugging Face has them."""
    tensor = self._tensors[name]
    try:
      array = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
      raise UserError(
        f'{tensor.name} of {self.name} is quantised as {tensor.tensor_type.name}, '
        'which the gguf package cannot read; take another quantisation of the model'
      ) from None
    heads = {
      'q_proj.weight': self.config.num_heads,
      'k_proj.weight': self.config.num_kv_heads,
    }.get(name.partition('self_attn.')[2])
    if self._family == 'llama' and heads:
      # llama.cpp turns neighbours, i.e. pairs (2i, 2i + 1), and stores rows so.
      pairs = array.reshape(heads, self.config.head_dim // 2, 2, -1)
      array = pairs.swapaxes(1, 2).reshape(array.shape)
    return array

  def _read_config(self, divisors: Any) -> DecoderConfig:
    def value(key: str, default: Any = None) -> Any:
      found = self.metadata(f'{self._family}.{key}', default)
      if found is None:
        raise UserError(f'{self.name} lacks the metadata {self._family}.{key}')
      return found

    scaling = value('rope.scaling.type', 'none')
    if scaling != 'none':
      raise UserError(
        f"the RoPE scaling of {self.name} is {scaling!r}; it must be 'none', or in the "
        'tensor rope_freqs.weight'
      )
    hidden_size = check_count('embedding_length', value('embedding_length'))
    num_heads = check_count('head_count', value('attention.head_count'))
    head_dim = value('attention.key_length', hidden_size // num_heads)
    embedding = self.shapes.get('model.embed_tokens.weight')
    return DecoderConfig(
      vocab_size=embedding[0] if embedding else value('vocab_size'),
      hidden_size=hidden_size,
      intermediate_size=value('feed_forward_length'),
      num_layers=value('block_count'),
      num_heads=num_heads,
      num_kv_heads=value('attention.head_count_kv', num_heads),
      head_dim=head_dim,
      norm_eps=value('attention.layer_norm_rms_epsilon'),
      rope_theta=value('rope.freq_base', 10000.0),
      rope_divisors=(1.0,) * (head_dim // 2)
      if divisors is None
      else tuple(divisors.data.astype(float).tolist()),
      qkv_bias=self._family == 'qwen2',
      tied_head='lm_head.weight' not in self.shapes,
    )


# Either has `name`, `config`, `shapes` in Hugging Face's names, and `read`.
Weights = SafetensorsWeights | GGUFWeights


@contextlib.contextmanager
def open_weights(path: Path | Sequence[Path]) -> Iterator[Weights]:
  """Opens a folder of safetensors, a GGUF file, or the parts of one.

  Parts are a list of files or a folder of `*.bin`, joined by the number in their names.
  Raises UserError if there are none, or if they are damaged or of another architecture.
  """
  with contextlib.ExitStack() as stack:
    if not isinstance(path, Sequence) or isinstance(path, str):
      path = pathlib.Path(path)
      if not path.exists():
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
  """The decoder with its trained weights, each array on the mesh as soon as read.

  Raises UserError for tensors that are missing, too many, or of another shape.
  """
  graph, abstract = abstract_decoder(weights.config, mesh, dtype)
  flat = dict(nnx.to_flat_state(abstract))
  places = _places(weights.config)
  _check_shapes(
    weights,
    {
      name: flat[path].shape[::-1] if _transposed(path) else flat[path].shape
      for name, path in places.items()
    },
  )
  for name, path in tqdm(
    places.items(), f'reading {weights.name}', unit=' tensors', disable=None
  ):
    array = weights.read(name)
    place = flat[path].get_raw_value()
    flat[path] = flat[path].replace(
      _placed(array.T if _transposed(path) else array, place)
    )
  return nnx.merge(graph, nnx.from_flat_state(flat))


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file; UserError if there is none."""
  try:
    found = json.loads(path.read_text('utf-8'))
  except (OSError, ValueError) as error:
    raise UserError(f'{path} is not a JSON file: {_one_line(error)}') from None
  if not isinstance(found, dict):
    raise UserError(f'{path} holds a {type(found).__name__}; it must hold an object')
  return found


def _one_line(error: Exception) -> str:
  return ' '.join(str(error).split())


def _safetensors_files(folder: pathlib.Path) -> list[pathlib.Path]:
  index = folder / 'model.safetensors.index.json'
  if index.exists():
    names = set(read_json(index).get('weight_map', {}).values())
  elif (folder / 'model.safetensors').exists():
    names = {'model.safetensors'}
  else:
    names = {path.name for path in folder.glob('*.safetensors')}
  if not names:
    raise UserError(
      f'{folder} holds no *.safetensors; pickled weights (*.bin, *.pt) are never read'
    )
  for name in sorted(names):
    if not (folder / name).is_file():
      raise UserError(f'{folder} lacks {name}, which {index.name} names')
  return [folder / name for name in sorted(names)]


def _joined(
  parts: Sequence[pathlib.Path], name: str, whole: pathlib.Path
) -> pathlib.Path:
  """The parts one after another, in the order of the last number in their names."""
  numbered = {}
  for part in parts:
    digits = re.findall(r'\d+', part.name)
    if not digits or not part.is_file():
      raise UserError(
        f'{part} is not a part of a GGUF file; it must exist and have a number in its '
        'name'
      )
    numbered[int(digits[-1])] = part
  first, last = min(numbered, default=0), max(numbered, default=-1)
  missing = set(range(first, last + 1)) - set(numbered)
  if missing or len(numbered) != len(parts) or not parts:
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
      f'the parts of {name} cannot be joined: {_one_line(error)}'
    ) from None
  return whole


def _hf_name(name: str) -> str:
  """GGUF's name of a tensor as Hugging Face's; one that is unknown stays."""
  if layer := re.fullmatch(r'blk\.(\d+)\.(.+)', name):
    number, part = layer.groups()
    if part in _GGUF_LAYER_NAMES:
      return f'model.layers.{number}.{_GGUF_LAYER_NAMES[part]}'
  return _GGUF_NAMES.get(name, name)


def _places(config: DecoderConfig) -> dict[str, tuple[str | int, ...]]:
  """Where each tensor of a file goes in the decoder's state."""
  places: dict[str, tuple[str | int, ...]] = dict(_TENSORS)
  if config.tied_head:
    del places['lm_head.weight']
  for i in range(config.num_layers):
    for name, path in _LAYER_TENSORS.items():
      if config.qkv_bias or not name.endswith('.bias'):
        places[f'model.layers.{i}.{name}'] = ('layers', i, *path)
  return places


def _transposed(path: tuple[str | int, ...]) -> bool:
  """Embedding and head stay [v, d]; transposing a vector changes nothing."""
  return path[0] == 'layers'


def _check_shapes(weights: Weights, expected: Mapping[str, tuple[int, ...]]) -> None:
  found = weights.shapes
  wrong = [
    f'{name} is {found[name]} and must be {shape}'
    for name, shape in expected.items()
    if name in found and found[name] != shape
  ]
  faults = {
    'missing': sorted(set(expected) - set(found)),
    'surplus': sorted(set(found) - set(expected)),
    'misshapen': wrong,
  }
  said = [
    f'{len(names)} {kind} ({", ".join(names[:3])}{", …" if len(names) > 3 else ""})'
    for kind, names in faults.items()
    if names
  ]
  if said:
    raise UserError(f'the tensors of {weights.name} do not fit: {"; ".join(said)}')


def _placed(array: np.ndarray, place: jax.ShapeDtypeStruct) -> jax.Array:
  """The array on the mesh, each device given a copy of its part alone."""
  return jax.make_array_from_callback(
    place.shape,
    place.sharding,
    lambda part: np.array(array[part], place.dtype, order='C'),
  )
