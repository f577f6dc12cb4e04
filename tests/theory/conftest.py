"""An oracle of expectations that shares no formula with the library."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.settings import isotropic, root


def _cubature(task, num_points: int = 3) -> tuple[zoo.Prompt, np.ndarray]:
  """Prompts and weights whose weighted mean is the expectation over the task.

  A tensor product of Gauss–Hermite rules over every normal variable of the task: exact
  for polynomials of degree `2 num_points − 1` in each. The squared error of a learning
  rule has degree 4 in each, and 2 in those of the query.
  """
  d, c = task.num_features, task.context_length
  counts = [num_points] * (c * d + d + c) + [2] * d
  if task.noise_std == 0:
    counts[c * d + d : -d] = [1] * c
  rules = {n: np.polynomial.hermite_e.hermegauss(n) for n in set(counts)}
  weights = np.ones(1)
  for n in counts:
    weights = np.outer(weights, rules[n][1] / rules[n][1].sum()).ravel()
  normal = np.array(list(itertools.product(*[rules[n][0] for n in counts])))
  x, deviation, noise, x_query = np.split(
    normal, np.cumsum([c * d, d, c])[:3].tolist(), axis=1
  )
  mix = root(task.feature_covariance, d).T
  x, x_query = x.reshape(-1, c, d) @ mix, x_query @ mix
  w = task.prior_mean + deviation @ root(task.prior_covariance, d).T
  y = np.einsum('bcd,bd->bc', x, w) + task.noise_std * noise
  with jax.enable_x64(True):
    parts = x, y, x_query, (x_query * w).sum(1)
    return zoo.Prompt(*(jnp.asarray(part, part.dtype) for part in parts)), weights


@pytest.fixture(scope='session')
def cubature() -> Callable:
  return _cubature


@pytest.fixture(scope='session')
def make_task() -> Callable:
  """Tasks of every kind that exact theory covers."""

  def make(kind: str, d: int, c: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, d, d)) / np.sqrt(d)
    choices = {
      'isotropic': {},
      'mean': {'prior_mean': rng.normal(size=d)},
      'noise': {'prior_mean': rng.normal(size=d), 'noise_std': 0.7},
      'general': {
        'prior_mean': rng.normal(size=d),
        'prior_covariance': a @ a.T,
        'feature_covariance': b @ b.T,
        'noise_std': 0.5,
      },
      'singular': {
        'prior_mean': rng.normal(size=d),
        'prior_covariance': a @ a.T,
        'feature_covariance': b[:, 1:] @ b[:, 1:].T,
      },
    }
    return isotropic(d, c, **choices[kind])

  return make
