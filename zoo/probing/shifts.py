"""The losses of predictors on tasks other than the training task."""

import dataclasses

from zoo.core.errors import in_one_line
from zoo.core.protocols import Predictor, Task
from zoo.measure.comparison import affordable
from zoo.measure.curves import sample_losses
from zoo.measure.intervals import Estimate, estimate
from zoo.theory.exact import known_risk

_FEWEST = 16  # prompts; a shift that allows fewer is not measured


@dataclasses.dataclass(frozen=True)
class TaskShift:
  """The losses of two predictors on the same prompts of a shifted task.

  A risk is None for a predictor that fails on the task, such as one with learned
  positions on a longer context; `failure` then holds the error.
  """

  name: str  # in `task.shifts()`
  num_prompts: int
  risk: Estimate | None
  other_risk: Estimate | None
  exact_risk: float | None = None  # None: it has no closed form
  other_exact_risk: float | None = None
  failure: str | None = None


def task_shift(
  subject: Predictor,
  other: Predictor,
  name: str,
  shifted: Task,
  num_prompts: int = 2048,
  seed: int = 0,
) -> TaskShift:
  """Measures two predictors on a shifted task; large tasks get fewer prompts."""
  num_prompts = min(num_prompts, affordable(shifted))
  if num_prompts < _FEWEST:
    why = 'the task is too large to be measured here'
    return TaskShift(name, 0, None, None, failure=why)
  at = [shifted.context_length]
  found, failures = [], []
  for predictor in (subject, other):
    risk = exact = None
    try:
      losses = sample_losses({'': predictor}, shifted, num_prompts, seed, lengths=at)
      risk = estimate(losses[''][:, -1])
      exact = known_risk(predictor, shifted)
    except Exception as error:  # a user's model may raise anything
      kind, reason = type(predictor).__name__, in_one_line(error, 200)
      failures.append(f'{kind}: {type(error).__name__}: {reason}')
    found.append((risk, exact))
  risks, exact_risks = zip(*found, strict=True)
  failure = '; '.join(failures) or None
  return TaskShift(name, num_prompts, *risks, *exact_risks, failure=failure)
