"""The verdict: is a predictor one step of gradient descent?"""

import numpy as np

from zoo.measure.comparison import MODEL, Comparison
from zoo.probing.implicit import ImplicitAlgorithm
from zoo.probing.nearest import SampledAlgorithm
from zoo.tasks import LinearRegression

# A predictor counts as gradient descent if the nearest step leaves at most this share
# of the context's effect unexplained.
UNEXPLAINED = 0.01
_SIGNIFICANT = 2  # standard errors; `judge_by_baselines` writes this number out


def judge(found: ImplicitAlgorithm, task: LinearRegression) -> tuple[bool, str]:
  """Whether an algorithm is one step of gradient descent, and a sentence that says why.

  The start of the nearest step is compared with the prior mean of `task`.
  """
  nearest, matrix = found.nearest_gd, found.nearest_gd_beta
  if nearest.unexplained is None:
    return False, 'No: it ignores its context.'
  distance = np.linalg.norm(nearest.start - task.prior_mean)
  step = (
    f'one step of size {nearest.step:.4f} from w_0, which is {distance:.3g} from the '
    f'prior mean, leaves {percent(nearest.unexplained)} of the effect of the context '
    'unexplained'
  )
  if nearest.unexplained <= UNEXPLAINED:
    return True, f'Yes: {step}.'
  if matrix.unexplained is not None and matrix.unexplained <= UNEXPLAINED:
    return False, (
      'No, but one step with a matrix (GD-β) leaves only '
      f'{percent(matrix.unexplained)} unexplained; {step}.'
    )
  return False, f'No: the nearest step, {step}.'


def judge_by_samples(found: SampledAlgorithm) -> tuple[bool, str]:
  """The verdict on a predictor without a learning rule, from sampled predictions."""
  nearest = found.nearest_gd
  if nearest.unexplained is None:
    return False, 'No: it ignores its context.'
  step = f'one step of size {nearest.parameter:.4f}'
  if nearest.distance is not None:
    step += f' from w_0, which is {nearest.distance:.3g} from the prior mean,'
  share, stderr = map(percent, nearest.unexplained)
  step += f' leaves {share} ± {stderr} of the effect of the context unexplained'
  sampled = '(sampled; it has no learning rule)'
  mean, error = nearest.unexplained
  if mean + _SIGNIFICANT * error <= UNEXPLAINED:
    return True, f'Yes: {step} {sampled}.'
  if mean - _SIGNIFICANT * error <= UNEXPLAINED:
    return False, (
      f'Undecided: {step}, which is within two standard errors of the limit of '
      f'{percent(UNEXPLAINED)}; more prompts would tell {sampled}.'
    )
  others = {
    'one step with a matrix (GD-β)': found.nearest_gd_beta.unexplained,
    'ridge regression': found.nearest_ridge.unexplained,
  }
  for name, unexplained in others.items():
    if unexplained is not None and unexplained.mean <= UNEXPLAINED:
      return False, (
        f'No, but {name} leaves only {percent(unexplained.mean)} unexplained; '
        f'{step} {sampled}.'
      )
  return False, f'No: the nearest step, {step} {sampled}.'


def judge_by_baselines(comparison: Comparison) -> str:
  """A sentence that compares a model's loss with the baselines of its task."""
  better = [
    f'{name} (by {gap:.3g} ± {stderr:.2g})'
    for name, one in comparison.items()
    if (gap := one['difference']) is not None
    and (stderr := one['difference_stderr']) is not None
    and gap > _SIGNIFICANT * stderr
  ]
  loss = comparison[MODEL]['mean'][-1]
  said = f'Unknown: no theory covers its task. Its loss, {loss:.4g}, is above that of'
  if better:
    return f'{said} {", ".join(better)}.'
  return f'{said} no baseline by more than two standard errors.'


def percent(share: float) -> str:
  """A share as a percentage, to three digits."""
  return f'{100 * share:.3g} %'
