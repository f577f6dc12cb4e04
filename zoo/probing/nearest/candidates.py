"""Candidates for the algorithm of a predictor, compared on the same prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jaxtyping import Array, Float

from zoo.core.errors import UserError, in_one_line
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task, require_task
from zoo.estimators.baselines import Baseline, distinct
from zoo.measure.comparison import affordable
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import (
  BATCH_SIZE,
  Programs,
  at_query,
  gather,
  in_batches,
  sample_batches,
)
from zoo.measure.ratio import ratio
from zoo.probing.checks import check_finite
from zoo.probing.nearest.context import (
  ignores_context,
  ignores_labels,
  variation_of_numbers,
  with_others,
)
from zoo.tasks.base import is_squared

_NUM_SLOW_PROMPTS = 512  # This is the number of prompts of a slow baseline.
# Errors of Bayes below this share of the mean square of the labels are rounding: least
# squares loses digits on features that hardly determine the weights.
_LEAST_ERROR = 1e-4


@dataclasses.dataclass(frozen=True)
class AboveBayes:
  """How far the loss of a predictor is above that of Bayes, for the squared error.

  Attributes:
    loss: E (f − g)² for the predictions f of the predictor and g of Bayes. The loss of
      f is above that of g by this number.
    share: `loss` divided by the loss of Bayes itself. None if Bayes makes no error, up
      to rounding.
  """

  loss: Estimate
  share: Estimate | None


@dataclasses.dataclass(frozen=True)
class Candidates:
  """Algorithms that may be what a predictor f computes, on the same prompts.

  Attributes:
    gaps: The squared difference (f − g)² of each prompt, by the name of the algorithm
      g. A slow algorithm has the first prompts only.
    variation: For each prompt a number whose mean is the variation over contexts,
      E Var(f | x_q).
    baselines: The names of those that are baselines of the task. The others are fitted
      to the predictor.
    exact: The shares that are known without samples, by name.
  """

  gaps: Mapping[str, Float[np.ndarray, ' q']]
  variation: Float[np.ndarray, ' p']
  baselines: Collection[str] = ()
  exact: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def unexplained(self, name: str) -> Estimate:
    """Returns the share of the variation over contexts that an algorithm leaves."""
    if name in self.exact:
      return Estimate(self.exact[name], 0.0)
    gap = self.gaps[name]
    return ratio(gap, self.variation[: len(gap)])

  def farther(self, name: str, other: str) -> Estimate:
    """Returns the share that one algorithm leaves minus that of another.

    The difference is paired: it is over the prompts that both have.
    """
    if name in self.exact and other in self.exact:
      return Estimate(self.exact[name] - self.exact[other], 0.0)
    gap, less = self.gaps[name], self.gaps[other]
    count = min(len(gap), len(less))
    return ratio(gap[:count] - less[:count], self.variation[:count])


def measure_candidates(
  subject: Predictor,
  task: Task,
  algorithms: Mapping[str, Predictor],
  num_prompts: int,
  seed: int,
) -> tuple[Candidates, AboveBayes | None]:
  """Compares a predictor with given algorithms and with the baselines of its task.

  The prompts are those of `sampled_algorithm` with the same number and seed. Baselines
  that predict the same are one candidate, such as `ols, bayes`. Baselines of other
  libraries are left out, and so is one that fails, with a warning. Large tasks and slow
  baselines get fewer prompts.

  Args:
    subject: A model or any other function of prompts.
    task: A task whose labels are numbers, with the squared error.
    algorithms: Further algorithms, by name.
    num_prompts: The number of prompts.
    seed: The seed of the prompts.

  Returns:
    The candidates; there are none for a predictor that ignores its context, or the
    labels of its context. Also the excess over Bayes; None if the task has no Bayes
    predictor.

  Raises:
    UserError: If labels are not numbers, or the loss is not the squared error; if the
      task does not define how its prompts are drawn again.
  """
  require_task(task)
  check_numbers(task)
  programs = Programs()
  prompts = [*sample_batches(task, seed, num_prompts, BATCH_SIZE, programs)]
  own, variation, is_measured = predict_with_variation(
    programs, subject, task, prompts, seed
  )
  prompt = jax.tree.map(lambda *parts: jnp.concatenate(parts), *prompts)
  most = max(min(num_prompts, affordable(task)), 2)
  gaps: dict[str, np.ndarray] = {}
  above = None
  baselines = distinct(task.baselines())
  for name, algorithm in (baselines | {**algorithms}).items():
    is_slow = isinstance(algorithm, Baseline) and algorithm.is_slow
    count = min(most, _NUM_SLOW_PROMPTS) if is_slow else most
    theirs = _attempt(name, algorithm, in_batches(prompt, count, BATCH_SIZE), programs)
    if theirs is None:
      continue
    gap = np.square(own[:count] - theirs)
    if is_measured:
      gaps[name] = gap
    if 'bayes' in name.split(', '):
      targets = np.asarray(prompt.y_query[:count], np.float64)
      above = _above_bayes(gap, theirs, targets)
  names = [name for name in gaps if name in baselines]
  return Candidates(gaps, variation, names), above


def predict_with_variation(
  programs: Programs,
  subject: Predictor,
  task: Task,
  prompts: Sequence[Prompt],
  seed: int,
) -> tuple[Float[np.ndarray, ' p'], Float[np.ndarray, ' p'], bool]:
  """Returns the predictions of a predictor, and the variation over contexts at each.

  The third value is False for a predictor that ignores its context, or the labels of
  its context: no algorithm that learns explains it. Predictions that are not finite are
  a UserError.
  """

  def predict(prompt: Prompt) -> Float[Array, ' b']:
    return programs.run(at_query, [subject], prompt)[0]

  own, other = gather(
    lambda pair: (predict(pair[0]), predict(*pair[1])),
    with_others(task, prompts, seed),
  )
  own, other = own.astype(np.float64), other.astype(np.float64)
  variation = variation_of_numbers(own, other)
  check_finite('the model', own, variation)
  is_blind = ignores_context(variation, own) or ignores_labels(predict, prompts[0])
  return own, variation, not is_blind


def _attempt(
  name: str, algorithm: Predictor, prompts: Iterator[Prompt], programs: Programs
) -> Float[np.ndarray, ' p'] | None:
  """Returns the predictions of an algorithm; None if it fails, after a warning."""
  try:
    predictions = gather(
      lambda prompt: programs.run(at_query, [algorithm], prompt)[0], prompts
    )
  except Exception as error:  # A user's baseline may raise anything.
    reason = in_one_line(error, 200)
    is_own = not isinstance(error, UserError)  # Only then a traceback is of use.
    logging.warning(
      'the baseline %s is not compared: %s', name, reason, exc_info=is_own
    )
    return None
  return predictions.astype(np.float64)


def _above_bayes(
  gap: Float[np.ndarray, ' p'],
  predictions: Float[np.ndarray, ' p'],
  targets: Float[np.ndarray, ' p'],
) -> AboveBayes:
  """Returns the excess over Bayes, from the squared differences from Bayes."""
  errors = np.square(predictions - targets)
  is_known = errors.mean() > _LEAST_ERROR * np.mean(targets**2)
  return AboveBayes(estimate(gap), ratio(gap, errors) if is_known else None)


def check_numbers(task: Task) -> None:
  """Raises UserError unless labels are numbers, with the squared error."""
  if task.num_outputs != 1 or not is_squared(task):
    raise UserError(
      f'the task is of type {type(task).__name__}; a nearest step needs labels that '
      'are numbers, and the squared error'
    )
