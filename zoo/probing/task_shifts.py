"""The loss of predictors on a task's own shifts, which test out of distribution."""

from __future__ import annotations

import dataclasses

from zoo.core.errors import in_one_line
from zoo.core.protocols import Predictor, Task
from zoo.measure.comparison import affordable
from zoo.measure.curves import sample_losses
from zoo.measure.intervals import Estimate, estimate

_FEWEST = 16  # prompts; a shift that allows fewer is not measured


@dataclasses.dataclass(frozen=True)
class TaskShift:
  """The losses of two predictors on the same prompts of a shifted task.

  A loss is None for a predictor that fails on the task, such as one with learned
  positions on a longer context; `failure` then holds the error. The other loss is also
  None if there is no other predictor.
  """

  name: str  # in `task.shifts()`
  num_prompts: int
  risk: Estimate | None
  other_risk: Estimate | None
  failure: str | None = None


def task_shift(
  subject: Predictor,
  other: Predictor | None,
  name: str,
  shifted: Task,
  num_prompts: int = 2048,
  seed: int = 0,
) -> TaskShift:
  """Measures two predictors on a shifted task; large tasks get fewer prompts."""
  num_prompts = min(num_prompts, affordable(shifted))
  if num_prompts < _FEWEST:
    return TaskShift(name, 0, None, None, 'the task is too large to be measured here')
  found, failures = [], []
  for predictor in (subject, other):
    if predictor is None:
      found.append(None)
      continue
    try:
      found.append(_risk(predictor, shifted, num_prompts, seed))
    except Exception as error:  # a user's model may raise anything
      reason = in_one_line(error, 200)
      kind = type(predictor).__name__
      failures.append(f'{kind}: {type(error).__name__}: {reason}')
      found.append(None)
  return TaskShift(name, num_prompts, *found, failure='; '.join(failures) or None)


def _risk(predictor: Predictor, task: Task, num_prompts: int, seed: int) -> Estimate:
  at = [task.context_length]
  losses = sample_losses({'': predictor}, task, num_prompts, seed, lengths=at)['']
  return estimate(losses[:, -1])
