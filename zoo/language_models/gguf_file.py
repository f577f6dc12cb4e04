"""GGUF files of llama.cpp: metadata and tensors, checked before memory is allocated.

The reader of the gguf package trusts the counts and lengths in a file. This reader,
which follows https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and
3, checks them first; the package is used to dequantise.
"""

from __future__ import annotations

import math
import pathlib
import struct
from typing import NamedTuple

import gguf
import numpy as np

from zoo.core.errors import UserError

MAX_HEADER = 2**28  # bytes of metadata and of the names and shapes of tensors
MAX_VALUES = 2**21  # in all arrays; the largest vocabularies have 1.3 million
MAX_NAMES = 2**16  # of metadata, and of tensors
MAX_NAME = 2**10  # bytes

_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate('BbHhIif?')) | {10: 'Q', 11: 'q', 12: 'd'}  # as in struct


class Tensor(NamedTuple):
  """A stored tensor: bytes `[..., bytes of a row]`, memory-mapped from the file."""

  name: str
  shape: tuple[int, ...]  # in numbers, the length of rows last
  kind: gguf.GGMLQuantizationType
  data: np.ndarray

  def read(self) -> np.ndarray:
    """The numbers, float32; raises UserError for integers and unknown quantisations."""
    try:
      return gguf.dequantize(self.data, self.kind)
    except NotImplementedError:
      raise UserError(
        f'{self.name} is stored as {self.kind.name}, which cannot be read; use the '
        'model in another quantisation'
      ) from None


class GGUFFile:
  """The metadata and the tensors of a file; only the header is read."""

  def __init__(self, path: pathlib.Path, source: str):
    """`source` names the file in messages; raises UserError for a damaged file."""
    try:
      self._data = np.memmap(path, mode='r')
      self.metadata, self.tensors = self._parse()
    except (OSError, ValueError) as error:  # _Damaged, or a file of 0 bytes
      raise UserError(
        f'{source} is not a whole GGUF file (it has {path.stat().st_size} bytes): '
        f'{error}'
      ) from None

  def _parse(self) -> tuple[dict[str, object], dict[str, Tensor]]:
    header = _Header(self._data)
    if header.take(4) != b'GGUF':
      raise _Damaged('it does not begin with GGUF')
    if (version := header.integer('I')) not in (2, 3):
      raise _Damaged(f'its version is {version}; it must be 2 or 3')
    num_tensors = header.count('tensors', MAX_NAMES)
    metadata: dict[str, object] = {}
    for _ in range(header.count('metadata', MAX_NAMES)):
      name = header.name()
      if name in metadata:
        raise _Damaged(f'it has {name!r} twice')
      metadata[name] = header.value()
    entries = [header.entry() for _ in range(num_tensors)]
    alignment = metadata.get('general.alignment', 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 2**16:
      raise _Damaged(f'its alignment is {alignment!r}')
    start = -(-header.offset // alignment) * alignment
    tensors = {entry.name: self._tensor(start, entry) for entry in entries}
    if len(tensors) < num_tensors:
      raise _Damaged('two tensors have one name')
    return metadata, tensors

  def _tensor(self, start: int, entry: _Entry) -> Tensor:
    name, shape = entry.name, entry.shape
    kind = gguf.GGMLQuantizationType(entry.kind)
    block, bytes_of_block = gguf.GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
      raise _Damaged(f'{name!r} has rows of {shape[-1]}, which are not whole blocks')
    stored = *shape[:-1], shape[-1] // block * bytes_of_block
    first, size = start + entry.offset, math.prod(stored)
    if first + size > len(self._data):
      raise _Damaged(f'{name!r} ends after the last byte')
    return Tensor(name, shape, kind, self._data[first : first + size].reshape(stored))


class _Damaged(ValueError):
  """The damage of a file, as the end of a message."""


class _Entry(NamedTuple):
  """A tensor's entry in the header; `offset` counts from the start of the data."""

  name: str
  shape: tuple[int, ...]
  kind: int
  offset: int


class _Header:
  """Reads values one after another, and never beyond the end of the header."""

  def __init__(self, data: np.ndarray):
    self._data = data.data[:MAX_HEADER]
    self._values = 0
    self.offset = 0

  def take(self, size: int) -> bytes:
    if size > len(self._data) - self.offset:
      raise _Damaged(f'{size} bytes at {self.offset} are beyond the end of the header')
    self.offset += size
    return bytes(self._data[self.offset - size : self.offset])

  def scalars(self, code: str, count: int) -> tuple[int | float | bool, ...]:
    form = f'<{count}{code}'
    return struct.unpack(form, self.take(struct.calcsize(form)))

  def integer(self, code: str) -> int:
    return int(self.scalars(code, 1)[0])

  def count(self, of: str, largest: int) -> int:
    value = self.integer('Q')
    if value > largest:
      raise _Damaged(f'it claims {value} {of}; there may be at most {largest}')
    return value

  def text(self) -> str:
    return self.take(self.integer('Q')).decode()

  def name(self) -> str:
    return self.take(self.count('bytes of a name', MAX_NAME)).decode()

  def value(self) -> object:
    """A value of metadata: a scalar, a text, or a list of either."""
    kind = self.integer('I')
    is_array = kind == _ARRAY
    kind = self.integer('I') if is_array else kind
    count = self.count('values', MAX_VALUES - self._values) if is_array else 1
    self._values += count
    if kind == _STRING:
      values = [self.text() for _ in range(count)]
    elif kind in _SCALARS:
      values = list(self.scalars(_SCALARS[kind], count))
    else:
      raise _Damaged(f'a value of metadata is of the unknown type {kind}')
    return values if is_array else values[0]

  def entry(self) -> _Entry:
    name, dims = self.name(), self.integer('I')
    if not 1 <= dims <= 4:
      raise _Damaged(f'{name!r} has {dims} dimensions; it must have 1 to 4')
    shape = tuple(self.integer('Q') for _ in range(dims))
    if not all(shape):
      raise _Damaged(f'{name!r} has the shape {shape}')
    # The file lists dimensions from the innermost.
    return _Entry(name, shape[::-1], self.integer('I'), self.integer('Q'))
