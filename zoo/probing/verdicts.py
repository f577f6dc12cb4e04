"""The sentences of a report: which algorithm is nearest, and is it gradient descent?"""

from collections.abc import Sequence

import numpy as np

from zoo.measure.comparison import MODEL, Comparison
from zoo.measure.intervals import Estimate
from zoo.measure.tests import above_zero, apart_from_extreme
from zoo.probing.nearest.candidates import AboveBayes, Candidates
from zoo.probing.nearest.context import SHARE_ROUNDING
from zoo.probing.nearest.implicit import ImplicitAlgorithm
from zoo.probing.nearest.sampled import GD, GD_BETA, SampledAlgorithm, is_a_step
from zoo.tasks import LinearRegression

# A predictor counts as gradient descent if the nearest step leaves at most this share
# of the variation over contexts unexplained, and no other algorithm is nearer.
UNEXPLAINED = 0.01
# A step matrix of at most this share of the best one is 0 up to rounding.
_NO_STEP = 1e-6


def name_nearest(candidates: Candidates | None, above: AboveBayes | None = None) -> str:
  """Returns a sentence that names the nearest algorithm, and what it does not explain.

  The nearest algorithm is one of those that were fitted, by closed forms or to samples,
  with two exceptions. A baseline of the task is named if it is nearer, with Holm's
  correction over all baselines. A step with a matrix, which contains the step of
  gradient descent, is named only if it is nearer beyond the interval of the
  difference, and the step of gradient descent leaves more than the limit of the
  verdict. The sentence also lists the algorithms that cannot be distinguished from the
  nearest one, with Bonferroni's correction over all pairs, and says how far the loss is
  above that of Bayes. It is empty for a predictor that ignores its context, and if
  nothing was measured.
  """
  if candidates is None or not candidates.gaps:
    return ''
  fitted = _fitted_names(candidates)
  known = [name for name in candidates.gaps if name in candidates.baselines]
  left = {name: candidates.unexplained(name) for name in fitted + known}
  best = min(fitted or known, key=lambda name: left[name].mean)
  if nearer := _nearer(candidates, known, than=best):
    best = min(nearer, key=lambda name: left[name].mean)
  name, share = _in_words(candidates, best), shown_share(left[best])
  said = f'The nearest algorithm is {name}, which leaves {share}'
  if left[best].mean > 0.5:
    said = 'No algorithm explains half of the variation: '
    said += f'the nearest, {name}, leaves {share}'
  said += ' of the variation over contexts unexplained'
  others = [name for name in left if name != best]
  gaps = [candidates.farther(name, best) for name in others]
  is_apart = apart_from_extreme(gaps, SHARE_ROUNDING)
  alike = [name for name, apart in zip(others, is_apart, strict=True) if not apart]
  shown = [name for name in alike if name in fitted]
  if of_task := [name for name in alike if name in known]:
    shown.append(f"the task's {', '.join(of_task)}")
  if shown:
    said += f'; not told apart from it: {" and ".join(shown)}'
  return f'{said}{_above_in_words(above)}.'


def _fitted_names(candidates: Candidates) -> list[str]:
  """Returns the names of the fitted algorithms among which the nearest is chosen."""
  fitted = [name for name in candidates.gaps if name not in candidates.baselines]
  if GD_BETA not in fitted:
    return fitted
  is_named = candidates.unexplained(GD).mean > UNEXPLAINED
  if is_named and _nearer(candidates, [GD_BETA], than=GD):
    return fitted
  return [name for name in fitted if name != GD_BETA]


def _nearer(candidates: Candidates, names: Sequence[str], than: str) -> list[str]:
  """Returns which candidates are nearer than a given one, by Holm over all of them."""
  gaps = [candidates.farther(than, name) for name in names]
  is_nearer = above_zero(gaps, SHARE_ROUNDING)
  return [name for name, nearer in zip(names, is_nearer, strict=True) if nearer]


def _rivals(candidates: Candidates | None) -> str:
  """Returns the algorithms that are nearer than the step of gradient descent, in words.

  They are tested on the same prompts, by Holm over all that are no step of gradient
  descent. A fitted step with a matrix contains the step, so that it is no rival. The
  result is empty if no algorithm is nearer.
  """
  if candidates is None or GD not in candidates.gaps:
    return ''
  others = [name for name in candidates.gaps if not is_a_step(name)]
  nearer = _nearer(candidates, others, than=GD)
  nearer.sort(key=lambda name: candidates.unexplained(name).mean)
  return ' and '.join(
    f'{_in_words(candidates, name)} ({shown_share(candidates.unexplained(name))})'
    for name in nearer[:2]
  )


def _in_words(candidates: Candidates, name: str) -> str:
  return f"the task's {name}" if name in candidates.baselines else name


def _above_in_words(above: AboveBayes | None) -> str:
  """Returns how far the loss of a model is above that of Bayes, after a semicolon."""
  if above is None:
    return ''
  said = f"; the model's loss is {above.loss.mean:.3g} ± {above.loss.half:.2g} above"
  said += ' that of Bayes'
  if above.share is None:
    return f'{said}, which makes no error'
  return f"{said}, {shown_share(above.share)} of Bayes' own"


def takes_no_step(algorithm: ImplicitAlgorithm) -> bool:
  """Returns whether the step matrix of a rule is 0, up to rounding.

  The predictions of such a rule can still be near those of a step of gradient descent:
  if the weights w of its guess are large, `w·x_q − η (S w)·x_q`, a step without labels,
  is nearly the step itself.
  """
  size = np.abs(algorithm.step_matrix).max()
  return bool(size <= _NO_STEP * np.abs(algorithm.best_step_matrix).max())


def judge(
  algorithm: ImplicitAlgorithm, task: LinearRegression, candidates: Candidates | None
) -> tuple[bool, str]:
  """Returns whether an algorithm is one step of gradient descent, and why.

  No candidate may be nearer than the step. The step must explain the variation over
  contexts, and that of the labels alone: from a large start, `w_0·x_q − η (S w_0)·x_q`,
  which reads no labels, is nearly the whole prediction. The start of the nearest step
  is compared with the prior mean.
  """
  nearest = algorithm.nearest_gd
  if nearest.unexplained is None:
    return False, 'No: it ignores its context.'
  if takes_no_step(algorithm):
    return False, 'No: its step matrix is 0, so no step follows the labels.'
  distance = np.linalg.norm(nearest.start - task.mean_weights())
  step = (
    f'one step of size {nearest.step:.4f} from w_0, which is {distance:.3g} from the '
    f'prior mean, leaves {percent(nearest.unexplained)}'
  )
  of_odd_part = nearest.unexplained_of_odd_part
  if nearest.unexplained > UNEXPLAINED:
    return False, f'No: the nearest step, {step}.'
  if of_odd_part is None or of_odd_part > UNEXPLAINED:
    left = percent(1.0 if of_odd_part is None else of_odd_part)
    return False, f'No: {step}, but {left} of what the labels change.'
  if rivals := _rivals(candidates):
    return False, f'No: {step}; nearer is {rivals}.'
  return True, f'Yes: {step}.'


def judge_by_samples(
  algorithm: SampledAlgorithm, candidates: Candidates | None
) -> tuple[bool | None, str]:
  """Returns the verdict on a predictor without a learning rule, from samples.

  No candidate may be nearer than the step.
  Whether it is a step of gradient descent is None if the samples leave it undecided.
  """
  nearest = algorithm.nearest_gd
  if nearest.unexplained is None and not algorithm.ignores_labels:
    return False, 'No: it ignores its context.'
  if nearest.unexplained is None:
    return False, 'No: it ignores the labels of its context.'
  step = f'one step of size {nearest.parameter:.4f}'
  if nearest.start_distance is not None:
    step += f' from w_0, which is {nearest.start_distance:.3g} from the prior mean,'
  step += f' leaves {shown_share(nearest.unexplained)}'
  sampled = '(sampled; it has no learning rule)'
  if _is_beyond(nearest.unexplained):
    return False, f'No: the nearest step, {step} {sampled}.'
  if rivals := _rivals(candidates):
    return False, f'No: {step}; nearer is {rivals} {sampled}.'
  of_labels = nearest.unexplained_of_labels
  if of_labels is None:
    return None, (
      f'Undecided: {step}, and what the labels change is too small to measure '
      f'{sampled}.'
    )
  if not _is_within(of_labels):
    step += f', and {shown_share(of_labels)} of what the labels change'
  if _is_beyond(of_labels):
    return False, f'No: {step} {sampled}.'
  if _is_within(nearest.unexplained) and _is_within(of_labels):
    return True, f'Yes: {step} {sampled}.'
  return None, (
    f'Undecided: {step}, where mean ± half contains the limit of '
    f'{percent(UNEXPLAINED)}; more prompts would tell {sampled}.'
  )


def _is_within(share: Estimate) -> bool:
  """Returns whether the interval of a share is below the limit."""
  return share.mean + share.half <= UNEXPLAINED


def _is_beyond(share: Estimate) -> bool:
  """Returns whether the interval of a share is above the limit."""
  return share.mean - share.half > UNEXPLAINED


def judge_by_baselines(comparison: Comparison) -> str:
  """Returns a sentence that compares a model's loss with the baselines of its task."""
  gaps = {
    name: Estimate(gap, stderr, row['num_prompts'])
    for name, row in comparison.items()
    if name != MODEL
    and (gap := row['difference']) is not None
    and (stderr := row['difference_stderr']) is not None
  }
  better = [
    f'{name} (by {gap.mean:.3g} ± {gap.half:.2g})'
    for (name, gap), above in zip(
      gaps.items(), above_zero([*gaps.values()]), strict=True
    )
    if above
  ]
  loss = comparison[MODEL]['mean'][-1]
  said = f'Unknown: no theory covers its task. Its loss, {loss:.4g}, is above that of'
  if better:
    return f'{said} {", ".join(better)}.'
  return f'{said} no baseline that it is told apart from.'


def percent(share: float) -> str:
  """Returns a share as a percentage.

  It has three digits, or all digits before the point if there are more.
  """
  return f'{100 * share:.3g} %' if share < 10 else f'{100 * share:.0f} %'


def shown_share(share: Estimate) -> str:
  """Returns a share with half of its interval, unless it is exact."""
  if not share.stderr:
    return percent(share.mean)
  error = 100 * share.half
  return f'{percent(share.mean)} ± {error:{".2g" if error < 100 else ".0f"}} %'
