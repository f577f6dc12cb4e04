"""Hooks: what a caller of a run has called while it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.core.errors import UserError

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
    """Called after each logged step, the end of a compiled call, when its line stands."""

  def on_evaluation(self, event: Event) -> Mapping[str, float] | None:
    """Called after each evaluation, before its line is written.

    Returns:
      Numbers that are recorded beside those of the run, by name: in `metrics.jsonl`, in
      TensorBoard, and in the metrics of the event. None adds nothing.
    """

  def on_save(self, event: Event) -> None:
    """Called after each save, which may still be written in the background."""

  def on_end(self, summary: Summary) -> None:
    """Called once, when the run has ended and its summary is written."""


def numbers_of_hooks(hooks: Sequence[Hook], event: Event) -> dict[str, float]:
  """What the hooks return after an evaluation.

  Raises:
    UserError: If a hook returns anything but numbers, or a name that the line has.
  """
  numbers: dict[str, float] = {}
  for hook in hooks:
    who = f'{type(hook).__name__}.on_evaluation'
    returned: Any = hook.on_evaluation(event)
    if returned is None:
      continue
    if not isinstance(returned, Mapping):
      raise UserError(
        f'{who} returns a {type(returned).__name__}; it must be a dict of numbers by '
        'name, or None'
      )
    for name, value in returned.items():
      if name in event.metrics or name in numbers:
        raise UserError(
          f'{who} returns {name!r}, which the line of the step has already; choose '
          'another name'
        )
      if np.shape(value) != () or not np.issubdtype(np.asarray(value).dtype, np.number):
        raise UserError(f'{who} returns {name!r} as {value!r}; it must be a number')
      numbers[name] = float(value)
  return numbers
