"""Checks that a model of any class does what the library relies on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, PyTree

from zoo.core import registry
from zoo.core.errors import UserError, in_one_line
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, Predictor, Task
from zoo.measure.contracts.checks import (
  NUM_PROMPTS,
  Facts,
  called,
  check_close,
  check_facts,
  check_finite,
  check_shape,
  facts_of,
  label_shape,
  one_line,
  short_lengths,
)
from zoo.theory.trust import changed_weights, check_rule, compare_rule, compiled

# From prompts to the facts of a model, with changed weights if the second is True.
Run = Callable[..., Facts]


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
    prompt = jax.device_get(task.sample(jax.random.key(0), NUM_PROMPTS))
  failed: list[UserError] = []
  with jax.default_matmul_precision('highest'):
    run = _program(name, model, prompt, task, failed)
    facts = run(prompt)
    check_finite(f'{name}(prompt)', facts['alone'])
    _check_calls(name, facts)
    check_facts(name, facts, run, prompt)
    _check_other_weights(name, facts, run, prompt)
    if isinstance(model, FollowsRule):
      with one_line(f'{name}.learning_rule()'):
        compare_rule(model)
    if getattr(model, 'order_invariant', False):
      _check_order_invariant(name, facts, run, prompt)
  if getattr(model, 'nested_heads', False):
    _check_nested_heads(name, model)
  for error in failed:
    raise error


def _program(
  name: str,
  model: Predictor | nnx.Module,
  given: Prompt,
  task: Task,
  failed: list[UserError],
) -> Run:
  """All facts of a model as one compiled program of the prompts.

  The prompts that are `given` are a constant in it, which a model must not notice.
  """
  with one_line(f'splitting {name}'):
    graph, parameters, rest = _split(model)
  lengths = short_lengths(given.x.shape[1])
  constant = jax.tree.map(lambda array: jnp.asarray(array, array.dtype), given)

  @jax.jit
  def program(parameters: PyTree, rest: PyTree, prompt: Prompt) -> Facts:
    with one_line(f'splitting and merging {name}'):
      merged: Any = model if graph is None else nnx.merge(graph, parameters, rest)
    with _naming_compilation(name):
      found = facts_of(name, merged, prompt, task, lengths, failed=failed)
      with one_line(f'{name}(prompt)'):
        found['again'], found['constant'] = merged(prompt), merged(constant)
        if graph is not None:
          found['object'] = cast(Any, model)(prompt)
      with one_line(f'{name}(prompt) of three prompts'):
        found['part'] = merged(jax.tree.map(lambda array: array[2:5], prompt))
    if graph is not None:
      found['slopes'] = _slopes(name, graph, parameters, rest, prompt, task)
    return found

  def run(prompt: Prompt, changed: bool = False) -> Facts:
    weights = parameters
    if changed and graph is not None:
      weights = jax.jit(changed_weights)(parameters)
    return jax.device_get(program(weights, rest, prompt))

  return run


def _check_other_weights(name: str, facts: Facts, run: Run, prompt: Prompt) -> None:
  """Checks a model whose predictions start as a constant, which shows nothing."""
  if np.ptp(facts.get('everywhere', facts['alone'])):
    return
  facts = run(prompt, True)
  if all(np.isfinite(array).all() for array in jax.tree.leaves(facts)):
    check_facts(name, facts, functools.partial(run, changed=True), prompt)


def _split(model: Any) -> tuple[Any, PyTree, PyTree]:
  """The graph, the parameters and the rest of a module; None for other predictors."""
  if not isinstance(model, nnx.Module):
    return None, None, None
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)
  return graph, parameters, rest


@contextlib.contextmanager
def _naming_compilation(name: str) -> Iterator[None]:
  """Says that compiling failed if a call needs the values of traced arrays."""
  try:
    yield
  except UserError as error:
    cause = error.__cause__
    if isinstance(cause, jax.errors.JAXTypeError):
      text = f'{type(cause).__name__}: {in_one_line(cause)}'
      raise UserError(f'compiling {name} failed: {text}') from cause
    raise


def _slopes(
  name: str, graph: Any, parameters: PyTree, rest: PyTree, prompt: Prompt, task: Task
) -> list[Array]:
  """The gradient of the loss at the query."""
  if not jax.tree.leaves(parameters):
    raise UserError(f'{name} has no nnx.Param; there is nothing to train')

  def loss(parameters: PyTree) -> Array:
    merged: Any = nnx.merge(graph, parameters, rest)
    return jnp.mean(task.loss(merged(prompt), prompt.y_query))

  with one_line(f'the gradient of {name}'):
    return jax.tree.leaves(jax.grad(loss)(parameters))


def _check_calls(name: str, facts: Facts) -> None:
  """Checks that calls agree, and that split and merge lose nothing that trains."""
  what, alone = f'{name}(prompt)', facts['alone']
  if not np.array_equal(facts['again'], alone):
    raise UserError(f'{what} differs from call to call; it must be deterministic')
  check_close(f'{what} changes if compiled', alone, facts['constant'])
  check_close(
    f'{what} depends on the other prompts of the batch', facts['part'], alone[2:5]
  )
  if 'object' in facts:
    check_close(f'{what} changes after nnx.split and nnx.merge', alone, facts['object'])
  slopes = facts.get('slopes')
  if slopes is None:
    return
  if not all(np.isfinite(leaf).all() for leaf in slopes):
    raise UserError(f'the gradient of {name} is not finite')
  if not any(np.any(leaf) for leaf in slopes):
    raise UserError(
      f'the gradient of {name} is 0 for all parameters; nothing can train'
    )


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
    return called(f'{name}(prompt)', nnx.merge(graph, state), prompt, task)

  with one_line(f'{name}(prompt)'):
    prediction = jax.eval_shape(predict, state, prompt)
  check_shape(f'y_query of {kind}', prompt.y_query, label_shape(task, NUM_PROMPTS))
  with one_line(f'{kind}.loss'):
    loss = jax.eval_shape(task.loss, prediction, prompt.y_query)
  if loss.shape != (NUM_PROMPTS,):
    raise UserError(
      f'{kind}.loss has the shape {loss.shape}; it must be one number per prompt'
    )


def check_before_training(model: Predictor, task: Task) -> None:
  """Raises UserError if a model reads targets or looks ahead, or contradicts itself.

  Training and evaluation rely on this without noticing. A few prompts are predicted by
  `__call__`, also from fewer examples, and by `predictions`, `loop_predictions` and the
  learning rule if they exist. A model whose predictions start as a constant shows
  nothing, and is checked with other weights.
  """
  name = type(model).__name__
  with one_line(f'sampling prompts for {name}'):
    prompt = jax.device_get(task.sample(jax.random.key(0), NUM_PROMPTS))
  graph, parameters, rest = _split(model)
  static: Any = model if graph is None else graph
  program = compiled(_facts, static)

  def run(prompt: Prompt, changed: bool = False) -> Facts:
    return jax.device_get(program(task, parameters, rest, changed, prompt))

  with jax.default_matmul_precision('highest'):
    facts = run(prompt)
    check_facts(name, facts, run, prompt)
    _check_other_weights(name, facts, run, prompt)
  check_rule(model)


def _facts(
  static: Any,
  task: Task,
  parameters: PyTree,
  rest: PyTree,
  changed: Any,
  prompt: Prompt,
) -> Facts:
  """The facts of a model with its own weights, or with changed ones."""
  model = static
  if isinstance(static, nnx.GraphDef):
    weights = jax.tree.map(
      functools.partial(jnp.where, changed), changed_weights(parameters), parameters
    )
    model = nnx.merge(static, weights, rest)
  lengths = short_lengths(prompt.x.shape[1])
  return facts_of(type(model).__name__, model, prompt, task, lengths)


def _check_order_invariant(
  name: str, facts: Facts, run: Callable[[Prompt], Facts], prompt: Prompt
) -> None:
  order = np.random.default_rng(0).permutation(prompt.x.shape[1])
  shuffled = dataclasses.replace(prompt, x=prompt.x[:, order], y=prompt.y[:, order])
  check_close(
    f'{name} declares order_invariant, but the order of the examples matters',
    *(run(shuffled)['alone'], facts['alone']),
  )


def _check_nested_heads(name: str, model: Predictor) -> None:
  """Checks that a model with fewer heads has the first heads of one with more."""
  arguments = registry.arguments_of(model)
  if arguments is None or 'num_heads' not in arguments.values():
    return
  given, make = arguments.values(), cast(Any, type(model))

  @jax.jit
  def parameters() -> list[dict[tuple, Array]]:
    models = (make(**given | {'num_heads': h}, rngs=nnx.Rngs(0)) for h in (2, 3))
    each = (nnx.to_flat_state(nnx.state(made, nnx.Param)) for made in models)
    return [{path: leaf.get_value() for path, leaf in flat} for flat in each]

  with one_line(f'making {name} with 2 and 3 heads'):
    few, many = jax.device_get(parameters())
  for (path, one), other in zip(few.items(), many.values(), strict=True):
    if not np.array_equal(one, other[tuple(map(slice, one.shape))]):
      raise UserError(
        f'{name} declares nested_heads, but {".".join(map(str, path))} of 2 heads is '
        'not the first part of that of 3'
      )
