"""What every objective has, and what every step of training gets."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from zoo import theory
from zoo.config.run import Run
from zoo.core import draws
from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.core.protocols import (
  BaseTask,
  FollowsRule,
  Model,
  Predictor,
  Task,
  predicts_all,
)
from zoo.core.statistics import Statistics
from zoo.models import LinearAttention, TokenModel
from zoo.models.heads import Edges
from zoo.objectives.curricula import Stage
from zoo.objectives.lanes import mean_loss
from zoo.sharding import split_prompts, split_statistics


class StepInputs(NamedTuple):
  """The inputs of a compiled step besides the state and the key.

  They are arguments of the program, so that other numbers need no new compilation. They
  may be arrays of NumPy before `replicate` puts them on the devices.

  Attributes:
    task: The task, whose numbers are leaves.
    moments: The moments of the task. None unless the task is one that `theory.covers`.
    learning_rate: The learning rate. None means the learning rate of the config.
    stage: The stage of a curriculum. None means that there is no curriculum.
    num_steps: The step at which the decay of the schedule `wsd` ends, as a float. None
      means `train.num_steps` of the config.
  """

  task: Task
  moments: theory.Moments | None
  learning_rate: float | Array | None = None
  stage: Stage | None = None
  num_steps: float | Array | None = None


def inputs_of(task: Task) -> StepInputs:
  """Returns the inputs of a step of one model; the config has its learning rate."""
  return StepInputs(task, theory.task_moments(task) if theory.covers(task) else None)


class Objective(abc.ABC):
  """What a run minimises.

  A class derives from it, and says in its constructor what it needs of the config, the
  task and the model.

  Attributes:
    section: The section `objective` of the config.
    train: The section `train` of the config.
    has_curriculum: Whether each step has a stage of a curriculum.
    task: The task with concrete numbers. The prompts of a step are drawn from
      `inputs.task` instead, whose numbers are traced.
    model: The model, which may be abstract.
    measures: What the loss is, for plots: 'loss' is the loss of the task, 'likelihood'
      is the negative log likelihood, and 'other' is anything else.
    draws_prompts: Whether each step draws prompts.
    has_positions: Whether `objective.positions`, `objective.min_examples` and a
      curriculum choose which predictions of a prompt count.
    gets_task_and_key: Whether the loss gets `task` and a key for each part of a batch.
      The numbers of the task are then constants of the compiled step, and what the loss
      draws depends on the number of parts.
    draws_labels: Whether labels are drawn from the targets, whatever `objective.labels`
      says.
    needs_prompts: Whether the loss needs whole prompts, and not only their second
      moments, of a model with a learning rule.
  """

  measures: ClassVar[str] = 'other'
  draws_prompts: ClassVar[bool] = True
  has_positions: ClassVar[bool] = False
  gets_task_and_key: ClassVar[bool] = False
  draws_labels: ClassVar[bool] = False
  needs_prompts: ClassVar[bool] = False

  def __init__(self, config: Run, task: Task, model: Model):
    # The config is not kept: points of a sweep that differ only in the seed and the
    # learning rate share an objective.
    self.section, self.train = config.objective, config.train
    self.has_curriculum = config.curriculum.grows
    self.task, self.model = task, model
    if self.section.positions == 'every' or self.section.min_examples is not None:
      _check_positions(self, config)
    if self.observes_labels:
      _check_labels(self, config.task.name)
    if self.has_curriculum and not self.has_positions:
      raise UserError(
        f'config.objective.name is {self.section.name!r}; a curriculum needs '
        "'sampled' or 'nll'"
      )

  def loss_of_step(
    self,
    model: Predictor,
    key: Key[Array, ''],
    inputs: StepInputs,
    *,
    statistics: bool = False,
    num_lanes: int = 1,
  ) -> Float[Array, '']:
    """Returns the loss of a step, whose gradient is taken.

    Args:
      model: The model.
      key: The key of the step, from which the batch is drawn.
      inputs: The task and other inputs of the program.
      statistics: Whether sufficient statistics of prompts are drawn in their place.
      num_lanes: The number of parts of a batch that are computed at the same time.
    """
    batch = self.draw(key, inputs, statistics)
    parts = self.train.num_parts
    # Each part of the batch has a key of its own.
    own = jax.random.fold_in(key, draws.PARTS_KEY)
    keys = jax.random.split(own, parts * num_lanes)

    def of_part(
      model: Predictor, part: tuple[PyTree, Key[Array, ' 1']]
    ) -> Float[Array, '']:
      batch, (key,) = part
      return self.loss(model, batch, key, inputs)

    if len(keys) == 1:
      return of_part(model, (batch, keys))
    return mean_loss(of_part, model, (batch, keys), parts, num_lanes)

  def draw(self, key: Key[Array, ''], inputs: StepInputs, statistics: bool) -> PyTree:
    """Returns what the loss of a step is measured on; None if it is not on prompts.

    The first axis of each array is that of the prompts.

    Args:
      key: The key of the step.
      inputs: The task and other inputs of the program.
      statistics: Whether sufficient statistics of prompts are drawn in their place.
    """
    return None

  @abc.abstractmethod
  def loss(
    self, model: Predictor, batch: PyTree, key: Key[Array, ''], inputs: StepInputs
  ) -> Float[Array, '']:
    """Returns the loss of a batch or of a part of it.

    Args:
      model: The model.
      batch: What `draw` returns, or a part of it.
      key: A key that is new at each step and for each part.
      inputs: The task and other inputs of the program.
    """

  @property
  def observes_labels(self) -> bool:
    """Whether the loss is that of labels which are drawn from the targets."""
    return self.draws_labels or self.section.labels == 'observed'

  def uses_statistics(self, num_models: int = 1) -> bool:
    """Returns whether models are trained and measured on sufficient statistics.

    A model with a learning rule depends on a prompt only through second moments of its
    examples. These are used if the task can draw them, if the objective and the config
    need no whole prompts, and if they are cheaper than the examples. They are cheaper
    for a long context, for several models, or for enough heads.

    Args:
      num_models: The number of models that are trained side by side.
    """
    task, model = self.task, self.model
    train, asked = self.train, self.section
    asks_for_prompts = (
      self.needs_prompts
      or train.num_parts > 1
      or train.compute_dtype != 'float32'
      or asked.positions != 'query'
      or asked.min_examples is not None
      or asked.labels != 'clean'
      or self.has_curriculum  # It leaves parts of prompts out.
    )
    if asks_for_prompts or not (theory.covers(task) and isinstance(model, FollowsRule)):
      return False
    if num_models > 1 or task.has_long_context:
      return True
    if not isinstance(model, LinearAttention):
      return True
    heads, c, e = model.num_heads, task.context_length, task.num_features + 1
    # Transforming statistics costs e⁴ for any batch size. Devices cannot share this
    # work, and a large triangle takes long to compile.
    if e > 256:
      return False
    # Both sides are multiplications per prompt. Those of statistics are about five
    # times as cheap.
    return e * (e + 1) // 2 * (c + e) <= 5 * heads * e * (2 * c + e)


def _check_labels(objective: Objective, task_name: str) -> None:
  """Raises UserError unless observed labels can be drawn from the targets."""
  task, name = objective.task, objective.section.name
  said = "config.objective.labels is 'observed'; it must be 'clean'"
  if objective.draws_labels:
    said = f"config.objective.name is {name!r}; it must be 'sampled'"
  if not objective.draws_prompts:
    raise UserError(f'{said} for the objective {name!r}')
  if task.label_kind != 'numbers':
    return
  prompt = jax.eval_shape(lambda key: task.sample(key, 1), jax.random.key(0))
  has_noise = prompt.context_targets is not None
  if has_noise and type(task).sample_labels is BaseTask.sample_labels:
    raise UserError(
      f'{said} for {task_name!r}, whose labels differ from their targets, and '
      'which has no method sample_labels'
    )


def _check_positions(objective: Objective, config: Run) -> None:
  """Raises UserError unless the model predicts all examples that are trained on."""
  task, model = objective.task, objective.model
  asked, name = objective.section, objective.section.name
  said = "config.objective.positions is 'every'; it must be 'query'"
  if (least := asked.min_examples) is not None:
    said = f'config.objective.min_examples is {least}; it must be None'
    if asked.positions == 'every':
      raise UserError(f"{said} for config.objective.positions = 'every'")
    if least > task.context_length:
      raise UserError(f'{said}, or at most {task.context_length}, the context length')
  if not objective.has_positions:
    is_risk = not objective.draws_prompts
    why = 'is the risk at the query' if is_risk else 'itself says what is trained'
    raise UserError(f'{said} for the objective {name!r}, which {why}')
  if not (predicts_all(model) or isinstance(model, FollowsRule)):
    why = 'which has no method predictions'
    if isinstance(model, TokenModel) and model.layout == 'joint':
      why = "whose tokens are 'joint': each holds the label of its example"
    elif config.model.arguments.get('causal') is False:
      why = 'whose config.model.causal is False: it would see the labels'
    raise UserError(f'{said} for {config.model.name!r}, {why}')


def sample(
  task: Task, key: Key[Array, ''], batch_size: int, statistics: bool
) -> Prompt | Statistics:
  """Returns a batch of prompts or of their statistics; each device draws its part."""
  if statistics:
    assert theory.covers(task)  # As `Objective.uses_statistics` asks.
    return split_statistics(task.sample_statistics(key, batch_size))
  return sample_prompts(task, key, batch_size)


def sample_prompts(task: Task, key: Key[Array, ''], batch_size: int) -> Prompt:
  """Returns a batch of prompts; each device draws its part."""
  prompt = split_prompts(task.sample(key, batch_size))
  return draws.materialize_once(key, lambda prompt: prompt, prompt)


def in_type(model: Predictor, prompt: Prompt, dtype: str) -> tuple[Predictor, Prompt]:
  """Returns a model, and its inputs from prompts, in another type.

  Targets keep their type. So do the edges of bars, some of which would become equal.
  """
  if dtype == 'float32':
    return model, prompt

  def cast(array: Array) -> Array:
    return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

  graph, edges, state = nnx.split(model, Edges, ...)
  prompt = dataclasses.replace(
    prompt,
    x=cast(prompt.x),
    y=cast(prompt.y),
    x_query=cast(prompt.x_query),
    context_targets=prompt.targets[:, :-1],
  )
  return nnx.merge(graph, edges, jax.tree.map(cast, state)), prompt
