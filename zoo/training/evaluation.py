"""The sampled and exact risks of models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Key, PyTree

from zoo import estimators, theory
from zoo.config.mesh import replicate
from zoo.config.validation import Config
from zoo.core.draws import EVAL_STREAM, stream_of
from zoo.core.errors import UserError
from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, HasExactForm, Task, predicts_all
from zoo.measure.intervals import Estimate, estimate_from_moments
from zoo.training.layout import Layout
from zoo.training.objective import (
  predicted,
  sample,
  stack_tasks,
  stacked_moments,
  statistics_losses,
)

Rule = LearningRule | DeepRule | Recurrence
# For each quantity and batch, the mean and the mean square over the prompts.
SampledMoments = dict[str, tuple[Array, Array]]
# The moments and the rules that give exact risks, on the devices and on the host.
Measured = tuple[SampledMoments, Rule | None]
Fetched = tuple[dict[str, tuple[np.ndarray, np.ndarray]], Rule | None]


class Risks(NamedTuple):
  """The risk of a model, as far as it is known, and those that it should reach."""

  exact: float | None  # None if theory does not cover the model or the task
  gd: float | None  # of one step of the best size from the prior mean
  optimal: float | None  # of the best rule of the linear family
  sampled: Estimate | None  # None if no prompts were sampled
  accuracy: Estimate | None  # on the same prompts; None unless labels are classes
  # The sampled loss after 0, 1, …, C examples; None unless one pass predicts all.
  curve: list[float] | None


def reference_risks(task: Task) -> tuple[float | None, float | None]:
  """The exact risks of gradient descent, and of the best rule of the linear family.

  Gradient descent takes one step of the best size from the prior mean. Both are None if
  exact theory does not cover the task.
  """
  if not theory.covers(task):
    return None, None
  rules = estimators.gradient_descent(task).learning_rule(), theory.optimal_rule(task)
  gd, optimal = (float(theory.exact_risk(rule, task)) for rule in rules)
  return gd, optimal


class Evaluation:
  """Measures models, always on the same held-out prompts."""

  def __init__(
    self,
    configs: Sequence[Config],
    tasks: Sequence[Task],
    graph: nnx.GraphDef,
    statistics: bool,
    layout: Layout,
    mesh: Mesh,
  ):
    """Evaluates one model, or several whose arrays are stacked, each for its task."""
    config, tasks = configs[0], [task.held_out() for task in tasks]
    self.num_models = len(tasks)
    self.num_prompts = config.eval.num_batches * config.train.batch_size
    self._compiled = False
    self.reference_risks = [reference_risks(task) for task in tasks]
    self._task, self._moments = tasks[0], stacked_moments(tasks)
    rules_of, sample_moments, inputs = _measurements(
      configs, tasks, graph, statistics, self._moments
    )
    self._inputs = replicate(inputs, mesh)
    whole, self._abstract_model = NamedSharding(mesh, P()), layout.saved['model']
    self._rules_of: Any = jax.jit(rules_of, out_shardings=whole)
    self._sample: Any = jax.jit(sample_moments, out_shardings=whole)

  def compile(self) -> None:
    """Compiles all measurements before their first use, unless they are compiled."""
    if self._compiled:
      return
    self._compiled = True
    self._rules_of = self._rules_of.lower(self._abstract_model).compile()
    if self.num_prompts:
      self._sample = self._sample.lower(self._abstract_model, self._inputs).compile()
    rules = self._rules_of.out_info
    if rules is not None:
      zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), rules)
      self._exact_risks(zeros)

  def start(self, model_state: PyTree, sampled: bool) -> Measured:
    """Starts measuring on the devices; the state may be donated at once."""
    moments = {}
    if sampled and self.num_prompts:
      moments = self._sample(model_state, self._inputs)
    return moments, self._rules_of(model_state)

  def finish(self, fetched: Fetched) -> list[Risks]:
    """The risks of each model, from the fetched result of `start`.

    Exact risks are computed here, on the host while the devices train.
    """
    moments, rules = fetched
    exact = self._exact_risks(rules)

    def estimate(name: str, i: int) -> Estimate | None:
      if name not in moments:
        return None
      mean, mean_square = (
        float(np.mean(batches[i], dtype=np.float64)) for batches in moments[name]
      )
      return estimate_from_moments(mean, mean_square, self.num_prompts)

    def curve(i: int) -> list[float] | None:
      if 'curve' not in moments:
        return None
      means = np.asarray(moments['curve'][0][i], np.float64)
      return np.mean(means, axis=0).tolist()

    return [
      Risks(
        exact=exact[i],
        gd=gd,
        optimal=optimal,
        sampled=estimate('model', i),
        accuracy=estimate('accuracy', i),
        curve=curve(i),
      )
      for i, (gd, optimal) in enumerate(self.reference_risks)
    ]

  def _exact_risks(self, rules: Rule | None) -> list[float] | list[None]:
    if rules is None or self._moments is None:
      return [None] * self.num_models
    if not isinstance(rules, LearningRule):
      return np.asarray(theory.exact_form_risks(rules, self._task)).tolist()
    return np.asarray(theory.exact_risks(rules, self._moments)).tolist()


def _measurements(
  configs: Sequence[Config],
  tasks: Sequence[Task],
  graph: nnx.GraphDef,
  statistics: bool,
  moments: theory.Moments | None,
) -> tuple[Callable[[PyTree], Rule | None], Callable[..., SampledMoments], PyTree]:
  """What an evaluation runs on the devices, with the inputs that it takes.

  The first function takes the arrays of the models, and returns their learning rules or
  exact forms, stacked along a first axis, or None if they have none; only the tasks of
  learning rules may differ. The second takes the arrays and the inputs, and returns the
  moments of the losses, also stacked. Inputs are the key of the held-out prompts, which
  all models share, the tasks, and the `moments` of these.
  """
  # One key for all: models of a program differ in no field of `eval`.
  key = stream_of(configs[0].eval.seed, EVAL_STREAM)
  errors = functools.partial(sample_errors, graph, configs[0], statistics)
  rule_of = functools.partial(exact_rule, graph, tasks[0])
  if len(configs) == 1:
    return (
      lambda state: _stacked(rule_of(state)),
      lambda state, inputs: _stacked(errors(state, *inputs)),
      (key, tasks[0], jax.tree.map(lambda leaf: leaf[0], moments)),
    )
  groups: dict[object, list[int]] = {}  # of tasks that differ in numbers alone
  for i, task in enumerate(tasks):
    groups.setdefault(jax.tree.structure(task), []).append(i)
  joint = [stack_tasks([tasks[i] for i in members]) for members in groups.values()]

  def sampled(states: PyTree, inputs: Any) -> SampledMoments:
    found, (key, tasks, moments) = [], inputs
    for members, task, (_, axis) in zip(groups.values(), tasks, joint, strict=True):
      at = np.array(members)
      state, constants = jax.tree.map(lambda leaf, at=at: leaf[at], (states, moments))
      run = jax.vmap(errors, (0, None, axis, 0))
      found.append(run(state, key, task, constants))
    back = np.argsort(np.concatenate([*groups.values()]))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[back], *found)

  return jax.vmap(rule_of), sampled, (key, [task for task, _ in joint], moments)


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


def sample_errors(
  graph: nnx.GraphDef,
  config: Config,
  statistics: bool,
  state: PyTree,
  key: Key[Array, ''],
  task: Task,
  moments: theory.Moments | None,
) -> SampledMoments:
  """The moments of a model's losses on held-out prompts.

  A model that predicts all examples in one pass is also measured at each of them.
  """
  model = nnx.merge(graph, state)

  def measure(_: None, index: Array) -> tuple[None, SampledMoments]:
    stream = jax.random.fold_in(key, index)
    batch = sample(task, stream, config.train.batch_size, statistics)
    losses: dict[str, Array] = {}
    if isinstance(batch, Prompt):
      every = predicts_all(model)
      predictions, targets = predicted(model, batch, every)
      at_all = task.loss(predictions, targets)
      losses['model'] = at_all[:, -1]
      if every:
        losses['curve'] = at_all
      accuracy = task.accuracy(predictions[:, -1], targets[:, -1])
      if accuracy is not None:
        losses['accuracy'] = accuracy
    else:
      losses['model'] = statistics_losses(model, batch, moments)
    return None, {
      name: (jnp.mean(one, axis=0), jnp.mean(jnp.square(one), axis=0))
      for name, one in losses.items()
    }

  return jax.lax.scan(measure, None, jnp.arange(config.eval.num_batches))[1]


def _stacked(tree: PyTree) -> PyTree:
  return jax.tree.map(lambda leaf: leaf[None], tree)
