"""The losses of models and baselines of an atlas.

Losses are also measured after other numbers of examples than in training, up to twice
as many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from studies.atlas.results import EXACT, SAMPLED, AtlasRow
from zoo import estimators, theory
from zoo.config.building import abstract_model, build_task, num_heads, num_weights
from zoo.config.read import with_fields
from zoo.config.run import Run
from zoo.core.errors import UserError
from zoo.core.protocols import Predictor, Task
from zoo.estimators.baselines import Zero
from zoo.measure.curve import sample_losses
from zoo.measure.predict import Programs
from zoo.tasks import DecisionTree, LinearRegression, SparseRegression
from zoo.tasks.linear_regression import covers
from zoo.theory.exact import known_risk
from zoo.training.summary import product_flops

NUM_PROMPTS = 8192  # prompts for the loss of each seed
FEWER_PROMPTS = 1024  # prompts for the losses after other numbers of examples
BASELINE_PROMPTS = 65_536  # prompts for a baseline that no formula gives
# Losses are measured after these multiples of the context length. The model is compiled
# for each of them.
_PARTS = 0.5, 1, 2
# These baselines are measured on every task that has them.
_BASELINES = 'bayes', 'bayes_estimate', 'gd', 'nearest_neighbours', 'zero'


def lengths_of(context_length: int) -> tuple[int, ...]:
  """Returns the numbers of examples after which losses are measured, increasing."""
  return tuple(sorted({int(part * context_length) for part in _PARTS}))


def key() -> tuple[int | float, ...]:
  """Returns the constants on which measured losses depend beside the config."""
  return NUM_PROMPTS, FEWER_PROMPTS, BASELINE_PROMPTS, *_PARTS


def loss(
  predictor: Predictor,
  task: Task,
  num_prompts: int,
  seed: int,
  programs: Programs | None = None,
) -> float:
  """Measures the mean loss after as many examples as in training.

  Args:
    predictor: A model or a baseline.
    task: The task, which samples the prompts.
    num_prompts: The number of prompts.
    seed: The seed of the prompts.
    programs: Compiled programs, to be used again.

  Returns:
    The mean loss. NaN if it, or a weight of the model, is infinite or NaN.
  """
  # Models with two ways to predict are checked on whether both agree, which NaN fails.
  if not _is_finite(predictor):
    return math.nan
  lengths = [task.context_length]
  losses = sample_losses(
    {'': predictor}, task, num_prompts, seed, lengths=lengths, programs=programs
  )['']
  return float(losses.mean()) if np.isfinite(losses).all() else math.nan


def _is_finite(predictor: Predictor) -> bool:
  """Returns whether all weights of a model are finite. Baselines have no weights."""
  if not isinstance(predictor, nnx.Module):
    return True
  weights = jax.tree.leaves(nnx.state(predictor, nnx.Param))
  return all(np.isfinite(array).all() for array in weights)


def losses_by_length(
  predictor: Predictor,
  config: Run,
  lengths: Sequence[int],
  num_prompts: int,
  programs: Programs | None = None,
) -> Float[np.ndarray, ' n']:
  """Measures the mean loss after each of several numbers of examples.

  Up to the context length of the config, losses are measured on prefixes of prompts of
  that length. Greater numbers of examples are prefixes of prompts of the greatest one.

  Args:
    predictor: A model or a baseline.
    config: The config of the task.
    lengths: The numbers of examples.
    num_prompts: The number of prompts.
    programs: Compiled programs, to be used again.

  Returns:
    The mean loss after each number of examples. NaN if the model takes fewer examples,
    or has a weight that is infinite or NaN.
  """
  if not _is_finite(predictor):
    return np.full(len(lengths), math.nan)
  task = build_task(config)
  short = [length for length in lengths if length <= task.context_length]
  longer = [length for length in lengths if length > task.context_length]

  def means(task: Task, lengths: Sequence[int]) -> list[float]:
    losses = sample_losses(
      {'': predictor}, task, num_prompts, lengths=lengths, programs=programs
    )['']
    return losses.mean(axis=0).tolist()

  curve = means(task, short)
  try:
    curve += means(_at_length(config, longer[-1]), longer) if longer else []
  except UserError:  # the model takes a fixed number of examples
    curve += [math.nan] * len(longer)
  return np.array(curve)


def sizes(config: Run) -> tuple[int, float]:
  """Returns the size of a config's model, without running it.

  Returns:
    The number of weights, and the operations of a forward pass for one prompt. Only
    operations in products of matrices count.
  """
  task, count = build_task(config), 64
  model = abstract_model(config, task)
  graph, state = nnx.split(model)
  prompts = jax.eval_shape(lambda key: task.sample(key, count), jax.random.key(0))
  traced = jax.make_jaxpr(lambda state, prompts: nnx.merge(graph, state)(prompts))
  flops = product_flops(traced(state, prompts).jaxpr)
  return num_weights(model), flops / count


def baselines(config: Run, name: str) -> list[AtlasRow]:
  """Measures the baselines of a config's task; the rows call the task `name`."""
  task = build_task(config)
  lengths = 0, *lengths_of(task.context_length)
  rows = []
  # A task of a user may lack the baseline `zero`.
  for baseline, predictor in ({'zero': Zero()} | task.baselines()).items():
    if baseline not in _BASELINES:
      continue
    exact = np.array([exact_baseline(baseline, config, length) for length in lengths])
    by_length, is_known = exact, np.isfinite(exact)
    if not is_known.all():
      sampled = losses_by_length(predictor, config, lengths, BASELINE_PROMPTS)
      by_length = np.where(is_known, exact, sampled)
    risk = float(exact[lengths.index(task.context_length)])
    known = EXACT if math.isfinite(risk) else SAMPLED
    mean_loss = risk if known == EXACT else loss(predictor, task, BASELINE_PROMPTS, 0)
    rows.append(
      AtlasRow(
        model=baseline,
        task=name,
        context_length=task.context_length,
        known=known,
        losses=(mean_loss,),
        lengths=lengths,
        by_length=tuple(by_length.tolist()),
      )
    )
  return rows


def exact_baseline(name: str, config: Run, length: int) -> float:
  """Computes the risk of a baseline after some number of examples by a formula.

  Args:
    name: The name of the baseline.
    config: The config of the task.
    length: The number of examples.

  Returns:
    The risk. NaN if no formula is known, or if its relative error may exceed 1e-3.
  """
  task: Any = build_task(config)
  if name == 'zero' and isinstance(task, DecisionTree):
    return 1.0  # the values of leaves are N(0, 1)
  # The risks of these two depend on w only through E w and E w wᵀ.
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


def lowest_known(config: Run) -> float | None:
  """Returns the lowest known exact risk of the linear attention of a config.

  It is the infimum on isotropic tasks, with a learned guess, and with d heads or more
  if labels have no noise; else it comes from a search (`theory.head_limited_risk`). A
  learned guess is taken to be the prior mean, which is the best guess wherever the
  result is the optimum of the linear family. The priors of the shipped models are such.

  Returns:
    The risk. None if theory does not cover the task.
  """
  task = _with_same_moments(build_task(config))
  if not covers(task):
    return None
  fixed = config.model.arguments
  guess = fixed.get('initial_guess', task.mean_weights())
  bias = fixed.get('initial_bias', 0.0)
  return theory.head_limited_risk(task, num_heads(config), guess, bias).lowest_found


def _with_same_moments(task: Task) -> Task:
  """Returns linear regression with the same E w wᵀ in place of sparse regression.

  The risk of one layer of linear attention depends on w only through E w wᵀ:
  predictions are linear in the labels, and labels are linear in w.
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


def _at_length(config: Run, length: int) -> Any:
  """Builds the task of a config with another number of examples."""
  return build_task(with_fields(config, {'task.context_length': length}))
