"""Checks shared by the contracts of models and of tasks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zoo.errors import UserError, in_one_line
from zoo.prompt import Prompt
from zoo.protocols import Predictor, PredictsAll, Task
from zoo.tasks.base import num_outputs_of

NUM_PROMPTS = 8
# Relative to the largest prediction; allows for float32 sums in another order.
_REORDERED = 1e-3


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
  """Turns any error inside the block into a UserError that says what failed."""
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    text = in_one_line(error)
    raise UserError(f'{what} failed: {type(error).__name__}: {text}') from error


def label_shape(task: Task, *leading: int) -> tuple[int, ...]:
  """The shape of labels, targets and predictions with the given leading axes."""
  outputs = num_outputs_of(task)
  return (*leading, outputs) if outputs > 1 else leading


def check_shape(what: str, array: object, shape: tuple[int, ...]) -> None:
  """Raises UserError unless an array, which may be abstract, has the given shape."""
  if getattr(array, 'shape', None) != shape:
    found = getattr(array, 'shape', type(array).__name__)
    raise UserError(f'{what} has the shape {found}; it must be {shape}')


def check_form(what: str, array: object, shape: tuple[int, ...]) -> None:
  """Raises UserError unless an array has finite floats and the given shape."""
  check_shape(what, array, shape)
  assert isinstance(array, jax.Array | np.ndarray)
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise UserError(f'{what} is of type {array.dtype}; it must be floating-point')
  if not np.isfinite(array).all():
    raise UserError(f'{what} is not finite')


def check_prediction(
  what: str, predictor: Predictor, prompt: Prompt, task: Task
) -> Float[Array, ' b *k']:
  """The prediction of a predictor; raises UserError unless it has the right form."""
  with one_line(what):
    prediction, again = predictor(prompt), predictor(prompt)
  check_form(what, prediction, label_shape(task, len(prompt.x)))
  if not np.array_equal(prediction, again):
    raise UserError(f'{what} differs from call to call; it must be deterministic')
  return prediction


def check_predictions(
  name: str, model: PredictsAll, prompt: Prompt, task: Task, prediction: Array
) -> None:
  """Checks that `predictions` agree with `__call__`, are causal and read no targets."""
  what = f'{name}.predictions(prompt)'
  b, c = prompt.x.shape[:2]
  # Compiled as one program; otherwise each operation would be compiled for each length.
  predictions = jax.jit(lambda prompt: model.predictions(prompt))
  predict = jax.jit(lambda prompt: model(prompt))
  with one_line(what):
    everywhere = predictions(prompt)
  check_form(what, everywhere, label_shape(task, b, c + 1))
  check_close(
    f'{what} at the query is not {name}(prompt)', everywhere[:, -1], prediction
  )
  check_reads_no_target(what, predictions, prompt, everywhere)
  for k in sorted({c // 3, c - 1}):
    # Prediction k may use all before example k and its features, and nothing else.
    later = dataclasses.replace(
      prompt,
      x=prompt.x.at[:, k + 1 :].add(1),
      y=prompt.y.at[:, k:].add(1),
      x_query=prompt.x_query + 1,
    )
    with one_line(what):
      seen = predictions(later)[:, : k + 1]
    check_close(f'{what} looks ahead of example {k}', seen, everywhere[:, : k + 1])
    if k:
      with one_line(f'{name}(prompt) of {k} examples'):
        alone = predict(prompt.prefix(k))
      check_close(
        f'{what} at example {k} is not the prediction from the examples before it',
        *(everywhere[:, k], alone),
      )


def check_reads_no_target(
  what: str, predict: Callable[[Prompt], Array], prompt: Prompt, prediction: Array
) -> None:
  """Raises UserError if a prediction changes with the targets of the prompt."""
  changed = dataclasses.replace(prompt, y_query=prompt.y_query + 1)
  if prompt.context_targets is not None:
    changed = dataclasses.replace(changed, context_targets=prompt.context_targets + 1)
  with one_line(what):
    same = np.array_equal(predict(changed), prediction)
  if not same:
    raise UserError(
      f'{what} reads the target: it changes with prompt.y_query or context_targets'
    )


def check_close(what: str, one: Array, other: Array) -> None:
  """Raises UserError unless two predictions agree up to the order of their sums."""
  gap = float(np.abs(np.asarray(one) - np.asarray(other)).max(initial=0.0))
  scale = float(np.abs(np.asarray(other)).max(initial=0.0))
  if not gap <= _REORDERED * max(scale, 1e-6):
    raise UserError(f'{what}: it differs by {gap:.2g}, with predictions to {scale:.2g}')
