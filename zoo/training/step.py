"""The jitted part of training: one step, and many steps per call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Key, PyTree

from zoo.core.protocols import Predictor
from zoo.objectives import StepInputs
from zoo.objectives.curricula import stage_at
from zoo.sharding import State, gathered, replicated, shardings_of
from zoo.training.experiment import Experiment
from zoo.training.optimizers import (
  averages,
  build_optimizer,
  trained_weights,
  unfrozen,
)

# The loss of a step maps a model, the key of the step and the inputs to a number.
Loss = Callable[[Predictor, Key[Array, ''], StepInputs], Float[Array, '']]
# A step maps the state, the key of the training prompts, the count of the steps before
# and the other inputs of the program to the next state and the metrics.
Step = Callable[
  [State, Key[Array, '*n'], Array, StepInputs], tuple[State, dict[str, Array]]
]

# The loop over steps carries the state, the number of steps that are done, and the
# metrics of the last one.
_Carry: TypeAlias = tuple[State, Array, dict[str, Array]]


def train_step(
  state: State,
  key: Key[Array, ''],
  step: Array,
  inputs: StepInputs,
  *,
  experiment: Experiment,
  loss: Loss,
  in_shape: bool,
) -> tuple[State, dict[str, Array]]:
  """Takes one step of training: loss, gradient, update.

  The prompts of a step are drawn with the key `fold_in(key, step)`. They depend only on
  the key of the run and on the count of the steps before, so that a run that resumes
  draws the same prompts.

  With two settings the gradient is taken at other weights than those of the model. The
  function `trained_weights` returns these other weights. With `optimizer.ema_decay` the
  model is a moving average of the trained weights, and the gradient is taken at the
  trained weights. With the optimizer `schedule_free` the model is an average of the
  iterates of the inner optimizer, and the gradient is taken between this average and
  the newest iterate.

  Args:
    state: The state of the model and the optimizer.
    key: The key of the training prompts of the run.
    step: The number of steps that are done.
    inputs: The task and other inputs of the program. If `inputs.learning_rate` or
      `inputs.num_steps` is not None, it replaces the number in the config.
    experiment: The experiment. With `mesh.fsdp` the arrays of the model are split
      further between steps than its layers ask for, and are gathered for the loss.
    loss: The function whose gradient is taken.
    in_shape: Whether the optimizer computes with arrays in their own shapes. Otherwise
      it may flatten them, which is faster on CPUs. It must be True if an array is split
      over devices along another axis than its first: to flatten such an array, JAX
      would have to gather it (see `stays_in_shape`).

  Returns:
    The next state; and the loss, the norm of the gradient of all weights that are not
    frozen, and whether both are finite.
  """
  config, graphs = experiment.config, experiment.graphs
  asked = experiment.asked['model']

  def loss_of(
    model: Predictor, key: Key[Array, ''], inputs: StepInputs
  ) -> Float[Array, '']:
    whole = gathered(model, asked) if config.mesh.fsdp else model
    return loss(whole, key, inputs)

  model = nnx.merge(graphs['model'], state['model'])
  optimizer = nnx.merge(graphs['optimizer'], state['optimizer'])
  # The optimizer is built anew in each program, since a learning rate or a number of
  # steps in `inputs` is an input of the program.
  optimizer.tx = build_optimizer(
    config.optimizer,
    config.train.num_steps if inputs.num_steps is None else inputs.num_steps,
    model,
    in_shape,
    inputs.learning_rate,
  )
  trained = model
  if averages(config.optimizer):
    # Two modules that are merged from one state share its variables. The second gets
    # copies, so that the averages in `model` are not overwritten.
    trained = nnx.merge(graphs['model'], state['model'], copy=True)
    before = optimizer.opt_state, nnx.state(model, nnx.Param)
    nnx.update(trained, trained_weights(*map(nnx.as_pure, before)))
  if config.curriculum.grows:
    inputs = inputs._replace(stage=stage_at(config.curriculum, step))
  step_key = jax.random.fold_in(key, step)
  value, grads = nnx.value_and_grad(loss_of)(trained, step_key, inputs)
  # If the model is an average, the gradients are still those at the trained weights.
  # The optimizer has these weights in its state and updates them there. To the model
  # it adds the change of the averages.
  optimizer.update(model, grads)
  # This is the norm that `optimizer.clip_norm` limits: frozen weights do not count.
  grad_norm = optax.tree.norm(unfrozen(config.optimizer, grads, model))
  finite = jnp.isfinite(value) & jnp.isfinite(grad_norm)
  metrics = {'loss': value, 'grad_norm': grad_norm, 'finite': finite}
  return {'model': nnx.state(model), 'optimizer': nnx.state(optimizer)}, metrics


def make_steps(
  take_step: Step, abstract: State, mesh: Mesh, in_shape: bool
) -> jax.stages.Wrapped:
  """Returns the jitted `(state, key, start, stop, inputs) -> (state, metrics)`.

  The metrics are those of the last step. The state is donated. The number of steps is
  an input: however a run is divided into calls, each step is the same program and gives
  the same bits.
  """
  whole, shardings = replicated(mesh), shardings_of(abstract)
  # `run_steps` uses the step twice: for the shapes of its metrics, and in the loop. A
  # jitted function is traced once for both.
  take_step = jax.jit(take_step, inline=True)
  return jax.jit(
    functools.partial(run_steps, take_step, in_shape),
    donate_argnums=0,
    in_shardings=(shardings, *[whole] * 4),
    out_shardings=(shardings, whole),
  )


def run_steps(
  take_step: Step,
  in_shape: bool,
  state: State,
  key: Key[Array, '*n'],
  start: Array,
  stop: Array,
  inputs: StepInputs,
) -> tuple[State, dict[str, Array]]:
  """Takes the steps after `start`, up to `stop`.

  The loop ends early after a step whose loss or gradient is not finite. If several
  models are trained, it ends early when none of them is finite any more. One of several
  models that is not finite after a step is lost, even if its loss becomes finite again:
  its metrics remain those of that step. At the end of the call its arrays become NaN,
  so that later calls and checkpoints also show that it is lost.

  Args:
    take_step: The step.
    in_shape: Whether the arrays keep their shapes between steps. Otherwise they are
      flat between steps, which is faster on CPUs.
    state: The state of the model, or of several models along a first axis.
    key: The key of the training prompts.
    start: The number of steps that are done.
    stop: The number of steps at which the call ends.
    inputs: The inputs of a step.

  Returns:
    The state after the last step, and its metrics. `metrics['step']` is the number of
    steps that each model has done. `metrics['finite']` says whether each model is
    finite, weights included.
  """
  # Unless `in_shape`, all arrays are flat between steps, and a number is an array with
  # one entry. XLA:CPU computes elementwise operations on an array `[h, e, e]` row by
  # row. A row has only e entries, which makes Adam eight times as slow as on a flat
  # array.
  shapes = jax.tree.map(jnp.shape, state)
  between = shapes if in_shape else jax.tree.map(jnp.size, state)

  def unfinished(carry: _Carry) -> Array:
    _, step, metrics = carry
    return (step < stop) & metrics['finite'].any()

  def body(carry: _Carry) -> _Carry:
    state, step, before = carry
    state = jax.tree.map(jnp.reshape, state, shapes)
    state, metrics = take_step(state, key, step, inputs)
    metrics['step'] = jnp.full_like(before['step'], step + 1)
    metrics = jax.tree.map(
      lambda new, old: jnp.where(before['finite'], new, old), metrics, before
    )
    return jax.tree.map(jnp.reshape, state, between), step + 1, metrics

  _, metrics = jax.eval_shape(take_step, state, key, start, inputs)
  # The loop needs metrics before the first step. With ones, `finite` is true: the loop
  # starts, and `body` takes the metrics of the first step in place of these.
  placeholders = {
    name: jnp.ones(leaf.shape, leaf.dtype) for name, leaf in metrics.items()
  }
  placeholders['step'] = jnp.full(metrics['finite'].shape, start)
  state, _, metrics = jax.lax.while_loop(
    unfinished, body, (jax.tree.map(jnp.reshape, state, between), start, placeholders)
  )
  state = jax.tree.map(jnp.reshape, state, shapes)
  metrics['finite'] &= finite_models(state['model'], metrics['finite'].ndim)
  if metrics['finite'].ndim:
    state = jax.tree.map(functools.partial(_without_lost, metrics['finite']), state)
  return state, metrics


def _without_lost(finite: Bool[Array, ' n'], leaf: Array) -> Array:
  """Returns an array of many models, with NaN for models that are not finite."""
  if not jnp.issubdtype(leaf.dtype, jnp.inexact):
    return leaf
  return jnp.where(finite.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.nan)


def finite_models(model: PyTree, ndim: int) -> Bool[Array, '*n']:
  """Returns whether all weights are finite.

  The state of the optimizer may be infinite, such as the least loss so far of a
  schedule that has not begun. If a NaN in it harms training, the weights become NaN at
  the next step.

  Args:
    model: The arrays of one model, or of many models along a first axis.
    ndim: 0 for one model; 1 for many, each of which has its own answer.
  """
  # Arrays that are not trained may be infinite, such as a mask of attention.
  finite = jnp.array(True)
  for leaf in jax.tree.leaves(nnx.filter_state(model, nnx.Param)):
    if jnp.issubdtype(leaf.dtype, jnp.inexact):  # Random keys are not numbers.
      finite &= jnp.isfinite(leaf).all(tuple(range(ndim, leaf.ndim)))
  return finite
