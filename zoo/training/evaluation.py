"""The sampled and exact risks of models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Key, PyTree

from zoo import theory
from zoo.config.building import Config
from zoo.config.own import METRICS
from zoo.config.sharding import on_mesh, replicate, replicated
from zoo.core.distributions import has_distribution
from zoo.core.draws import EVAL_STREAM, stream_of
from zoo.core.errors import UserError
from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, HasExactForm, Task, predicts_all
from zoo.core.statistics import Statistics
from zoo.measure.predictive import draws_labels, with_drawn_labels
from zoo.measure.statistics import Estimate, estimate_of_batches
from zoo.training.objective import (
  negative_log_likelihoods,
  predicted,
  sample,
  trained_losses,
)

Rule = LearningRule | DeepRule | Recurrence
# For each quantity and batch, the mean over the prompts, and the mean square of the
# deviations from it. The mean of the squares would lose the spread of losses that is
# small beside their mean: float32 has seven digits.
SampledMoments = dict[str, tuple[Array, Array]]


class Sampled(NamedTuple):
  """What is measured on held-out prompts, on the devices or on the host."""

  moments: dict[str, Any]  # as `SampledMoments`; empty if no prompts are held out
  metrics: dict[str, Any]  # numbers of registered metrics, by `METRIC/KEY`


NOT_SAMPLED = Sampled({}, {})
# What was sampled, and the rules that give exact risks, on the devices and on the host.
Measured = tuple[Sampled, Rule | None]
Fetched = tuple[Any, Rule | None]  # a `Sampled` of arrays of NumPy


class Risks(NamedTuple):
  """The risk of a model, as far as it is known, and what registered metrics say."""

  exact: float | None  # None if theory does not cover the model or the task
  sampled: Estimate | None  # None if no prompts were sampled
  accuracy: Estimate | None  # on the same prompts; None unless labels are classes
  # The negative log likelihood of observed labels that are numbers, in nats; None for a
  # model without a distribution of them.
  nll: Estimate | None
  # The sampled loss after 0, 1, …, C examples; None unless one pass predicts all.
  curve: list[float] | None
  metrics: dict[str, float]  # by `METRIC/KEY`; empty where none was measured


class Evaluation(NamedTuple):
  """What measures a model, or many side by side, always on the same held-out prompts.

  Of many models each array has a first axis, and what `exact` returns is a list.
  """

  sample: Any  # from the model's arrays and the inputs to what is `Sampled`
  rule: Any  # from the model's arrays to its learning rule or exact form, or None
  exact: Callable[[Any], Any]  # from what `rule` returns, on the host, to exact risks
  inputs: PyTree  # the key of the held-out prompts, the task, and its moments
  num_prompts: int
  is_sampled: bool  # whether there are held-out prompts, or registered metrics


def make_evaluation(
  config: Config, task: Task, graph: nnx.GraphDef, statistics: bool, mesh: Mesh
) -> Evaluation:
  """What measures the model of a config; nothing is compiled yet."""
  task = task.held_out()
  moments = theory.task_moments(task) if theory.covers(task) else None
  moments = jax.tree.map(np.asarray, moments)
  key = stream_of(config.eval.seed, EVAL_STREAM)
  whole = replicated(mesh)
  return Evaluation(
    sample=jax.jit(
      functools.partial(sample_all, graph, config, task, statistics),
      out_shardings=whole,
    ),
    rule=jax.jit(functools.partial(exact_rule, graph, task), out_shardings=whole),
    exact=functools.partial(exact_risk_of, task, moments),
    inputs=(key, task, moments),
    num_prompts=config.eval.num_batches * config.train.batch_size,
    is_sampled=bool(config.eval.num_batches or config.eval.metrics),
  )


def compile_evaluation(
  config: Config, evaluation: Evaluation, abstract: PyTree, mesh: Mesh
) -> Evaluation:
  """Compiles all measurements, of models with these abstract arrays on a mesh."""
  with on_mesh(mesh, config):
    rule = evaluation.rule.lower(abstract).compile()
    if rule.out_info is not None:  # the exact risk is compiled when first computed
      evaluation.exact(
        jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), rule.out_info)
      )
    sample, inputs = evaluation.sample, replicate(evaluation.inputs, mesh)
    if evaluation.is_sampled:
      sample = sample.lower(abstract, inputs).compile()
  return evaluation._replace(rule=rule, sample=sample, inputs=inputs)


def is_evaluated(config: Config, step: int) -> bool:
  """Whether a model is measured on held-out prompts after a step."""
  return step == config.train.num_steps or step % config.eval.every == 0


def evaluate(
  config: Config, evaluation: Evaluation, model_state: PyTree, step: int
) -> Measured:
  """Starts to measure the model after a step; its state may be donated at once.

  The risk on held-out prompts is measured where the config asks for it and at the end,
  the exact risk always. `finish_evaluation` makes risks of what this gives.
  """
  sampled = NOT_SAMPLED
  if evaluation.is_sampled and is_evaluated(config, step):
    sampled = evaluation.sample(model_state, evaluation.inputs)
  return sampled, evaluation.rule(model_state)


def finish_evaluation(evaluation: Evaluation, fetched: Fetched) -> Risks:
  """The risks of a model, from the fetched result of `evaluate`."""
  sampled, rule = fetched
  return risks_of(sampled, evaluation.exact(rule), evaluation.num_prompts)


def exact_risk_of(
  task: Task, moments: theory.Moments | None, rule: Rule | None
) -> float | None:
  """The exact risk of one model from its rule or form; None if that is not known."""
  if rule is None or moments is None:
    return None
  # In NumPy: the risks are on the host, and the mesh may be of other devices.
  rules, stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (rule, moments))
  if isinstance(rules, LearningRule):
    return float(np.asarray(theory.exact_risks(rules, stacked))[0])
  return float(np.asarray(theory.exact_form_risks(rules, task))[0])


def risks_of(sampled: Sampled, exact: float | None, num_prompts: int) -> Risks:
  """The risks of one model, from what was sampled, on the host."""
  estimates, moments = {}, sampled.moments
  for name in ('model', 'accuracy', 'nll'):
    if name in moments:
      means, deviations = moments[name]
      estimates[name] = estimate_of_batches(means, deviations, num_prompts)
  curve = None
  if 'curve' in moments:
    curve = np.mean(np.asarray(moments['curve'][0], np.float64), axis=0).tolist()
  return Risks(
    exact=exact,
    sampled=estimates.get('model'),
    accuracy=estimates.get('accuracy'),
    nll=estimates.get('nll'),
    curve=curve,
    metrics={name: float(value) for name, value in sampled.metrics.items()},
  )


def exact_rule(graph: nnx.GraphDef, task: Task, state: PyTree) -> Rule | None:
  """The model's learning rule or exact form, in the highest matmul precision.

  None if the model has neither, or if its risk on this task is not known exactly.
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


# The key of the held-out prompts, the task, and its moments.
Inputs = tuple[Key[Array, ''], Task, theory.Moments | None]


def sample_all(
  graph: nnx.GraphDef,
  config: Config,
  task: Task,
  statistics: bool,
  state: PyTree,
  inputs: Inputs,
) -> Sampled:
  """The moments of a model's losses, and its registered metrics.

  Metrics get the `task` itself, whose baselines need its numbers, and not the one among
  the inputs of the program.
  """
  moments = {}
  if config.eval.num_batches:
    moments = sample_errors(graph, config, statistics, state, inputs)
  key, _, _ = inputs
  return Sampled(moments, own_metrics(graph, config, task, key, state))


def own_metrics(
  graph: nnx.GraphDef, config: Config, task: Task, key: Key[Array, ''], state: PyTree
) -> dict[str, Array]:
  """The numbers of the registered metrics that a config names, by `METRIC/KEY`.

  Raises UserError for a metric that returns anything but a dict of numbers.
  """
  numbers = {}
  for i, name in enumerate(config.eval.metrics):
    # No held-out batch has this number, by which the key is folded for each.
    own_key = jax.random.fold_in(key, 2**32 - 2 - i)
    found = METRICS[name](nnx.merge(graph, state, copy=True), task, own_key)
    if not isinstance(found, Mapping):
      raise UserError(
        f'the metric {name!r} returns a {type(found).__name__}; it must be a dict of '
        "numbers by name, such as {'weights': norm}"
      )
    for entry, value in found.items():
      if jnp.shape(value) != ():
        raise UserError(
          f'the metric {name!r} returns {entry!r} with the shape {jnp.shape(value)}; '
          'it must be a number'
        )
      numbers[f'{name}/{entry}'] = jnp.asarray(value)
  return numbers


def sample_errors(
  graph: nnx.GraphDef, config: Config, statistics: bool, state: PyTree, inputs: Inputs
) -> SampledMoments:
  """The moments of a model's losses on each batch of held-out prompts."""
  key, task, moments = inputs

  def measure(index: Array) -> SampledMoments:
    # `lax.map` traces this function anew, and a transform of NNX in the call of a model
    # takes variables of its own trace alone: hence a copy that is made here.
    model = nnx.merge(graph, state, copy=True)
    stream = jax.random.fold_in(key, index)
    batch = sample(task, stream, config.train.batch_size, statistics)
    return {
      name: mean_and_deviation(losses)
      for name, losses in held_out_losses(model, task, batch, moments, stream).items()
    }

  return jax.lax.map(measure, jnp.arange(config.eval.num_batches))


def mean_and_deviation(losses: Float[Array, 'b ...']) -> tuple[Array, Array]:
  """The mean of losses, and the mean square of their deviations from it."""
  mean = jnp.mean(losses, axis=0)
  return mean, jnp.mean(jnp.square(losses - mean[None]), axis=0)


def held_out_losses(
  model: Any,
  task: Task,
  batch: Prompt | Statistics,
  moments: theory.Moments | None,
  key: Key[Array, ''],
) -> dict[str, Array]:
  """The losses of a model at the queries of a batch, by the name of the quantity.

  A model that predicts all examples in one pass is also measured at each of them, and
  on classes by its accuracy. One with a distribution of numbers is measured by the
  negative log likelihood of labels, which are drawn with the key of the batch.
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
    losses['nll'] = of_query.reshape(-1, len(batch.x))[-1]  # of the last loop
  return losses
