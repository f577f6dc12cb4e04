"""What the models and the baselines of an atlas lose.

Losses are also measured after several numbers of examples, up to twice those in
training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from studies.atlas.results import EXACT, SAMPLED, AtlasRow
from zoo import estimators, theory
from zoo.config.building import (
  Config,
  abstract_model,
  build_task,
  num_heads,
  num_weights,
)
from zoo.core.errors import UserError
from zoo.core.protocols import Predictor, Task
from zoo.estimators.baselines import Zero
from zoo.measure.curves import sample_losses
from zoo.measure.predict import Programs
from zoo.tasks import DecisionTree, LinearRegression, SparseRegression
from zoo.tasks.linear_regression import covers
from zoo.theory.exact import known_risk
from zoo.training.summary import product_flops

NUM_PROMPTS = 8192  # for the loss of each seed
FEWER_PROMPTS = 1024  # for those at other numbers of examples
BASELINE_PROMPTS = 65_536  # for a baseline that is sampled
# Fractions of the context length; a model is compiled for each.
_PARTS = 0.5, 1, 2
# Baselines that are measured, where a task has them.
_BASELINES = 'bayes', 'bayes_estimate', 'gd', 'nearest_neighbours', 'zero'


def lengths_of(context_length: int) -> tuple[int, ...]:
  """The numbers of examples to measure after, up to twice the context length."""
  return tuple(sorted({int(part * context_length) for part in _PARTS}))


def key() -> tuple[int | float, ...]:
  """What measured losses depend on beside the config."""
  return NUM_PROMPTS, FEWER_PROMPTS, BASELINE_PROMPTS, *_PARTS


def loss(
  predictor: Predictor,
  task: Task,
  num_prompts: int,
  seed: int,
  programs: Programs | None = None,
) -> float:
  """The mean loss after as many examples as in training; NaN if it is not finite."""
  if not _is_finite(predictor):  # two ways to predict would not agree on NaN
    return math.nan
  lengths = [task.context_length]
  losses = sample_losses(
    {'': predictor}, task, num_prompts, seed, lengths=lengths, programs=programs
  )['']
  return float(losses.mean()) if np.isfinite(losses).all() else math.nan


def _is_finite(predictor: Predictor) -> bool:
  """Whether all weights of a model are finite; baselines have none."""
  if not isinstance(predictor, nnx.Module):
    return True
  weights = jax.tree.leaves(nnx.state(predictor, nnx.Param))
  return all(np.isfinite(array).all() for array in weights)


def losses_by_length(
  predictor: Predictor,
  config: Config,
  lengths: Sequence[int],
  num_prompts: int,
  programs: Programs | None = None,
) -> Float[np.ndarray, ' n']:
  """The mean losses at `lengths`; NaN where a model cannot take so many examples.

  Up to the context length of the config they are those of prefixes of its prompts, and
  beyond it those of prefixes of the longest prompts.
  """
  if not _is_finite(predictor):
    return np.full(len(lengths), math.nan)
  short = [length for length in lengths if length <= config.task.context_length]
  longer = [length for length in lengths if length > config.task.context_length]

  def means(task: Task, lengths: Sequence[int]) -> list[float]:
    losses = sample_losses(
      {'': predictor}, task, num_prompts, lengths=lengths, programs=programs
    )['']
    return losses.mean(axis=0).tolist()

  curve = means(build_task(config), short)
  try:
    curve += means(_at_length(config, longer[-1]), longer) if longer else []
  except UserError:  # a model for a fixed number of examples
    curve += [math.nan] * len(longer)
  return np.array(curve)


def sizes(config: Config) -> tuple[int, float]:
  """The weights of a config's model, and its operations in matrix products a prompt."""
  model = abstract_model(config)
  graph, state = nnx.split(model)
  task, count = build_task(config), 64
  prompts = jax.eval_shape(lambda key: task.sample(key, count), jax.random.key(0))
  traced = jax.make_jaxpr(lambda state, prompts: nnx.merge(graph, state)(prompts))
  flops = product_flops(traced(state, prompts).jaxpr)
  return num_weights(model), flops / count


def baselines(config: Config, name: str) -> list[AtlasRow]:
  """The rows of the baselines of a config's task, which has that name in the atlas."""
  task = build_task(config)
  lengths = 0, *lengths_of(config.task.context_length)
  rows = []
  # A task of one's own may lack the prediction 0.
  for baseline, predictor in ({'zero': Zero()} | task.baselines()).items():
    if baseline not in _BASELINES:
      continue
    exact = np.array([exact_baseline(baseline, config, length) for length in lengths])
    by_length, is_known = exact, np.isfinite(exact)
    if not is_known.all():
      sampled = losses_by_length(predictor, config, lengths, BASELINE_PROMPTS)
      by_length = np.where(is_known, exact, sampled)
    risk = float(exact[lengths.index(config.task.context_length)])
    known = EXACT if math.isfinite(risk) else SAMPLED
    mean_loss = risk if known == EXACT else loss(predictor, task, BASELINE_PROMPTS, 0)
    rows.append(
      AtlasRow(
        model=baseline,
        task=name,
        context_length=config.task.context_length,
        known=known,
        losses=(mean_loss,),
        lengths=lengths,
        by_length=tuple(by_length.tolist()),
      )
    )
  return rows


def exact_baseline(name: str, config: Config, length: int) -> float:
  """The risk of a baseline after some number of examples, by a formula.

  NaN if it is known less well than to 1e-3, or not at all.
  """
  task: Any = build_task(config)
  if name == 'zero' and isinstance(task, DecisionTree):
    return 1.0  # the values of leaves are N(0, 1)
  # The risks of these two depend on no higher moments of w.
  needs_moments_alone = name in ('zero', 'gd')
  if not covers(_with_same_moments(task) if needs_moments_alone else task):
    return math.nan
  task = _at_length(config, max(length, 1))
  if needs_moments_alone:
    task = _with_same_moments(task)
  mean, prior = task.mean_weights(), task.prior_covariance
  features = task.feature_covariance
  features = np.eye(mean.size) if features is None else features
  without = float(np.trace(features if prior is None else prior @ features))
  if name == 'zero':
    return float(mean @ features @ mean) + without
  if name not in ('gd', 'bayes'):
    return math.nan
  if not length:
    return without  # both predict the prior mean
  if name == 'gd':
    risk = known_risk(estimators.gradient_descent(task), task)
    return math.nan if risk is None else risk
  try:
    lower, upper = theory.bayes_risk(task)
  except UserError:
    return math.nan
  known = lower == upper or upper - lower < 1e-3 * upper
  return (lower + upper) / 2 if known else math.nan


def lowest_known(config: Config) -> float | None:
  """The lowest known exact risk of the linear attention of a config.

  It is the infimum on isotropic tasks, with a learned guess, and with d heads or more
  if labels have no noise; else it comes from a search (`theory.head_limited_risk`). A
  learned guess is taken to be the prior mean. That is the best guess wherever the
  result is the optimum of the linear family, as for the priors of the shipped models.
  None if theory does not cover the task.
  """
  task = _with_same_moments(build_task(config))
  if not covers(task):
    return None
  guess = config.model.get('initial_guess', task.mean_weights())
  bias = config.model.get('initial_bias', 0.0)
  return theory.head_limited_risk(task, num_heads(config), guess, bias).lowest_found


def _with_same_moments(task: Task) -> Task:
  """Linear regression in place of sparse regression, with the same E w wᵀ.

  The risk of one layer of linear attention depends on w only through it: predictions
  are linear in the labels, and these are linear in w.
  """
  if not isinstance(task, SparseRegression):
    return task
  d = task.num_features
  share = task.num_nonzero / d
  return LinearRegression(
    d,
    task.context_length,
    prior_mean=0.0,
    prior_covariance=share * np.eye(d),
    noise_std=float(task.noise_std),
  )


def _at_length(config: Config, length: int) -> Any:
  """The task with a number of examples."""
  config = copy.deepcopy(config)
  config['task']['context_length'] = length
  return build_task(config)
