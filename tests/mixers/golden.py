"""Inputs and outputs of programs that others wrote, from `tests/data/mixers`.

`golden.npz` has those of public definitions (`make.py`), and `blocks.npz` those of
whole blocks (`make_blocks.py`).
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
