"""The risk of a state: sampled on held-out prompts beside one-step gradient descent."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zoo import estimators
from zoo.tasks import LinearRegression
from zoo.training.config import Config
from zoo.training.objective import draw, squared_errors
from zoo.training.step import EVAL_STREAM, stream_key


class Evaluation:
  """Measures a model on prompts that training never draws, the same ones every time.

  One-step gradient descent from the prior mean, with the task's best step, predicts the
  same prompts, so that the difference of the two is far less noisy than either.
  """

  def __init__(self, config: Config, task: Any, graph: Any, sharding: Any, mesh: Mesh):
    self.num_prompts = config.eval.num_batches * config.train.batch_size
    covered = isinstance(task, LinearRegression)
    gd = estimators.gradient_descent(task) if covered else None

    def evaluate(state: Any, key: jax.Array) -> dict[str, Any]:
      model = nnx.merge(graph, state)

      def batch(_, index):
        prompt = draw(task, jax.random.fold_in(key, index), config.train.batch_size)
        errors = {'model': squared_errors(model, prompt)}
        if gd is not None:
          errors['gd'] = squared_errors(gd, prompt)
          errors['difference'] = errors['model'] - errors['gd']
        moments = {k: (jnp.mean(e), jnp.mean(jnp.square(e))) for k, e in errors.items()}
        return None, moments

      return jax.lax.scan(batch, None, jnp.arange(config.eval.num_batches))[1]

    replicated = NamedSharding(mesh, P())
    self._key = jax.device_put(stream_key(config, EVAL_STREAM), replicated)
    self._evaluate = jax.jit(
      evaluate, in_shardings=(sharding, replicated), out_shardings=replicated
    )

  def start(self, model_state: Any) -> dict[str, Any]:
    """Sets the measuring off on the device; the state may be donated at once."""
    return self._evaluate(model_state, self._key)

  def finish(self, moments: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """`{name: (mean squared error, its standard error)}` from what `start` returned."""
    risks = {}
    for name, (means, mean_squares) in moments.items():
      mean = float(np.mean(means, dtype=np.float64))
      variance = float(np.mean(mean_squares, dtype=np.float64)) - mean**2
      risks[name] = mean, math.sqrt(max(variance, 0.0) / self.num_prompts)
    return risks
