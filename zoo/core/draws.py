"""Random numbers for prompts: each a pure function of key, position and index.

Sampling prompts is a lower bound on the time of a training step, so it is made cheap:
a block of the generator gives two numbers here, while JAX's own partitionable sampling
uses one of them. The numbers at a position in the batch depend neither on the batch
size nor on the devices that share the batch. Positions are the last axis, along which a
CPU computes fastest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Key, PyTree, UInt32

_Result = TypeVar('_Result')

# The streams of a seed do not share keys. They are for the initial weights, the prompts
# of training, held-out prompts, the prompts of curves and comparisons, and redraws.
INIT_STREAM, TRAIN_STREAM, EVAL_STREAM, CURVE_STREAM, REDRAW_STREAM = range(5)

# What is drawn beside prompts folds their key with a number of its own. Prompts and
# batches fold it with their index, which is smaller. Equal numbers never share a key.
LENGTHS_KEY = REDRAW_KEY = 2**32 - 1
LABELS_KEY = METRICS_KEY = 2**32 - 2
PARTS_KEY = 2**32 - 3
ORDERS_KEY = 2**32 - 4
CONTINUATIONS_KEY = 2**32 - 5

# The Taylor series in x² of sin(x)/x and cos(x) have these coefficients. Their errors
# are below 2e-9 on ±π/4.
_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(5)]
_COSINE = [(-1) ** k / math.factorial(2 * k) for k in range(6)]


def stream_of(seed: int, stream: int) -> Key[Array, '']:
  """Returns the key of one of the random streams of a seed."""
  return jax.random.fold_in(jax.random.key(seed), stream)


def normals(key: Key[Array, ''], count: int, batch_size: int) -> Float[Array, 'n b']:
  """Draws `count` standard normal numbers for each position in the batch.

  No number lies beyond ±6.7, while two to three in 10¹¹ should.

  Returns:
    The numbers `[count, batch_size]`.
  """
  pairs = words(key, (count + 1) // 2, batch_size)
  return materialize_once(key, box_muller, *pairs)[:count]


def chi(
  key: Key[Array, ''], degrees: Integer[np.ndarray, ' n'], batch_size: int
) -> Float[Array, 'n b']:
  """Draws numbers with the chi distribution, a row for each number of degrees ≥ 2.

  Half of χ² is a gamma variable, which is drawn by rejection (Marsaglia & Tsang, ACM
  TOMS 26, 2000): the proposal is tried again, with fresh numbers, until all are
  accepted.

  Returns:
    The numbers, a row for each entry of `degrees`.
  """
  shape = len(degrees), batch_size
  dtype = jnp.result_type(float)
  scale = (np.asarray(degrees)[:, None] / 2 - 1 / 3).astype(dtype)
  spread = 1 / (3 * np.sqrt(scale))

  def propose(state: Any) -> Any:
    attempt, accepted, gamma = state
    stream = jax.random.fold_in(key, attempt)
    normal = normals(stream, len(degrees), batch_size)
    height, _ = words(jax.random.fold_in(stream, 0), len(degrees), batch_size)
    cube = (1 + spread * normal) ** 3
    log_cube = jnp.log(jnp.where(cube > 0, cube, 1))
    bound = normal * normal / 2 + scale * (1 - cube + log_cube)
    fits = (cube > 0) & (jnp.log(uniform(height)) < bound)
    gamma = jnp.where(accepted, gamma, scale * cube)
    return attempt + 1, accepted | fits, gamma

  start = jnp.uint32(0), jnp.zeros(shape, bool), jnp.zeros(shape, dtype)
  _, _, gamma = jax.lax.while_loop(lambda state: ~jnp.all(state[1]), propose, start)
  return jnp.sqrt(2 * gamma)


def words(
  key: Key[Array, ''], count: int, batch_size: int
) -> tuple[UInt32[Array, 'n b'], UInt32[Array, 'n b']]:
  """Draws `count` pairs of random words for each position in the batch."""

  def draw() -> Any:
    shape = count, batch_size
    position = jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
    index = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    return threefry(jax.random.key_data(key), position, index)

  return materialize_once(key, draw)


def threefry(
  key_words: UInt32[Array, ' k'], left: UInt32[Array, '*n'], right: UInt32[Array, '*n']
) -> tuple[UInt32[Array, '*n'], UInt32[Array, '*n']]:
  """Computes Threefry-2x32 with 20 rounds, bit for bit as in JAX (Salmon et al., 2011).

  The rounds are written out, since JAX's loop over them costs a CPU four times as much.
  Other generators have longer keys, of which the first two words are used.

  Returns:
    Two random words for each pair of words `left` and `right`.
  """
  first, second = (key_words[i].reshape((1,) * left.ndim) for i in range(2))
  schedule = first, second, first ^ second ^ np.uint32(0x1BD11BDA)
  left, right = left + first, right + second
  for i in range(5):
    for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
      left = left + right
      right = (right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation))
      right = right ^ left
    left = left + schedule[(i + 1) % 3]
    right = right + (schedule[(i + 2) % 3] + np.uint32(i + 1))
  return left, right


def uniform(words: UInt32[Array, '*n']) -> Float[Array, '*n']:
  """Returns numbers in (0, 1], from the upper 31 bits of each word."""
  dtype = jnp.result_type(float)
  # The conversion goes via int32, for which CPUs have an instruction.
  number = (words >> np.uint32(1)).astype(jnp.int32).astype(dtype)
  return (number + np.asarray(0.5, dtype)) * np.asarray(2.0**-31, dtype)


def box_muller(
  left: UInt32[Array, 'n b'], right: UInt32[Array, 'n b']
) -> Float[Array, '2*n b']:
  """Returns two independent standard normal numbers from each pair of words.

  The two are n rows apart. They are the coordinates of a point at the distance
  `√(−2 log u)` in a random direction: at an angle in ±π/4, with coordinates swapped at
  random and both negated at random. XLA:CPU does not vectorise its own sine and cosine.
  """
  dtype = jnp.result_type(float)
  radius = jnp.sqrt(np.asarray(-2.0, dtype) * jnp.log(uniform(left)))
  radius = jnp.where((right & np.uint32(1)) != 0, radius, -radius)
  swap = (right & np.uint32(2)) != 0
  turn = uniform(right & np.uint32(0xFFFFFFF8)) - np.asarray(0.5, dtype)
  angle = turn * np.asarray(math.pi / 2, dtype)
  square = angle * angle
  sine, cosine = jnp.full_like(angle, _SINE[-1]), jnp.full_like(angle, _COSINE[-1])
  for coefficient in _SINE[-2::-1]:
    sine = sine * square + np.asarray(coefficient, dtype)
  for coefficient in _COSINE[-2::-1]:
    cosine = cosine * square + np.asarray(coefficient, dtype)
  sine = angle * sine
  x, y = jnp.where(swap, sine, cosine), jnp.where(swap, cosine, sine)
  return jnp.concatenate([radius * x, radius * y])


def materialize_once(
  key: Key[Array, ''], function: Callable[..., _Result], *arguments: PyTree
) -> _Result:
  """Returns `function(*arguments)`, computed once for all consumers of the result.

  XLA:CPU drops optimization barriers before it fuses, and would run the generator again
  in each fusion that reads its numbers. It does not fuse across a conditional, and
  cannot know that this condition always holds. The compiler for TPUs weighs the cost of
  recomputation, and a barrier would make it write random words to memory needlessly.
  """
  function = jax.jit(function)  # All uses below then share one trace.
  always = (jax.random.key_data(key)[0] | np.uint32(1)) != 0

  def never(*arguments: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, jax.eval_shape(function, *arguments))

  def behind_a_barrier(*arguments: Any) -> Any:
    return jax.lax.optimization_barrier(function(*arguments))

  return jax.lax.platform_dependent(
    *arguments,
    cpu=functools.partial(jax.lax.cond, always, function, never),
    tpu=function,
    default=behind_a_barrier,
  )
