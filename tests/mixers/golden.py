"""Inputs and outputs of the public definitions, which tests/data/mixers/make.py ran."""

import pathlib

import numpy as np

_FILE = pathlib.Path(__file__).parents[1] / 'data' / 'mixers' / 'golden.npz'


def golden(mixer: str) -> dict[str, np.ndarray]:
  """The arrays of a mixer, by name, in float64."""
  with np.load(_FILE) as arrays:
    return {
      name.removeprefix(f'{mixer}/'): arrays[name]
      for name in arrays.files
      if name.startswith(f'{mixer}/')
    }
