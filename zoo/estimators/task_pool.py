"""The Bayes predictor for a finite pool of tasks."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from zoo.estimators.baseline import Baseline, zeroed
from zoo.tasks.task_pool import TaskPool


@dataclasses.dataclass(frozen=True)
class DiscreteBayes(Baseline):
  """The posterior mean over the pool, dMMSE (arXiv 2306.15063, section 2).

  `Σ_m p_m w_m·x_q` with `p = softmax_m(−|y − X w_m|² / (2σ²))`. Without noise only the
  weights that fit the examples are left.
  """

  one_by_one = True  # a pool may have a million tasks

  task: TaskPool

  def predict(
    self,
    x: Float[Array, 'c d'],
    y: Float[Array, ' c'],
    seen: Bool[Array, ' c'],
    x_query: Float[Array, ' d'],
  ) -> Float[Array, '']:
    x, y = zeroed(x, y, seen)
    pool = jnp.asarray(self.task.pool, x.dtype)
    misfit = jnp.sum(jnp.square(y[:, None] - x @ pool.T), axis=0)
    if self.task.noise_std > 0:
      posterior = jax.nn.softmax(-misfit / (2 * self.task.noise_std**2))
    else:
      # The misfit of the true weights is rounding error, and so the smallest; before
      # the first example all misfits are 0.
      fits = (misfit == jnp.min(misfit)).astype(x.dtype)
      posterior = fits / jnp.sum(fits)
    return jnp.dot(posterior @ pool, x_query)
