"""All probes of a model at once, and what they say in words."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
from tqdm import tqdm

from zoo import estimators, theory
from zoo.errors import UserError
from zoo.evaluation_sets import EvaluationSet
from zoo.models.linear_attention import LinearAttention
from zoo.probing.attention_heads import Head, heads
from zoo.probing.distribution_shift import SHIFTS, Shift, shift
from zoo.probing.implicit import ImplicitAlgorithm, implicit_algorithm
from zoo.probing.paths import (
  Interpolation,
  constructed_optimum,
  interpolation,
)
from zoo.probing.scores import Score, score
from zoo.probing.similarity import Alignment, alignment, has_rule

# A predictor of which a step of gradient descent explains all but this share is called
# gradient descent.
UNEXPLAINED = 0.01

# The estimators that a model can be compared with by name.
REFERENCES = {
  'gd': 'one step of gradient descent from the prior mean, of the best size',
  'gd_beta': 'one step from the prior mean with the best matrix (GD-β)',
  'bayes': 'the posterior mean',
}


@dataclasses.dataclass(frozen=True)
class Report:
  """What `probe` found; None for what does not exist for a predictor or a task."""

  is_gradient_descent: bool
  verdict: str
  against: str
  algorithm: ImplicitAlgorithm | None
  alignment: Alignment
  heads: list[Head] | None
  to_other: Interpolation | None
  to_optimum: Interpolation | None  # to the constructed one, through the weights too
  shifts: list[Shift]
  score: Score | None = None  # on a frozen set, where one was given

  def to_json(self) -> str:
    """The report as JSON; what is not finite is null."""
    return json.dumps(_plain(dataclasses.asdict(self)), indent=2, allow_nan=False)


def reference(name: str, task: Any) -> Any:
  """One of REFERENCES for a task; UserError for another name or task."""
  if name not in REFERENCES:
    raise UserError(f'unknown estimator {name!r}; known: {", ".join(REFERENCES)}')
  theory.task_moments(task)  # the estimators know the tasks that theory does
  make = {
    'gd': estimators.gradient_descent,
    'gd_beta': estimators.gd_beta,
    'bayes': estimators.bayes,
  }
  return make[name](task)


def probe(
  subject: Any,
  task: Any,
  against: Any = 'gd',
  against_name: str | None = None,
  num_prompts: int = 65536,
  seed: int = 0,
  evaluation_set: EvaluationSet | None = None,
) -> Report:
  """Probes a model, an estimator or a rule on a task, beside another predictor.

  `against` is one of REFERENCES, or a predictor. Both are scored on the prompts of an
  `evaluation_set` too, as they are: a reference stays that of this task. Raises
  UserError for what cannot be called on the task's prompts, or names no reference.
  """
  other = reference(against, task) if isinstance(against, str) else against
  if against_name is None:
    against_name = against if isinstance(against, str) else type(against).__name__
  scored = None
  if evaluation_set is not None:
    scored = score(subject, other, evaluation_set)
  covered = theory.covers(task)
  exact = covered and has_rule(subject)
  aligned = alignment(subject, other, task, num_prompts, seed)
  algorithm = found_heads = to_other = to_optimum = None
  if exact:
    algorithm = implicit_algorithm(subject, task)
    is_descent, verdict = judge(algorithm, task)
    if isinstance(subject, LinearAttention):
      found_heads = heads(subject, task)
    if has_rule(other):
      to_other = interpolation(subject, other, task)
    if (optimum := constructed_optimum(subject, task)) is not None:
      to_optimum = interpolation(subject, optimum, task)
  elif covered:
    is_descent, verdict = judge_by_samples(subject, task, num_prompts, seed)
  else:
    is_descent, verdict = False, 'Unknown: no theory covers its task.'
  # Each shift is compiled anew; the bar is for a terminal alone.
  kinds = tqdm(SHIFTS if covered else (), 'shifts', leave=False, disable=None)
  shifts = [shift(subject, other, task, kind, seed=seed) for kind in kinds]
  return Report(
    is_gradient_descent=is_descent,
    verdict=verdict,
    against=against_name,
    algorithm=algorithm,
    alignment=aligned,
    heads=found_heads,
    to_other=to_other,
    to_optimum=to_optimum,
    shifts=shifts,
    score=scored,
  )


def summary(report: Report) -> str:
  """The report in words and in one table a part, for a terminal."""
  lines = [f'Is it doing gradient descent? {report.verdict}']
  if report.algorithm is not None:
    lines += ['', *_algorithm_lines(report.algorithm)]
  lines += ['', *_alignment_lines(report.alignment, report.against)]
  if report.score is not None:
    lines += ['', *_score_lines(report.score, report.against)]
  if report.heads is not None and len(report.heads) > 1:
    lines += ['', *_head_lines(report.heads)]
  if report.to_optimum is not None and report.to_optimum.weight_risk is not None:
    lines += ['', *_path_lines(report.to_optimum)]
  if report.shifts:
    lines += ['', *_shift_lines(report.shifts, report.against)]
  return '\n'.join(lines)


def judge(found: ImplicitAlgorithm, task: Any) -> tuple[bool, str]:
  """Whether an algorithm is one step of gradient descent, and why, in a sentence."""
  nearest, matrix = found.nearest_gd, found.nearest_gd_beta
  if nearest.unexplained is None:
    return False, 'No: it ignores its context.'
  distance = np.linalg.norm(nearest.start - task.prior_mean)
  step = (
    f'one step of size {nearest.step:.4f} from w_0, which is {distance:.3g} from the '
    f'prior mean, leaves {_percent(nearest.unexplained)} of what the context does to '
    'the prediction'
  )
  if nearest.unexplained <= UNEXPLAINED:
    return True, f'Yes: {step}.'
  if matrix.unexplained is not None and matrix.unexplained <= UNEXPLAINED:
    return False, (
      f'Yes, with a matrix for the step (GD-β), which leaves '
      f'{_percent(matrix.unexplained)}; {step}.'
    )
  return False, f'No: of all steps, {step}.'


def judge_by_samples(
  subject: Any, task: Any, num_prompts: int, seed: int
) -> tuple[bool, str]:
  """The verdict on what has no learning rule: its distance from the best step."""
  descent = estimators.gradient_descent(task)
  start = estimators.prior_mean(task)
  moved = float(theory.squared_difference(descent, start, task).prediction)
  gap = alignment(subject, descent, task, num_prompts, seed)
  share, stderr = (
    number / moved if moved > 0 else math.inf
    for number in (
      gap.squared_prediction_difference.mean,
      gap.squared_prediction_difference.stderr,
    )
  )
  is_descent = share <= UNEXPLAINED
  return is_descent, (
    f'{"Yes" if is_descent else "No"}: its mean squared difference from the best step '
    f'is {_percent(share)} ± {_percent(stderr)} of what that step does (sampled; it '
    'has no learning rule).'
  )


def _algorithm_lines(found: ImplicitAlgorithm) -> list[str]:
  excess = dataclasses.asdict(found.excess)
  total = sum(excess.values())
  words = {
    'guess_mean': 'guess off on average',
    'guess_spread': "guess's correction varies",
    'offset': 'offset that ignores the query',
    'step_size': 'step too long or too short',
    'step_shape': "rest of the step's matrix",
  }

  def row(name: str, value: float, note: str = '') -> str:
    return f'{name:<36}{value:>14.6f}  {note}'.rstrip()

  best = np.trace(found.best_step_matrix) / len(found.best_step_matrix)
  lines = [
    f'{"exact":>50}',
    row('risk', found.risk),
    row('risk of the nearest step', found.nearest_gd.risk),
    row('optimum over all rules', found.optimal_risk),
    row('excess over it', total),
  ]
  lines += [
    # Of an excess of rounding size the shares say nothing.
    row(f'  {words[name]}', value, _percent(value / total) if total > 1e-9 else '')
    for name, value in excess.items()
  ]
  lines += [
    row('|initial guess − prior mean|', found.start_distance),
    row('step size, tr Γ / d', found.step_size, f'best {best:.6f}'),
    row('|Γ − that multiple of I| / |Γ|', found.anisotropy),
  ]
  constant = found.pseudo_constant
  # Of a guess that is right but for rounding there is nothing to make up for.
  wrong = found.start_distance > 0.01 * max(np.linalg.norm(found.mean_weights), 1.0)
  if constant is not None and constant.unexplained is not None and wrong:
    note = (
      f'optimum {constant.optimum:.6f}; leaves {_percent(constant.unexplained)} of the '
      'correction'
    )
    lines.append(row('pseudo-constant p of p·tr(XᵀX)/C', constant.value, note))
  return lines


def _alignment_lines(found: Alignment, against: str) -> list[str]:
  exact = found.exact
  rows = [
    ('E |f − f′|', found.prediction_difference, None),
    ('E |∂f/∂x_q − ∂f′/∂x_q|', found.gradient_difference, None),
    ('E cos(∂f/∂x_q, ∂f′/∂x_q)', found.cosine_similarity, None),
    (
      'E (f − f′)²',
      found.squared_prediction_difference,
      exact and exact.squared_prediction_difference,
    ),
    (
      'E |∂f/∂x_q − ∂f′/∂x_q|²',
      found.squared_gradient_difference,
      exact and exact.squared_gradient_difference,
    ),
  ]
  lines = [f'{f"against {against}":<36}{"sampled ± s.e.":>24}{"exact":>14}']
  for name, estimate, value in rows:
    sampled = f'{estimate.mean:.6f} ± {estimate.stderr:.6f}'
    closed = '' if value is None else f'{value:.6f}'
    lines.append(f'{name:<36}{sampled:>24}{closed:>14}'.rstrip())
  return lines


def _score_lines(found: Score, against: str) -> list[str]:
  title = f'on {found.evaluation_set} {found.version}, {found.num_prompts} prompts'
  rows = [
    ('its risk', found.risk, found.exact_risk),
    (f'risk of {against}', found.other_risk, found.other_exact_risk),
    ('difference, same prompts', found.risk_difference, None),
    ('optimum over all rules', None, found.optimal_risk),
  ]
  lines = [f'{title:<36}{"sampled ± s.e.":>24}{"exact":>14}']
  for name, estimate, value in rows:
    cell = '' if estimate is None else f'{estimate.mean:.6f} ± {estimate.stderr:.6f}'
    closed = '' if value is None else f'{value:.6f}'
    lines.append(f'{name:<36}{cell:>24}{closed:>14}'.rstrip())
  if not found.same_bits:
    lines.append('(some of its numbers are rounded otherwise than in the recorded set)')
  return lines


def _head_lines(found: list[Head]) -> list[str]:
  lines = [f'{"head":<8}{"share of the update":>20}{"cost of pruning it":>20}']
  for number, head in enumerate(found):
    share = '-' if head.share is None else _percent(head.share)
    lines.append(f'{number:<8}{share:>20}{head.pruning_cost:>20.6f}')
  return lines


def _path_lines(path: Interpolation) -> list[str]:
  assert path.weight_risk is not None
  top = int(np.argmax(path.weight_risk))
  ends = f'{path.weight_risk[0]:.6f} to {path.weight_risk[-1]:.6f}'
  return [
    f'On the line through the weights to the constructed optimum the risk goes from '
    f'{ends}; its highest value is {path.weight_risk[top]:.6f}, '
    f'at {path.fraction[top]:.2f} of the way.'
  ]


def _shift_lines(shifts: list[Shift], against: str) -> list[str]:
  lines = [
    f'{"worst shift, over the best rule":<36}{"at":>8}{"it":>14}{against[:13]:>14}'
  ]
  lines[0] += f'{"best rule":>14}'
  for one in shifts:
    worst = max(one.risks, key=lambda risk: risk.sampled.mean / risk.optimal)
    numbers = (
      worst.sampled.mean if worst.exact is None else worst.exact,
      worst.other_sampled.mean if worst.other_exact is None else worst.other_exact,
      worst.optimal,
    )
    cells = ''.join(f'{number:>14.4f}' for number in numbers)
    lines.append(f'{one.name:<36}{worst.value:>8g}{cells}')
  return lines


def _percent(share: float) -> str:
  return f'{100 * share:.3g} %'


def _plain(value: Any) -> Any:
  if isinstance(value, dict):
    return {name: _plain(part) for name, part in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(part) for part in value]
  if isinstance(value, np.ndarray | np.generic):
    return _plain(value.tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
