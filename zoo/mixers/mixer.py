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
# A mixer takes and returns tokens. Its heads read values (`Read`) from their states
# (`Memory`).
Tokens: TypeAlias = Float[Array, 'b n w']
Read: TypeAlias = Float[Array, 'b n h v']
Memory: TypeAlias = Float[Array, 'b h k v']


@dataclasses.dataclass(frozen=True)
class Init:
  """How the weights of a model start: kernels from N(0, scale²), biases at 0.

  Args:
    scale: Standard deviation of the entries of a kernel. None, the default, takes
      1/√(number of inputs) for each kernel. Some kernels do not depend on the scale:
      short convolutions, the maps to the decays of `mamba2`, `log_linear`,
      `gated_delta`, `gated_delta_product`, `comba`, `kda` and `gdn2`, the filters of
      `hyena` and their network, the inner weights of `ttt`, and the network of the
      initial guess.
    residual: Factor of the standard deviation of kernels whose outputs are added to the
      tokens; 1 by default. GPT-2 has 1/√(2 · number of layers).
  """

  scale: float | None = None
  residual: float = 1.0

  def kernel(self, factor: float = 1.0) -> jax.nn.initializers.Initializer:
    """Returns the initializer of a kernel.

    Args:
      factor: Factor of the standard deviation, 1 by default.

    Returns:
      An initializer of JAX, which takes a key and a shape.
    """
    if self.scale is not None:
      return jax.nn.initializers.normal(self.scale * factor)
    return jax.nn.initializers.variance_scaling(factor**2, 'fan_in', 'normal')


PLAIN = Init()


@dataclasses.dataclass(frozen=True)
class Slot:
  """The place of a mixer in a model: token width, number of heads, initialisation.

  A model gives it to the constructor of each of its mixers.

  Args:
    width: Number of entries w of a token.
    num_heads: Number of heads h. Mixers with heads need a divisor of the width.
    init: How kernels start; by default from N(0, 1/inputs).

  Example:
    >>> zoo.mixers.Slot(width=8, num_heads=2).head_size
    4
  """

  width: int
  num_heads: int
  init: Init = PLAIN

  @property
  def head_size(self) -> int:
    """The number of entries of one head, width / num_heads.

    Raises:
      UserError: If `width` or `num_heads` is not a positive integer, or if `num_heads`
        does not divide the width.
    """
    width = check_count('width', self.width)
    num_heads = check_count('num_heads', self.num_heads)
    if width % num_heads:
      raise UserError(
        f'width is {width}; it must be a multiple of num_heads, which is {num_heads}'
      )
    return width // num_heads


# A model gives these to the constructor of a mixer. Its other arguments are options.
GIVEN = 'slot', 'width', 'num_heads', 'init', 'causal', 'rotary', 'rngs'


class Mixer(nnx.Module):
  """Base class of mixers: layers that move information between tokens.

  A subclass defines `__call__`. It may also define

  - `outputs_at`, if the outputs at some tokens cost less than those at all of them;
  - `attention`, if its outputs are weighted sums of values;
  - `initial_state` and `step`, if it can take tokens one by one;
  - a class attribute `roles`, which says which of its weights weight decay and Muon
    treat as matrices (see `zoo.core.roles.parameter_roles`).

  A model calls the constructor with those arguments that the constructor names: `slot`
  (a `Slot`) or its fields `width`, `num_heads` and `init`; `causal`; `rotary`; `rngs`;
  and the mixer's own options, such as `state_size`, which come from `mixer_options`.

  Attributes:
    causal: Whether a token sees only itself and the tokens before it; True by default.
      If False, every token sees the context, which is all tokens but the last. With
      `softmax` the last token then sees itself, too. A mixer whose constructor takes
      `causal` sets this attribute.
    rotary: Whether queries and keys are rotated by their positions; False by default. A
      mixer whose constructor takes `rotary` sets this attribute.

  Example:
    >>> class Average(zoo.mixers.Mixer):
    ...   def __init__(self, width, *, rngs):
    ...     self.out = nnx.Linear(width, width, rngs=rngs)
    ...   def __call__(self, tokens):
    ...     number = jnp.arange(1.0, tokens.shape[1] + 1)[None, :, None]
    ...     return self.out(jnp.cumsum(tokens, axis=1) / number)
    >>> print(Average(8, rngs=nnx.Rngs(0))(jnp.ones((1, 5, 8)))[0, :, 0].round(2))
    [2.48 2.48 2.48 2.48 2.48]
  """

  causal: bool = True
  rotary: bool = False

  @abc.abstractmethod
  def __call__(self, tokens: Tokens) -> Tokens:
    """Returns the output for each token, which a model adds to the token."""

  def outputs_at(self, tokens: Tokens, at: slice) -> Float[Array, 'b t w']:
    """Returns the outputs at some tokens: `self(tokens)[:, at]`, up to rounding.

    Args:
      tokens: All tokens, `[b, n, w]`.
      at: The tokens whose outputs are returned.
    """
    return self(tokens)[:, at]

  def attention(self, tokens: Tokens) -> Float[Array, 'b h n n'] | None:
    """Returns the attention weights, query by key, or None if the mixer has none."""
    return None

  def initial_state(self, batch: int) -> PyTree:
    """Returns the state before the first token.

    Args:
      batch: Number b of sequences.

    Returns:
      A pytree of arrays, whose shapes and types no step changes; None if the mixer
      cannot take tokens one by one.
    """
    return None

  def step(
    self, token: Float[Array, 'b w'], state: PyTree
  ) -> tuple[Float[Array, 'b w'], PyTree]:
    """Returns the output for one token, and the next state.

    Args:
      token: One token of each sequence, `[b, w]`.
      state: The state before it, from `initial_state` or from the previous step.

    Raises:
      UserError: If the mixer cannot take tokens one by one.
    """
    raise UserError(f'{type(self).__name__} takes no tokens one by one')


class Linear(nnx.Linear):
  """A linear layer that flattens all axes but the last into the rows of one matrix.

  With more axes XLA:CPU would copy a transpose of the outputs' gradient to compute the
  kernel's gradient, which doubles the time of the backward pass.
  """

  # The kernel is a matrix even if it has one input or one output.
  roles = {'kernel': 'hidden'}

  def __call__(
    self, inputs: Array, out_sharding: NamedSharding | P | None = None
  ) -> Array:
    """Returns the outputs `[*n, o]` of inputs `[*n, i]`."""
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
  """Returns a linear layer whose outputs are split over the mesh axis `model`."""
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
  """Returns a linear layer whose inputs are split over `model`.

  Its outputs are added to the tokens, so its kernel has the factor `init.residual`.
  """
  return Linear(
    inputs,
    outputs,
    use_bias=use_bias,
    kernel_init=init.kernel(init.residual),
    kernel_metadata=split('model', None),
    rngs=rngs,
  )


def unsplit(inputs: int, outputs: int, init: Init = PLAIN, *, rngs: nnx.Rngs) -> Linear:
  """Returns a linear layer without a bias, which every device has as a whole."""
  kernel = init.kernel()
  return Linear(inputs, outputs, use_bias=False, kernel_init=kernel, rngs=rngs)


class LowRank(nnx.Module):
  """A linear map of low rank, `W_2 f(W_1 x)`, through `rank` features.

  f is the argument `between`; None means that it is the identity. W_1 has no bias. W_2
  has one if `use_bias` is True.
  """

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
    self.down = unsplit(inputs, rank, init, rngs=rngs)
    self.up = project(rank, outputs, init, use_bias=use_bias, rngs=rngs)
    self.between = between

  def __call__(self, features: Float[Array, '*n i']) -> Float[Array, '*n o']:
    """Returns the outputs `[*n, o]` of features `[*n, i]`."""
    inner = self.down(features)
    return self.up(inner if self.between is None else self.between(inner))


def split(*axes: str | None) -> dict:
  """Returns the metadata of a parameter whose axes are split over these mesh axes."""
  # Eager sharding would require a mesh.
  return {'out_sharding': axes, 'eager_sharding': False}


class RMSNorm(nnx.Module):
  """The norm x / √(mean of x² + 10⁻⁶) ∘ scale, in mixers and between layers.

  The RMS norm of Flax refuses float64 under strict dtype promotion, so the zoo has its
  own.

  References:
    Zhang & Sennrich, arXiv 1910.07467, eq. 4.
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
  """Returns the arrays in float32 if they are less precise, as in bfloat16.

  States, decays, inner gradients and norms need it. A state with 8 significant bits
  stops changing once what a token adds is below 1/512 of the state.
  """
  return jax.tree.map(
    lambda array: array.astype(np.promote_types(array.dtype, 'float32')), tree
  )


def widened(module: _Module) -> _Module:
  """Returns a module with the weights that `widen` gives.

  If no weight changes, this is the module itself.
  """
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
  """Returns the outputs of several layers for the same tokens, split into heads."""
  return [split_heads(layer(tokens), num_heads) for layer in layers]


def merge_heads(features: Read) -> Tokens:
  """Concatenates the heads of each token."""
  return features.reshape(*features.shape[:-2], -1)
