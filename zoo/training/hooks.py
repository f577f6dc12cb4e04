"""Hooks: what is called while a run trains, of the library and of a user's own."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from zoo.config.building import Config
from zoo.core.errors import RunError
from zoo.core.protocols import Model
from zoo.host.files import finite_or_null
from zoo.training.evaluation import is_evaluated
from zoo.training.summary import Summary


@dataclasses.dataclass(frozen=True)
class Event:
  """A logged step of a run.

  Attributes:
    config: The config of the run. In a sweep it is that of the point.
    workdir: The folder of the run. In a sweep it is that of the point.
    step: The number of steps that are done.
    metrics: The line of the step in `metrics.jsonl`. A value that is not measured at
      this step is None.
    summary: The summary of the whole run at its last event, and None before.
  """

  config: Config
  workdir: pathlib.Path
  step: int
  metrics: dict[str, Any]
  summary: Summary | None
  _make_model: Callable[[], Model]

  @property
  def model(self) -> Model:
    """A copy of the model as it is after this step.

    After the next event it raises UserError, unless a save still holds the arrays.
    """
    return self._make_model()


class Hook:
  """A hook of a run; a subclass overrides the methods that it needs.

  A run calls the hooks of `zoo.train(config, workdir, hooks=[MyHook()])` in their
  order, in each of its processes. A sweep calls the same hooks for each of its points,
  whose folder is `event.workdir`. An error in a hook ends the run with its traceback;
  what was saved before stays, and the same call goes on from there. A hook is not
  saved: a run that goes on has the hooks of its caller.

  Example:
    >>> class Norm(zoo.Hook):
    ...   def on_evaluation(self, event):
    ...     return {'norm': float(optax.tree.norm(nnx.state(event.model, nnx.Param)))}
    >>> config = zoo.default_config('yq_lsa')
    >>> config.train.num_steps = config.eval.every = 10
    >>> summary = zoo.train(config, 'runs/a', hooks=[Norm()])
    >>> summary['step']
    10
  """

  def on_chunk(self, event: Event) -> None:
    """Called at each logged step, the end of a compiled call, when its line stands."""

  def on_evaluation(self, event: Event) -> Mapping[str, float] | None:
    """Called after each evaluation, before its line is written.

    Returns:
      Numbers that are recorded beside those of the run, by name: in `metrics.jsonl`, in
      TensorBoard, and in the metrics of the event. None adds nothing.
    """

  def on_save(self, event: Event) -> None:
    """Called after each save that is due, which may still be being written.

    It is not called for the save with which a signal or a `break` of the caller ends
    the run.
    """

  def on_end(self, event: Event) -> None:
    """Called by the launch that ends the run, when `event.summary` is written.

    The comparison of a single run with the baselines of its task is added to the
    summary afterwards. A launch that is killed just before this call leaves it out.
    """


def numbers_of_hooks(hooks: Sequence[Hook], event: Event) -> dict[str, float]:
  """Returns what the hooks return after an evaluation.

  Raises:
    RunError: If a hook returns anything but numbers, or a name that the line has.
  """
  numbers: dict[str, float] = {}
  for hook in hooks:
    who = f'{type(hook).__name__}.on_evaluation'
    returned: Any = hook.on_evaluation(event)
    if returned is None:
      continue
    if not isinstance(returned, Mapping):
      raise RunError(
        f'{who} returns a {type(returned).__name__}; it must be a dict of numbers by '
        'name, or None'
      )
    for name, value in returned.items():
      if name in (*event.metrics, *numbers):
        raise RunError(
          f'{who} returns {name!r}, which the line of the step has already; choose '
          'another name'
        )
      kind = np.asarray(value).dtype
      is_number = jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(
        kind, jnp.floating
      )
      if np.shape(value) != () or not is_number:
        raise RunError(f'{who} returns {name!r} as {value!r}; it must be a number')
      numbers[name] = float(value)
  return numbers


def record(event: Event, hooks: Sequence[Hook]) -> Event:
  """Hands the line of a step to all hooks, the first of which write it.

  Returns:
    The event with the numbers that hooks have added, if the step is evaluated.
  """
  if is_evaluated(event.config, event.step):
    numbers = finite_or_null(numbers_of_hooks(hooks, event))
    event = dataclasses.replace(event, metrics={**event.metrics, **numbers})
  for hook in hooks:
    hook.on_chunk(event)
  return event
