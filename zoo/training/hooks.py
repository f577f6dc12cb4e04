"""Hooks: objects that a run calls while it trains, and the events that they get."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from zoo.config.run import Run
from zoo.core.errors import RunError, UserError, check_object
from zoo.core.protocols import Model
from zoo.host.files import finite_or_null
from zoo.training.evaluation import is_evaluated
from zoo.training.metrics import is_number
from zoo.training.summary import Summary


@dataclasses.dataclass(frozen=True)
class Event:
  """A logged step of a run.

  Attributes:
    config: The config of the run, as a frozen record. In a sweep it is that of the
      point.
    workdir: The folder of the run. In a sweep it is the folder of the point.
    step: The number of steps that are done.
    metrics: The line of the step in `metrics.jsonl`: `loss`, `grad_norm`, `eval_risk`,
      `exact_risk` and others by name. `loss` is the loss of one batch, that of the
      step. A value that is not measured at this step is None. The names of registered
      metrics, and `eval_nll`, are there only at steps that evaluate.
    summary: The summary of the whole run in its last event; None in all others.
    model: A copy of the model as it is after this step.
  """

  config: Run
  workdir: pathlib.Path
  step: int
  metrics: dict[str, Any]
  summary: Summary | None
  _make_model: Callable[[], Model]

  @property
  def model(self) -> Model:
    """A copy of the model as it is after this step.

    Take it before training goes on: the next steps reuse the memory of its arrays.

    Raises:
      UserError: If training has gone on and the arrays are gone.
    """
    return self._make_model()


class Hook:
  """The base class of hooks; a subclass overrides the methods that it needs.

  A run calls the hooks of `zoo.train(config, workdir, hooks=[MyHook()])` in their
  order, in each of its processes. A sweep calls the same hooks for each of its points,
  whose folder is `event.workdir`. An error in a hook ends the run with its traceback;
  what was saved before stays, and the same call resumes from there. Hooks are not
  saved: a run that resumes has the hooks of the new call.

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
    """Reacts to a logged step, after its line is written.

    A logged step is the last one of a compiled call: the run stops there to log,
    evaluate or save.

    Args:
      event: The step, with the numbers of all hooks in `metrics`.
    """

  def on_evaluation(self, event: Event) -> Mapping[str, float] | None:
    """Measures the model after an evaluation, before the line of the step is written.

    Args:
      event: The step, whose `metrics` has the numbers of the run alone.

    Returns:
      Numbers by name, which are recorded beside those of the run: in `metrics.jsonl`,
      in TensorBoard, and in `event.metrics`. Points of a sweep that are trained side by
      side write nothing for TensorBoard. None adds nothing. Anything else, or a
      name that the line has already, ends the run with a RunError.
    """

  def on_save(self, event: Event) -> None:
    """Reacts to a save that was due, which may still be being written.

    It is not called for the save that a signal or a `break` of the caller causes.

    Args:
      event: The step that is saved.
    """

  def on_end(self, event: Event) -> None:
    """Reacts to the end of the run, after `summary.json` is written.

    If the process is killed between the summary and this call, such as while the model
    is compared with the baselines of its task, the hook is not called any more.

    Args:
      event: The last event, whose `summary` is set and has the comparison, if any.
    """


def checked_hooks(hooks: object) -> tuple[Hook, ...]:
  """Returns the hooks of a caller; raises UserError unless they are a list of hooks."""
  if not isinstance(hooks, Iterable) or isinstance(hooks, str):
    raise UserError(
      f'hooks is a {type(hooks).__name__}; it must be a list of hooks, such as '
      '[MyHook()]'
    )
  every = tuple(hooks)
  for hook in every:
    check_object('a hook', hook, Hook, 'its class must be a subclass of zoo.Hook')
  return every


def numbers_of_hooks(hooks: Sequence[Hook], event: Event) -> dict[str, float]:
  """Returns the numbers that the hooks measure after an evaluation, by name.

  Raises:
    RunError: If a hook returns anything but a dict of numbers or None, a name that is
      no text, or one that the line, the curve or another hook has.
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
      if not isinstance(name, str) or name.startswith('curve/'):
        raise RunError(
          f'{who} returns the name {name!r}; it must be text, and must not begin with '
          'curve/, as the losses by number of examples do'
        )
      if name in (*event.metrics, *numbers):
        raise RunError(
          f'{who} returns {name!r}, which the line of the step has already; choose '
          'another name'
        )
      if not is_number(value):
        raise RunError(f'{who} returns {name!r} as {value!r}; it must be a number')
      numbers[name] = float(value)
  return numbers


def record(event: Event, hooks: Sequence[Hook]) -> Event:
  """Calls all hooks for a logged step: `on_evaluation` if it is evaluated, `on_chunk`.

  Args:
    event: The step.
    hooks: The hooks in the order of their calls. `Records` and `TensorBoard`, which
      write the line of the step, come first.

  Returns:
    The event with the numbers that the hooks have added, if the step is evaluated.
  """
  if is_evaluated(event.config, event.step):
    numbers = finite_or_null(numbers_of_hooks(hooks, event))
    event = dataclasses.replace(event, metrics={**event.metrics, **numbers})
  for hook in hooks:
    hook.on_chunk(event)
  return event
