"""Metrics of the user's own: functions of the model, measured at each evaluation.

A config names them in `eval.metrics`. On the command line `--import=MODULE` imports the
module that registers them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Key, PyTree

from zoo.core.draws import METRICS_KEY
from zoo.core.errors import UserError
from zoo.core.protocols import Task
from zoo.core.registry import entering

_Function = TypeVar('_Function', bound=Callable[..., Any])

# Each metric maps a model, its task and a key to numbers by name.
METRICS: dict[str, Callable[..., Any]] = {}


def register_metric(name: str) -> Callable[[_Function], _Function]:
  """Returns a decorator that registers a function of the model as a metric.

  The function is `metric(model, task, key) -> dict[str, Array]`. It is compiled, and is
  called at each evaluation of a run whose `config.eval.metrics` has its name. Its
  arguments are the model, an NNX module with the weights of that step; the task, which
  draws held-out prompts; and a key, which is the same at each evaluation, whatever
  other metrics there are. Each number is written into `metrics.jsonl` and TensorBoard
  as `NAME/KEY`, and into the summary at the end. Points of a sweep that are trained
  side by side write nothing for TensorBoard.

  A second function under the same name replaces the first without a warning.

  Args:
    name: The name of the metric in `config.eval.metrics`.

  Returns:
    A decorator, which returns the function unchanged.

  Raises:
    UserError: If the name is not a string, has a slash or is 'curve', or if the
      decorated object is not a function of these three arguments.

  Example:
    >>> @zoo.register_metric('norm')
    ... def norm(model, task, key):
    ...   return {'weights': optax.tree.norm(nnx.state(model, nnx.Param))}
    >>> config = zoo.default_config('yq_lsa')
    >>> config.eval.metrics = ('norm',)
  """
  if isinstance(name, str) and '/' in name:
    raise UserError(
      f'the name of a metric is {name!r}; it must have no slash, since its numbers are '
      'called NAME/KEY'
    )
  if name == 'curve':
    raise UserError(
      "the name of a metric is 'curve'; choose another one, since TensorBoard has the "
      'losses by number of examples as curve/0000, curve/0001, …'
    )
  arguments = 'model', 'task', 'key'
  return entering('metric', METRICS, name, function=True, arguments=arguments)


def own_metrics(
  graph: nnx.GraphDef[Any],
  names: Sequence[str],
  task: Task,
  key: Key[Array, ''],
  state: PyTree,
) -> dict[str, Array]:
  """Returns the numbers of the registered metrics of these names, by `METRIC/KEY`.

  Raises:
    UserError: If a metric returns anything but a dict of numbers.
  """
  numbers = {}
  key = jax.random.fold_in(key, METRICS_KEY)
  for name in names:
    # A metric has the same key if other metrics are added later.
    own_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    found = METRICS[name](nnx.merge(graph, state, copy=True), task, own_key)
    if not isinstance(found, Mapping) or not found:
      what = 'an empty dict' if isinstance(found, Mapping) else _kind(found)
      raise UserError(
        f'the metric {name!r} returns {what}; it must be a dict of numbers by '
        "name, such as {'weights': norm}"
      )
    for entry, value in found.items():
      if not is_number(value):
        what = _kind(value) if isinstance(value, Array) else repr(value)
        raise UserError(
          f'the metric {name!r} returns {entry!r} as {what}; it must be a number'
        )
      numbers[f'{name}/{entry}'] = jnp.asarray(value)
  return numbers


def _kind(value: object) -> str:
  """Returns what an object is, in the words of a message; it may be traced."""
  if isinstance(value, Array):
    return f'an array of the shape {value.shape} and the type {value.dtype}'
  return f'a {type(value).__name__}'


def is_number(value: object) -> bool:
  """Returns whether a value is one integer or floating-point number, traced or not."""
  try:
    array: Any = value if hasattr(value, 'dtype') else np.asarray(value)
  except ValueError:  # A list of lists of different lengths is no array.
    return False
  kinds = jnp.integer, jnp.floating
  return jnp.shape(array) == () and any(
    jnp.issubdtype(array.dtype, kind) for kind in kinds
  )
