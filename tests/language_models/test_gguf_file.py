"""The reader of GGUF files against the gguf package's; files that claim too much."""

import struct

import gguf
import numpy as np
import pytest

from tests.compare import refuses
from tests.language_models import smollm2, tiny
from zoo.language_models.gguf_file import GGUFFile

STRING, ARRAY, UINT8, UINT32 = 8, 9, 0, 4


def assert_read_as_by_the_package(path):
  found, theirs = GGUFFile(path, 'file'), gguf.GGUFReader(path)
  fields = {
    name: field.contents()
    for name, field in theirs.fields.items()
    if not name.startswith('GGUF.')
  }
  assert found.metadata.keys() == fields.keys()
  for name, value in found.metadata.items():
    assert value == fields[name], name
    assert type(value) is type(fields[name])
  assert list(found.tensors) == [tensor.name for tensor in theirs.tensors]
  for tensor in theirs.tensors:
    ours = found.tensors[tensor.name]
    assert ours.shape == tuple(tensor.shape.tolist()[::-1])
    assert ours.kind is tensor.tensor_type
    np.testing.assert_array_equal(
      ours.read(), gguf.dequantize(tensor.data, tensor.tensor_type)
    )


@pytest.mark.parametrize('kind', ['F32', 'F16', 'BF16', 'Q8_0', 'Q4_1'])
def test_a_file_is_read_as_the_package_reads_it(tmp_path, kind):
  quantisation = gguf.GGMLQuantizationType[kind]
  path = tiny.save_gguf('llama_3_1', tmp_path / 'tiny', quantisation=quantisation)
  assert_read_as_by_the_package(path)


@pytest.mark.filterwarnings('ignore::RuntimeWarning')  # within the package
def test_smollm2_is_read_as_the_package_reads_it():
  assert_read_as_by_the_package(smollm2.path())


def text(value):
  return struct.pack('<Q', len(value)) + value.encode()


def header(num_tensors=0, num_metadata=0, version=3, rest=b''):
  return b'GGUF' + struct.pack('<IQQ', version, num_tensors, num_metadata) + rest


def entry(name='t', shape=(32,), kind=0, offset=0):
  dims = struct.pack(f'<I{len(shape)}Q', len(shape), *shape)
  return text(name) + dims + struct.pack('<IQ', kind, offset)


def array(kind, count, values=b''):
  return text('key') + struct.pack('<IIQ', ARRAY, kind, count) + values


@pytest.mark.parametrize(
  ('content', 'said'),
  [
    (b'GGML' + header()[4:], 'does not begin with GGUF'),
    (header(version=1), 'its version is 1'),
    (header(version=0x03000000), 'its version is 50331648'),  # the other byte order
    (header(num_tensors=10**12), 'it claims 1000000000000 tensors'),
    (header(num_metadata=2**64 - 1), f'it claims {2**64 - 1} metadata'),
    (header(num_metadata=1, rest=array(UINT32, 10**9)), 'it claims 1000000000 values'),
    (header(num_metadata=1, rest=array(STRING, 10**9)), 'it claims 1000000000 values'),
    (header(num_metadata=1, rest=array(UINT32, 2**20)), '4194304 bytes at'),
    (header(num_metadata=1, rest=array(ARRAY, 1)), 'unknown type 9'),  # in an array
    (header(num_metadata=1, rest=text('key') + struct.pack('<I', 99)), 'type 99'),
    (
      header(num_metadata=2, rest=2 * (text('key') + struct.pack('<IB', UINT8, 1))),
      "it has 'key' twice",
    ),
    (
      header(
        num_metadata=1, rest=text('general.alignment') + struct.pack('<II', UINT32, 0)
      ),
      'its alignment is 0',
    ),
    (header(num_metadata=1, rest=struct.pack('<Q', 2**62)), 'bytes of a name'),
    (header(num_metadata=1, rest=text('é')[:9]), 'unexpected end of data'),
    (header(1, rest=entry(shape=())), 'has 0 dimensions'),
    (header(1, rest=entry(shape=(32, 0))), 'has the shape (32, 0)'),
    (header(1, rest=entry(shape=(2**62, 2**62))), "'t' ends after the last byte"),
    (header(1, rest=entry(offset=2**64 - 32)), "'t' ends after the last byte"),
    (header(1, rest=entry(shape=(33,), kind=2)), 'not whole blocks'),
    (header(1, rest=entry(kind=999)), '999 is not a valid'),
    (header(2, rest=2 * entry() + bytes(300)), 'two tensors have one name'),
  ],
)
def test_a_header_that_cannot_be_true_is_refused_before_it_is_believed(
  tmp_path, content, said
):
  path = tmp_path / 'claims.gguf'
  path.write_bytes(content)
  with refuses('claims.gguf is not a whole GGUF file', f'{len(content)} bytes', said):
    GGUFFile(path, 'claims.gguf')


def test_integers_are_not_read_as_weights(tmp_path):
  content = header(1, rest=entry(shape=(8,), kind=gguf.GGMLQuantizationType.I32))
  path = tmp_path / 'integers.gguf'
  path.write_bytes(content + bytes(96))
  tensor = GGUFFile(path, 'integers').tensors['t']
  with refuses('t is stored as I32', 'another quantisation'):
    tensor.read()
