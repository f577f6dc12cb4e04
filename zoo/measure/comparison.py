"""The comparison of a model with the baselines of its task, on the same prompts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import jax
import numpy as np
from absl import logging
from jax.sharding import AxisType, Mesh
from jaxtyping import Float

from zoo.core.distributions import has_distribution
from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import UserError, check_count, in_one_line, noted
from zoo.core.protocols import Predictor, Task, require_task
from zoo.core.tables import format_exact
from zoo.estimators.baselines import Baseline, HostBaseline
from zoo.host.files import finite_or_null
from zoo.measure.curve import check_ways, losses_of, spread_lengths, summarise
from zoo.measure.intervals import estimate, half_of
from zoo.measure.predict import Programs, one_pass, scores_of
from zoo.measure.predictive import draws_labels, sample_nll
from zoo.measure.table import format_estimate, name_of_half
from zoo.tasks.base import BAYES
from zoo.theory.exact import known_risk

MODEL = 'model'  # The model has this name among the baselines.
# A predictor without `predictions` is compiled for each length, so that it is measured
# at few lengths.
_FEW, _MANY = 8, 128
# A baseline that is slow at every length is measured on at most the first number of
# prompts, and one that another library fits on the host on at most the second.
_NUM_SLOW_PROMPTS = 512
_NUM_HOST_PROMPTS = 128
# A baseline may take this number of multiplications, up to a constant, over all lengths
# and prompts. They take about ten seconds of a CPU.
_BUDGET = 2e10
_ENOUGH = 128  # A curve needs this number of prompts.
# A difference of four standard errors occurs by chance once in 30,000 comparisons, if
# there are enough prompts for a standard error.
_SIGNIFICANT = 4
_LEAST_PROMPTS = 30


class Measured(TypedDict):
  """The loss of one predictor; None where it is not measured or not finite.

  Attributes:
    num_prompts: The number of prompts.
    num_examples: The numbers of examples before the query, in order.
    mean: The mean loss at each of them.
    stderr: The standard error of each mean.
    median: The median loss at each of them.
    difference: The model's mean loss at the query minus that of this predictor.
    difference_stderr: The standard error of the difference, on the same prompts.
    exact: The exact risk at the query; None if theory does not know it.
    accuracy: The share of correct labels at each number of examples; None unless the
      labels are classes.
    nll: The negative log likelihood of the query's observed label, in nats. It is there
      if the model and this predictor have a distribution of numbers.
    nll_stderr: The standard error of `nll`.
  """

  num_prompts: int
  num_examples: list[int]
  mean: list[float | None]
  stderr: list[float | None]
  median: list[float | None]
  difference: float | None
  difference_stderr: float | None
  exact: float | None
  accuracy: list[float | None] | None
  nll: NotRequired[float | None]
  nll_stderr: NotRequired[float | None]


class _Losses(NamedTuple):
  """The losses of a predictor on p prompts at n lengths, and its exact risk."""

  losses: Float[np.ndarray, 'p n *m']  # Classes have accuracies on a last axis, too.
  lengths: Sequence[int]
  exact: float | None


# A comparison has the model first, and then the baselines in the order of the task.
Comparison = dict[str, Measured]


def compare(
  model: Predictor, task: Task, num_prompts: int = 4096, seed: int = 0
) -> Comparison | None:
  """Compares a model with the baselines of its task, on the same prompts.

  Large tasks and slow baselines get fewer prompts. A baseline that fails, for example
  since its library is not installed, is left out with a warning.

  Args:
    model: The model, or another predictor.
    task: The task, whose baselines and loss are used.
    num_prompts: The largest number of prompts.
    seed: The seed of the prompts, ≥ 0. They depend on nothing else.

  Returns:
    What was measured by name: `model` first, then the baselines in the order of the
    task. None if the task is so large that there would be fewer than two prompts.

  Raises:
    UserError: If `num_prompts` is not an integer ≥ 2, if the model cannot be called on
      the task's prompts, or if its `predictions` or `learning_rule` contradict its
      `__call__`.
  """
  check_count('num_prompts', num_prompts, minimum=2)
  comparisons = compare_all([model], task, num_prompts, seed)
  return None if comparisons is None else comparisons[0]


def compare_all(
  models: Sequence[Predictor],
  task: Task,
  num_prompts: int = 4096,
  seed: int = 0,
  is_checked: bool = False,
) -> list[Comparison] | None:
  """Compares several models of one class like `compare`; measures each baseline once.

  Args:
    models: The models.
    task: The task, whose baselines and loss are used.
    num_prompts: The largest number of prompts.
    seed: The seed of the prompts, ≥ 0.
    is_checked: Whether the ways in which the models predict are known to agree, as they
      are in a run, each launch of which checks them.

  Returns:
    A comparison for each model; None if there would be fewer than two prompts.

  Raises:
    UserError: If a model cannot be called on the task's prompts, if it contradicts
      itself, or if `checked_baselines` raises it.
  """
  require_task(task)
  lengths, num_prompts = _lengths_and_prompts(models[0], task, num_prompts)
  if num_prompts < 2:
    logging.info('the task is too large for a comparison with its baselines')
    return None
  baselines = checked_baselines(task)
  fast, slow, on_host = {}, {}, {}
  for name, baseline in baselines.items():
    if isinstance(baseline, HostBaseline):
      on_host[name] = baseline
    elif isinstance(baseline, Baseline) and baseline.is_slow:
      slow[name] = baseline
    else:
      fast[name] = baseline
  few = f'{num_prompts} prompts, after {len(lengths)} numbers of examples'
  logging.info('comparing with %d baselines on %s', len(baselines), few)
  programs = Programs()  # All models share these.
  if not is_checked:
    check_ways(models, task, num_prompts, seed, programs)
  measure = functools.partial(_measure, task=task, seed=seed, programs=programs)
  of_models = [measure({MODEL: model}, lengths, num_prompts) for model in models]
  of_baselines: dict[str, _Losses] = {}
  for group, at, most in (
    (fast, lengths, num_prompts),
    (slow, lengths, _NUM_SLOW_PROMPTS),
    (on_host, lengths[-1:], _NUM_HOST_PROMPTS),
  ):
    together = functools.partial(
      measure, lengths=at, num_prompts=min(num_prompts, most)
    )
    with _on_one_device():
      try:
        of_baselines |= together(group)
      except Exception:  # Each is measured alone, to find the one that fails.
        of_baselines |= _without_failing(together, group)
  comparisons = []
  for model, of_model in zip(models, of_models, strict=True):
    at_query = of_model[MODEL].losses[:, -1]
    comparison = {MODEL: _measured(of_model[MODEL], at_query)}
    for name in baselines:
      if name in of_baselines:
        comparison[name] = _measured(of_baselines[name], at_query)
    _add_nll(comparison, model, baselines, task, seed, programs)
    if warning := below_bayes(comparison):
      logging.warning('%s', warning)
    comparisons.append(comparison)
  return comparisons


def by_name(what: str, method: Callable[[], Any]) -> dict[str, Any]:
  """Returns what a method of a task gives by name.

  Args:
    what: The name of the call in messages.
    method: The method.

  Raises:
    UserError: If the method does not give a dictionary.
  """
  with noted(what):
    items = method()
  if not isinstance(items, Mapping):
    raise UserError(f'{what} gives a {type(items).__name__}; it must be a dict by name')
  return dict(items)


def checked_baselines(task: Task) -> dict[str, Predictor]:
  """Returns the baselines of a task, by name.

  Raises:
    UserError: If they are not predictors by name, or if one is named `model`.
  """
  name = type(task).__name__
  baselines = by_name(f'{name}.baselines()', task.baselines)
  if MODEL in baselines:
    raise UserError(
      f'{name} has a baseline named {MODEL}, the name of the model in comparisons; '
      'rename it'
    )
  for key, baseline in baselines.items():
    what = f'the baseline {key} of {name}'
    if isinstance(baseline, type):
      raise UserError(
        f'{what} is the class {baseline.__name__}; create an object of it'
      )
    if not callable(baseline):
      raise UserError(f'{what} is a {type(baseline).__name__}; it must be a predictor')
  return baselines


@contextlib.contextmanager
def _on_one_device() -> Iterator[None]:
  """Computes on one device if a mesh of several devices is set.

  The weights of a model may be split over the mesh. Baselines have no weights, so that
  all devices would repeat the same work. On CPUs they might also wait for ever: the
  devices share the threads in which a matrix decomposition of jaxlib 0.10 waits for
  other threads (see `zoo/host/devices.py`).
  """
  mesh = jax.sharding.get_mesh()
  if mesh.empty or mesh.size == 1:
    yield
    return
  device = np.array(jax.local_devices()[:1]).reshape(1, 1)
  with jax.set_mesh(Mesh(device, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)):
    yield


def _lengths_and_prompts(
  model: Predictor, task: Task, num_prompts: int
) -> tuple[list[int], int]:
  """Returns the numbers of examples to measure at, denser near 0, and of prompts."""
  c, most = task.context_length, _FEW if one_pass(model) is None else _MANY
  lengths = spread_lengths(c, most)
  if affordable(task, len(lengths)) < _ENOUGH:
    lengths = [c]
  return lengths, min(num_prompts, affordable(task, len(lengths)))


def affordable(task: Task, num_lengths: int = 1) -> int:
  """Returns the number of prompts on which predictors take about ten seconds.

  Baselines decompose matrices `[c, d]`, or `[c, c]` if c < d or if they are kernels.
  """
  c, d = task.context_length, task.num_features
  return int(_BUDGET / (num_lengths * c * d * max(c, d)))


def _measure(
  predictors: Mapping[str, Predictor],
  lengths: Sequence[int],
  num_prompts: int,
  task: Task,
  seed: int,
  programs: Programs,
) -> dict[str, _Losses]:
  """Returns the losses of predictors on the same prompts, and exact risks, by name."""
  if not predictors:
    return {}
  losses = losses_of(
    predictors,
    task,
    num_prompts,
    seed,
    lengths=lengths,
    loss=scores_of(task),
    programs=programs,
  )
  return {
    name: _Losses(losses[name], lengths, known_risk(predictor, task, is_checked=True))
    for name, predictor in predictors.items()
  }


def _without_failing(
  measure: Callable[..., dict[str, _Losses]], baselines: Mapping[str, Predictor]
) -> dict[str, _Losses]:
  """Returns the losses of the baselines that do not fail; warns of the others.

  A baseline that fails, for example since a library is missing, must not cost a run its
  result.
  """
  measured: dict[str, _Losses] = {}
  for name, baseline in baselines.items():
    try:
      measured |= measure({name: baseline})
    except Exception as error:
      is_own = not isinstance(error, UserError)  # The traceback then says where.
      kind = f'{type(error).__name__}: ' if is_own else ''
      reason = kind + in_one_line(error)
      logging.warning('the baseline %s is left out: %s', name, reason, exc_info=is_own)
  return measured


def _add_nll(
  comparison: Comparison,
  model: Predictor,
  baselines: Mapping[str, Predictor],
  task: Task,
  seed: int,
  programs: Programs,
) -> None:
  """Adds the negative log likelihoods of the model and of `bayes` to a comparison.

  Both must have a distribution of numbers.
  """
  if task.label_kind != 'numbers' or not has_distribution(model):
    return
  few = task.sample(stream_of(seed, CURVE_STREAM), 1)
  if not draws_labels(task, few):
    return
  predictors = {MODEL: model} | {
    name: baselines[name]
    for name in BAYES
    if name in comparison and has_distribution(baselines[name])
  }
  for name, predictor in predictors.items():
    number = comparison[name]['num_prompts']
    with contextlib.nullcontext() if name == MODEL else _on_one_device():
      nll = sample_nll({name: predictor}, task, number, seed, programs)[name]
    # −log p is infinite if a label is known, since its density is then unbounded.
    known = estimate(nll) if np.isfinite(nll).all() else None
    comparison[name]['nll'] = known and known.mean
    comparison[name]['nll_stderr'] = known and known.stderr


def _measured(of_one: _Losses, model_losses: Float[np.ndarray, ' m *k']) -> Measured:
  """Returns the losses of a predictor as numbers, and its difference to the model."""
  losses, lengths, exact = of_one
  curve = summarise(losses, lengths)
  gap = summarise((model_losses[: len(losses)] - losses[:, -1])[:, None])
  measured = {
    'num_prompts': len(losses),
    'num_examples': [*lengths],
    'mean': curve.mean.tolist(),
    'stderr': curve.stderr.tolist(),
    'median': curve.median.tolist(),
    'difference': gap.mean.item(),
    'difference_stderr': gap.stderr.item(),
    'exact': exact,
    'accuracy': None if curve.accuracy is None else curve.accuracy.tolist(),
  }
  return cast(Measured, finite_or_null(measured))


def table_of(comparison: Comparison) -> tuple[list[list[str]], list[str]]:
  """Returns the rows and the header of a table of the losses at the query.

  Labels that are classes have a column for the accuracy. Models with a distribution of
  numbers have a column for the negative log likelihood. A baseline that was measured on
  fewer prompts than the model has their number beside its name.
  """
  has_classes = any(
    measured['accuracy'] is not None for measured in comparison.values()
  )
  has_nll = any(measured.get('nll') is not None for measured in comparison.values())
  rows = []
  num_prompts = comparison[MODEL]['num_prompts']
  for name, measured in comparison.items():
    shown = 'bayes, the least possible' if name == 'bayes' else name
    if measured['num_prompts'] < num_prompts:
      shown += f' (on {measured["num_prompts"]} of them)'
    num = measured['num_prompts']
    row = [
      shown,
      format_estimate(measured['mean'][-1], measured['stderr'][-1], num),
      format_estimate(measured['median'][-1]),
    ]
    if has_classes:
      accuracies = measured['accuracy']
      row.append(format_estimate(accuracies[-1] if accuracies else None))
    if has_nll:
      row.append(format_estimate(measured.get('nll'), measured.get('nll_stderr'), num))
    gap = ''
    if name != MODEL:
      gap = format_estimate(measured['difference'], measured['difference_stderr'], num)
    rows.append([*row, gap, format_exact(measured['exact'])])
  title = f'on the same {num_prompts} prompts'
  half = name_of_half(min(measured['num_prompts'] for measured in comparison.values()))
  columns = [f'loss {half}', 'median', *['accuracy'] * has_classes]
  columns += [*[f'nll {half}, nats'] * has_nll, 'model − this']
  return rows, [title, *columns, 'exact']


def below_bayes(comparison: Comparison) -> str | None:
  """Returns a warning if the model's loss is significantly below that of `bayes`.

  Significant means more than four standard errors of the difference, after some number
  of examples, on 30 prompts or more. `bayes` is the least possible loss, so that either
  the model sees what it should predict, or `bayes` is wrong. The result is None
  otherwise.
  """
  model, bayes = comparison[MODEL], comparison.get('bayes')
  if bayes is None or model['num_prompts'] < _LEAST_PROMPTS:
    return None
  counts, i, j = np.intersect1d(
    model['num_examples'], bayes['num_examples'], return_indices=True
  )
  # An unknown number becomes NaN, which is below nothing.
  (mean, error), (least, other) = (
    np.array([measured['mean'], measured['stderr']], np.float64)
    for measured in (model, bayes)
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
    f'the loss after {counts[at]} examples is {-gaps[at]:.3g} ± '
    f'{half_of(errors[at], bayes["num_prompts"]):.2g} below '
    'that of bayes, the least possible: the model sees what it should predict, or '
    'bayes is wrong; zoo.check_model and zoo.check_task tell'
  )


def without_errors(curve: Sequence[float | None]) -> Measured:
  """Returns a curve after 0, 1, … examples of which only the means are known."""
  unknown: list[float | None] = [None] * len(curve)
  return {
    'num_prompts': 0,
    'num_examples': list(range(len(curve))),
    'mean': [*curve],
    'stderr': unknown,
    'median': unknown,
    'difference': None,
    'difference_stderr': None,
    'exact': None,
    'accuracy': None,
  }
