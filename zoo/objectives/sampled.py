"""The objective `sampled`: the mean loss of fresh prompts."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from zoo.config.run import Run
from zoo.core.distributions import has_distribution
from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Model, Task
from zoo.core.statistics import Statistics
from zoo.measure.predictive import with_drawn_labels
from zoo.objectives.base import Objective, StepInputs, in_type, sample
from zoo.objectives.curricula import Stage
from zoo.objectives.lanes import mean_loss
from zoo.objectives.losses import trained_losses
from zoo.objectives.stages import FirstFeatures, draw_lengths, mean_at
from zoo.sharding import split_first_axis
from zoo.tasks.base import FunctionClass


class Sampled(Objective):
  """The mean of the task's loss over fresh prompts, or over their statistics.

  It estimates the in-context risk, E[loss(prediction, target)]. With
  `objective.positions='query'` it is the loss at the query, and with 'every' the mean
  of the losses at all examples and the query. With `objective.min_examples` it is the
  loss after a number of examples that is drawn for each prompt. For a looped model it
  is also the mean over the trained loops (Yang et al., arXiv 2311.12424, eq. 4). A
  curriculum leaves out losses that do not count at its stage.
  """

  measures = 'loss'
  has_positions = True

  def __init__(self, config: Run, task: Task, model: Model):
    super().__init__(config, task, model)
    self._check_model()

  def loss(
    self,
    model: Any,
    key: Key[Array, ''],
    numbers: StepInputs,
    *,
    statistics: bool = False,
    num_lanes: int = 1,
  ) -> Float[Array, '']:
    task, stage, size = numbers.task, numbers.stage, self.config.train.batch_size
    if stage is not None and stage.features is not None:
      assert isinstance(task, FunctionClass)  # As `check_curriculum` asks.
      task = FirstFeatures(task, stage.features)
    batch, lengths = sample(task, key, size, statistics), None
    if self.observes_labels and isinstance(batch, Prompt):
      batch = split_first_axis(with_drawn_labels(task, key, batch))
    if (least := self.config.objective.min_examples) is not None:
      lengths = split_first_axis(draw_lengths(key, size, least, task.context_length))
    loss = functools.partial(self._loss_of_part, numbers._replace(task=task))
    if (parts := self.config.train.num_parts) * num_lanes == 1:
      return loss(model, (batch, lengths))
    return mean_loss(loss, model, (batch, lengths), parts, num_lanes)

  def losses(
    self, model: Any, batch: Prompt | Statistics, numbers: StepInputs, every: bool
  ) -> Float[Array, '*n']:
    """Returns the losses whose mean is trained, as `trained_losses` does.

    Args:
      model: The model.
      batch: Prompts, or their sufficient statistics.
      numbers: The task, and its moments.
      every: Whether the loss is at every example; otherwise it is at the query.
    """
    return trained_losses(model, numbers.task, batch, numbers.moments, every)

  def _loss_of_part(
    self, numbers: StepInputs, model: Any, part: tuple[Prompt | Statistics, Any]
  ) -> Float[Array, '']:
    """Returns the mean loss over prompts or statistics, at the lengths that count."""
    batch, lengths = part
    if isinstance(batch, Prompt):
      model, batch = in_type(model, batch, self.config.train.compute_dtype)
    every = self.config.objective.positions == 'every' or lengths is not None
    losses = self.losses(model, batch, numbers, every)
    if numbers.stage is None and lengths is None:
      return jnp.mean(losses)
    return mean_at(numbers.stage or Stage(), losses, lengths)

  def _check_model(self) -> None:
    """Raises UserError if the model says more of a number than this loss trains."""
    if self.task.label_kind == 'numbers' and has_distribution(self.model):
      raise UserError(
        "config.objective.name is 'sampled'; it must be 'nll' for "
        f'{headed(self.config)}, whose distribution has a width that a squared error '
        'does not train'
      )


def headed(config: Run) -> str:
  """Returns the name of a config's model, with its head if it has that field."""
  head = config.model.arguments.get('head')
  name = repr(config.model.name)
  return name if head is None else f'{name} with config.model.head = {head!r}'
