"""The strategy of a model during training: a fit to each checkpoint of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.config.building import build_task
from zoo.config.read import Readable, read, to_content, to_json
from zoo.config.run import Run
from zoo.core.errors import check_name
from zoo.core.protocols import Predictor, Task
from zoo.estimators.baselines import Baseline, HostBaseline
from zoo.measure.intervals import Estimate, estimate
from zoo.probing.nearest.mixtures import (
  KnownPredictors,
  check_mixture,
  nearest_mixture,
  same_on,
  sample_known,
)
from zoo.probing.report import baselines_of

# On so many prompts most predictors that are not the same predict differently.
_NUM_TRIED = 64


@dataclasses.dataclass(frozen=True)
class Fit:
  """The mixture of predictors that is nearest to a model, at one step.

  `zoo.probing.strategies` defines the mixture and the shares.

  Attributes:
    weights: The weights of the predictors by name. Predictors that cannot be told apart
      have one weight, and their names are joined by ', '.
    stderrs: The standard errors of the weights.
    unexplained: The distance of the model from the mixture, divided by the variation
      over contexts of the model. None for a model that ignores its context.
    by_prompt: The same for a mixture whose weights depend on the prompt. None if that
      was not fitted.
  """

  weights: dict[str, float]
  stderrs: dict[str, float]
  unexplained: Estimate | None
  by_prompt: Estimate | None


@dataclasses.dataclass(frozen=True)
class FittedRun:
  """The fits of one run.

  Attributes:
    fits: The fit at each step, in increasing order.
    losses: The mean loss of each predictor on the task, over all positions.
    nats_per_step: The factor from a difference of two mean losses to the difference of
      the log likelihoods of all labels of one training step, in nats. For numeric
      labels it follows from the noise of the task, and is NaN without noise.
  """

  fits: dict[int, Fit]
  losses: dict[str, Estimate]
  nats_per_step: float


class Fitter:
  """Fits of mixtures of known predictors to the models of one run.

  Predictions are compared after those numbers of examples at which the run was trained
  to predict. The prompts and what the predictors predict on them are made once.
  """

  def __init__(
    self,
    config: Readable,
    predictors: Sequence[str] | None = None,
    num_prompts: int = 2048,
    by_prompt: bool = True,
    shared: dict[str, KnownPredictors] | None = None,
  ):
    """Checks the predictors, and computes nothing yet.

    Args:
      config: The config of the run.
      predictors: Names of baselines of the task. None stands for all baselines but
        `zero` and slow ones.
      num_prompts: The number of prompts (≥ 4). Half of them are for the fits.
      by_prompt: Whether weights that depend on the prompt are fitted, too.
      shared: A dictionary that keeps the predictions of the predictors by task, so that
        several runs can share them. The fitter fills it.

    Raises:
      UserError: For an unknown name, and for predictors that cannot be mixed.
    """
    self._config = read(config)
    self._is_run = 'train' in to_content(config)
    self._num_prompts, self._by_prompt = num_prompts, by_prompt
    self._task = build_task(self._config)
    self._predictors = named(self._task, predictors)
    check_mixture(self._task, self._predictors)
    self._shared = {} if shared is None else shared

  def parameters(self, step: int) -> dict[str, Any]:
    """Returns all that the row of a step depends on."""
    return {
      'config': to_json(self._config),
      'predictors': [*self._predictors],
      'num_prompts': self._num_prompts,
      'by_prompt': self._by_prompt,
      'step': step,
    }

  def row(self, model: Predictor) -> dict[str, Any]:
    """Returns the fit of a model and the losses of the predictors, as JSON can hold."""
    known = self._known()
    losses = {name: vars(loss) for name, loss in _losses(known).items()}
    return {'fit': _fit(model, known, self._by_prompt), 'losses': losses}

  def _known(self) -> KnownPredictors:
    key = _prompts_of(self._config, self._task)
    if key not in self._shared:
      self._shared[key] = sample_known(
        self._task,
        self._predictors,
        self._num_prompts,
        0,
        least_examples(self._config, self._task),
      )
    return self._shared[key]

  def fitted(self, rows: Mapping[int, Mapping[str, Any]]) -> FittedRun:
    """Returns the fits of the run from one or more rows by step, as JSON holds them."""
    *_, last = rows.values()
    return FittedRun(
      {step: _from_json(rows[step]['fit']) for step in sorted(rows)},
      {name: Estimate(**loss) for name, loss in last['losses'].items()},
      _nats(self._config, self._task) if self._is_run else math.nan,
    )


def named(task: Task, names: Sequence[str] | None) -> dict[str, Predictor]:
  """Returns baselines of a task by name.

  Args:
    task: The task.
    names: The names of the baselines. None stands for all baselines but `zero` and slow
      ones; a baseline with several names is then listed once, by its first name.

  Raises:
    UserError: For an unknown name.
  """
  known = baselines_of(task)
  known |= {
    name: baseline
    for name, baseline in task.baselines().items()
    if not isinstance(baseline, HostBaseline)
  }
  if names is None:
    chosen: dict[str, Predictor] = {}
    for name, predictor in known.items():
      is_slow = isinstance(predictor, Baseline) and predictor.is_slow
      is_known = any(predictor is other for other in chosen.values())
      if name != 'zero' and not is_slow and not is_known:
        chosen[name] = predictor
    return chosen
  for name in names:
    check_name('predictor', name, known)
  return {name: known[name] for name in names}


def coinciding(
  config: Readable,
  predictors: Sequence[str] | None = None,
  num_prompts: int = 2048,
  tried: dict[str, list[list[str]]] | None = None,
) -> list[list[str]]:
  """Finds predictors that predict the same on the prompts of a run, up to rounding.

  No model is needed. If all predictors predict the same, the nearest mixture has one
  weight, which is 1 for every model.

  Args:
    config: The config of the run.
    predictors: Names of baselines of the task. None stands for all baselines but
      `zero` and slow ones.
    num_prompts: The number of prompts (≥ 4).
    tried: A dictionary that keeps the results by task, so that several runs can share
      them. The function fills it.

  Returns:
    The names of each group of two or more predictors.

  Raises:
    UserError: For an unknown name, and for predictors that cannot be mixed.
  """
  config = read(config)
  task = build_task(config)
  chosen, least = named(task, predictors), least_examples(config, task)
  tried = {} if tried is None else tried
  key = _prompts_of(config, task)
  if key not in tried:
    # A few prompts are cheap to sample, and tell most predictors apart.
    few = sample_known(task, chosen, min(num_prompts, _NUM_TRIED), 0, least)
    groups = same_on(few)
    if groups and num_prompts > _NUM_TRIED:
      groups = same_on(sample_known(task, chosen, num_prompts, 0, least))
    tried[key] = groups
  return tried[key]


def _prompts_of(config: Run, task: Task) -> str:
  """Returns a key of all that the prompts of a run depend on."""
  return f'{config.task.text()} {least_examples(config, task)}'


def _fit(model: Predictor, known: KnownPredictors, by_prompt: bool) -> dict[str, Any]:
  mixture, depending = nearest_mixture(model, known, by_prompt)
  return dataclasses.asdict(
    Fit(
      mixture.weights,
      mixture.stderrs,
      mixture.unexplained,
      None if depending is None else depending.unexplained,
    )
  )


def least_examples(config: Run, task: Task) -> int:
  """Returns the fewest examples after which a run was trained to predict."""
  if config.objective.positions == 'every':
    return 0
  least = config.objective.min_examples
  return task.context_length if least is None else least


def _nats(config: Run, task: Task) -> float:
  """Returns the factor from a mean loss to nats of all labels of a step; may be NaN."""
  is_every = config.objective.positions == 'every'
  of_prompt = task.context_length + 1 if is_every else 1
  labels = of_prompt * config.train.batch_size
  if task.label_kind != 'numbers':
    return float(labels)
  noise_std = float(getattr(task, 'noise_std', 0.0))
  return labels / (2 * noise_std**2) if noise_std else math.nan


def _losses(known: KnownPredictors) -> dict[str, Estimate]:
  means = known.losses.mean(axis=2)
  return {
    name: estimate(losses) for name, losses in zip(known.names, means, strict=True)
  }


def _from_json(fit: dict[str, Any]) -> Fit:
  unexplained, by_prompt = (
    None if fit[name] is None else Estimate(**fit[name])
    for name in ('unexplained', 'by_prompt')
  )
  return Fit(fit['weights'], fit['stderrs'], unexplained, by_prompt)
