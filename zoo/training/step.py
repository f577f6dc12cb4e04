"""The compiled part of training: state sharded from birth, and many steps a call."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Key

from zoo.config import Config, build_model, num_heads
from zoo.optimizers import build_optimizer, flattened, with_shapes_of
from zoo.training.layout import Layout, State
from zoo.training.objective import Objective

# All that is random is a pure function of the seed, a stream of it, and the step.
INIT_STREAM, TRAIN_STREAM, EVAL_STREAM = range(3)


def stream_key(config: Config, stream: int) -> Key[Array, '']:
  """The key of one of the streams that the config's seed gives."""
  return jax.random.fold_in(jax.random.key(config.seed), stream)


def _create(config: Config, key: Key[Array, '']) -> State:
  model = build_model(config, nnx.Rngs(params=key))
  transformation = build_optimizer(
    config.optimizer, config.train.num_steps, in_shape=config.mesh.fsdp
  )
  optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)
  return {'model': model, 'optimizer': optimizer}


def abstract_state(config: Config, mesh: Mesh) -> tuple[State, State]:
  """The graphs of model and optimizer, and their state as shapes with shardings."""
  graphs, state = {}, {}
  for name in ('model', 'optimizer'):
    graphs[name], state[name] = nnx.get_abstract_model(
      lambda name=name: _create(config, jax.random.key(0))[name], mesh
    )
  return graphs, state


def stacked(abstract: State, num_points: int, axis: str | None) -> State:
  """The abstract state of many points at once, split over a mesh axis or over none."""

  def stack(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(leaf.sharding.mesh, P(axis, *leaf.sharding.spec))
    return jax.ShapeDtypeStruct(
      (num_points, *leaf.shape), leaf.dtype, sharding=sharding
    )

  return jax.tree.map(stack, abstract)


def init_state(config: Config, layout: Layout) -> State:
  """The state at step 0, each array made where it will stay."""
  return make_init(config, layout)()


def make_init(config: Config, layout: Layout) -> Callable[[], State]:
  """Compiles the making of the state at step 0."""

  def init() -> State:
    # The key is made in here, so that every process of a pod can call this alike.
    return layout.keep(_states(_create(config, stream_key(config, INIT_STREAM))))

  return jax.jit(init, out_shardings=layout.shardings)


def init_stacked(configs: Sequence[Config], abstract: State) -> State:
  """The states at step 0 side by side, with zeros for the heads that a point lacks.

  A point's heads are the first of those that a model with the most heads draws from the
  same key; to draw each number of heads by itself would compile as many programs.
  """
  most = max(map(num_heads, configs))
  shapes: dict[int, State] = {}
  states = []
  for config in configs:  # one by one: to compile them all together takes seconds
    heads = num_heads(config)
    if heads not in shapes:
      key = jax.random.key(0)
      shapes[heads] = _states(nnx.eval_shape(lambda c=config, k=key: _create(c, k)))
    if heads < most:
      config = copy.deepcopy(config)
      config.model.num_heads = most
    whole = _states(_create(config, stream_key(config, INIT_STREAM)))
    states.append(jax.tree.map(_cut, whole, shapes[heads]))
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
  stack = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
  return jax.device_put(stack, shardings)


def _states(parts: State) -> State:
  return {name: nnx.state(part) for name, part in parts.items()}


def _cut(whole: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
  """Zeros but for the first entries, as many as there are in the shape."""
  kept = np.zeros(whole.shape, whole.dtype)
  first = tuple(map(slice, shape.shape))
  kept[first] = np.asarray(whole)[first]
  return kept


def make_train_steps(
  graphs: State,
  layout: Layout,
  objective: Objective,
  mesh: Mesh,
  many_points: bool = False,
) -> Callable[..., tuple[State, dict[str, Any]]]:
  """Compiles `(state, key, start, stop, setting) -> (state, metrics of the last step)`.

  The state is donated. The number of steps is not compiled in: however a run is cut
  into calls, each step is the same program and gives the same bits. The loop ends early
  behind a step whose loss or gradient is not finite; `metrics['step']` is the number of
  steps then done and `metrics['finite']` tells. With `many_points` states and settings
  are stacked, the metrics too, and the loop ends early when no point is finite.
  """

  def loss_of(model: Any, key: Key[Array, ''], setting: Any) -> Float[Array, '']:
    return objective(layout.gathered(model), key, setting)

  def train_step(
    state: State, key: Key[Array, ''], setting: Any
  ) -> tuple[State, dict[str, Any]]:
    model = nnx.merge(graphs['model'], state['model'])
    optimizer = nnx.merge(graphs['optimizer'], state['optimizer'])
    loss, grads = nnx.value_and_grad(loss_of)(model, key, setting)
    optimizer.update(model, grads)
    grad_norm = optax.tree.norm(grads)
    return _states({'model': model, 'optimizer': optimizer}), {
      'loss': loss,
      'grad_norm': grad_norm,
      'finite': jnp.isfinite(loss) & jnp.isfinite(grad_norm),
    }

  # The key is one for all points: what they draw is drawn once.
  step_of = jax.vmap(train_step, (0, None, 0)) if many_points else train_step

  def train_steps(state, key, start, stop, setting):
    def body(carry):
      flat, step, _ = carry
      state = shaped(flat)
      state, metrics = step_of(state, jax.random.fold_in(key, step), setting)
      return carried(state), step + 1, metrics

    def unfinished(carry):
      _, step, metrics = carry
      return (step < stop) & metrics['finite'].any()

    def carried(state):
      return state if layout.fully_sharded else flattened(state)

    def shaped(flat):
      return flat if layout.fully_sharded else with_shapes_of(abstract_state, flat)

    abstract_state, abstract = jax.eval_shape(step_of, state, key, setting)
    none_yet = {name: jnp.ones(a.shape, a.dtype) for name, a in abstract.items()}
    # From step to step the arrays are flat: XLA:CPU computes what is elementwise on
    # `[h, e, e]` in rows of e, which takes Adam eight times as long. What is split
    # along another axis than its first keeps its shape: flat it has no such parts.
    flat, step, metrics = jax.lax.while_loop(
      unfinished, body, (carried(state), start, none_yet)
    )
    state = shaped(flat)
    for leaf in jax.tree.leaves(state):
      axes = tuple(range(metrics['finite'].ndim, leaf.ndim))
      metrics['finite'] &= jnp.isfinite(leaf).all(axes)
    return state, {**metrics, 'step': step}

  replicated = NamedSharding(mesh, P())
  return jax.jit(
    train_steps,
    donate_argnums=0,
    in_shardings=(layout.shardings, *[replicated] * 4),
    out_shardings=(layout.shardings, replicated),
  )
