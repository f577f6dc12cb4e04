"""Checks that a model of any class does what the library relies on."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, PyTree

from zoo import registry
from zoo.contracts.checks import (
  NUM_PROMPTS,
  check_close,
  check_prediction,
  check_predictions,
  check_reads_no_target,
  check_shape,
  label_shape,
  one_line,
)
from zoo.errors import UserError
from zoo.prompt import Prompt
from zoo.protocols import FollowsRule, Predictor, Task, predicts_all
from zoo.tasks.base import loss_of
from zoo.theory.trust import check_rule, compare_rule


def check_model(model: Predictor | nnx.Module, task: Task) -> None:
  """Raises UserError unless a model keeps the contract on the prompts of a task.

  The message says in one line what is wrong. A class declares `order_invariant = True`
  if the order of the examples does not matter, and `nested_heads = True` if, for one
  key, a model with fewer heads has the first heads of one with more. Both are checked
  if declared.
  """
  name = type(model).__name__
  if not isinstance(model, Predictor):
    raise UserError(f'{name} is not a model: it has no __call__(prompt)')
  with one_line(f'sampling prompts for {name}'):
    prompt = task.sample(jax.random.key(0), NUM_PROMPTS)
  prediction = check_prediction(f'{name}(prompt)', model, prompt, task)
  predict = jax.jit(lambda prompt: model(prompt))
  with one_line(f'compiling {name}'):
    compiled = predict(prompt)
  check_close(f'{name}(prompt) changes if compiled', compiled, prediction)
  check_reads_no_target(f'{name}(prompt)', predict, prompt, compiled)
  part = jax.tree.map(lambda array: array[2:5], prompt)
  with one_line(f'{name}(prompt) of three prompts'):
    check_close(
      f'{name}(prompt) depends on the other prompts of the batch',
      *(predict(part), prediction[2:5]),
    )
  if isinstance(model, nnx.Module):
    _check_module(name, model, prompt, task, prediction)
  if predicts_all(model):
    check_predictions(name, model, prompt, task, prediction)
  if isinstance(model, FollowsRule):
    with one_line(f'{name}.learning_rule()'):
      compare_rule(model)
  if getattr(model, 'order_invariant', False):
    _check_order_invariant(name, model, prompt, prediction)
  if getattr(model, 'nested_heads', False):
    _check_nested_heads(name, model)


def check_forms(model: Predictor | nnx.Module, task: Task) -> None:
  """Raises UserError unless predictions and losses of a task have the right shapes.

  The model may be abstract, since nothing is computed.
  """
  kind, name = type(task).__name__, type(model).__name__
  with one_line(f'{kind}.sample(key, {NUM_PROMPTS})'):
    key = jax.random.key(0)
    prompt = jax.eval_shape(lambda key: task.sample(key, NUM_PROMPTS), key)
  graph, state = nnx.split(model)

  def predict(state: PyTree, prompt: Prompt) -> Array:
    merged: Any = nnx.merge(graph, state)
    return merged(prompt)

  with one_line(f'{name}(prompt)'):
    prediction = jax.eval_shape(predict, state, prompt)
  wanted = label_shape(task, NUM_PROMPTS)
  check_shape(f'{name}(prompt)', prediction, wanted)
  check_shape(f'y_query of {kind}', prompt.y_query, wanted)
  with one_line(f'{kind}.loss'):
    loss = jax.eval_shape(loss_of(task), prediction, prompt.y_query)
  if loss.shape != (NUM_PROMPTS,):
    raise UserError(
      f'{kind}.loss has the shape {loss.shape}; it must be one number per prompt'
    )


def check_before_training(model: Predictor, task: Task) -> None:
  """Raises UserError if a model reads targets, or its methods contradict each other.

  Training and evaluation rely on this without noticing. A few prompts are predicted by
  `__call__`, and by `predictions` and the learning rule if they exist.
  """
  name = type(model).__name__
  predict = jax.jit(lambda prompt: model(prompt))
  with one_line(f'{name}(prompt)'):
    prompt = task.sample(jax.random.key(0), NUM_PROMPTS)
    prediction = predict(prompt)
  check_reads_no_target(f'{name}(prompt)', predict, prompt, prediction)
  if predicts_all(model):
    check_predictions(name, model, prompt, task, prediction)
  check_rule(model)


def _check_module(
  name: str, model: nnx.Module, prompt: Prompt, task: Task, prediction: Array
) -> None:
  """Checks that split and merge keep predictions, and that gradients can train."""
  with one_line(f'splitting {name}'):
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)

  def loss(parameters: PyTree) -> Array:
    merged: Any = nnx.merge(graph, parameters, rest)
    return jnp.mean(loss_of(task)(merged(prompt), prompt.y_query))

  with one_line(f'splitting and merging {name}'):
    merged: Any = nnx.merge(graph, parameters, rest)
    same = np.array_equal(merged(prompt), prediction)
  if not same:
    raise UserError(f'{name}(prompt) changes after nnx.split and nnx.merge')
  with one_line(f'the gradient of {name}'):
    leaves = jax.tree.leaves(jax.jit(jax.grad(loss))(parameters))
  if not leaves:
    raise UserError(f'{name} has no nnx.Param; there is nothing to train')
  if not all(np.isfinite(leaf).all() for leaf in leaves):
    raise UserError(f'the gradient of {name} is not finite')
  if not any(np.any(leaf) for leaf in leaves):
    raise UserError(
      f'the gradient of {name} is 0 for all parameters; nothing can train'
    )


def _check_order_invariant(
  name: str, model: Predictor, prompt: Prompt, prediction: Array
) -> None:
  order = np.random.default_rng(0).permutation(prompt.x.shape[1])
  shuffled = dataclasses.replace(prompt, x=prompt.x[:, order], y=prompt.y[:, order])
  with one_line(f'{name}(prompt)'):
    found = model(shuffled)
  check_close(
    f'{name} declares order_invariant, but the order of the examples matters',
    *(found, prediction),
  )


def _check_nested_heads(name: str, model: Predictor) -> None:
  """Checks what sweeps rely on: they sample the most heads once, and take the first."""
  arguments = registry.arguments_of(model)
  if arguments is None or 'num_heads' not in arguments.values():
    return
  given, make = arguments.values(), cast(Any, type(model))

  def parameters(num_heads: int) -> list[tuple[Any, Any]]:
    made = make(**given | {'num_heads': num_heads}, rngs=nnx.Rngs(0))
    return [*nnx.to_flat_state(nnx.state(made, nnx.Param))]

  with one_line(f'making {name} with 2 and 3 heads'):
    few, many = parameters(2), parameters(3)
  for (path, one), (_, other) in zip(few, many, strict=True):
    one, other = np.asarray(one[...]), np.asarray(other[...])
    if not np.array_equal(one, other[tuple(map(slice, one.shape))]):
      raise UserError(
        f'{name} declares nested_heads, but {".".join(map(str, path))} of 2 heads is '
        'not the first part of that of 3'
      )
