"""The objectives of training, which `make_objective` describes.

They are the in-context risk, sampled or by theory; the negative log likelihood; and the
losses that users register.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from zoo import theory
from zoo.config.building import Config
from zoo.config.curricula import Stage, has_curriculum
from zoo.config.own import OBJECTIVES, OF_THE_LIBRARY
from zoo.config.sharding import split_first_axis, split_prompts, split_statistics
from zoo.core import draws
from zoo.core.distributions import Distribution, HasDistribution, HasDistributions
from zoo.core.errors import UserError, shown
from zoo.core.programs import compiled
from zoo.core.prompt import Prompt
from zoo.core.protocols import (
  FollowsRule,
  HasExactForm,
  Predictor,
  Task,
)
from zoo.core.statistics import Statistics
from zoo.measure.contracts.checks import check_sampled, noted, with_changes
from zoo.measure.predict import one_pass
from zoo.measure.predictive import with_drawn_labels
from zoo.models import LinearAttention, TokenModel
from zoo.models.heads import Edges
from zoo.tasks.base import FunctionClass
from zoo.theory.trust import QUICK_TO_COMPILE
from zoo.training import rows as rows  # Its import registers 'rows'.
from zoo.training.batch_parts import mean_loss
from zoo.training.curriculum import FirstFeatures, draw_lengths, mean_at

_NUM_CHECKED = 16  # An objective is checked on this number of prompts.


class Numbers(NamedTuple):
  """The inputs of a compiled step besides the state and the key.

  They are arguments of the program, so that other numbers need no new compilation.

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
  learning_rate: Any = None
  stage: Stage | None = None
  num_steps: Any = None


# An objective maps a model, the key of the step and the numbers to the loss.
Objective = Callable[[Predictor, Key[Array, ''], Numbers], Float[Array, '']]


def numbers_of(task: Task) -> Numbers:
  """Returns the numbers of a step of one model; the config has its learning rate."""
  return Numbers(task, theory.task_moments(task) if theory.covers(task) else None)


def uses_statistics(
  config: Config, model: object, task: Task, num_models: int = 1
) -> bool:
  """Returns whether models are trained and measured on sufficient statistics.

  A model with a learning rule depends on a prompt only through second moments of its
  examples. These are used if the task can draw them, if the config asks for nothing
  that needs whole prompts (parts of a batch, another type, other positions or labels,
  other objectives, a curriculum), and if they are cheaper than the examples. They are
  cheaper for a long context, for several models, or for enough heads.

  Args:
    config: The config of the models.
    model: The model, which may be abstract.
    task: The task of the config.
    num_models: The number of models that are trained side by side.
  """
  asks_for_prompts = (
    config.train.num_parts > 1
    or config.train.compute_dtype != 'float32'
    or config.objective.positions != 'query'
    or config.objective.min_examples is not None
    or config.objective.labels != 'clean'
    or config.objective.name in ('nll', *OBJECTIVES)
    or has_curriculum(config.curriculum)  # It leaves parts of prompts out.
  )
  if asks_for_prompts or not (theory.covers(task) and isinstance(model, FollowsRule)):
    return False
  if num_models > 1 or task.has_long_context or not isinstance(model, LinearAttention):
    return True
  heads, c, e = model.num_heads, task.context_length, task.num_features + 1
  # Transforming statistics costs e⁴ for any batch size. Devices cannot share this work,
  # and a large triangle takes long to compile.
  if e > 256:
    return False
  # Both sides are multiplications per prompt. Those of statistics are about five times
  # as cheap.
  return e * (e + 1) // 2 * (c + e) <= 5 * heads * e * (2 * c + e)


def sample(
  task: Any, key: Key[Array, ''], batch_size: int, statistics: bool
) -> Prompt | Statistics:
  """Returns a batch of prompts or of their statistics; each device draws its part."""
  if statistics:
    return split_statistics(task.sample_statistics(key, batch_size))
  prompt = split_prompts(task.sample(key, batch_size))
  return draws.materialize_once(key, lambda prompt: prompt, prompt)


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


def make_objective(
  config: Config, task: Task, statistics: bool, num_lanes: int = 1
) -> Objective:
  """Returns the objective that a config names.

  - `sampled` is the mean of the task's loss over fresh prompts, or over their
    statistics: an estimate of the in-context risk, E[loss(prediction, target)]. With
    `objective.positions='query'` it is the loss at the query, and with 'every' the mean
    of the losses at all examples and the query. With `objective.min_examples` it is the
    loss after a number of examples that is drawn for each prompt. For a looped model it
    is also the mean over the trained loops (Yang et al., arXiv 2311.12424, eq. 4). A
    curriculum leaves out losses that do not count at its stage.
  - `nll` is the same mean of negative log likelihoods of observed labels.
  - `exact` is the in-context risk at the query itself, by theory, from the learning
    rule or the exact form of the model. Nothing is sampled.
  - A registered objective is the mean of what its function returns for fresh prompts.

  Args:
    config: The config of the run.
    task: The task with concrete numbers. The constants of exact forms are computed from
      it, and registered objectives are called with it. Prompts are drawn from
      `numbers.task` of each step instead, whose numbers are traced.
    statistics: Whether statistics of prompts are drawn instead of prompts.
    num_lanes: The number of parts of a batch that are computed at the same time.

  Returns:
    A function from a model, the key of a step and the numbers to the loss.
  """
  if config.objective.name == 'exact':
    return functools.partial(_exact, task)
  if config.objective.name in ('sampled', 'nll'):
    return functools.partial(_sampled, config, statistics, num_lanes)
  return functools.partial(_own, config, task, num_lanes)


def _sampled(
  config: Config,
  statistics: bool,
  num_lanes: int,
  model: Predictor,
  key: Key[Array, ''],
  numbers: Numbers,
) -> Float[Array, '']:
  task, stage, size = numbers.task, numbers.stage, config.train.batch_size
  if stage is not None and stage.features is not None:
    assert isinstance(task, FunctionClass)  # The validation ensures this.
    task = FirstFeatures(task, stage.features)
  batch, lengths = sample(task, key, size, statistics), None
  if config.objective.labels == 'observed' or config.objective.name == 'nll':
    assert isinstance(batch, Prompt)  # `uses_statistics` ensures this.
    batch = with_drawn_labels(task, key, batch)
    batch = split_first_axis(batch)
  if (least := config.objective.min_examples) is not None:
    lengths = draw_lengths(key, size, least, task.context_length)
    lengths = split_first_axis(lengths)
  loss = functools.partial(_loss_of_part, config, numbers._replace(task=task))
  if (parts := config.train.num_parts) * num_lanes == 1:
    return loss(model, (batch, lengths))
  return mean_loss(loss, model, (batch, lengths), parts, num_lanes)


def _own(
  config: Config,
  task: Task,
  num_lanes: int,
  model: Predictor,
  key: Key[Array, ''],
  numbers: Numbers,
) -> Float[Array, '']:
  """Returns the mean loss of a registered objective over fresh prompts.

  The function gets `task`, whose numbers are concrete, since baselines need them on the
  host. The numbers of `numbers.task` are traced.
  """
  count = config.train.num_parts * num_lanes
  prompt: Any = sample(numbers.task, key, config.train.batch_size, statistics=False)
  if config.objective.labels == 'observed' or config.objective.name == 'rows':
    prompt = with_drawn_labels(task, key, prompt)
    prompt = split_first_axis(prompt)
  # Prompts fold the key with their index, which is below 2³² − 3. Each part of the
  # batch has a key of its own.
  keys = jax.random.split(jax.random.fold_in(key, 2**32 - 3), count)
  loss = functools.partial(_own_loss_of_part, config, task)
  if count == 1:
    return loss(model, (prompt, keys))
  return mean_loss(loss, model, (prompt, keys), config.train.num_parts, num_lanes)


def check_objective(config: Config, task: Task, model: Predictor) -> None:
  """Checks that a registered objective changes no variable of a model.

  A step changes weights by their gradient, and nothing else. Of an objective that
  changes a variable itself, such as the running mean of `nnx.BatchNorm`, a step would
  keep the change or lose it, depending on other fields of the config.

  Args:
    config: The config of the run.
    task: The task of the config.
    model: The model, which stays as it is.

  Raises:
    UserError: If the objective changes a variable, or returns anything but a loss for
      each prompt.
  """
  name = config.objective.name
  if name in OF_THE_LIBRARY:
    return
  graph, state = nnx.split(model)

  @functools.partial(compiled, compiler_options=QUICK_TO_COMPILE)
  def changes(state: PyTree, prompt: Prompt, key: Key[Array, '']) -> Any:
    own: Any = nnx.merge(graph, state, copy=True)
    if config.objective.labels == 'observed':
      prompt = with_drawn_labels(task, key, prompt)

    def call() -> Array:
      return _checked_losses(name, OBJECTIVES[name](own, prompt, task, key), prompt)

    with noted(f'the objective {name!r}', f' on {number} prompts'):
      _, changed = with_changes(call, own)
    return changed

  key, number = jax.random.key(0), min(_NUM_CHECKED, config.train.batch_size)
  changed = jax.device_get(changes(state, check_sampled(task, key, number), key))
  if names := [variable for variable, has_changed in changed.items() if has_changed]:
    raise UserError(
      f'the objective {name!r} changes {shown(names)} of the model; a step changes '
      'weights by their gradient and nothing else, so an objective must leave all '
      'variables as they are (random numbers come from nnx.Rngs(dropout=key))'
    )


def _own_loss_of_part(
  config: Config, task: Task, model: Any, part: tuple[Prompt, Key[Array, ' 1']]
) -> Float[Array, '']:
  """Returns the mean loss of a registered objective over a part of a batch.

  Raises:
    UserError: If the objective returns anything but a loss for each prompt.
  """
  prompt, (key,) = part
  model, prompt = _in_type(model, prompt, config.train.compute_dtype)
  name = config.objective.name
  losses = _checked_losses(name, OBJECTIVES[name](model, prompt, task, key), prompt)
  return jnp.mean(losses.astype(jnp.promote_types(losses.dtype, jnp.float32)))


def _checked_losses(name: str, losses: Any, prompt: Prompt) -> Float[Array, ' b']:
  """Returns the losses of an objective, after a check of their shape and type.

  Raises:
    UserError: If they are anything but a loss for each prompt.
  """
  size = len(prompt.x)
  shape = getattr(losses, 'shape', type(losses).__name__)
  if shape != (size,):
    raise UserError(
      f'the objective {name!r} returns the shape {shape} for {size} prompts; it must '
      f'be {(size,)}, a loss for each prompt'
    )
  if not jnp.issubdtype(losses.dtype, jnp.floating):
    raise UserError(
      f'the objective {name!r} returns numbers of the type {losses.dtype}; they must '
      'be real floats, which have a gradient'
    )
  return losses


def _loss_of_part(
  config: Config, numbers: Numbers, model: Any, part: tuple[Prompt | Statistics, Any]
) -> Float[Array, '']:
  """Returns the mean loss over prompts or statistics, at the lengths that count."""
  batch, lengths = part
  if isinstance(batch, Prompt):
    model, batch = _in_type(model, batch, config.train.compute_dtype)
  every = config.objective.positions == 'every' or lengths is not None
  if config.objective.name == 'nll':
    assert isinstance(batch, Prompt)  # `uses_statistics` ensures this.
    losses = negative_log_likelihoods(model, numbers.task, batch, every)
  else:
    losses = trained_losses(model, numbers.task, batch, numbers.moments, every)
  if numbers.stage is None and lengths is None:
    return jnp.mean(losses)
  return mean_at(numbers.stage or Stage(), losses, lengths)


def _exact(
  task: Task, model: Predictor, key: Key[Array, ''], numbers: Numbers
) -> Float[Array, '']:
  if isinstance(model, HasExactForm):
    form = theory.exact_form(model)
    return theory.form_risk(form, theory.form_constants(form, task))
  assert numbers.moments is not None  # The validation of the config ensures this.
  assert isinstance(model, FollowsRule)
  return theory.population_risk(model.learning_rule(), numbers.moments)


def _in_type(model: Any, prompt: Prompt, dtype: str) -> tuple[Any, Prompt]:
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
