"""Hooks: what a caller of a run has called while it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from zoo.core.errors import RunError

if TYPE_CHECKING:
  from zoo.training.run import Event
  from zoo.training.summary import Summary


class Hook:
  """A hook of a run; a subclass overrides the methods that it needs.

  A run calls the hooks of `zoo.train(config, workdir, hooks=[MyHook()])` in their
  order, in each of its processes. An error in a hook ends the run with its traceback;
  what was saved before stays, and the same call goes on from there. A hook is not
  saved: a run that goes on has the hooks of its caller.

  Example:
    >>> class Norm(zoo.Hook):
    ...   def on_evaluation(self, event):
    ...     return {'norm': float(optax.tree.norm(nnx.state(event.model, nnx.Param)))}
    >>> zoo.train(config, 'runs/a', hooks=[Norm()])
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

  def on_end(self, summary: Summary) -> None:
    """Called by the launch that ends the run, when the summary is written."""


def numbers_of_hooks(hooks: Sequence[Hook], event: Event) -> dict[str, float]:
  """What the hooks return after an evaluation.

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
      if name in (*event.metrics, *numbers, 'wall_time'):  # which is added at last
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
