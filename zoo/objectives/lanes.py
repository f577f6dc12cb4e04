"""The gradient of a mean loss over a batch, computed in parts of the batch.

A batch can be divided for two reasons:

- Parts that are computed one after the other need less memory.
- Parts that are computed at the same time, in *lanes*, keep the cores of a CPU busy.
  XLA divides each operation among the cores, but at the sizes of in-context learning
  four cores compute an operation only about twice as fast as one. Operations that do
  not depend on each other, such as those of two lanes, run at the same time.

With both, each of the parts that are computed one after the other is divided again,
into lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from zoo.config.run import Run
from zoo.core.protocols import Predictor, Task

# A loss maps a model and a batch to the mean loss over the batch.
Loss = Callable[[Predictor, PyTree], Float[Array, '']]


_NUM_LANES = 4
# Lanes are used from this number of products of a weight and an example in a step. With
# fewer products the operations are so short that having more of them costs more than
# the other cores save.
_LEAST_PRODUCTS = 1e8


def num_lanes(config: Run, task: Task, mesh: Mesh, weights: PyTree) -> int:
  """Returns the number of lanes of a run; 1 except for large steps on one CPU.

  Args:
    config: The config of the run.
    task: The task of the config.
    mesh: The mesh of devices.
    weights: The weights that count as the work of a step: those of all models, or of
      one model if the objective draws numbers in lanes.
  """
  if mesh.size > 1 or mesh.devices.flat[0].platform != 'cpu':
    return 1
  part = config.train.batch_size // config.train.num_parts
  sizes = (math.prod(leaf.shape) for leaf in jax.tree.leaves(weights))
  work = sum(sizes) * config.train.batch_size * (task.context_length + 1)
  return _NUM_LANES if work >= _LEAST_PRODUCTS and part % _NUM_LANES == 0 else 1


def mean_loss(
  loss: Loss, model: Predictor, batch: PyTree, num_parts: int, num_lanes: int
) -> Float[Array, '']:
  """Returns the mean loss over a batch, whose gradient is a sum over parts of it.

  Only the weights, `nnx.Param`, get a gradient; the derivative with respect to anything
  else is 0. Gradients of weights in bfloat16 are summed in float32, and returned in
  bfloat16.

  The batch is divided into `num_parts` parts, and each part into `num_lanes` lanes.
  Each lane has equally many prompts of each device.

  Args:
    loss: The loss of a lane.
    model: The model.
    batch: Arrays whose first axis is that of the prompts. Its length is a multiple of
      `num_parts` times `num_lanes`.
    num_parts: The number of parts. They are computed one after the other, so that the
      activations of only one of them exist at a time.
    num_lanes: The number of lanes of a part. They are computed at the same time.
  """
  graph, weights, rest = nnx.split(model, nnx.Param, ...)

  def of_lane(weights: PyTree, rest: PyTree, lane: PyTree) -> Float[Array, '']:
    # A call may change variables of the model, such as the counter of its random draws.
    # Inside `value_and_grad` Flax refuses to change a variable that was made outside.
    # `copy=True` makes new variables inside.
    return loss(nnx.merge(graph, weights, rest, copy=True), lane)

  @jax.custom_vjp
  def mean(weights: PyTree, rest: PyTree, lanes: PyTree) -> Float[Array, '']:
    return jnp.mean(jax.lax.map(lambda lane: of_lane(weights, rest, lane), lanes))

  def forward(
    weights: PyTree, rest: PyTree, lanes: PyTree
  ) -> tuple[Float[Array, ''], PyTree]:
    def add(total: PyTree, lane: PyTree) -> tuple[PyTree, None]:
      loss_and_gradient = jax.value_and_grad(of_lane)(weights, rest, lane)
      return jax.tree.map(jnp.add, total, loss_and_gradient), None

    start = jax.tree.map(
      lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)),
      (jnp.zeros(()), weights),
    )
    # One iteration of the unrolled loop has the lanes of one part. Their gradients do
    # not depend on each other, so XLA can compute them at the same time; only the sums
    # wait for one another.
    total, _ = jax.lax.scan(add, start, lanes, unroll=num_lanes)
    return jax.tree.map(lambda leaf: leaf / count, total)

  def backward(
    gradient: PyTree, cotangent: Float[Array, '']
  ) -> tuple[PyTree, None, None]:
    own = jax.tree.map(
      lambda leaf, weight: (leaf * cotangent).astype(weight.dtype), gradient, weights
    )
    return own, None, None

  mean.defvjp(forward, backward)
  count = num_parts * num_lanes
  # Lane i has the prompts i, i + count, i + 2 · count, …. A device holds a row of
  # consecutive prompts, and so equally many of each lane.
  lanes = jax.tree.map(
    lambda leaf: jnp.moveaxis(leaf.reshape(-1, count, *leaf.shape[1:]), 1, 0), batch
  )
  return mean(weights, rest, lanes)
