"""The risk of a state, sampled and exact, beside that of one-step gradient descent."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zoo import estimators, theory
from zoo.training.config import Config
from zoo.training.objective import draw, squared_errors
from zoo.training.step import EVAL_STREAM, stream_key


class Risks(NamedTuple):
  """What is known of a state; a sampled risk is a mean and its standard error."""

  exact: float | None  # None where the model or the task is beyond the theory
  sampled: tuple[float, float] | None  # None where no prompts were drawn
  sampled_gd: tuple[float, float] | None  # on the same prompts; None beyond the theory
  sampled_difference: tuple[float, float] | None  # model less GD, prompt by prompt


class Evaluation:
  """Measures a model on prompts that training never draws, the same ones every time.

  One-step gradient descent from the prior mean, with the task's best step, predicts the
  same prompts, so that the difference of the two is far less noisy than either.
  `gd_risk` and `optimal_risk` are the exact risks of that step and of the best of all
  learning rules, None for a task that exact theory does not cover.
  """

  def __init__(self, config: Config, task: Any, graph: Any, sharding: Any, mesh: Mesh):
    self.num_prompts = config.eval.num_batches * config.train.batch_size
    self._task = task
    gd = None
    self.gd_risk: float | None = None
    self.optimal_risk: float | None = None
    covered = theory.covers(task)
    if covered:
      gd = estimators.gradient_descent(task)
      self.gd_risk = float(theory.exact_risk(gd, task))
      self.optimal_risk = float(theory.exact_risk(theory.optimal_rule(task), task))

    def rule_of(state: Any) -> Any:
      model = nnx.merge(graph, state)
      has_exact_risk = covered and hasattr(model, 'learning_rule')
      return model.learning_rule() if has_exact_risk else None

    def sample(state: Any, key: jax.Array) -> dict[str, Any]:
      model = nnx.merge(graph, state)

      def batch(_, index):
        prompt = draw(task, jax.random.fold_in(key, index), config.train.batch_size)
        errors = {'model': squared_errors(model, prompt)}
        if gd is not None:
          errors['gd'] = squared_errors(gd, prompt)
          errors['difference'] = errors['model'] - errors['gd']
        moments = {k: (jnp.mean(e), jnp.mean(jnp.square(e))) for k, e in errors.items()}
        return None, moments

      batches = jnp.arange(config.eval.num_batches)
      return jax.lax.scan(batch, None, batches)[1]

    replicated = NamedSharding(mesh, P())
    self._key = jax.device_put(stream_key(config, EVAL_STREAM), replicated)
    self._rule_of: Any = jax.jit(
      rule_of, in_shardings=(sharding,), out_shardings=replicated
    )
    self._sample: Any = jax.jit(
      sample, in_shardings=(sharding, replicated), out_shardings=replicated
    )

  def compile(self, abstract_model: Any) -> None:
    """Compiles what is measured, ahead of its first use."""
    self._rule_of = self._rule_of.lower(abstract_model).compile()
    self._sample = self._sample.lower(abstract_model, self._key).compile()

  def start(self, model_state: Any, draw_prompts: bool) -> Any:
    """Sets the measuring off on the device; the state may be donated at once."""
    moments = self._sample(model_state, self._key) if draw_prompts else {}
    return moments, self._rule_of(model_state)

  def finish(self, fetched: Any) -> Risks:
    """The risks, from what `start` returned, once it is on the host."""
    moments, rule = fetched

    def sampled(name: str) -> tuple[float, float] | None:
      if name not in moments:
        return None
      mean, mean_square = (float(np.mean(m, dtype=np.float64)) for m in moments[name])
      return mean, math.sqrt(max(mean_square - mean**2, 0.0) / self.num_prompts)

    return Risks(
      exact=None if rule is None else float(theory.exact_risk(rule, self._task)),
      sampled=sampled('model'),
      sampled_gd=sampled('gd'),
      sampled_difference=sampled('difference'),
    )
