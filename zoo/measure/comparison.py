"""A model and the baselines of its task, on the same prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np
from absl import logging
from jaxtyping import Float

from zoo.core.errors import UserError, in_one_line
from zoo.core.protocols import Predictor, Task
from zoo.core.tables import format_estimate, format_exact
from zoo.measure.curves import sample_scores, summarise
from zoo.measure.predict import Programs, one_pass
from zoo.tasks.baselines import Baseline, HostBaseline
from zoo.theory.exact import known_risk

MODEL = 'model'  # the model's name among those of the baselines
# A predictor without `predictions` is compiled for each length, so it gets few.
_FEW, _MANY = 8, 128
_NUM_SLOW_PROMPTS = 512  # for baselines that are slow at every length
_NUM_HOST_PROMPTS = 128  # for baselines that another library fits on the host
# Multiplications of a baseline, up to a constant, over all lengths and prompts; they
# take about ten seconds of a CPU.
_BUDGET = 2e10
_ENOUGH = 128  # prompts that a curve needs
_SIGNIFICANT = 4  # standard errors: by chance exceeded once in 30,000 comparisons


class Measured(TypedDict):
  """The loss of one predictor; None where it is not measured or not finite."""

  num_prompts: int
  num_examples: list[int]  # before the query
  mean: list[float | None]
  standard_error: list[float | None]
  median: list[float | None]
  difference: float | None  # the model's loss at the query minus this one's
  difference_stderr: float | None
  exact: float | None  # the exact risk at the query
  # The share of right labels at each length; None unless they are classes.
  accuracy: NotRequired[list[float | None] | None]


class _Losses(NamedTuple):
  """The losses of a predictor on p prompts at n lengths, and its exact risk."""

  losses: Float[np.ndarray, 'p n']
  accuracies: Float[np.ndarray, 'p n'] | None
  lengths: Sequence[int]
  exact: float | None


# By name; the model comes first, and then the baselines in the order of the task.
Comparison = dict[str, Measured]


def compare(
  model: Predictor, task: Task, num_prompts: int = 4096, seed: int = 0
) -> Comparison | None:
  """A model and the baselines of its task, on prompts that depend only on `seed`.

  Large tasks and slow baselines get fewer prompts; returns None if there would be fewer
  than two. A baseline whose library is missing, or a baseline from outside this library
  that fails, is left out with a warning. Raises UserError for a model that cannot be
  called on the task's prompts.
  """
  found = compare_all([model], task, num_prompts, seed)
  return None if found is None else found[0]


def compare_all(
  models: Sequence[Predictor], task: Task, num_prompts: int = 4096, seed: int = 0
) -> list[Comparison] | None:
  """Like `compare`, for several models of one class; measures each baseline once."""
  length = task.context_length
  lengths = _lengths(length, _MANY if one_pass(models[0]) is not None else _FEW)
  if affordable(task, len(lengths)) < _ENOUGH:
    lengths = [length]
  num_prompts = min(num_prompts, affordable(task, len(lengths)))
  if num_prompts < 2:
    logging.info('the task is too large for a comparison with its baselines')
    return None
  baselines = task.baselines()
  if MODEL in baselines:
    raise UserError(f'{type(task).__name__} has a baseline named {MODEL}; rename it')
  programs = Programs()  # which all models share

  def measure(
    predictors: Mapping[str, Predictor], at: Sequence[int], count: int
  ) -> dict[str, _Losses]:
    scores = sample_scores(predictors, task, count, seed, at, programs)
    return {
      name: _Losses(*scores[name], at, known_risk(predictor, task))
      for name, predictor in predictors.items()
    }

  of_models = [measure({MODEL: model}, lengths, num_prompts) for model in models]
  of_baselines: dict[str, _Losses] = {}
  fast, slow, on_host = _by_cost(baselines)
  for group, at, most in (
    (fast, lengths, num_prompts),
    (slow, lengths, _NUM_SLOW_PROMPTS),
    (on_host, [length], _NUM_HOST_PROMPTS),
  ):
    of_baselines |= _without_failing(measure, group, at, min(num_prompts, most))
  others = {name: of_baselines[name] for name in baselines if name in of_baselines}
  found = [
    {
      name: _measured(losses, own[MODEL].losses[:, -1])
      for name, losses in (own | others).items()
    }
    for own in of_models
  ]
  for warning in filter(None, map(below_bayes, found)):
    logging.warning('%s', warning)
  return found


def _by_cost(baselines: Mapping[str, Predictor]) -> Sequence[dict[str, Predictor]]:
  """The fast baselines, those slow at every length, and those fitted on the host."""
  groups: tuple[dict[str, Predictor], ...] = {}, {}, {}
  for name, baseline in baselines.items():
    if isinstance(baseline, HostBaseline):
      groups[2][name] = baseline
    elif isinstance(baseline, Baseline) and baseline.is_slow:
      groups[1][name] = baseline
    else:
      groups[0][name] = baseline
  return groups


def _without_failing(
  measure: Callable[..., dict[str, _Losses]],
  baselines: Mapping[str, Predictor],
  at: Sequence[int],
  count: int,
) -> dict[str, _Losses]:
  """The losses of the baselines that do not fail; warns of those that do.

  A baseline that fails, as of a missing library, must not cost a run its result.
  """
  if not baselines:
    return {}
  try:
    return measure(baselines, at, count)
  except Exception as error:
    if len(baselines) > 1:  # each alone, to see which one fails
      alone = [{name: baseline} for name, baseline in baselines.items()]
      groups = [_without_failing(measure, group, at, count) for group in alone]
      return {name: losses for group in groups for name, losses in group.items()}
    kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
    logging.warning(
      'the baseline %s is left out: %s%s',
      *baselines,
      kind,
      in_one_line(error),
      exc_info=not isinstance(error, UserError),  # then the traceback says where
    )
    return {}


def _measured(one: _Losses, model_losses: Float[np.ndarray, ' m']) -> Measured:
  losses, accuracies, lengths, exact = one
  curve = summarise(losses, accuracies, lengths)
  gap = summarise((model_losses[: len(losses)] - losses[:, -1])[:, None])
  return {
    'num_prompts': len(losses),
    'num_examples': list(lengths),
    'mean': _finite(curve.mean),
    'standard_error': _finite(curve.standard_error),
    'median': _finite(curve.median),
    'difference': _finite(gap.mean)[0],
    'difference_stderr': _finite(gap.standard_error)[0],
    'exact': None if exact is None else _finite([exact])[0],
    'accuracy': None if curve.accuracy is None else _finite(curve.accuracy),
  }


def affordable(task: Task, num_lengths: int = 1) -> int:
  """The number of prompts on which predictors can be measured in about ten seconds.

  Baselines decompose matrices of `[c, d]`, or of `[c, c]` if c < d or they are kernels.
  """
  c, d = task.context_length, task.num_features
  return int(_BUDGET / (num_lengths * c * d * max(c, d)))


def _lengths(context_length: int, most: int) -> list[int]:
  """Numbers of examples from 0 to the context length, denser near 0."""
  if context_length < most:
    return list(range(context_length + 1))
  spaced = np.geomspace(1, context_length, most - 1).round().astype(int)
  return sorted({0, *spaced.tolist()})


def _finite(values: Iterable[float]) -> list[float | None]:
  return [float(value) if math.isfinite(value) else None for value in values]


def table_of(comparison: Comparison) -> tuple[list[list[str]], list[str]]:
  """The rows and the header of a table of the losses at the query.

  Labels that are classes have a column for the accuracy.
  """
  accuracies = [one.get('accuracy') for one in comparison.values()]
  has_classes = any(one is not None for one in accuracies)
  rows = [
    [
      'bayes, the least possible' if name == 'bayes' else name,
      format_estimate(one['mean'][-1], one['standard_error'][-1]),
      '-' if one['median'][-1] is None else f'{one["median"][-1]:.4f}',
      *[_share(accuracy)] * has_classes,
      ''
      if name == MODEL
      else format_estimate(one['difference'], one['difference_stderr']),
      format_exact(one['exact']),
    ]
    for (name, one), accuracy in zip(comparison.items(), accuracies, strict=True)
  ]
  title = f'on the same {comparison[MODEL]["num_prompts"]} prompts'
  columns = ['loss ± s.e.', 'median', *['accuracy'] * has_classes, 'model − this']
  return rows, [title, *columns, 'exact']


def _share(accuracy: Sequence[float | None] | None) -> str:
  """The accuracy at the query; a dash where it is not measured."""
  last = None if accuracy is None else accuracy[-1]
  return '-' if last is None else f'{last:.4f}'


def below_bayes(comparison: Comparison) -> str | None:
  """A warning if the model's loss is significantly below the least possible one.

  This is by more than four standard errors of the difference after some number of
  examples. It means a model that sees what it should predict, or a wrong `bayes`.
  """
  model, bayes = comparison[MODEL], comparison.get('bayes')
  if bayes is None:
    return None
  counts, i, j = np.intersect1d(
    model['num_examples'], bayes['num_examples'], return_indices=True
  )
  # What is not known becomes NaN, which is below nothing.
  (mean, error), (least, other) = (
    np.array([one['mean'], one['standard_error']], np.float64) for one in (model, bayes)
  )
  gaps, errors = mean[i] - least[j], np.hypot(error[i], other[j])
  paired = bayes['difference'], bayes['difference_stderr']
  if model['num_examples'][-1] == bayes['num_examples'][-1] and None not in paired:
    gaps[-1], errors[-1] = paired
  # Rounding errors have almost no standard error.
  below = gaps < -_SIGNIFICANT * errors - 1e-5 * np.nanmax(least, initial=0.0)
  if not below.any():
    return None
  at = int(np.argmax(below))
  return (
    f'the loss after {counts[at]} examples is {-gaps[at]:.3g} ± {errors[at]:.2g} below '
    'that of bayes, the least possible: the model sees what it should predict, or '
    'bayes is wrong; zoo.check_model and zoo.check_task tell'
  )


def without_errors(curve: Sequence[float | None]) -> Measured:
  """A curve after 0, 1, … examples of which only the means are known."""
  unknown: list[float | None] = [None] * len(curve)
  return {
    'num_prompts': 0,
    'num_examples': list(range(len(curve))),
    'mean': [*curve],
    'standard_error': unknown,
    'median': unknown,
    'difference': None,
    'difference_stderr': None,
    'exact': None,
    'accuracy': None,
  }
