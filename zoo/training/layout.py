"""In which shapes and where a state is: used, kept between steps, and saved."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# Two `nnx.State`s, or their graphs, shapes or shardings, as a plain dict: 'model' and
# 'optimizer' are apart because a reader of checkpoints needs the model alone.
State = dict[str, Any]


class Layout:
  """The shapes and shardings of a state, leaf by leaf.

  As a rule they are those of the model, and all methods return what they are given.
  When fully sharded, each array is also split over the mesh axis `data` between uses,
  along the axis of it that needs the least padding; what does not divide is filled up
  with zeros, which stay zeros. Checkpoints and evaluation see arrays without padding.
  """

  def __init__(self, abstract: State, fully_sharded: bool = False):
    """`abstract` is of the model's own shapes, with the shardings that it asks for."""
    self.fully_sharded = fully_sharded
    self.used = self.kept = self.saved = abstract
    if fully_sharded:
      self.kept = jax.tree.map(_split_over_data, abstract)
      self.saved = jax.tree.map(_evenly_split, abstract)

  @property
  def shardings(self) -> State:
    """Of the state between steps."""
    return jax.tree.map(lambda leaf: leaf.sharding, self.kept)

  def keep(self, state: State) -> State:
    """The state as it is kept, from its own shapes; for use under jit."""
    return fitted(state, self.kept) if self.fully_sharded else state

  def gathered(self, model: nnx.Module) -> Any:
    """The kept model with the arrays that it computes with; for use under jit."""
    if not self.fully_sharded:
      return model
    graph, state = nnx.split(model)
    specs = jax.tree.map(lambda leaf: leaf.sharding, self.used['model'])
    # Gathered before it is trimmed: the other way round rows would change places.
    state = jax.lax.with_sharding_constraint(state, specs)
    return nnx.merge(graph, fitted(state, self.used['model']))

  def saveable(self, state: State) -> State:
    """All parts of a kept state, or some, as checkpoints and evaluation see them."""
    wanted = {name: self.saved[name] for name in state}
    return _refit(state, wanted) if self.fully_sharded else state

  def opened(self, state: State) -> State:
    """A state as it was saved, to be kept."""
    return _refit(state, self.kept) if self.fully_sharded else state


def fitted(state: Any, abstract: Any) -> Any:
  """The arrays trimmed or filled up with zeros to the shapes, at the places, wanted."""

  def fit(leaf: jax.Array, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    leaf = leaf[tuple(slice(size) for size in wanted.shape)]
    missing = [
      (0, there - here) for there, here in zip(wanted.shape, leaf.shape, strict=True)
    ]
    return jnp.pad(leaf, missing) if any(map(any, missing)) else leaf

  state = jax.tree.map(fit, state, abstract)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
  return jax.lax.with_sharding_constraint(state, shardings)


def _refit(state: State, abstract: State) -> State:
  # One by one: what gathering takes beside the result is then that of one array.
  return jax.tree.map(lambda leaf, wanted: _fitting(wanted)(leaf), state, abstract)


@functools.cache
def _fitting(wanted: jax.ShapeDtypeStruct) -> Callable[[jax.Array], jax.Array]:
  return jax.jit(lambda leaf: fitted(leaf, wanted), out_shardings=wanted.sharding)


def _split_over_data(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  """The leaf with one more axis split, over `data`, and room for the padding."""
  mesh: Any = leaf.sharding.mesh
  axes = _axes(leaf)
  free = [i for i, names in enumerate(axes) if _parts(mesh, names) == 1]
  shape, data = list(leaf.shape), mesh.shape['data']
  if free and not any('data' in names for names in axes):
    # The first of equals: a TPU keeps the last two axes in tiles of 8 × 128.
    chosen = min(
      free, key=lambda i: (-(-shape[i] // data) * data / shape[i], -shape[i])
    )
    axes[chosen] = (*axes[chosen], 'data')
  for i, names in enumerate(axes):
    parts = _parts(mesh, names)
    shape[i] = -(-shape[i] // parts) * parts
  return _placed(leaf, shape, axes)


def _evenly_split(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  """The leaf split only along axes that divide: JAX passes no others between calls."""
  mesh: Any = leaf.sharding.mesh
  axes = [
    names if size % _parts(mesh, names) == 0 else ()
    for size, names in zip(leaf.shape, _axes(leaf), strict=True)
  ]
  return _placed(leaf, leaf.shape, axes)


def _axes(leaf: jax.ShapeDtypeStruct) -> list[tuple[str, ...]]:
  """The names of mesh axes over which each axis of the leaf is split."""
  spec = [*leaf.sharding.spec, *[None] * (leaf.ndim - len(leaf.sharding.spec))]
  return [() if a is None else (a,) if isinstance(a, str) else tuple(a) for a in spec]


def _parts(mesh: Mesh, names: tuple[str, ...]) -> int:
  return math.prod(mesh.shape[name] for name in names)


def _placed(leaf: Any, shape: Any, axes: list[tuple[str, ...]]) -> jax.ShapeDtypeStruct:
  sharding = NamedSharding(leaf.sharding.mesh, P(*[names or None for names in axes]))
  return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype, sharding=sharding)
