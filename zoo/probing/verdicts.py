"""The verdict: is a predictor one step of gradient descent?"""

from __future__ import annotations

import math

import numpy as np

from zoo import estimators, theory
from zoo.probing.implicit import ImplicitAlgorithm
from zoo.probing.similarity import alignment
from zoo.protocols import Predictor
from zoo.tasks import LinearRegression

# A predictor of which a step of gradient descent explains all but this share is called
# gradient descent.
UNEXPLAINED = 0.01


def judge(found: ImplicitAlgorithm, task: LinearRegression) -> tuple[bool, str]:
  """Whether an algorithm is one step of gradient descent, and a sentence that says why.

  `task` gives the prior mean, from which the start of the nearest step is measured.
  """
  nearest, matrix = found.nearest_gd, found.nearest_gd_beta
  if nearest.unexplained is None:
    return False, 'No: it ignores its context.'
  distance = np.linalg.norm(nearest.start - task.prior_mean)
  step = (
    f'one step of size {nearest.step:.4f} from w_0, which is {distance:.3g} from the '
    f'prior mean, leaves {percent(nearest.unexplained)} of what the context does to '
    'the prediction'
  )
  if nearest.unexplained <= UNEXPLAINED:
    return True, f'Yes: {step}.'
  if matrix.unexplained is not None and matrix.unexplained <= UNEXPLAINED:
    return False, (
      f'Yes, with a matrix for the step (GD-β), which leaves '
      f'{percent(matrix.unexplained)}; {step}.'
    )
  return False, f'No: of all steps, {step}.'


def judge_by_samples(
  subject: Predictor, task: LinearRegression, num_prompts: int, seed: int
) -> tuple[bool, str]:
  """The verdict on a predictor without a learning rule, from sampled predictions."""
  descent = estimators.gradient_descent(task)
  start = estimators.prior_mean(task)
  moved = float(theory.squared_difference(descent, start, task).prediction)
  gap = alignment(subject, descent, task, num_prompts, seed)
  share, stderr = (
    number / moved if moved > 0 else math.inf
    for number in gap.squared_prediction_difference
  )
  is_descent = share <= UNEXPLAINED
  return is_descent, (
    f'{"Yes" if is_descent else "No"}: its mean squared difference from the best step '
    f'is {percent(share)} ± {percent(stderr)} of what that step does (sampled; it '
    'has no learning rule).'
  )


def percent(share: float) -> str:
  """A share in per cent, to three digits."""
  return f'{100 * share:.3g} %'
