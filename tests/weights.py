"""Weights for tests: none is 0 by accident, and they may be of double precision."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx

from tests import oracle

_Module = TypeVar('_Module', bound=nnx.Module)


def randomize(module: _Module, scale: float = 0.5, dtype: str = 'float64') -> _Module:
  """A copy whose parameters are all from N(0, scale²), the same at each call."""
  graph, parameters, rest = nnx.split(module, nnx.Param, ...)
  generator = np.random.default_rng(0)
  parameters = jax.tree.map(
    # Converted in NumPy: JAX would compile a program for each shape.
    lambda leaf: jax.numpy.asarray(
      generator.normal(0, scale, leaf.shape).astype(dtype), dtype
    ),
    parameters,
  )
  return nnx.merge(graph, parameters, rest)


def drawn(
  build: Callable[[], _Module], scale: float = 0.5, dtype: str = 'float64'
) -> _Module:
  """`randomize(build(), scale, dtype)`, whose own weights are never computed.

  The random keys of the module must be made within `build`.
  """
  abstract = nnx.eval_shape(build)
  graph, parameters, rest = nnx.split(abstract, nnx.Param, ...)
  if jax.tree.leaves(rest):  # constants, which are as they are
    rest = jax.jit(lambda: nnx.split(build(), nnx.Param, ...)[2])()
  return randomize(nnx.merge(graph, parameters, rest), scale, dtype)


@contextlib.contextmanager
def promoting_float64() -> Iterator[None]:
  """Computes in double precision; flax's norms promote a float32 to do so."""
  with jax.enable_x64(True), jax.numpy_dtype_promotion('standard'):
    yield


def heads(layer: Any) -> list[oracle.Head]:
  """The four matrices of each head of a layer of linear attention, in NumPy."""
  matrices = (layer.w_p, layer.w_v, layer.w_k, layer.w_q)
  stacked = (np.asarray(w[...], np.float64) for w in matrices)
  return [oracle.Head(*parts) for parts in zip(*stacked, strict=True)]


def double(layer: nnx.Linear) -> tuple[np.ndarray, np.ndarray | float]:
  """The kernel and the bias of a linear layer, in NumPy."""
  bias = 0.0 if layer.bias is None else np.asarray(layer.bias[...])
  return np.asarray(layer.kernel[...]), bias
