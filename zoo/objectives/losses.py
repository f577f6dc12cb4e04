"""The losses of a model on prompts, which objectives train and evaluations measure."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo import theory
from zoo.core.distributions import Distribution, HasDistribution, HasDistributions
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, Predictor, Task
from zoo.core.statistics import Statistics
from zoo.measure.predict import one_pass
from zoo.models import TokenModel


def predicted(
  predictor: Predictor, prompt: Prompt, every: bool
) -> tuple[Float[Array, 'b n *k'], Float[Array, 'b n *k']]:
  """Returns predictions and targets: of every example in one pass, or of the query."""
  if not every:
    targets = prompt.y_query
    return predictor(prompt).astype(targets.dtype)[:, None], targets[:, None]
  predict, targets = one_pass(predictor), prompt.targets
  assert predict is not None  # The validation of the config ensures this.
  return predict(prompt).astype(targets.dtype), targets


def trained_losses(
  model: Predictor,
  task: Task,
  batch: Prompt | Statistics,
  moments: theory.Moments | None,
  every: bool,
) -> Float[Array, '*n']:
  """Returns the task's losses whose mean is trained.

  Args:
    model: The model.
    task: The task, which has the loss.
    batch: Prompts, or their sufficient statistics.
    moments: The moments of the task; needed for statistics.
    every: Whether the loss is at every example; otherwise it is at the query.

  Returns:
    Losses `[b]` for statistics, `[b, t]` for prompts, and `[l, b, t]` for a token model
    with l trained loops. Without `every` the axis t has the query alone.
  """
  if isinstance(batch, Statistics):
    assert moments is not None
    assert isinstance(model, FollowsRule)
    return jnp.square(batch.errors(model.learning_rule(), moments.prior_mean))
  if isinstance(model, TokenModel):
    targets = batch.targets if every else batch.targets[:, -1:]
    predictions = model.loop_predictions(batch, every).astype(targets.dtype)
    return jax.vmap(lambda prediction: task.loss(prediction, targets))(predictions)
  return task.loss(*predicted(model, batch, every))


def negative_log_likelihoods(
  model: Predictor, task: Task, batch: Prompt, every: bool
) -> Float[Array, '*n']:
  """Returns −log p, in nats, of labels that are the targets of prompts.

  The result has the axes of `trained_losses`, except that a model which is no
  `TokenModel` has losses `[b]` at the query alone. For classes these are the losses of
  the task, whose predictions are logits.
  """
  if task.label_kind != 'numbers':
    return trained_losses(model, task, batch, None, every)
  labels = batch.targets if every else batch.targets[:, -1:]
  if isinstance(model, TokenModel):
    distribution = model.loop_distributions(batch, every)
    assert isinstance(distribution, Distribution)
    labels = jnp.broadcast_to(labels[None], distribution.mean.shape)
  elif every:
    assert isinstance(model, HasDistributions)  # The validation ensures this.
    distribution = model.distributions(batch)
  else:
    assert isinstance(model, HasDistribution)
    distribution, labels = model.distribution(batch), labels[:, 0]
  return -distribution.log_prob(labels)
