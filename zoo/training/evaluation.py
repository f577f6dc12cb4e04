"""The risk of a state, sampled and exact, beside that of one-step gradient descent."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zoo import estimators, theory
from zoo.config import Config
from zoo.mesh import replicate
from zoo.training.objective import draw, settings_of, side_by_side, squared_errors
from zoo.training.step import EVAL_STREAM, stream_key


class Risks(NamedTuple):
  """What is known of a state; a sampled risk is a mean and its standard error."""

  exact: float | None  # None where the model or the task is beyond the theory
  sampled: tuple[float, float] | None  # None where no prompts were drawn
  sampled_gd: tuple[float, float] | None  # on the same prompts; None beyond the theory
  sampled_difference: tuple[float, float] | None  # model less GD, prompt by prompt


class Evaluation:
  """Measures models on prompts that training never draws, the same ones every time.

  There is a model for each task; they share all but what `setting_of` tells. One-step
  gradient descent from the prior mean, with the task's best step, predicts the same
  prompts, so that the difference of the two is far less noisy than either. `gd_risks`
  and `optimal_risks` are the exact risks of that step and of the best of all learning
  rules, None for a task that exact theory does not cover.
  """

  def __init__(
    self,
    configs: Sequence[Config],
    tasks: Sequence[Any],
    graph: Any,
    sharding: Any,
    mesh: Mesh,
    statistics: bool,
    many_points: bool = False,
  ):
    """With `many_points` the state has a first axis, for the tasks."""
    num_batches, batch_size = configs[0].eval.num_batches, configs[0].train.batch_size
    self.num_prompts = num_batches * batch_size
    self._many_points = many_points
    covered = theory.covers(tasks[0])
    self.gd_risks: list[float | None] = [None] * len(tasks)
    self.optimal_risks: list[float | None] = [None] * len(tasks)
    reference = None
    if covered:
      rules = [estimators.gradient_descent(task).learning_rule() for task in tasks]
      optima = [theory.optimal_rule(task) for task in tasks]
      pairs = zip(tasks, rules, optima, strict=True)
      for i, (task, rule, optimum) in enumerate(pairs):
        self.gd_risks[i] = float(theory.exact_risk(rule, task))
        self.optimal_risks[i] = float(theory.exact_risk(optimum, task))
      reference = settings_of(tasks), side_by_side(rules)
    self._settings: Any = reference[0] if reference else None
    if reference and not many_points:
      reference = jax.tree.map(lambda leaf: leaf[0], reference)

    def rule_of(state: Any) -> Any:
      model = nnx.merge(graph, state)
      if not (covered and hasattr(model, 'learning_rule')):
        return None
      rule = model.learning_rule()
      return rule if many_points else jax.tree.map(lambda leaf: leaf[None], rule)

    def sample(task: Any, state: Any, key: jax.Array, reference: Any) -> dict[str, Any]:
      model = nnx.merge(graph, state)
      setting, gd = reference or (None, None)

      def batch(_, index):
        stream = jax.random.fold_in(key, index)
        drawn = draw(task, stream, batch_size, statistics)
        errors = {'model': squared_errors(model, drawn, setting)}
        if gd is not None:
          errors['gd'] = squared_errors(gd, drawn, setting)
          errors['difference'] = errors['model'] - errors['gd']
        moments = {k: (jnp.mean(e), jnp.mean(jnp.square(e))) for k, e in errors.items()}
        return None, moments

      return jax.lax.scan(batch, None, jnp.arange(num_batches))[1]

    def sample_stacked(states: Any, keys: jax.Array, references: Any) -> dict[str, Any]:
      """As `sample`, point by point; points with the same prompts share their draw."""
      groups: dict[Any, list[int]] = {}
      for i, task in enumerate(tasks):
        groups.setdefault(task.statistics_key, []).append(i)
      found = []
      for members in groups.values():
        at = np.array(members)
        points = jax.tree.map(lambda leaf, at=at: leaf[at], (states, keys, references))
        one = functools.partial(sample, tasks[at[0]])
        if len({configs[i].seed for i in members}) == 1:
          states_, keys_, references_ = points
          found.append(jax.vmap(one, (0, None, 0))(states_, keys_[0], references_))
        else:
          found.append(jax.lax.map(lambda point, one=one: one(*point), points))
      back = np.argsort(np.concatenate([*groups.values()]))
      return jax.tree.map(lambda *parts: jnp.concatenate(parts)[back], *found)

    replicated = NamedSharding(mesh, P())
    self._mesh = mesh
    keys = jnp.stack([stream_key(config, EVAL_STREAM) for config in configs])
    self._key = replicate(keys if many_points else keys[0], mesh)
    self._reference = replicate(reference, mesh)
    self._rule_of: Any = jax.jit(
      jax.vmap(rule_of) if many_points else rule_of,
      in_shardings=(sharding,),
      out_shardings=replicated,
    )
    self._sample: Any = jax.jit(
      sample_stacked if many_points else functools.partial(sample, tasks[0]),
      in_shardings=(sharding, replicated, replicated),
      out_shardings=replicated,
    )

  def compile(self, abstract_model: Any) -> None:
    """Compiles what is measured, ahead of its first use."""
    self._rule_of = self._rule_of.lower(abstract_model).compile()
    if self.num_prompts:
      sample = self._sample.lower(abstract_model, self._key, self._reference)
      self._sample = sample.compile()
    rules = self._rule_of.out_info
    if rules is not None:
      zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), rules)
      self._exact_risks(replicate(zeros, self._mesh))

  def start(self, model_state: Any, draw_prompts: bool) -> Any:
    """Sets the measuring off on the device; the state may be donated at once."""
    moments = {}
    if draw_prompts and self.num_prompts:
      moments = self._sample(model_state, self._key, self._reference)
    return moments, self._exact_risks(self._rule_of(model_state))

  def _exact_risks(self, rules: Any) -> Any:
    return None if rules is None else theory.exact_risks(rules, self._settings)

  def finish(self, fetched: Any) -> list[Risks]:
    """The risks for each task, from what `start` returned, once it is on the host."""
    moments, exact = fetched
    if not self._many_points:
      moments = jax.tree.map(lambda leaf: leaf[None], moments)
    exact = [None] * len(self.gd_risks) if exact is None else exact.tolist()

    def sampled(name: str, i: int) -> tuple[float, float] | None:
      if name not in moments:
        return None
      mean, mean_square = (
        float(np.mean(m[i], dtype=np.float64)) for m in moments[name]
      )
      return mean, math.sqrt(max(mean_square - mean**2, 0.0) / self.num_prompts)

    return [
      Risks(
        exact=exact[i],
        sampled=sampled('model', i),
        sampled_gd=sampled('gd', i),
        sampled_difference=sampled('difference', i),
      )
      for i in range(len(exact))
    ]
