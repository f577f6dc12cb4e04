"""Reads the tensors of a trained model, and checks that they fit it."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from zoo.core.errors import UserError, in_one_line

FLOATS = 'BF16', 'F16', 'F32', 'F64'  # names of safetensors


class SafetensorsFiles:
  """The tensors of one or several `*.safetensors`, read one at a time."""

  def __init__(self, paths: Sequence[pathlib.Path], stack: contextlib.ExitStack):
    """Opens the files until the stack is closed; raises UserError if one is damaged."""
    self.shapes: dict[str, tuple[int, ...]] = {}
    self._files: dict[str, safetensors.safe_open] = {}
    for path in paths:
      try:
        file = stack.enter_context(safetensors.safe_open(path, framework='numpy'))
        for name in file.keys():  # noqa: SIM118 (a file is not iterable)
          self.shapes[name] = tuple(file.get_slice(name).get_shape())
          self._files[name] = file
      except (safetensors.SafetensorError, OSError) as error:
        raise UserError(
          f'{path} is not a whole safetensors file: {in_one_line(error)}'
        ) from None

  def read(self, name: str) -> np.ndarray:
    """One tensor; raises UserError unless it holds floating-point numbers."""
    file = self._files[name]
    kind = file.get_slice(name).get_dtype()
    if kind not in FLOATS:
      raise UserError(
        f'{in_one_line(name)} is stored as {kind}; it must be one of '
        f'{", ".join(FLOATS)}'
      )
    return file.get_tensor(name)


def check_shapes(
  source: str,
  found: Mapping[str, tuple[int, ...]],
  expected: Mapping[str, tuple[int, ...]],
) -> None:
  """Raises UserError, which names a few of the tensors, unless all shapes fit."""
  faults = {
    'missing': sorted(set(expected) - set(found)),
    'surplus': sorted(set(found) - set(expected)),
    'of another shape': [
      f'{name} is {found[name]} and must be {shape}'
      for name, shape in expected.items()
      if name in found and found[name] != shape
    ],
  }
  said = [
    f'{len(names)} {kind} ({", ".join(map(in_one_line, names[:3]))}'
    f'{", …" if len(names) > 3 else ""})'
    for kind, names in faults.items()
    if names
  ]
  if said:
    raise UserError(f'the tensors of {source} do not fit: {"; ".join(said)}')


def check_finite(array: jax.Array, name: str, source: str) -> None:
  """Raises UserError if the tensor has a NaN or an infinity."""
  if not _all_finite(array):
    raise UserError(f'{name} of {source} has numbers that are not finite')


@jax.jit
def _all_finite(array: jax.Array) -> jax.Array:
  return jnp.isfinite(array).all()
