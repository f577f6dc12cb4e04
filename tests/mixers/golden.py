"""Inputs and outputs of programs that others wrote, from `tests/data/mixers`.

`golden.npz` has those of public definitions, computed in float64: naive programs of
`fla/ops` in github.com/fla-org/flash-linear-attention at bc3b101dcb71, and for Mamba-3
the reference of github.com/state-spaces/mamba at e9594ce1c732. `blocks.npz` has those
of whole blocks, of the packages mamba2-jax 1.1.2 and mamba3-jax 1.0.1. The programs
that made both are in `tests/data/mixers` of this repository at c3ed90c.
"""

import pathlib

import numpy as np

_FOLDER = pathlib.Path(__file__).parents[1] / 'data' / 'mixers'


def golden(mixer: str, file: str = 'golden.npz') -> dict[str, np.ndarray]:
  """The arrays of a mixer, by name."""
  with np.load(_FOLDER / file) as arrays:
    return {
      name.removeprefix(f'{mixer}/'): arrays[name]
      for name in arrays.files
      if name.startswith(f'{mixer}/')
    }
