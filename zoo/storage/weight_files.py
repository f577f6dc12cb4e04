"""A model in one file of safetensors: its arrays by name, and its metadata."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Mapping

import jax
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import PyTree

from zoo.core.errors import RunError, UserError, in_one_line
from zoo.core.saved_arrays import array_name
from zoo.host.files import parse_json

SUFFIX = '.safetensors'
# The metadata of a file have two texts of these names: what `zoo.save` writes beside
# the arrays, and the checksum of the arrays.
_KEY, _SUM = 'icl_zoo', 'icl_zoo_sha256'


def write(path: pathlib.Path, state: PyTree, metadata: Mapping[str, object]) -> None:
  """Writes the arrays of a state under the names that `zoo.save` gives them.

  A random key is written as its integers. It raises OSError if the file cannot be
  written.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  arrays = {}
  for where, leaf in leaves:
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    arrays[array_name(where)] = np.array(leaf, order='C')
  text = {_KEY: json.dumps(metadata), _SUM: _digest(arrays)}
  path.write_bytes(safetensors.numpy.save(arrays, text))


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
  """Returns the SHA-256 of arrays and their names."""
  digest = hashlib.sha256()
  for name in sorted(arrays):
    array = np.ascontiguousarray(arrays[name])
    digest.update(f'{name} {array.dtype} {array.shape}'.encode())
    digest.update(array.tobytes())
  return digest.hexdigest()


def read(path: pathlib.Path) -> tuple[dict, dict[str, np.ndarray]]:
  """Returns the metadata and the arrays of a file that `write` has written.

  Raises:
    UserError: If the file cannot be read, or is not a model of ICL Zoo.
    RunError: If the file is damaged.
  """
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      text = (file.metadata() or {}).get(_KEY)
      if text is None:
        raise UserError(
          f'{path} is no model of ICL Zoo: its metadata have no entry {_KEY!r}'
        )
      metadata, wanted = parse_json(text, dict, str(path)), file.metadata().get(_SUM)
      arrays = file.get_tensors()
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror or error}') from error
  except safetensors.SafetensorError as error:
    raise RunError(f'{path} is damaged: {in_one_line(error)}') from error
  if wanted != _digest(arrays):
    raise RunError(
      f'{path} is damaged: the checksum of its arrays is not the one that it names; '
      'export or copy it again'
    )
  return metadata, arrays
