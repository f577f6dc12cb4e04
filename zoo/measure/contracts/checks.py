"""Checks shared by the contracts of models and of tasks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Key

from zoo.core.errors import UserError
from zoo.core.learning_rule import AnyArray
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, predicts_all
from zoo.theory.trust import QUICK_TO_COMPILE

NUM_PROMPTS = 8
# Relative to the largest prediction; allows for float32 sums in another order.
_REORDERED = 1e-3
_ROUNDING = 1e-3  # of probabilities

# What a predictor predicts, by name.
Facts = dict[str, Any]


@contextlib.contextmanager
def noted(what: str) -> Iterator[None]:
  """Adds a note to an error inside the block that says what failed.

  The error stays what it is, with its traceback into the user's code.
  """
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    error.add_note(f'{what} failed')
    raise


def label_shape(task: Task, *leading: int) -> tuple[int, ...]:
  """The shape of labels, targets and predictions with the given leading axes."""
  outputs = task.num_outputs
  return (*leading, outputs) if outputs > 1 else leading


def check_shape(what: str, array: object, shape: tuple[int, ...]) -> None:
  """Raises UserError unless an array, which may be abstract, has the given shape."""
  known = isinstance(array, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
  found = array.shape if known else type(array).__name__
  if found != shape:
    raise UserError(f'{what} has the shape {found}; it must be {shape}')


def check_floats(what: str, array: object, shape: tuple[int, ...]) -> None:
  """Raises UserError unless an array, maybe abstract, has floats and this shape.

  Predictions are compared with targets in the type of these, of 32 bits or more.
  """
  check_shape(what, array, shape)
  assert isinstance(array, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
  if not jnp.issubdtype(array.dtype, jnp.floating) or array.dtype.itemsize < 4:
    raise UserError(f'{what} is of type {array.dtype}; it must be float32')


def check_form(what: str, array: object, shape: tuple[int, ...]) -> None:
  """Raises UserError unless an array has finite floats and the given shape."""
  check_floats(what, array, shape)
  check_finite(what, array)


def check_arrays(name: str, task: Task, prompt: Prompt) -> None:
  """Raises UserError unless a batch of prompts, maybe abstract, fits its task."""
  check_prompt(name, prompt)
  b, c, d = len(prompt.y_query), task.context_length, task.num_features
  parts = {
    'x': (prompt.x, (b, c, d)),
    'y': (prompt.y, label_shape(task, b, c)),
    'x_query': (prompt.x_query, (b, d)),
    'y_query': (prompt.y_query, label_shape(task, b)),
  }
  if prompt.context_targets is not None:
    parts['context_targets'] = prompt.context_targets, label_shape(task, b, c)
  for part, (array, shape) in parts.items():
    check_floats(f'{part} of the prompts of {name}', array, shape)


def check_prompt(name: str, prompt: object) -> None:
  """Raises UserError unless a task gives prompts."""
  if not isinstance(prompt, Prompt):
    raise UserError(
      f'{name}.sample() gives a {type(prompt).__name__}; it must be a zoo.Prompt'
    )


def check_finite(what: str, array: object) -> None:
  """Raises UserError unless all numbers of an array are finite."""
  assert isinstance(array, jax.Array | np.ndarray)
  if not np.isfinite(array).all():
    raise UserError(f'{what} is not finite')


def check_sampled(task: Task, key: Key[Array, ''], batch_size: int) -> Prompt:
  """Prompts that a task samples from a key, on the host.

  Raises UserError unless they fit the task, their numbers are finite, and labels of
  classes are what `label_kind` says.
  """
  name = type(task).__name__
  # Traced anew, since what a task calls may have changed since the last time.
  sample = jax.jit(
    lambda task, key: task.sample(key, batch_size), compiler_options=QUICK_TO_COMPILE
  )
  with noted(f'{name}.sample(key, {batch_size})'):
    prompt = jax.device_get(sample(task, key))
  check_arrays(name, task, prompt)
  check_values(name, task, prompt)
  return prompt


def check_values(name: str, task: Task, prompt: Prompt) -> None:
  """Raises UserError unless the numbers of prompts, on the host, are right."""
  for part, array in vars(prompt).items():
    if array is not None and part != 'latents':
      check_finite(f'{part} of the prompts of {name}', array)
  kind, labels, targets = task.label_kind, prompt.y, np.asarray(prompt.targets)
  if kind == 'numbers':
    return
  right = bool((np.abs(targets - 0.5) <= 0.5 + _ROUNDING).all())
  if kind == 'signs':
    if not np.isin(labels, (-1, 1)).all():
      raise UserError(f"label_kind of {name} is 'signs'; its labels y must be −1 or 1")
    of = 'the label +1'
  else:
    # All 0 where prompts do not show the labels, as in tasks of state tracking.
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


def check_loss(task: Task, prediction: Array, prompt: Prompt) -> None:
  """Raises UserError unless a task's loss is one number per prompt; to be traced."""
  name = type(task).__name__
  with noted(f'{name}.loss'):
    loss = jax.eval_shape(task.loss, prediction, prompt.y_query)
  if loss.shape != (len(prompt.y_query),):
    raise UserError(
      f'{name}.loss has the shape {loss.shape}; it must be one number per prompt'
    )


def called(what: str, predictor: Predictor, prompt: Prompt, task: Task) -> Array:
  """The prediction, to be traced; UserError if it has the wrong form.

  Also if the predictor changes its own variables, as dropout does.
  """
  before = _variables(predictor)
  with noted(what):
    prediction = predictor(prompt)
  check_floats(what, prediction, label_shape(task, len(prompt.x_query)))
  after = _variables(predictor)
  for path in sorted(before | after):
    if before.get(path) is not after.get(path):
      raise UserError(
        f'{what} differs from call to call, since it changes its variable {path}; a '
        'model must be stateless, without dropout, batch statistics or counters'
      )
  return prediction


def _variables(predictor: Predictor) -> dict[str, object]:
  """The arrays of a module by path, from which a changed one can be told."""
  if not isinstance(predictor, nnx.Module):
    return {}
  flat = nnx.to_flat_state(nnx.state(predictor))
  return {'.'.join(map(str, path)): one.get_value() for path, one in flat}


def facts_of(
  name: str,
  predictor: Predictor,
  prompt: Prompt,
  task: Task,
  lengths: Sequence[int],
  call: str | None = None,
) -> Facts:
  """Predictions by all methods, and of the first k examples for k in `lengths`.

  They are to be traced as one program. `call` is the name of the prediction in
  messages. Raises UserError for a prediction of the wrong form.
  """
  b, c = prompt.x.shape[:2]
  call = f'{name}(prompt)' if call is None else call
  found: Facts = {'alone': called(call, predictor, prompt, task), 'after': {}}
  if predicts_all(predictor):
    what = f'{name}.predictions(prompt)'
    with noted(what):
      found['everywhere'] = predictor.predictions(prompt)
    check_floats(what, found['everywhere'], label_shape(task, b, c + 1))
  for k in lengths:
    what = f'{call} of {k} examples'
    with noted(what):
      fewer = predictor(prompt.prefix(k))
    check_floats(what, fewer, label_shape(task, b))
    found['after'][k] = fewer
  return found


def check_facts(
  name: str,
  facts: Facts,
  run: Callable[[Prompt], Facts],
  prompt: Prompt,
  call: str | None = None,
) -> None:
  """Checks predictions of prompts against each other and those of changed prompts.

  `facts` are those of `prompt`, and `run` finds them for others. Raises UserError for a
  prediction that is not finite, reads targets or other prompts, looks ahead, or is not
  that of another method.
  """
  call = f'{name}(prompt)' if call is None else call
  check_finite(call, facts['alone'])
  changed = run(_with_other_targets(prompt))
  _check_reads_no_target(call, changed['alone'], facts['alone'])
  some = len(prompt.x) // 2
  others = run(_with_other_prompts(prompt, some))['alone'][:some]
  check_close(
    f'{call} depends on the other prompts of the batch', others, facts['alone'][:some]
  )
  if 'everywhere' in facts:
    _check_predictions(name, facts, changed, run, prompt)
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
  name: str,
  facts: Facts,
  changed: Facts,
  run: Callable[[Prompt], Facts],
  prompt: Prompt,
) -> None:
  """Checks that `predictions` agree with `__call__`, are causal and read no targets."""
  what, everywhere = f'{name}.predictions(prompt)', facts['everywhere']
  c = prompt.x.shape[1]
  check_finite(what, everywhere)
  check_close(
    f'{what} at the query is not {name}(prompt)', everywhere[:, -1], facts['alone']
  )
  _check_reads_no_target(what, changed['everywhere'], everywhere)
  for k in sorted({c // 3, c - 1} & {*range(c)}):
    # Prediction k may use all before example k and its features, and nothing else.
    x, y = np.array(prompt.x), np.array(prompt.y)
    x[:, k + 1 :] += 1
    y[:, k:] += 1
    later = dataclasses.replace(prompt, x=x, y=y, x_query=prompt.x_query + 1)
    seen = run(later)['everywhere'][:, : k + 1]
    check_close(f'{what} looks ahead of example {k}', seen, everywhere[:, : k + 1])


def _with_other_targets(prompt: Prompt) -> Prompt:
  targets = prompt.context_targets
  return dataclasses.replace(
    prompt,
    y_query=prompt.y_query + 1,
    context_targets=None if targets is None else targets + 1,
  )


def _with_other_prompts(prompt: Prompt, some: int) -> Prompt:
  """The batch with other prompts in place of all but some."""
  x, y, x_query = (np.array(part) for part in (prompt.x, prompt.y, prompt.x_query))
  for part in x, y, x_query:
    part[some:] += 1
  return dataclasses.replace(prompt, x=x, y=y, x_query=x_query)


def _check_reads_no_target(what: str, changed: AnyArray, prediction: AnyArray) -> None:
  """Raises UserError if a prediction changed with the targets of the prompt."""
  if not np.array_equal(changed, prediction):
    raise UserError(
      f'{what} reads the target: it changes with prompt.y_query or context_targets'
    )


def check_close(what: str, one: AnyArray, other: AnyArray) -> None:
  """Raises UserError unless two predictions agree up to the order of their sums."""
  gap = float(np.abs(np.asarray(one) - np.asarray(other)).max(initial=0.0))
  scale = float(np.abs(np.asarray(other)).max(initial=0.0))
  if not gap <= _REORDERED * max(scale, 1e-6):
    raise UserError(f'{what}: it differs by {gap:.2g}, with predictions to {scale:.2g}')
