"""Weights of one layer that track a state without error, for prompts of any length.

A state is a matrix that each symbol multiplies: by a reflection or several, where the
eigenvalues of a delta rule may be −1 (Grazzi et al., arXiv 2411.12537), or by a
rotation. The models are transformers for the tasks of `zoo/tasks/state_tracking.py`
with `shifted` tokens; a position marks the first token, at which the state is written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.special
from flax import nnx
from jaxtyping import Float

from zoo.core.errors import check_count
from zoo.models.transformer import Transformer

# Sigmoids and SiLU of −40 and less, and of 40 and more, are constant in float32.
_FAR = 40.0


def parity(context_length: int, negative_eigenvalues: bool = True) -> Transformer:
  """`delta` that counts ones modulo 2: S_t = (1 − β_t) S_{t−1} with β_t = 2 or 0.

  With `negative_eigenvalues` False β_t is at most 1, and these weights lose the sign.
  """
  options = {'negative_eigenvalues': negative_eigenvalues}
  return _reflections(2, context_length, 'delta', options)


def permutations(num_elements: int, context_length: int) -> Transformer:
  """`gated_delta_product` that multiplies permutations of k ≥ 2 elements.

  The state is the permutation's matrix on the k − 1 dimensions in which the entries of
  a vector sum to 0. A swap of two elements is a reflection, and a permutation at most
  k − 1 swaps, which are the n_h = k − 1 steps of a token.
  """
  options = {'num_householder': check_count('num_elements', num_elements, 2, 5) - 1}
  return _reflections(num_elements, context_length, 'gated_delta_product', options)


def modular_addition(modulus: int, context_length: int) -> Transformer:
  """`mamba3` that adds modulo m ≥ 2: the symbol x turns the state by the angle 2π x/m.

  Two heads read the cosine and the sine of the sum of the angles.
  """
  m = check_count('modulus', modulus, 2, 100)
  constant, first, read = m, m + 1, m + 2  # of the entries of a token, after its symbol
  width = 2 * math.ceil((m + 4) / 2)
  angles = 2 * np.pi * np.arange(m) / m
  turned = np.zeros((width, 4))
  # Before it is turned, a key is turned back by its own symbol.
  turned[:m, 0], turned[:m, 1] = np.cos(angles), -np.sin(angles)
  angle = np.zeros((width, 1))
  angle[:m, 0] = np.arctanh(np.arange(m) / m)  # times π and the rate 2
  out = _ones((2 * width, width), (0, read), (width, read + 1))
  weights = {
    'value.kernel': _ones((width, 2 * width), (first, 0), (first, width)),
    'gate.kernel': _rows(width, 2 * width, constant, _FAR),
    'key.kernel': turned,
    'key_norm.scale': np.ones(4),
    'query_bias': np.diag([1.0, -1.0]) @ np.eye(2, 4),  # cos θ and −(−sin θ)
    'angle.kernel': angle,
    'rate_bias': np.full(2, np.log(np.expm1(2.0))),
    'decay.kernel': _rows(width, 2, constant, -1e9),  # as slow as it can be
    'weight.kernel': _rows(width, 2, constant, _FAR),  # no token is written twice
    'out.kernel': out,
  }
  options = {'mixer': 'mamba3', 'num_heads': 2, 'mixer_options': {'state_size': 4}}
  logits = np.stack([np.cos(angles), np.sin(angles)])
  return _model(m, context_length, width, options, weights, logits)


def _reflections(
  k: int, context_length: int, mixer: str, options: Mapping[str, object]
) -> Transformer:
  """A delta rule whose steps swap two of k elements."""
  group = [*itertools.permutations(range(k))]
  count, steps, size = len(group), k - 1, k - 1
  constant, first, width = count, count + 1, count + 2 + size
  basis = _basis(k)  # [k − 1, k], of the vectors whose entries sum to 0
  # Negative entries of SiLU are at least −0.278; entries here are at most 1.
  query = basis @ (np.arange(k) - (k - 1) / 2)
  query = query / np.linalg.norm(query)
  arranged = [query @ basis @ _matrix(permutation) @ basis.T for permutation in group]
  kernels = {
    'query': np.zeros((width, width)),
    'key': np.zeros((width, steps, width)),
    'value': np.zeros((width, steps, width)),
  }
  strength = np.full((width, steps), 0.0)
  kernels['query'][constant, :size] = _before_silu(query)
  strength[constant], strength[first] = -_FAR, 2 * _FAR
  for symbol, permutation in enumerate(group):
    for step, (a, b) in enumerate(_swaps(permutation)):
      kernels['key'][symbol, step, :size] = _before_silu(
        (basis[:, a] - basis[:, b]) / np.sqrt(2)
      )
      strength[symbol, step] = 2 * _FAR
    # The first token writes its own matrix, row by row; others write nothing.
    start = basis @ _matrix(permutation) @ basis.T
    kernels['value'][symbol, :, :size] = _before_silu(start)
  kernels['value'][constant] -= 10 * _FAR
  kernels['value'][first] += 10 * _FAR
  kernels['key'][first] -= 10 * _FAR
  kernels['key'][first, np.arange(steps), np.arange(steps)] = 10 * _FAR
  weights = {
    f'{name}.kernel': kernel.reshape(width, -1) for name, kernel in kernels.items()
  }
  for name, kernel in kernels.items():
    taps = np.zeros((4, kernel[0].size))
    taps[-1] = 1  # each token as it is
    weights[f'convolutions.{name}.kernel'] = taps
  weights |= {
    'strength.kernel': strength,
    'norm.scale': np.ones(width),
    'out.kernel': np.eye(width, k=width - size),  # to the last entries
  }
  if mixer == 'gated_delta_product':
    weights |= {'gate.bias': np.ones(width), 'rate.bias': np.full(1, -_FAR)}
  logits = np.stack(arranged, axis=1)
  sizes = {'mixer': mixer, 'num_heads': 1, 'mixer_options': options}
  return _model(count, context_length, width, sizes, weights, logits)


def _model(
  symbols: int,
  context_length: int,
  width: int,
  sizes: Mapping[str, Any],
  weights: Mapping[str, np.ndarray],
  logits: Float[np.ndarray, 'r k'],
) -> Transformer:
  """A transformer of one mixer, in which all weights that are not given are 0.

  The entries of its tokens are a symbol, one-hot, 1, whether it is the first, and what
  the mixer adds, of which the logits are made.
  """
  added, classes = logits.shape
  abstract: Any = nnx.eval_shape(
    lambda: Transformer(
      symbols,
      context_length,
      classes,
      num_layers=1,
      width=width,
      tokens='shifted',
      feed_forward='none',
      norm='none',
      **sizes,
      rngs=nnx.Rngs(0),
    )
  )
  read_in = np.zeros((symbols + 2 * classes, width))
  read_in[:symbols, :symbols] = np.eye(symbols)
  read_in[:symbols, symbols] = 1
  named = {
    'read_in.kernel': read_in,
    'positions': _ones((context_length + 1, width), (0, symbols + 1)),
    'read_out.kernel': np.pad(
      logits, [(symbols + 2, width - symbols - 2 - added), (0, 0)]
    ),
    **{f'layers.0.mixer.{name}': value for name, value in weights.items()},
  }
  graph, state, rest = nnx.split(abstract, nnx.Param, ...)
  flat = nnx.to_flat_state(state)
  paths = {'.'.join(map(str, path)): leaf for path, leaf in flat}
  assert named.keys() <= paths.keys()
  for name, leaf in paths.items():
    value = named.get(name, np.zeros(leaf.shape))
    assert value.shape == leaf.shape, name
    leaf.set_value(jnp.asarray(value, leaf.dtype))
  return nnx.merge(graph, nnx.from_flat_state(flat), rest)


def _basis(k: int) -> Float[np.ndarray, 'r k']:
  """Orthonormal vectors whose entries sum to 0."""
  rows = [[1.0] * i + [-float(i)] + [0.0] * (k - 1 - i) for i in range(1, k)]
  return np.asarray(rows) / np.linalg.norm(rows, axis=1, keepdims=True)


def _matrix(permutation: Sequence[int]) -> Float[np.ndarray, 'k k']:
  """The matrix that moves the unit vector i to that of permutation[i]."""
  return np.eye(len(permutation))[:, list(permutation)]


def _swaps(permutation: Sequence[int]) -> list[tuple[int, int]]:
  """Swaps of two places that make the permutation, the first to be applied first."""
  swaps, left = [], list(permutation)
  for i in range(len(left)):
    while left[i] != i:
      j = left[i]
      swaps.append((i, j))
      left[i], left[j] = left[j], j
  return swaps


def _before_silu(values: Float[np.ndarray, '*n']) -> Float[np.ndarray, '*n']:
  """What SiLU maps to a quarter v of these values, which are at least −1.

  `z/(1 + e^−z) = v` is `(z − v) e^(z − v) = v e^−v`.
  """
  v = values / 4
  return v + scipy.special.lambertw(v * np.exp(-v)).real


def _ones(shape: tuple[int, ...], *places: tuple[int, ...]) -> np.ndarray:
  """An array of zeros, but for ones at these places."""
  array = np.zeros(shape)
  for place in places:
    array[place] = 1
  return array


def _rows(width: int, outputs: int, row: int, number: float) -> np.ndarray:
  """A kernel whose outputs are a number times one entry of a token."""
  kernel = np.zeros((width, outputs))
  kernel[row] = number
  return kernel
