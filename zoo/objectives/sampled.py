"""The objective `sampled`: the mean loss of fresh prompts."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from zoo.config.run import Run
from zoo.core.distributions import has_distribution
from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import Model, Predictor, Task
from zoo.core.statistics import Statistics
from zoo.measure.predictive import with_drawn_labels
from zoo.objectives.base import Objective, StepInputs, in_type, sample
from zoo.objectives.curricula import Stage
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
    self._check_model(config)

  def draw(
    self, key: Key[Array, ''], inputs: StepInputs, statistics: bool
  ) -> tuple[Prompt | Statistics, Int[Array, ' b'] | None]:
    """Returns prompts or statistics, and the lengths at which their losses count.

    The lengths are None if all positions count, or the query alone.
    """
    task, stage, size = inputs.task, inputs.stage, self.train.batch_size
    if stage is not None and stage.features is not None:
      assert isinstance(task, FunctionClass)  # As `check_curriculum` asks.
      task = FirstFeatures(task, stage.features)
    batch, lengths = sample(task, key, size, statistics), None
    if self.observes_labels and isinstance(batch, Prompt):
      batch = split_first_axis(with_drawn_labels(task, key, batch))
    if (least := self.section.min_examples) is not None:
      lengths = split_first_axis(draw_lengths(key, size, least, task.context_length))
    return batch, lengths

  def loss(
    self,
    model: Predictor,
    batch: tuple[Prompt | Statistics, Int[Array, ' b'] | None],
    key: Key[Array, ''],
    inputs: StepInputs,
  ) -> Float[Array, '']:
    prompts, lengths = batch
    if isinstance(prompts, Prompt):
      model, prompts = in_type(model, prompts, self.train.compute_dtype)
    every = self.section.positions == 'every' or lengths is not None
    losses = self.losses(model, prompts, inputs, every)
    if inputs.stage is None and lengths is None:
      return jnp.mean(losses)
    return mean_at(inputs.stage or Stage(), losses, lengths)

  def losses(
    self, model: Predictor, batch: Prompt | Statistics, inputs: StepInputs, every: bool
  ) -> Float[Array, '*n']:
    """Returns the losses whose mean is trained, as `trained_losses` does.

    Args:
      model: The model.
      batch: Prompts, or their sufficient statistics.
      inputs: The task, and its moments.
      every: Whether the loss is at every example; otherwise it is at the query.
    """
    return trained_losses(model, inputs.task, batch, inputs.moments, every)

  def _check_model(self, config: Run) -> None:
    """Raises UserError if the model says more of a number than this loss trains."""
    if self.task.label_kind == 'numbers' and has_distribution(self.model):
      raise UserError(
        "config.objective.name is 'sampled'; it must be 'nll' for "
        f'{headed(config)}, whose distribution has a width that a squared error '
        'does not train'
      )


def headed(config: Run) -> str:
  """Returns the name of a config's model, with its head if it has that field."""
  head = config.model.arguments.get('head')
  name = repr(config.model.name)
  return name if head is None else f'{name} with config.model.head = {head!r}'
