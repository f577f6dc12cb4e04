"""Tasks that exact theory covers, and expectations that share no formula with it."""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import zoo
from tests.settings import isotropic, root

KINDS = 'isotropic', 'mean', 'noise', 'general', 'singular'


def make_task(kind: str, d: int, c: int):
  """A task of one of the kinds that exact theory covers."""
  rng = np.random.default_rng(0)
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


def hermite_grid(counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
  """Points `[m, n]` whose weighted mean is that over n standard normal numbers.

  A tensor product of Gauss–Hermite rules of `counts` points: exact for polynomials of
  degree `2 count − 1` in each number.
  """
  rules = {count: np.polynomial.hermite_e.hermegauss(count) for count in {*counts}}
  weights = np.ones(1)
  for count in counts:
    weights = np.outer(weights, rules[count][1] / rules[count][1].sum()).ravel()
  return np.array(list(itertools.product(*[rules[n][0] for n in counts]))), weights


def cubature(task) -> tuple[zoo.Prompt, np.ndarray]:
  """Prompts and weights whose weighted mean is the expectation over the task.

  It is exact for polynomials of degree 5 in every normal variable of the task. The
  squared error of a learning rule has degree 4 in each, and 2 in those of the query.
  """
  d, c = task.num_features, task.context_length
  of_noise = 1 if task.noise_std == 0 else 3
  normal, weights = hermite_grid([3] * (c * d + d) + [of_noise] * c + [2] * d)
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


def second_moments(
  num_points: int, d: int, c: int, variance: float, noise_std: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Weights w, second moments G and masses for `x ~ N(0, I)` and `w ~ N(0, variance)`.

  Their weighted mean is exact for polynomials of degree `2 num_points − 1` in every
  number that is drawn.
  """
  count = c * d + d + (c if noise_std else 0)
  normal, mass = hermite_grid([num_points] * count)
  x, w, noise = np.split(normal, [c * d, c * d + d], axis=1)
  x, w = x.reshape(-1, c, d), np.sqrt(variance) * w
  y = np.einsum('pcd,pd->pc', x, w)
  if noise_std:
    y = y + noise_std * noise
  z = np.concatenate([x, y[..., None]], axis=2)
  return w, np.einsum('pci,pcj->pij', z, z) / c, mass
