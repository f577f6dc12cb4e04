"""All probes of a model at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from absl import logging
from flax import nnx

from zoo import estimators, theory
from zoo.core.errors import UserError, check_count, check_name, in_one_line
from zoo.core.protocols import Layered, Predictor, Task, require_task
from zoo.estimators.baselines import HostBaseline, Zero
from zoo.host.files import finite_or_null
from zoo.measure.comparison import Comparison, compare
from zoo.measure.intervals import Estimate
from zoo.measure.predict import Programs
from zoo.models.linear_attention import LinearAttention
from zoo.probing.attention_heads import Head, heads
from zoo.probing.compare import (
  Alignment,
  PairedRisks,
  TaskShift,
  alignment,
  has_rule,
  not_taken,
  risks,
  task_shift,
)
from zoo.probing.logit_lens import LayerCurve, Lens, lens
from zoo.probing.nearest.candidates import (
  AboveBayes,
  Candidates,
  measure_candidates,
)
from zoo.probing.nearest.guess import (
  LearnedGuess,
  learned_guess,
  least_queries,
)
from zoo.probing.nearest.implicit import (
  ImplicitAlgorithm,
  implicit_algorithm,
)
from zoo.probing.nearest.sampled import (
  GD,
  GD_BETA,
  SampledAlgorithm,
  fit_algorithms,
  least_prompts,
  sampled_algorithm,
)
from zoo.probing.nearest.telling import Standing, standing_of_descent
from zoo.probing.verdicts import (
  judge,
  judge_by_baselines,
  judge_by_samples,
  name_nearest,
  takes_no_step,
)
from zoo.tasks.base import is_squared

# The largest numbers of prompts: for losses, for each shifted task, and for the nearest
# algorithms.
_NUM_COMPARED = 4096
_NUM_SHIFTED = 1024
_NUM_FITTED = 16384
_NUM_QUERIES = 4096  # The initial guess is fitted to at least this many queries.
# The parts of a report that one can ask for.
SECTIONS = (
  'algorithm',
  'risks',
  'comparison',
  'alignment',
  'guess',
  'heads',
  'lens',
  'task_shifts',
  'attention',
)
COMPARING = 'risks', 'alignment', 'task_shifts'  # They compare with another predictor.


@dataclasses.dataclass(frozen=True)
class Report:
  """The results of `probe`.

  A result is None if the predictor or the task has no such thing, or if its measurement
  failed.

  Attributes:
    is_gradient_descent: Whether the predictor is one step of gradient descent. None if
      this is unknown or undecided.
    verdict: A sentence that says whether it is, and why.
    against: The name of the predictor with which it is compared.
    nearest: A sentence that names the nearest algorithm.
    risks: The losses on the prompts of `comparison`.
    comparison: The losses of the predictor and of the task's baselines, by number of
      examples.
    algorithm: The algorithm of a predictor with a learning rule, in closed form.
    sampled: The algorithms nearest to a predictor whose algorithm has no closed form.
    baselines: What each baseline of the task does not explain, as a share of the
      variation over contexts. It is empty for a predictor that ignores its context.
    above_bayes: How far the loss of the predictor is above that of Bayes, where Bayes
      and the squared error are known.
    guess: The initial guess, fitted to predictions without examples. If the algorithm
      has a closed form, which has the guess, it is fitted only if it is asked for.
    alignment: The differences from the other predictor.
    heads: The heads of a linear attention model.
    lens: The losses of predictions that are read after each layer.
    task_shifts: The losses on the tasks of `task.shifts()`, with all examples.
    failures: Why a part is missing, by its name.
  """

  is_gradient_descent: bool | None
  verdict: str
  against: str
  nearest: str = ''
  risks: PairedRisks | None = None
  comparison: Comparison | None = None
  algorithm: ImplicitAlgorithm | None = None
  sampled: SampledAlgorithm | None = None
  baselines: dict[str, Estimate] | None = None
  above_bayes: AboveBayes | None = None
  guess: LearnedGuess | None = None
  alignment: Alignment | None = None
  heads: list[Head] | None = None
  lens: Lens | None = None
  task_shifts: list[TaskShift] = dataclasses.field(default_factory=list)
  failures: dict[str, str] = dataclasses.field(default_factory=dict)

  def to_json(self) -> str:
    """Returns the report as JSON.

    Numbers that are not finite are null.
    """
    content = finite_or_null(_plain(dataclasses.asdict(self)))
    return json.dumps(content, indent=2, allow_nan=False)


def baselines_of(task: Task) -> dict[str, Predictor]:
  """Returns the baselines with which a model is compared by name, the default first.

  For a task that exact theory covers these are the best step of gradient descent from
  the prior mean, the best step with a matrix, and the posterior mean. For other tasks
  they are the task's baselines, except those that other libraries fit; if there are
  none, it is the prediction 0.

  Args:
    task: The task.

  Returns:
    The predictors by name.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> [*zoo.probing.baselines_of(task)]
    ['gd', 'gd_beta', 'bayes']
  """
  require_task(task)
  if theory.covers(task):
    return {
      'gd': estimators.gradient_descent(task),
      'gd_beta': estimators.gd_beta(task),
      'bayes': estimators.bayes(task),
    }
  predictors = {
    name: baseline
    for name, baseline in task.baselines().items()
    if not isinstance(baseline, HostBaseline)
  }
  return predictors or {'zero': Zero()}


def probe(
  subject: Predictor,
  task: Task,
  against: str | Predictor | None = None,
  against_name: str | None = None,
  num_prompts: int = 65536,
  seed: int = 0,
  only: Collection[str] = (),
) -> Report:
  """Probes a model, an estimator or a learning rule, beside another predictor.

  It calls the other functions of `zoo.probing`, as far as they apply to the subject and
  the task, and adds a verdict: which algorithm is nearest, and whether it is one step
  of gradient descent. `summary` returns the report as text.

  Args:
    subject: The predictor to probe.
    task: The task.
    against: The predictor with which it is compared: a name of `baselines_of(task)`, or
      a predictor. None means the first of these baselines.
    against_name: The name of the other predictor in the report. None means the name of
      its class.
    num_prompts: The number of prompts (≥ 2). Losses are measured on 4,096 of them at
      most, which are those of `zoo.curve` with the same seed.
    seed: The seed of the prompts.
    only: The parts to measure, some of 'algorithm', 'risks', 'comparison', 'alignment',
      'guess', 'heads', 'lens', 'task_shifts' and 'attention'. Empty means all.

  Returns:
    The report. A part that fails is None, and `failures` has its error.

  Raises:
    UserError: If the baseline or a part is unknown, if `num_prompts` is not an integer
      ≥ 2, or if a predictor cannot be called on the task's prompts.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> step = zoo.estimators.gradient_descent(task, 0.5, 1)
    >>> report = zoo.probing.probe(step, task, num_prompts=64, only=['risks'])
    >>> report.against
    'gd'
  """
  require_task(task)
  check_sections(only)
  check_count('num_prompts', num_prompts, minimum=2)
  if against is None or isinstance(against, str):
    known = baselines_of(task)
    against_name = check_name('estimator', against or next(iter(known)), known)
    against = known[against_name]
  other, against_name = against, against_name or type(against).__name__
  parts = _Parts(only)
  few = min(num_prompts, _NUM_COMPARED)
  many = num_prompts if theory.covers(task) and has_rule(subject) else few
  parts.measure('risks', risks, subject, other, task, few, seed)
  if task.num_outputs == 1:
    parts.measure('alignment', alignment, subject, other, task, many, seed)
  parts.measure('comparison', compare, subject, task, few, seed)
  if 'comparison' in parts.errors and parts.results.get('risks') is None:
    raise parts.errors['comparison']  # The subject itself cannot be measured.
  candidates = _measure_algorithm(parts, subject, task, num_prompts, seed)
  is_descent, verdict = _judge(task, parts, candidates)
  if is_descent:
    is_descent, verdict = _judge_again(verdict, parts, subject, task, num_prompts, seed)
  nearest = name_nearest(candidates, parts.results.get('above_bayes'))
  if isinstance(subject, Layered):
    parts.measure('lens', lens, subject, task, few, seed)
  if parts.wants('task_shifts'):
    few = min(num_prompts, _NUM_SHIFTED)
    parts.results['task_shifts'] = _shifts(parts, subject, other, task, few, seed)
  failures = {name: _in_words(error) for name, error in parts.errors.items()}
  failures |= parts.without()
  if 'algorithm' in failures and not _has_numbers(task):
    failures['algorithm'] = (
      'no algorithm is named if labels are classes or signs, or the loss is not the '
      'squared error'
    )
  return Report(
    is_descent, verdict, against_name, nearest, **parts.results, failures=failures
  )


def check_sections(only: Collection[str]) -> None:
  """Raises UserError for a section that a report does not have."""
  for name in only:
    check_name('section', name, SECTIONS)


def _shifts(
  parts: _Parts,
  subject: Predictor,
  other: Predictor,
  task: Task,
  num_prompts: int,
  seed: int,
) -> list[TaskShift]:
  """Returns the losses on each shifted task that the model can take."""
  shifted = parts.attempt('task_shifts', task.shifts) or {}
  refused, programs = not_taken(subject, task, shifted), Programs()
  shifts = [
    refused.get(name)
    or parts.attempt(
      f'task_shifts, {name}',
      task_shift,
      subject,
      other,
      name,
      moved,
      num_prompts,
      seed,
      programs,
    )
    for name, moved in shifted.items()
  ]
  return [shift for shift in shifts if shift is not None]


class _Parts:
  """The parts of a report, with the errors of those that could not be measured."""

  # These parts are the first to call the predictors, and so find a user's mistake.
  _CHECKS = 'risks', 'comparison'

  # The sections of the fields of the report that have other names than their section.
  _SECTION_OF: Mapping[str, str] = dict.fromkeys(
    ('sampled', 'baselines', 'above_bayes'), 'algorithm'
  )

  def __init__(self, only: Collection[str]) -> None:
    self.only = only
    self.results: dict[str, Any] = {}  # The keys are fields of the report.
    self.errors: dict[str, Exception] = {}

  def wants(self, name: str) -> bool:
    """Returns whether a field of the report is asked for."""
    return not self.only or self._SECTION_OF.get(name, name) in self.only

  def measure(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Keeps the result of a function for a field of the report."""
    if self.wants(name):
      self.results[name] = self.attempt(name, function, *arguments)

  def without(self) -> dict[str, str]:
    """Returns the sections that were asked for, and neither found nor failed."""
    known = {self._SECTION_OF.get(name, name) for name in (*self.results, *self.errors)}
    missing = [name for name in self.only if name not in {*known, 'attention'}]
    return dict.fromkeys(missing, 'the model or its task has none')

  def attempt(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of a function; None if it fails, after a warning."""
    logging.info('probe: %s', name)
    try:
      return function(*arguments)
    except Exception as error:  # A user's predictor or task may raise any error.
      if isinstance(error, UserError) and name in self._CHECKS:
        raise
      self.errors[name] = error
      own = not isinstance(error, UserError)  # A traceback is of use only then.
      said = _in_words(error)
      logging.warning('%s is left out of the report: %s', name, said, exc_info=own)
      return None


def _in_words(error: Exception) -> str:
  kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
  return f'{kind}{in_one_line(error, 200)}'


def _has_numbers(task: Task) -> bool:
  """Returns whether labels are numbers, with the squared error."""
  return task.num_outputs == 1 and is_squared(task)


def _measure_algorithm(
  parts: _Parts, subject: Predictor, task: Task, num_prompts: int, seed: int
) -> Candidates | None:
  """Measures which algorithm is nearest, and returns the candidates."""
  fitted = max(min(num_prompts, _NUM_FITTED), least_prompts(task.num_features))
  has_closed_form = theory.covers(task) and has_rule(subject)
  candidates = None
  if has_closed_form:
    parts.measure('algorithm', implicit_algorithm, subject, task)
    if isinstance(subject, LinearAttention):
      parts.measure('heads', heads, subject, task)
  elif _has_numbers(task) and parts.wants('sampled'):
    found = parts.attempt('sampled', fit_algorithms, subject, task, fitted, seed)
    parts.results['sampled'], candidates = found or (None, None)
  # The closed form has the guess as well, so it is fitted only if it is asked for.
  is_guess_wanted = 'guess' in parts.only or not has_closed_form
  if is_guess_wanted and isinstance(subject, nnx.Module):
    queries = max(_NUM_QUERIES, least_queries(task.num_features))
    parts.measure('guess', learned_guess, subject, task, queries, seed)
  if not (_has_numbers(task) and parts.wants('baselines')):
    return candidates
  algorithm = parts.results.get('algorithm')
  steps, exact = ({}, {}) if algorithm is None else _steps(algorithm)
  found = parts.attempt(
    'baselines', measure_candidates, subject, task, steps, fitted, seed
  )
  if found is None:
    return candidates
  measured, parts.results['above_bayes'] = found
  parts.results['baselines'] = {
    name: measured.unexplained(name) for name in measured.baselines
  }
  gaps = ({} if candidates is None else candidates.gaps) | {**measured.gaps}
  return dataclasses.replace(measured, gaps=gaps, exact=exact)


def _steps(
  algorithm: ImplicitAlgorithm,
) -> tuple[dict[str, Predictor], dict[str, float]]:
  """Returns the nearest steps of a learning rule, and the shares that they leave."""
  step, matrix = algorithm.nearest_gd, algorithm.nearest_gd_beta
  if step.unexplained is None or matrix.unexplained is None:
    return {}, {}
  if takes_no_step(algorithm):
    return {}, {}
  eye = np.eye(len(step.start))
  steps: dict[str, Predictor] = {
    GD: estimators.gd_beta(step.start, step.step * eye),
    GD_BETA: estimators.gd_beta(matrix.start, matrix.step),
  }
  return steps, {GD: step.unexplained, GD_BETA: matrix.unexplained}


def _judge(
  task: Task, parts: _Parts, candidates: Candidates | None
) -> tuple[bool | None, str]:
  """Returns whether the subject does gradient descent, and the verdict in words."""
  results = parts.results
  if not parts.wants('algorithm'):
    return None, 'Unknown: its algorithm was not asked for.'
  if not theory.covers(task):
    if results.get('comparison') is None:
      return None, 'Unknown: no theory covers its task.'
    return None, judge_by_baselines(results['comparison'])
  if (algorithm := results.get('algorithm')) is not None:
    return judge(algorithm, task, candidates)
  if (sampled := results.get('sampled')) is not None:
    return judge_by_samples(sampled, candidates)
  return None, 'Unknown: its algorithm could not be measured.'


def _judge_again(
  verdict: str,
  parts: _Parts,
  subject: Predictor,
  task: Task,
  num_prompts: int,
  seed: int,
) -> tuple[bool | None, str]:
  """Returns the verdict on a step of gradient descent, by telling prompts as well."""
  fitted = max(min(num_prompts, _NUM_FITTED), least_prompts(task.num_features))

  def standing_of() -> Standing | None:
    algorithm = parts.results.get('sampled')  # A model with a closed form has none.
    if algorithm is None:
      algorithm = sampled_algorithm(subject, task, fitted, seed)
    return standing_of_descent(subject, task, algorithm, seed)

  standing = parts.attempt('telling prompts', standing_of)
  said = verdict.removeprefix('Yes: ').removesuffix('.')
  if standing is None:
    return None, f'Undecided: {said}; there is no comparison on telling prompts.'
  if rival := standing.nearer_on_task:
    return False, f'No: {said}, but {rival} is nearer.'
  if rival := standing.nearer_on_telling:
    return False, (
      f'No: {said}, but on prompts that tell them apart, {rival} is nearer.'
    )
  if standing.on_telling is None:
    return True, f'Yes: {said}; nothing else explains half of the variation.'
  return True, f'Yes: {said}, and nothing is nearer on prompts that tell them apart.'


def _plain(value: object) -> object:
  """Returns the value in JSON types."""
  if isinstance(value, LayerCurve):
    value = value._asdict()
  if isinstance(value, dict):
    return {name: _plain(part) for name, part in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(part) for part in value]
  if isinstance(value, np.ndarray | np.generic):
    return value.tolist()
  return value
