"""The base class of mixers, and the layers that mixers and networks are made of."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, PyTree

from zoo.core.errors import UserError, check_count

_Module = TypeVar('_Module', bound=nnx.Module)

Activation = Callable[[Array], Array]
# What mixers take and return, what heads read of their states, and the states.
Tokens: TypeAlias = Float[Array, 'b n w']
Read: TypeAlias = Float[Array, 'b n h v']
Memory: TypeAlias = Float[Array, 'b h k v']


@dataclasses.dataclass(frozen=True)
class Init:
  """The initialisation of a model: kernels from N(0, scale²), biases 0."""

  scale: float | None = None  # None: 1/√(number of inputs) of each kernel
  # Factor of kernels whose outputs are added to the tokens; GPT-2 has 1/√(2 layers).
  residual: float = 1.0

  def kernel(self, factor: float = 1.0) -> jax.nn.initializers.Initializer:
    """The initializer of a kernel, times a factor."""
    if self.scale is not None:
      return jax.nn.initializers.normal(self.scale * factor)
    return jax.nn.initializers.variance_scaling(factor**2, 'fan_in', 'normal')


PLAIN = Init()


@dataclasses.dataclass(frozen=True)
class Slot:
  """Where a mixer sits: the width of the tokens, its heads, and how kernels start."""

  width: int
  num_heads: int
  init: Init = PLAIN

  @property
  def head_size(self) -> int:
    """The width of a head; raises UserError unless the heads share the width evenly."""
    width, num_heads = self.width, check_count('num_heads', self.num_heads)
    if width % num_heads:
      raise UserError(
        f'width is {width}; it must be a multiple of num_heads, which is {num_heads}'
      )
    return width // num_heads


# What models give to the constructor of a mixer; its other arguments are options.
GIVEN = 'slot', 'width', 'num_heads', 'init', 'causal', 'rotary', 'rngs'


class Mixer(nnx.Module):
  """A layer that moves information between tokens.

  The constructor takes what it names of `slot`, a `Slot`, and its fields; of `causal`,
  `rotary` and `rngs`; and of the options in the config. Constructors of mixers with
  heads raise UserError unless these share the width evenly.

  It may define `outputs_at`, where some outputs cost less than all; `attention`; and
  `initial_state` with `step`, if it can take tokens one by one. It may say the `roles`
  of its weights (zoo/core/roles.py).

  Attributes:
    causal: whether a token sees itself and those before it; else every token sees the
      context, which is all tokens but the last. A mixer that takes `causal` sets it.
    rotary: whether it turns queries and keys by their positions; likewise.
  """

  causal: bool = True
  rotary: bool = False

  @abc.abstractmethod
  def __call__(self, tokens: Tokens) -> Tokens:
    """The output for each token, which a model adds to the token."""

  def outputs_at(self, tokens: Tokens, at: slice) -> Float[Array, 'b t w']:
    """The outputs for some tokens, those of `self(tokens)` but for rounding."""
    return self(tokens)[:, at]

  def attention(self, tokens: Tokens) -> Float[Array, 'b h n n'] | None:
    """The attention weights, query by key; None if it has none."""
    return None

  def initial_state(self, batch: int) -> PyTree:
    """The state before the first token; None if tokens are not taken one by one."""
    return None

  def step(
    self, token: Float[Array, 'b w'], state: PyTree
  ) -> tuple[Float[Array, 'b w'], PyTree]:
    """The output of one token, and the next state."""
    raise UserError(f'{type(self).__name__} takes no tokens one by one')


class Linear(nnx.Linear):
  """A linear layer that flattens all axes but the last into the rows of one matrix.

  With more axes XLA:CPU copies a transpose of the outputs' gradient to compute the
  kernel's gradient, which doubles the time of the backward pass.
  """

  roles = {'kernel': 'hidden'}  # with one input or output, too

  def __call__(
    self, inputs: Array, out_sharding: NamedSharding | P | None = None
  ) -> Array:
    """The outputs `[*n, o]` of inputs `[*n, i]`."""
    rows = super().__call__(inputs.reshape(-1, inputs.shape[-1]), out_sharding)
    return rows.reshape(*inputs.shape[:-1], rows.shape[-1])


def project(
  inputs: int,
  outputs: int,
  init: Init = PLAIN,
  *,
  use_bias: bool = True,
  rngs: nnx.Rngs,
) -> Linear:
  """A linear layer whose outputs are split over the mesh axis `model`."""
  return Linear(
    inputs,
    outputs,
    use_bias=use_bias,
    kernel_init=init.kernel(),
    kernel_metadata=split(None, 'model'),
    bias_metadata=split('model'),
    rngs=rngs,
  )


def project_back(
  inputs: int,
  outputs: int,
  init: Init = PLAIN,
  *,
  use_bias: bool = True,
  rngs: nnx.Rngs,
) -> Linear:
  """A linear layer from inputs split over `model` to outputs added to the tokens."""
  return Linear(
    inputs,
    outputs,
    use_bias=use_bias,
    kernel_init=init.kernel(init.residual),
    kernel_metadata=split('model', None),
    rngs=rngs,
  )


def unsplit(inputs: int, outputs: int, init: Init = PLAIN, *, rngs: nnx.Rngs) -> Linear:
  """A linear layer without a bias that every device has whole."""
  kernel = init.kernel()
  return Linear(inputs, outputs, use_bias=False, kernel_init=kernel, rngs=rngs)


class LowRank(nnx.Module):
  """W_2 f(W_1 x), through `rank` features; f is the identity by default."""

  def __init__(
    self,
    inputs: int,
    rank: int,
    outputs: int,
    init: Init = PLAIN,
    *,
    between: Activation | None = None,
    use_bias: bool = True,
    rngs: nnx.Rngs,
  ):
    """W_1 has no bias; W_2 has one if `use_bias`."""
    self.down = unsplit(inputs, rank, init, rngs=rngs)
    self.up = project(rank, outputs, init, use_bias=use_bias, rngs=rngs)
    self.between = between

  def __call__(self, features: Float[Array, '*n i']) -> Float[Array, '*n o']:
    inner = self.down(features)
    return self.up(inner if self.between is None else self.between(inner))


def split(*axes: str | None) -> dict:
  """The metadata of a parameter whose axes are split over these mesh axes."""
  # Eager sharding would require a mesh.
  return {'out_sharding': axes, 'eager_sharding': False}


class RMSNorm(nnx.Module):
  """x / √(mean of x² + 10⁻⁶) ∘ scale (Zhang & Sennrich, arXiv 1910.07467, eq. 4).

  The only RMS norm of the zoo, for mixers and between layers. The one of Flax refuses
  float64 under strict dtype promotion.
  """

  epsilon = 1e-6

  def __init__(self, size: int):
    self.scale = nnx.Param(jnp.ones(size))

  def __call__(self, x: Float[Array, '*n s']) -> Float[Array, '*n s']:
    dtype = x.dtype
    x, scale = widen((x, self.scale[...]))
    square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    scale = scale.reshape((1,) * (x.ndim - 1) + (-1,))
    return (x * jax.lax.rsqrt(square + self.epsilon) * scale).astype(dtype)


def widen(tree: PyTree) -> PyTree:
  """The arrays, in float32 where they are less precise, as in bfloat16.

  This is for states, decays, inner gradients and norms: a state with 8 significant bits
  no longer changes once what a token adds is below 1/512 of it.
  """
  return jax.tree.map(
    lambda array: array.astype(np.promote_types(array.dtype, 'float32')), tree
  )


def widened(module: _Module) -> _Module:
  """A module whose weights are those of `widen`; the module itself if none changes."""
  graph, weights, rest = nnx.split(module, nnx.Param, ...)
  wide = widen(weights)
  pairs = zip(jax.tree.leaves(weights), jax.tree.leaves(wide), strict=True)
  if all(before.dtype == after.dtype for before, after in pairs):
    return module
  return nnx.merge(graph, wide, rest)


def split_heads(features: Tokens, num_heads: int) -> Read:
  """Splits the last axis into heads: `[b, n, h, w / h]`."""
  return features.reshape(*features.shape[:-1], num_heads, -1)


def in_heads(
  tokens: Tokens, layers: Iterable[nnx.Linear], num_heads: int
) -> list[Read]:
  """The outputs of several layers for the same tokens, each split into heads."""
  return [split_heads(layer(tokens), num_heads) for layer in layers]


def merge_heads(features: Read) -> Tokens:
  """Concatenates the heads of each token."""
  return features.reshape(*features.shape[:-2], -1)
