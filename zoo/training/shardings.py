"""The state of a run, and how its arrays are split over the mesh."""

import math
from typing import Any

import jax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

# A plain dict of two `nnx.State`s, or their graphs, shapes or shardings. 'model' and
# 'optimizer' are separate because loading a checkpoint needs only the model.
State = dict[str, Any]


def split_over_data(abstract: State) -> State:
  """The abstract state with one more axis of each array split over `data`.

  It is the longest axis that `data` divides; an array without one stays whole.
  """
  return jax.tree.map(_split, abstract)


def gathered(model: nnx.Module, asked: PyTree) -> nnx.Module:
  """The model with its arrays gathered for a step; to be called under jit.

  `asked` are the abstract arrays with the shardings that the model itself asks for. One
  that it splits over `data` stays split.
  """
  graph, state = nnx.split(model)
  whole = jax.lax.with_sharding_constraint(state, shardings_of(asked))
  return nnx.merge(graph, whole)


def shardings_of(abstract: PyTree) -> PyTree:
  """The shardings of abstract arrays."""
  return jax.tree.map(lambda leaf: leaf.sharding, abstract)


def splits_later_axes(abstract: State) -> bool:
  """Whether any array is split along another axis than its first.

  Flattening such an array would gather it from all devices.
  """
  return any(
    _parts(leaf, names) > 1
    for leaf in jax.tree.leaves(abstract)
    for names in _axes(leaf)[1:]
  )


def is_split_over(axis: str, abstract: PyTree) -> bool:
  """Whether any array is split over a mesh axis."""
  leaves = jax.tree.leaves(abstract)
  return any(axis in names for leaf in leaves for names in _axes(leaf))


def _split(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  axes, data = _axes(leaf), leaf.sharding.mesh.shape['data']  # pyright: ignore
  free = [
    i
    for i, size in enumerate(leaf.shape)
    if _parts(leaf, axes[i]) == 1 and size % data == 0
  ]
  if not free or any('data' in names for names in axes):
    return leaf
  # The first of equal axes: a TPU stores the last two axes in tiles of 8 × 128.
  longest = max(free, key=lambda i: leaf.shape[i])
  axes[longest] = (*axes[longest], 'data')
  spec = P(*[names or None for names in axes])
  sharding = NamedSharding(leaf.sharding.mesh, spec)  # pyright: ignore
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _axes(leaf: Any) -> list[tuple[str, ...]]:
  """The names of mesh axes over which each axis of the leaf is split."""
  spec = [*leaf.sharding.spec, *[None] * (leaf.ndim - len(leaf.sharding.spec))]
  return [() if a is None else (a,) if isinstance(a, str) else tuple(a) for a in spec]


def _parts(leaf: Any, names: tuple[str, ...]) -> int:
  return math.prod(leaf.sharding.mesh.shape[name] for name in names)
