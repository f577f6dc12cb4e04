"""Checks shared by the contracts of models and of tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Key

from zoo.core import losses
from zoo.core.errors import UserError, check_name, noted
from zoo.core.learning_rule import AnyArray
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, predicts_all
from zoo.theory.trust import QUICK_TO_COMPILE

NUM_PROMPTS = 8
# The tolerance is relative to the largest prediction. Float32 sums in another order
# differ by less.
_REORDERED = 1e-3
_ROUNDING = 1e-3  # Probabilities may be off by this.

# Facts are the predictions of a predictor in all of its ways, by name.
Facts = dict[str, Any]


def with_examples(number: int) -> str:
  """Says in a note on what prompt a call has failed."""
  examples = 'example' if number == 1 else 'examples'
  return (
    f' on a prompt with {number} {examples}; a model must accept any shorter context'
  )


def label_shape(task: Task, *leading: int) -> tuple[int, ...]:
  """Returns the shape of labels, targets and predictions, after leading axes."""
  outputs = task.num_outputs
  return (*leading, outputs) if outputs > 1 else leading


def check_floats(what: str, array: object, shape: tuple[int, ...]) -> None:
  """Checks that an array, which may be abstract, has floats and the right shape.

  Predictions are compared with targets in the type of the targets, which has 32 bits or
  more.

  Raises:
    UserError: If the shape or the type is another.
  """
  is_array = isinstance(array, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
  if not is_array or array.shape != shape:
    its_shape = array.shape if is_array else type(array).__name__
    raise UserError(f'{what} has the shape {its_shape}; it must be {shape}')
  if not jnp.issubdtype(array.dtype, jnp.floating) or array.dtype.itemsize < 4:
    raise UserError(f'{what} is of type {array.dtype}; it must be float32')


def check_form(what: str, array: object, shape: tuple[int, ...]) -> None:
  """Raises UserError unless an array has finite floats and the given shape."""
  check_floats(what, array, shape)
  check_finite(what, array)


def check_finite(what: str, array: object) -> None:
  """Raises UserError unless all numbers of an array are finite."""
  assert isinstance(array, jax.Array | np.ndarray)
  if not np.isfinite(array).all():
    raise UserError(f'{what} is not finite')


def check_sampled(task: Task, key: Key[Array, ''], batch_size: int) -> Prompt:
  """Returns prompts that a task samples, on the host.

  Raises:
    UserError: If the prompts are not finite, or do not fit the task.
  """
  name = type(task).__name__
  # It is traced anew, since code that a task calls may have changed in the meantime.
  sample = compiled(
    lambda task, key: task.sample(key, batch_size), compiler_options=QUICK_TO_COMPILE
  )
  with noted(f'{name}.sample(key, {batch_size})'):
    prompt = jax.device_get(sample(task, key))
  check_prompts(task, prompt)
  return prompt


def check_prompts(task: Task, prompt: object) -> None:
  """Checks that prompts on the host are finite and fit their task.

  Labels of classes must be of the kind that `label_kind` of the task says.

  Raises:
    UserError: If the kind is unknown, or if prompts are not finite or do not fit.
  """
  name = type(task).__name__
  check_name(f'label_kind of {name}', task.label_kind, losses.LOSSES)
  if not isinstance(prompt, Prompt):
    raise UserError(
      f'{name}.sample() gives a {type(prompt).__name__}; it must be a zoo.Prompt'
    )
  b, c, d = len(prompt.y_query), task.context_length, task.num_features
  shapes = {
    'x': (b, c, d),
    'y': label_shape(task, b, c),
    'x_query': (b, d),
    'y_query': label_shape(task, b),
  }
  if prompt.context_targets is not None:
    shapes['context_targets'] = label_shape(task, b, c)
  for part, shape in shapes.items():
    check_floats(f'{part} of the prompts of {name}', getattr(prompt, part), shape)
  for part in shapes:
    numbers = getattr(prompt, part)
    if task.may_miss and part in ('x', 'x_query'):
      numbers = np.where(np.isnan(numbers), 0, numbers)
    check_finite(f'{part} of the prompts of {name}', numbers)
  if task.label_kind != 'numbers':
    _check_labels(task, prompt)


def _check_labels(task: Task, prompt: Prompt) -> None:
  """Raises UserError unless labels and targets are those of signs, or of classes."""
  name, kind, labels = type(task).__name__, task.label_kind, prompt.y
  targets = np.asarray(prompt.targets)
  right = bool((np.abs(targets - 0.5) <= 0.5 + _ROUNDING).all())
  if kind == 'signs':
    if not np.isin(labels, (-1, 1)).all():
      raise UserError(f"label_kind of {name} is 'signs'; its labels y must be −1 or 1")
    of = 'the label +1'
  else:
    # Labels are all 0 where prompts do not show them, as in tasks of state tracking.
    if not (np.isin(labels, (0, 1)).all() and (np.sum(labels, axis=-1) <= 1).all()):
      raise UserError(
        f"label_kind of {name} is 'classes'; its labels y must be one-hot vectors, or "
        '0 where they are not shown'
      )
    right &= bool(np.allclose(targets.sum(axis=-1), 1, atol=_ROUNDING))
    of = 'the classes, whose sum is 1'
  if not right:
    raise UserError(
      f'label_kind of {name} is {kind!r}, and it has targets from {targets.min():.3g} '
      f'to {targets.max():.3g}; they must be probabilities of {of}'
    )


def facts_of(
  name: str,
  predictor: Predictor,
  prompt: Prompt,
  task: Task,
  call: str | None = None,
) -> Facts:
  """Returns the predictions of all methods, to be traced as one program.

  Args:
    name: The name of the predictor in messages.
    predictor: The predictor.
    prompt: The prompts.
    task: Their task.
    call: The name of a call in messages; by default `name(prompt)`.

  Returns:
    The predictions by name. The entry `changed` says which of its own variables the
    predictor has changed, as dropout does. The count of a random stream is named only
    if predictions depend on it: `nnx.RNN` draws the zeros with which its cell begins.

  Raises:
    UserError: If a prediction has another shape or type than the targets.
  """
  b, c = prompt.x.shape[:2]
  call = f'{name}(prompt)' if call is None else call
  with noted(call):
    alone, changed = with_changes(lambda: predictor(prompt), predictor)
  check_floats(call, alone, label_shape(task, b))
  facts: Facts = {'alone': alone, 'changed': changed}
  if predicts_all(predictor):
    what = f'{name}.predictions(prompt)'
    with noted(what):
      facts['everywhere'] = predictor.predictions(prompt)
    check_floats(what, facts['everywhere'], label_shape(task, b, c + 1))
  return facts


def with_changes(
  call: Callable[[], Array], predictor: Predictor
) -> tuple[Array, dict[str, Bool[Array, '']]]:
  """Returns the result of a call, and which variables of a predictor it has changed.

  A random stream counts as changed only if a second call has another result. So a layer
  may count its draws, as `nnx.RNN` does, and a call may set the stream itself.
  """
  before = _arrays_of(predictor)
  result = call()
  after = _arrays_of(predictor)
  # Variables are compared by value, since a transform of NNX within the call replaces
  # their arrays by new arrays of the same values.
  changed = {
    name: _differ(before.get(name), after.get(name))
    for name in sorted(before.keys() | after.keys())
  }
  streams = [
    name
    for name in _arrays_of(predictor, nnx.RngState)
    if before.get(name) is not after.get(name)
  ]
  if streams:
    differs = _differ(result, call())
    changed |= {name: changed[name] & differs for name in streams}
  return result, changed


def _arrays_of(
  predictor: Predictor, kind: type[nnx.Variable] = nnx.Variable
) -> dict[str, Array]:
  """Returns the arrays of a module by name, with random keys as numbers.

  Any other object has none.
  """
  if not isinstance(predictor, nnx.Module):
    return {}
  state = nnx.as_pure(nnx.state(predictor, kind))
  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  return {
    jax.tree_util.keystr(path, simple=True, separator='.'): (
      jax.random.key_data(leaf)
      if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
      else jnp.asarray(leaf)
    )
    for path, leaf in leaves
  }


def _differ(before: Array | None, after: Array | None) -> Bool[Array, '']:
  """Returns whether an array has changed; NaN in the same place is no change."""
  if before is after:
    return jnp.array(False)
  if before is None or after is None or before.shape != after.shape:
    return jnp.array(True)
  both_nan = (before != before) & (after != after)
  return jnp.any((before != after) & ~both_nan)


def facts_after(
  call: str, predictor: Predictor, prompt: Prompt, task: Task, lengths: Sequence[int]
) -> Facts:
  """Returns the predictions from the first k examples, for k in `lengths`; traced.

  Raises:
    UserError: If a prediction has another shape or type than the targets.
  """
  after = {}
  for k in lengths:
    with noted(call, with_examples(k)):
      after[k] = predictor(prompt.prefix(k))
    check_floats(f'{call} of {k} examples', after[k], label_shape(task, len(prompt.x)))
  return {'after': after}


def check_facts(
  name: str,
  facts: Facts,
  run: Callable[[Prompt], Facts],
  prompt: Prompt,
  call: str | None = None,
) -> None:
  """Checks predictions against each other, and against those of changed prompts.

  Args:
    name: The name of the predictor in messages.
    facts: The predictions of `prompt`, by `facts_of`.
    run: A function that returns the facts of other prompts.
    prompt: The prompts.
    call: The name of a call in messages; by default `name(prompt)`.

  Raises:
    UserError: If a prediction is not finite, reads targets or other prompts, looks
      ahead, or differs from that of another method.
  """
  call = f'{name}(prompt)' if call is None else call
  for variable, has_changed in facts['changed'].items():
    if has_changed:
      raise UserError(
        f'{call} changes its variable {variable}, so that calls may differ; a model '
        'must be stateless, without dropout, batch statistics or counters'
      )
  check_finite(call, facts['alone'])
  if 'everywhere' in facts:
    check_finite(f'{name}.predictions(prompt)', facts['everywhere'])
  half = len(prompt.x) // 2
  is_other = np.arange(len(prompt.x)) >= half
  others = dataclasses.replace(
    prompt,
    x=prompt.x + is_other[:, None, None],
    y=prompt.y + is_other.reshape(-1, *[1] * (prompt.y.ndim - 1)),
    x_query=prompt.x_query + is_other[:, None],
  )
  check_close(
    f'{call} depends on the other prompts of the batch',
    run(others)['alone'][:half],
    facts['alone'][:half],
  )
  targets = prompt.context_targets
  changed = dataclasses.replace(
    prompt,
    y_query=prompt.y_query + 1,
    context_targets=None if targets is None else targets + 1,
  )
  with_other_targets = run(changed)
  for what, way in (call, 'alone'), (f'{name}.predictions(prompt)', 'everywhere'):
    if way in facts and not np.array_equal(with_other_targets[way], facts[way]):
      raise UserError(
        f'{what} reads the target: it changes with prompt.y_query or context_targets'
      )
  if 'everywhere' in facts:
    _check_predictions(name, facts, run, prompt)


def check_facts_after(name: str, facts: Facts, call: str) -> None:
  """Checks the predictions of `facts_after` against those of `facts_of`.

  Raises:
    UserError: If a prediction is not finite, or differs from that of `predictions`.
  """
  for k, fewer in facts['after'].items():
    if not np.isfinite(fewer).all():
      raise UserError(
        f'{call} of {k} examples is not finite; a model must accept any shorter context'
      )
    if 'everywhere' in facts:
      check_close(
        f'{name}.predictions(prompt) at example {k} is not the prediction from the '
        'examples before it',
        facts['everywhere'][:, k],
        fewer,
      )


def _check_predictions(
  name: str, facts: Facts, run: Callable[[Prompt], Facts], prompt: Prompt
) -> None:
  """Checks that `predictions` agree with `__call__` and are causal."""
  what, everywhere = f'{name}.predictions(prompt)', facts['everywhere']
  c = prompt.x.shape[1]
  check_close(
    f'{what} at the query is not {name}(prompt)', everywhere[:, -1], facts['alone']
  )
  for k in sorted({c // 3, c - 1} & {*range(c)}):
    # Prediction k may use the examples before example k and the features of example k.
    x, y = np.array(prompt.x), np.array(prompt.y)
    x[:, k + 1 :] += 1
    y[:, k:] += 1
    later = dataclasses.replace(prompt, x=x, y=y, x_query=prompt.x_query + 1)
    seen = run(later)['everywhere'][:, : k + 1]
    check_close(f'{what} looks ahead of example {k}', seen, everywhere[:, : k + 1])


def check_close(what: str, predicted: AnyArray, expected: AnyArray) -> None:
  """Raises UserError unless two predictions agree up to the order of their sums."""
  gap = float(np.abs(np.asarray(predicted) - np.asarray(expected)).max(initial=0.0))
  scale = float(np.abs(np.asarray(expected)).max(initial=0.0))
  if not gap <= _REORDERED * max(scale, 1e-6):
    raise UserError(f'{what}: it differs by {gap:.2g}, with predictions to {scale:.2g}')
