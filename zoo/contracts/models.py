"""Checks that a model of any class has the properties that the library relies on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, PyTree

from zoo.contracts.agreement import check_agreement
from zoo.contracts.checks import (
  NUM_PROMPTS,
  Facts,
  check_close,
  check_facts,
  check_facts_after,
  facts_after,
  facts_of,
)
from zoo.contracts.mixers import check_mixers
from zoo.core.errors import UserError, noted
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import MayIgnoreOrder, Predictor, Task
from zoo.core.saved_arrays import check_can_be_saved
from zoo.measure.predict import check_predictor
from zoo.theory.trust import changed_weights, check_rule, without_zeros

# A run maps prompts to the facts of a model, with its own weights or with given ones.
Run = Callable[..., Facts]


class _Inputs(NamedTuple):
  """The arguments of a compiled program of a model."""

  task: Task
  parameters: PyTree
  rest: PyTree
  prompt: Prompt


def check_model(model: Predictor | nnx.Module, task: Task) -> None:
  """Checks that a model has the properties that the library relies on.

  The checks are:

  - Predictions have the right shape and type, are finite, and are the same in each
    call.
  - No prediction changes with the target of the query, with later examples, or with the
    other prompts of the batch.
  - The model accepts shorter contexts, down to no example, and predicts finite numbers
    from them.
  - All ways of predicting agree: `__call__`, `predictions`, the learning rule or exact
    form, and the methods of mixers.
  - A causal mixer ignores later tokens, and so does its attention.
  - The gradient is finite, and is not 0 for all parameters.
  - The model predicts the same when it is compiled, and after `nnx.split` and
    `nnx.merge`.
  - If the class declares `order_invariant = True`, the order of the examples does not
    matter.
  - A module passes all that training checks of a model: its arrays can be saved, and
    the ways of predicting also agree with other weights than its own.

  Args:
    model: A model or another predictor.
    task: The task on whose prompts the model is called.

  Raises:
    UserError: If a property is missing. The message says in one line what is wrong with
      the first one.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> class Cheat:
    ...   def __call__(self, prompt):
    ...     return prompt.y_query
    >>> zoo.check_model(Cheat(), task)
    Traceback (most recent call last):
    ...
    zoo.core.errors.UserError: Cheat(prompt) reads the target: it changes with ...
  """
  name = type(model).__name__
  check_predictor(model)
  prompt = _prompt(name, task)
  if isinstance(model, nnx.Module):
    check_can_be_saved(nnx.state(model))
  check_mixers(model, prompt)
  # These prompts are a constant in the program. A model must predict the same from it.
  constant = jax.tree.map(lambda array: jnp.asarray(array, array.dtype), prompt)

  def measure(static: Any, inputs: _Inputs) -> Facts:
    return _facts(static, inputs) | _more_facts(model, constant, static, inputs)

  facts, run = _check_predictions(name, model, task, prompt, measure)
  if 'slopes' in facts and 'object' not in facts:
    with noted(f'{name}(prompt)'), jax.default_matmul_precision('highest'):
      facts['object'] = model(constant)
  _check_calls(name, facts)
  with jax.default_matmul_precision('highest'):
    with noted(f'the learning rule or exact form of {name}'):
      check_rule(model)
    if isinstance(model, MayIgnoreOrder) and model.order_invariant:
      _check_order_invariant(name, facts, run, prompt)
  if isinstance(model, nnx.Module):
    check_agreement(model, task)


def _prompt(name: str, task: Task) -> Prompt:
  with noted(f'sampling prompts for {name}'):
    return jax.device_get(task.sample(jax.random.key(0), NUM_PROMPTS))


def _check_predictions(
  name: str,
  model: Predictor | nnx.Module,
  task: Task,
  prompt: Prompt,
  measure: Callable[..., Facts],
) -> tuple[Facts, Run]:
  """Checks the facts of a model, found by one compiled program of the prompts.

  Args:
    name: The name of the model in messages.
    model: The model.
    task: The task of the prompts.
    prompt: The prompts.
    measure: The function that finds the facts.

  Returns:
    The facts with the weights of the model, and the function that finds them.
  """
  with noted(f'splitting {name}'):
    static, parameters, rest = _split(model)
  program = compiled(functools.partial(measure, static))

  def run(prompt: Prompt, weights: PyTree = parameters) -> Facts:
    with jax.default_matmul_precision('highest'):
      return jax.device_get(program(_Inputs(task, weights, rest, prompt)))

  facts = run(prompt)
  check_facts(name, facts, run, prompt)
  check_facts_after(name, facts, f'{name}(prompt)')
  is_constant = not np.ptp(facts.get('everywhere', facts['alone']))
  kernels = [leaf for leaf in jax.tree.leaves(parameters) if leaf.ndim > 1]
  if is_constant or not all(map(np.any, kernels)):
    started = compiled(lambda own: without_zeros(own, changed_weights(own)))
    weights = started(parameters)
    other = run(prompt, weights)
    if all(np.isfinite(array).all() for array in jax.tree.leaves(other)):
      check_facts(name, other, functools.partial(run, weights=weights), prompt)
      check_facts_after(name, other, f'{name}(prompt)')
  return facts, run


def _split(model: Any) -> tuple[Any, PyTree, PyTree]:
  """Returns the graph, the parameters and the rest of a module.

  Any other object is static, and has no arrays.
  """
  if not isinstance(model, nnx.Module):
    return model, None, None
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)
  return graph, parameters, rest


def _merge(static: Any, inputs: _Inputs) -> Any:
  """Returns the model with the given weights."""
  if not isinstance(static, nnx.GraphDef):
    return static
  return nnx.merge(static, inputs.parameters, inputs.rest, copy=True)


def _facts(static: Any, inputs: _Inputs) -> Facts:
  """Returns the predictions of a model in all of its ways."""
  model, prompt = _merge(static, inputs), inputs.prompt
  c = prompt.x.shape[1]
  lengths = sorted({0, 1, c // 2, c - 1} & {*range(c)})
  name, task = type(model).__name__, inputs.task
  facts = facts_of(name, model, prompt, task)
  return facts | facts_after(f'{name}(prompt)', model, prompt, task, lengths)


def _more_facts(model: Any, constant: Prompt, static: Any, inputs: _Inputs) -> Facts:
  """Returns the predictions of other calls of a model, and the gradient of its loss."""
  name, merged, prompt = type(model).__name__, _merge(static, inputs), inputs.prompt
  with noted(f'{name}(prompt)'):
    facts = {'again': merged(prompt), 'constant': merged(constant)}
  with noted(f'{name}(prompt) of three prompts'):
    facts['part'] = merged(jax.tree.map(lambda array: array[2:5], prompt))
  if merged is not model:
    if not _is_bound_to_its_trace(static, inputs):
      with noted(f'{name}(prompt)'):
        facts['object'] = model(prompt)
    facts['slopes'] = _slopes(name, static, inputs)
  return facts


def _is_bound_to_its_trace(static: Any, inputs: _Inputs) -> bool:
  """Returns whether a model can be called only in the trace that made its variables.

  This is so if its call has a transform of NNX, such as `nnx.remat` or `nnx.scan`. A
  copy is tried, since a call that fails may leave an object incomplete.
  """
  model = _merge(static, inputs)
  try:
    jax.eval_shape(lambda: model(inputs.prompt))
  except Exception:  # NNX raised it: earlier calls would have raised the model's own.
    return True
  return False


def _slopes(name: str, static: Any, inputs: _Inputs) -> list[Array]:
  """Returns the gradient of the loss at the query."""
  task, prompt = inputs.task, inputs.prompt
  if not jax.tree.leaves(inputs.parameters):
    raise UserError(f'{name} has no nnx.Param; there is nothing to train')

  def loss(parameters: PyTree) -> Array:
    model: Any = nnx.merge(static, parameters, inputs.rest, copy=True)
    return jnp.mean(task.loss(model(prompt), prompt.y_query))

  with noted(f'the gradient of {name}'):
    return jax.tree.leaves(jax.grad(loss)(inputs.parameters))


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


def _check_order_invariant(
  name: str, facts: Facts, run: Callable[[Prompt], Facts], prompt: Prompt
) -> None:
  # The permutation is one cycle through all examples, so that none keeps its place.
  cycle = np.random.default_rng(0).permutation(prompt.x.shape[1])
  order = np.roll(cycle, 1)[np.argsort(cycle)]
  shuffled = dataclasses.replace(prompt, x=prompt.x[:, order], y=prompt.y[:, order])
  check_close(
    f'{name} declares order_invariant, but the order of the examples matters',
    run(shuffled)['alone'],
    facts['alone'],
  )
