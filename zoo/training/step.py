"""The compiled part of training: a sharded initial state, and many steps per call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Key, PyTree

from zoo.config.curricula import has_curriculum, stage_at
from zoo.config.optimizers import (
  averages,
  build_optimizer,
  flattened,
  trained_weights,
  with_shapes_of,
)
from zoo.config.saved import other_function
from zoo.config.validation import Config, abstract_model, build_model
from zoo.core.draws import INIT_STREAM, stream_of
from zoo.core.errors import UserError, shown
from zoo.core.protocols import Model
from zoo.core.roles import parameter_roles
from zoo.models import LinearAttention
from zoo.storage.saved_models import check_same_arrays, load, shapes_of
from zoo.training.layout import Layout, State
from zoo.training.objective import Numbers, Objective

# From state, key and numbers to the next state and its metrics.
Step = Callable[[State, Key[Array, ''], Numbers], tuple[State, dict[str, Array]]]


def stream_keys(configs: Sequence[Config], stream: int) -> Key[Array, ' n']:
  """The key of one of the random streams of the seed of each config.

  All random numbers are a pure function of the seed, one of its streams, and the step.
  """
  return jnp.stack([stream_of(config.seed, stream) for config in configs])


def keys_of(configs: Sequence[Config], stream: int) -> Key[Array, '*n']:
  """The key of one of the streams: one for all if they have one seed, or one of each.

  Models with the same key see the same prompts, which are then sampled once.
  """
  if len({config.seed for config in configs}) == 1:
    return stream_of(configs[0].seed, stream)
  return stream_keys(configs, stream)


def create(
  config: Config, key: Key[Array, ''], weights: PyTree | None = None
) -> dict[str, Model | nnx.Optimizer]:
  """The model of a config and its optimizer.

  The weights are those given, or sampled from the key.
  """
  model = build_model(config, nnx.Rngs(params=key))
  if weights is not None:
    nnx.update(model, weights)
  if config.mesh.fsdp:
    _split_heads(model)
  transformation = build_optimizer(
    config.optimizer, config.train.num_steps, roles=parameter_roles(model)
  )
  optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)
  return {'model': model, 'optimizer': optimizer}


def _split_heads(model: Model) -> None:
  """Splits the heads of a model that allows it over all devices of the mesh."""
  # With fewer heads than devices most of them would be padding.
  devices = jax.sharding.get_abstract_mesh().size
  if isinstance(model, LinearAttention) and model.num_heads >= devices:
    model.split_heads('model', 'data')


def initial_weights(config: Config) -> PyTree | None:
  """The weights that `train.init_from` names; None if it is None.

  They may be of a model that was trained on another task, or with another optimizer.
  Raises UserError unless they are as many and as large as those of the config's model,
  and unless this computes the same from them, or `train.init_from_other` is True.
  """
  path = config.train.init_from
  if path is None:
    return None
  saved = load(path)
  weights = nnx.state(saved.model, nnx.Param)
  wanted = nnx.state(abstract_model(config), nnx.Param)
  check_same_arrays(
    f'config.train.init_from is {path}, whose weights do not fit the model '
    f'{config.model.name!r}',
    shapes_of(weights),
    shapes_of(wanted),
  )
  differing = other_function(saved.config, config)
  if differing and not config.train.init_from_other:
    raise UserError(
      f'config.train.init_from is {path}, whose model computes something else from the '
      f'same weights; it differs in {shown(differing)}; '
      'config.train.init_from_other=True takes them all the same'
    )
  return nnx.to_pure_dict(weights)


def abstract_state(config: Config, mesh: Mesh) -> tuple[State, State]:
  """The graphs of model and optimizer, and their state as shapes with shardings."""
  graphs, state = {}, {}
  with jax.set_mesh(mesh):
    modules = nnx.eval_shape(lambda: create(config, jax.random.key(0)))
    for name, module in modules.items():
      graphs[name], arrays = nnx.split(module)
      state[name] = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
          leaf.shape, leaf.dtype, sharding=sharding
        ),
        arrays,
        nnx.get_named_sharding(arrays, mesh),
      )
  return graphs, state


def states(modules: Mapping[str, Model | nnx.Optimizer]) -> State:
  """The arrays of model and optimizer."""
  return {name: nnx.state(module) for name, module in modules.items()}


def make_init(config: Config, layout: Layout) -> Callable[[], State]:
  """What makes the state at step 0, with each array created in its final sharding."""

  @functools.partial(jax.jit, out_shardings=layout.shardings)
  def init(weights: PyTree | None) -> State:
    # The key is made inside, so that every process of a pod can make the same call.
    key = stream_of(config.seed, INIT_STREAM)
    return layout.keep(states(create(config, key, weights)))

  return lambda: init(initial_weights(config))


def make_step(
  config: Config, graphs: State, layout: Layout, objective: Objective
) -> Step:
  """One step of training: loss, gradient, update.

  A learning rate and a number of steps in the step's `numbers` replace those of the
  config.
  """

  def loss_of(model: Any, key: Key[Array, ''], numbers: Numbers) -> Float[Array, '']:
    return objective(layout.gathered(model), key, numbers)

  # Not of the model within a step, whose arrays may be padded.
  roles = parameter_roles(abstract_model(config))

  def train_step(
    state: State, key: Key[Array, ''], numbers: Numbers
  ) -> tuple[State, dict[str, Array]]:
    model = nnx.merge(graphs['model'], state['model'])
    optimizer = nnx.merge(graphs['optimizer'], state['optimizer'])
    optimizer.tx = build_optimizer(
      config.optimizer,
      config.train.num_steps if numbers.num_steps is None else numbers.num_steps,
      layout.keeps_shapes,
      numbers.learning_rate,
      roles,
    )
    trained = model
    if averages(config.optimizer):
      trained = nnx.merge(graphs['model'], state['model'])
      given = optimizer.opt_state, nnx.state(model, nnx.Param)
      nnx.update(trained, trained_weights(*map(nnx.as_pure, given)))
    if has_curriculum(config.curriculum):
      step = optimizer.step[...].astype(jnp.int32)
      numbers = numbers._replace(stage=stage_at(config.curriculum, step))
    loss, grads = nnx.value_and_grad(loss_of)(trained, key, numbers)
    optimizer.update(model, grads)
    grad_norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    metrics = {'loss': loss, 'grad_norm': grad_norm, 'finite': finite}
    return states({'model': model, 'optimizer': optimizer}), metrics

  return train_step


def make_train_steps(step: Step, layout: Layout, mesh: Mesh) -> jax.stages.Wrapped:
  """Compiles `(state, key, start, stop, numbers) -> (state, metrics of the last step)`.

  The state is donated. The number of steps is not compiled in: however a run is divided
  into calls, each step is the same program and gives the same bits. The loop ends early
  after a step whose loss or gradient is not finite, for several models only once this
  holds for every one of them. `metrics['step']` is the number of steps done by then,
  and `metrics['finite']` says which models are finite, weights included.
  """
  run_steps = functools.partial(_train_steps, step, layout.keeps_shapes)
  replicated = NamedSharding(mesh, P())
  return jax.jit(
    run_steps,
    donate_argnums=0,
    in_shardings=(layout.shardings, *[replicated] * 4),
    out_shardings=(layout.shardings, replicated),
  )


def _train_steps(
  train_step: Step,
  keep_shapes: bool,
  state: State,
  key: Key[Array, '*n'],
  start: Array,
  stop: Array,
  numbers: Numbers,
) -> tuple[State, dict[str, Array]]:
  # Traced once, for the shapes and in the loop; inlined, so that XLA sees no call.
  train_step = jax.jit(train_step, inline=True)
  abstract_state, abstract_metrics = jax.eval_shape(train_step, state, key, numbers)
  # Between steps the arrays are flat, since XLA:CPU computes elementwise operations on
  # `[h, e, e]` in rows of e, which makes Adam eight times as slow.
  flat: Callable[[State], State] = flattened
  shaped = functools.partial(with_shapes_of, abstract_state)
  if keep_shapes:
    flat = shaped = _unchanged

  def unfinished(carry: tuple) -> Array:
    _, step, metrics = carry
    return (step < stop) & metrics['finite'].any()

  def body(carry: tuple) -> tuple:
    state, step, _ = carry
    state, metrics = train_step(shaped(state), _fold_in(key, step), numbers)
    return flat(state), step + 1, metrics

  no_metrics = {
    name: jnp.ones(a.shape, a.dtype) for name, a in abstract_metrics.items()
  }
  carry = jax.lax.while_loop(unfinished, body, (flat(state), start, no_metrics))
  state, step, metrics = shaped(carry[0]), *carry[1:]
  for leaf in jax.tree.leaves(state):
    axes = tuple(range(metrics['finite'].ndim, leaf.ndim))
    metrics['finite'] &= jnp.isfinite(leaf).all(axes)
  return state, {**metrics, 'step': step}


def _fold_in(key: Key[Array, '*n'], step: Array) -> Key[Array, '*n']:
  """The key of a step, or one key for each of several models."""
  fold_in = jax.random.fold_in
  return jax.vmap(fold_in, (0, None))(key, step) if key.ndim else fold_in(key, step)


def _unchanged(state: State) -> State:
  return state
