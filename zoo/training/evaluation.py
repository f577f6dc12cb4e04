"""The risks of models, on held-out prompts and by theory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Key, PyTree

from zoo import theory
from zoo.config.run import Run
from zoo.core.distributions import has_distribution
from zoo.core.draws import EVAL_STREAM, stream_of
from zoo.core.errors import UserError
from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.learning_rule import LearningRule
from zoo.core.programs import Program
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, HasExactForm, Predictor, Task, predicts_all
from zoo.core.statistics import Statistics
from zoo.measure.intervals import Estimate, estimate_of_batches
from zoo.measure.predictive import draws_labels, with_drawn_labels
from zoo.objectives.base import sample
from zoo.objectives.losses import negative_log_likelihoods, predicted, trained_losses
from zoo.sharding import on_mesh, replicate, replicated
from zoo.training.experiment import Experiment
from zoo.training.metrics import own_metrics

Rule = LearningRule | DeepRule | Recurrence
# Each quantity has, for each batch, the mean over the prompts and the mean square of
# the deviations from it. The mean of the squares would lose a spread of losses that is
# small beside their mean, since float32 has seven digits.
ByBatch = dict[str, tuple[Array, Array]]


class HeldOut(NamedTuple):
  """What is measured on held-out prompts, on the devices or on the host.

  Attributes:
    losses: The mean and the spread of losses in each batch; empty if no prompts are
      held out.
    metrics: The numbers of registered metrics, by `METRIC/KEY`.
  """

  losses: ByBatch
  metrics: dict[str, Array]


# `evaluate` returns a pair: what was measured on held-out prompts, and the learning
# rule or exact form of the model, from which its exact risk follows.
Measured = tuple[HeldOut, Rule | None]


class Risks(NamedTuple):
  """The risks of a model and the numbers of its registered metrics.

  If theory covers the model and the task, `exact` is the exact risk; otherwise it is
  None.

  Attributes:
    sampled: The risk on held-out prompts; None if no prompts were sampled.
    accuracy: The accuracy on the same prompts; None unless labels are classes.
    nll: The negative log likelihood of observed labels that are numbers, in nats; None
      for a model without a distribution of them.
    curve: The sampled loss after 0, 1, …, C examples; None unless the model predicts
      all examples in one pass.
    metrics: The numbers of registered metrics by `METRIC/KEY`; empty if none was
      measured.
  """

  exact: float | None
  sampled: Estimate | None
  accuracy: Estimate | None
  nll: Estimate | None
  curve: list[float] | None
  metrics: dict[str, float]


class Evaluation(NamedTuple):
  """Everything that measures a model, or many models on the same held-out prompts.

  With many models each array has a first axis. `sample` and `rule` are jitted, and
  compiled after `compile_evaluation`.

  Attributes:
    sample: Maps the model's arrays and the inputs to a `HeldOut`.
    rule: Maps the model's arrays to its learning rule or exact form, or to None.
    exact: Maps the result of `rule`, on the host, to the exact risk of each model.
    inputs: The key of the held-out prompts, the task, and its moments.
    num_prompts: The number of held-out prompts.
    is_sampled: Whether there are held-out prompts or registered metrics.
    is_stacked: Whether it measures many models.
  """

  sample: Program
  rule: Program
  exact: Callable[[Rule | None], list[float] | list[None]]
  inputs: PyTree
  num_prompts: int
  is_sampled: bool
  is_stacked: bool


def make_evaluation(experiment: Experiment, statistics: bool) -> Evaluation:
  """Returns everything that measures the model of an experiment; nothing is compiled.

  Args:
    experiment: The experiment.
    statistics: Whether the model takes sufficient statistics of prompts.
  """
  config, graph = experiment.config, experiment.graphs['model']
  task = experiment.task.held_out()
  moments = theory.task_moments(task) if theory.covers(task) else None
  moments = jax.tree.map(np.asarray, moments)
  key = stream_of(config.eval.seed, EVAL_STREAM)
  whole = replicated(experiment.mesh)
  return Evaluation(
    sample=jax.jit(
      functools.partial(measure_held_out, graph, config, task, statistics),
      out_shardings=whole,
    ),
    rule=jax.jit(functools.partial(exact_rule, graph, task), out_shardings=whole),
    exact=functools.partial(exact_risks_of, [task], moments, False),
    inputs=(key, task, moments),
    num_prompts=config.eval.num_batches * config.train.batch_size,
    is_sampled=bool(config.eval.num_batches or config.eval.metrics),
    is_stacked=False,
  )


def compile_evaluation(
  config: Run, evaluation: Evaluation, abstract: PyTree, mesh: Mesh
) -> Evaluation:
  """Compiles all measurements of models with these abstract arrays on a mesh."""
  sample, rule = evaluation.sample, evaluation.rule
  assert isinstance(sample, jax.stages.Wrapped)  # Neither is compiled yet.
  assert isinstance(rule, jax.stages.Wrapped)
  with on_mesh(mesh, config):
    rule = rule.lower(abstract).compile()
    if rule.out_info is not None:  # The first call compiles the exact risk.
      evaluation.exact(
        jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), rule.out_info)
      )
    inputs = replicate(evaluation.inputs, mesh)
    if evaluation.is_sampled:
      sample = sample.lower(abstract, inputs).compile()
  return evaluation._replace(rule=rule, sample=sample, inputs=inputs)


def is_evaluated(config: Run, step: int) -> bool:
  """Returns whether a model is measured on held-out prompts after a step."""
  return step == config.train.num_steps or step % config.eval.every == 0


def evaluate(
  config: Run, evaluation: Evaluation, model_state: PyTree, step: int
) -> Measured:
  """Starts to measure the model after a step.

  The caller may donate the arrays of the model as soon as this function returns. The
  risk on held-out prompts is measured where the config asks for it and at the end.
  The exact risk is always measured. `finish_evaluation` makes risks from the result.

  Returns:
    What was measured, on the devices.
  """
  held_out = HeldOut({}, {})
  if evaluation.is_sampled and is_evaluated(config, step):
    held_out = evaluation.sample(model_state, evaluation.inputs)
  return held_out, evaluation.rule(model_state)


def finish_evaluation(evaluation: Evaluation, measured: Measured) -> list[Risks]:
  """Returns the risks of each model, from the result of `evaluate` on the host."""
  held_out, rule = measured
  exact = evaluation.exact(rule)
  of_models = [held_out]
  if evaluation.is_stacked:
    of_models = [
      jax.tree.map(lambda array, i=i: array[i], held_out) for i in range(len(exact))
    ]
  return [
    risks_of(each, risk, evaluation.num_prompts)
    for each, risk in zip(of_models, exact, strict=True)
  ]


def exact_risks_of(
  tasks: Sequence[Task],
  moments: theory.Moments | None,
  is_stacked: bool,
  rules: Rule | None,
) -> list[float] | list[None]:
  """Returns the exact risk of each model; None for each if theory does not know it.

  Args:
    tasks: The held-out task of each model.
    moments: The moments of the task, or of many tasks along a first axis.
    is_stacked: Whether there is such an axis.
    rules: The rule or the exact form of the model, on the host, or those of many.
  """
  if rules is None or moments is None:
    return [None] * len(tasks)
  stacked, constants = rules, moments
  if not is_stacked:
    # NumPy is used since the risks are on the host, and the mesh may be elsewhere.
    stacked, constants = jax.tree.map(lambda x: np.asarray(x)[None], (rules, moments))
  if isinstance(stacked, LearningRule):
    return np.asarray(theory.exact_risks(stacked, constants)).tolist()
  return np.asarray(theory.exact_form_risks(stacked, tasks[0])).tolist()


def risks_of(held_out: HeldOut, exact: float | None, num_prompts: int) -> Risks:
  """Returns the risks of one model, from what was measured on held-out prompts."""
  estimates, losses = {}, held_out.losses
  for name in ('model', 'accuracy', 'nll'):
    if name in losses:
      means, deviations = map(np.asarray, losses[name])
      estimates[name] = estimate_of_batches(means, deviations, num_prompts)
  curve = None
  if 'curve' in losses:
    curve = np.mean(np.asarray(losses['curve'][0], np.float64), axis=0).tolist()
  return Risks(
    exact=exact,
    sampled=estimates.get('model'),
    accuracy=estimates.get('accuracy'),
    nll=estimates.get('nll'),
    curve=curve,
    metrics={name: float(value) for name, value in held_out.metrics.items()},
  )


def exact_rule(graph: nnx.GraphDef[Any], task: Task, state: PyTree) -> Rule | None:
  """Returns the model's learning rule or exact form, in the highest matmul precision.

  The result is None if the model has neither, or if theory does not know its risk on
  this task.
  """
  if not theory.covers(task):
    return None
  model = nnx.merge(graph, state)
  with jax.default_matmul_precision('highest'):
    if isinstance(model, FollowsRule):
      return model.learning_rule()
    if not isinstance(model, HasExactForm):
      return None
    try:
      form = theory.exact_form(model)
      theory.form_constants(form, task)
    except UserError as error:
      logging.warning('the run has no exact risk: %s', error)
      return None
    return form


# The inputs are the key of the held-out prompts, the task, and its moments.
Inputs = tuple[Key[Array, ''], Task, theory.Moments | None]


def measure_held_out(
  graph: nnx.GraphDef[Any],
  config: Run,
  task: Task,
  statistics: bool,
  state: PyTree,
  inputs: Inputs,
) -> HeldOut:
  """Returns a model's losses in each held-out batch, and its registered metrics.

  Metrics get the `task` itself, whose baselines need its numbers. The task among the
  inputs has arguments of the program in their place.
  """
  losses, (key, traced_task, moments) = {}, inputs

  def measure(index: Array) -> ByBatch:
    # `lax.map` traces this function anew. A transform of NNX in the call of a model
    # takes only variables of its own trace, so that a copy is made here.
    model = nnx.merge(graph, state, copy=True)
    stream = jax.random.fold_in(key, index)
    batch = sample(traced_task, stream, config.train.batch_size, statistics)
    found = held_out_losses(model, traced_task, batch, moments, stream)
    return {name: mean_and_deviation(each) for name, each in found.items()}

  if config.eval.num_batches:
    losses = jax.lax.map(measure, jnp.arange(config.eval.num_batches))
  return HeldOut(losses, own_metrics(graph, config.eval.metrics, task, key, state))


def mean_and_deviation(losses: Float[Array, 'b ...']) -> tuple[Array, Array]:
  """Returns the mean of losses, and the mean square of their deviations from it."""
  mean = jnp.mean(losses, axis=0)
  return mean, jnp.mean(jnp.square(losses - mean[None]), axis=0)


def held_out_losses(
  model: Predictor,
  task: Task,
  batch: Prompt | Statistics,
  moments: theory.Moments | None,
  key: Key[Array, ''],
) -> dict[str, Array]:
  """Returns the losses of a model at the queries of a batch, by name.

  A model that predicts all examples in one pass is also measured at each of them, and a
  model of classes by its accuracy. A model with a distribution of numbers is measured
  by the negative log likelihood of labels, which are drawn with the key of the batch.
  """
  if isinstance(batch, Statistics):
    return {'model': trained_losses(model, task, batch, moments, every=False)}
  every = predicts_all(model)
  predictions, targets = predicted(model, batch, every)
  at_all = task.loss(predictions, targets)
  losses = {'model': at_all[:, -1]}
  if every:
    losses['curve'] = at_all
  accuracy = task.accuracy(predictions[:, -1], targets[:, -1])
  if accuracy is not None:
    losses['accuracy'] = accuracy
  has_width = task.label_kind == 'numbers' and has_distribution(model)
  if has_width and draws_labels(task, batch):
    labelled = with_drawn_labels(task, key, batch)
    of_query = negative_log_likelihoods(model, task, labelled, every=False)
    losses['nll'] = of_query.reshape(-1, len(batch.x))[-1]  # The last loop counts.
  return losses
