"""The losses of predictors on tasks other than the training task."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from absl import logging
from flax import nnx
from jaxtyping import PyTree

from zoo.core.errors import UserError, in_one_line
from zoo.core.protocols import Predictor, Task, require_task
from zoo.core.trees import fresh
from zoo.measure.comparison import affordable
from zoo.measure.curve import sample_losses
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import Programs
from zoo.theory.exact import known_risk

_FEWEST = 16  # a shift that allows fewer prompts is not measured


@dataclasses.dataclass(frozen=True)
class TaskShift:
  """The losses of two predictors on the same prompts of a shifted task.

  Attributes:
    name: The name of the shift in `task.shifts()`.
    num_prompts: The number of prompts; 0 if nothing was measured.
    risk: The mean loss of the first predictor. None if it was not measured.
    other_risk: The mean loss of the other predictor. None if it was not measured.
    exact_risk: The exact risk of the first predictor. None without a closed form.
    other_exact_risk: The exact risk of the other predictor. None without a closed form.
    failure: Why a loss was not measured. None if both were.
  """

  name: str
  num_prompts: int
  risk: Estimate | None
  other_risk: Estimate | None
  exact_risk: float | None = None
  other_exact_risk: float | None = None
  failure: str | None = None


def task_shift(
  subject: Predictor,
  other: Predictor,
  name: str,
  shifted: Task,
  num_prompts: int = 2048,
  seed: int = 0,
  programs: Programs | None = None,
) -> TaskShift:
  """Measures two predictors on a shifted task.

  - Quantity: E ℓ(f, y) of each predictor, over the same prompts of the shifted task.
  - Null: equal losses, for a predictor beside itself.
  - Counterfactual: the prompts of the shifted task.

  Args:
    subject: A model, an estimator or a learning rule.
    other: Another one.
    name: The name of the shift, for the result.
    shifted: The shifted task, such as one of `task.shifts()`.
    num_prompts: The largest number of prompts. Large tasks get fewer. With fewer than
      16 prompts nothing is measured.
    seed: The seed of the prompts.
    programs: Compiled programs of earlier calls, by which tasks that differ in numbers
      alone are compiled once. None compiles anew.

  Returns:
    The losses. An error of a predictor is not raised, but stands in `failure`.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> step = zoo.estimators.gradient_descent(task, 0.5, 1)
    >>> noisy = task.shifts()['noise_std=1']
    >>> shift = zoo.probing.task_shift(step, step, 'noise_std=1', noisy, num_prompts=32)
    >>> shift.risk == shift.other_risk
    True
  """
  require_task(shifted)
  if min(num_prompts, affordable(shifted)) < _FEWEST:
    c, d = shifted.context_length, shifted.num_features
    why = (
      f'num_prompts is {num_prompts}; it must be at least {_FEWEST}'
      if num_prompts < _FEWEST
      else f'the task is too large: of prompts with {c:,} examples and {d:,} features '
      f'fewer than {_FEWEST} can be measured in about ten seconds'
    )
    return TaskShift(name, 0, None, None, failure=why)
  num_prompts = min(num_prompts, affordable(shifted))
  at = [shifted.context_length]
  estimates, failures = [], []
  for predictor in (subject, other):
    risk = exact = None
    try:
      losses = sample_losses(
        {'': predictor}, shifted, num_prompts, seed, lengths=at, programs=programs
      )
      risk = estimate(losses[''][:, -1])
      exact = known_risk(predictor, shifted)
    except Exception as error:  # a user's model may raise anything
      kind, reason = type(predictor).__name__, in_one_line(error, 200)
      failures.append(f'{kind}: {type(error).__name__}: {reason}')
      if not isinstance(error, UserError):  # only then a traceback is of use
        logging.warning('%s is not measured on %s', kind, name, exc_info=True)
    estimates.append((risk, exact))
  risks, exact_risks = zip(*estimates, strict=True)
  failure = '; '.join(failures) or None
  return TaskShift(name, num_prompts, *risks, *exact_risks, failure=failure)


def not_taken(
  subject: Predictor, task: Task, shifts: Mapping[str, Task]
) -> dict[str, TaskShift]:
  """Returns the shifts to other numbers of examples whose prompts a model cannot take.

  A model with learned positions, for example, cannot take longer prompts. Nothing is
  computed, because the model is only traced. All these shifts have the same `failure`.
  """
  reasons = {
    name: reason
    for name, shifted in shifts.items()
    if isinstance(subject, nnx.Module)
    and shifted.context_length != task.context_length
    and (reason := _refusal(subject, shifted))
  }
  if not reasons:
    return {}
  first, reason = next(iter(reasons.items()))
  why = f'the model cannot take these prompts (for {first}: {reason})'
  return {name: TaskShift(name, 0, None, None, failure=why) for name in reasons}


def _refusal(model: nnx.Module, task: Task) -> str | None:
  """Returns why a model cannot be called on a task's prompts; None if it can."""
  graph, state = nnx.split(model)

  def predict(state: PyTree, key: jax.Array) -> jax.Array:
    return nnx.merge(graph, state)(fresh(task).sample_batch(key, 2))

  try:
    jax.eval_shape(predict, state, jax.random.key(0))
  except Exception as error:  # a user's model may refuse other shapes by any error
    kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
    return f'{kind}{in_one_line(error, 200)}'
  return None


def in_short(names: Sequence[str]) -> str:
  """Returns names of shifts, joined by kind: `scale_x=2, 3 and skewed`."""
  numbers: dict[str, list[str]] = {}
  for name in names:
    kind, equals, number = name.partition('=')
    numbers.setdefault(kind + equals, []).append(number)
  return ' and '.join(kind + ', '.join(values) for kind, values in numbers.items())
