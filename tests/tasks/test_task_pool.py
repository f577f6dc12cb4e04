"""Regression with weights from a finite pool, and the Bayes rule of the pool."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from tests.settings import isotropic
from tests.tasks import host
from zoo.tasks import TaskPool
from zoo.tasks.task_pool import DiscreteBayes


def _task(**changes):
  fields: Any = {'num_features': 3, 'context_length': 5, 'num_tasks': 4} | changes
  return TaskPool(**fields)


def test_the_pool_depends_on_the_seed_alone():
  pool = _task(num_tasks=2, noise_std=0.1).pool
  # The first numbers of NumPy's RandomState(0), which it promises never to change.
  expected = [
    [1.764052345967664, 0.4001572083672233, 0.9787379841057392],
    [2.240893199201458, 1.8675579901499675, -0.977277879876411],
  ]
  np.testing.assert_allclose(pool, expected, rtol=1e-15)
  assert not pool.flags.writeable
  assert np.all(_task(num_tasks=2, seed=1).pool != pool)
  many = _task(num_tasks=50_000).pool
  assert np.abs(many.mean(0)).max() < 4 / np.sqrt(50_000)
  assert np.abs(np.cov(many.T) - np.eye(3)).max() < 4 * np.sqrt(2 / 50_000)


@functools.cache
def _drawn(std: float) -> Any:
  """4096 prompts in float64; those of any noise are of one program."""
  with jax.enable_x64(True):
    return host.sample(_task(noise_std=std), 0, 4096)


def test_each_prompt_has_weights_of_the_pool():
  task, count = _task(noise_std=0.0), 4096
  prompt, noisy = _drawn(0.0), _drawn(0.5)
  x, y, targets = prompt.x, prompt.y, host.targets(prompt)
  np.testing.assert_array_equal(y, targets[:, :-1])
  weights = np.einsum('bdc,bc->bd', np.linalg.pinv(x), y)
  distance = np.abs(weights[:, None] - task.pool).max(2)
  assert np.all(np.sort(distance, axis=1)[:, 0] < 1e-8)
  drawn = np.bincount(distance.argmin(1), minlength=4) / count
  assert np.abs(drawn - 1 / 4).max() < 4 * np.sqrt(3 / 16 / count)
  query = np.einsum('bd,bd->b', weights, prompt.x_query)
  np.testing.assert_allclose(targets[:, -1], query, atol=1e-9)
  # Noise is in the labels, not in the targets.
  np.testing.assert_array_equal(host.targets(noisy), targets)
  noise = noisy.y - noisy.context_targets
  assert abs(noise.var() / 0.25 - 1) < 4 * np.sqrt(2 / noise.size)


@pytest.mark.parametrize('std', [0.0, 0.5])
def test_bayes_is_the_mean_of_the_posterior_over_the_pool(std):
  task = _task(noise_std=std)
  with jax.enable_x64(True):
    prompt = jax.tree.map(lambda array: array[:8], _drawn(std))
    predictions = np.asarray(jax.jit(DiscreteBayes(task).predictions)(prompt))
  baselines = task.baselines()
  assert baselines['bayes'] == baselines['dmmse'] == DiscreteBayes(task)
  for i in range(8):
    x = np.concatenate([prompt.x[i], prompt.x_query[i][None]])
    for k in range(6):
      likelihood = []
      for w in task.pool:
        misfit = sum((float(prompt.y[i, j]) - w @ x[j]) ** 2 for j in range(k))
        if std == 0:
          likelihood.append(float(misfit < 1e-12))
        else:
          likelihood.append(np.exp(-misfit / (2 * std**2)))
      posterior = np.array(likelihood) / sum(likelihood)
      np.testing.assert_allclose(
        predictions[i, k], posterior @ task.pool @ x[k], rtol=1e-9, atol=1e-9
      )


def test_new_tasks_are_linear_regression():
  shift = _task(noise_std=0.3).shifts()['new_tasks']
  assert shift == isotropic(3, 5, noise_std=0.3)
