"""Tasks and rules that several tests share."""

import jax
import numpy as np
from numpy.typing import ArrayLike

import zoo


def isotropic(d, c, prior_mean: ArrayLike = 0.0, noise_std=0.0, **other):
  """Λ = Σ = I, unless `other` says otherwise."""
  return zoo.create_task(
    'linear_regression',
    num_features=d,
    context_length=c,
    prior_mean=prior_mean,
    noise_std=noise_std,
    **other,
  )


def curve_key(seed=0):
  """The key of the first batch of a curve's prompts, from the definition."""
  return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 3), 0)


def general(d=3, c=5, **other):
  """Both covariances general, so that nothing commutes."""
  a, b = np.random.default_rng(0).normal(size=(2, d, d))
  return isotropic(
    d,
    c,
    prior_mean=1.0,
    prior_covariance=a @ a.T,
    feature_covariance=b @ b.T,
    **other,
  )


def root(covariance: np.ndarray | None, d: int) -> np.ndarray:
  """A root of a covariance; None is the identity."""
  if covariance is None:
    return np.eye(d)
  eigenvalues, vectors = np.linalg.eigh(covariance)
  return vectors * np.sqrt(eigenvalues.clip(0))


def random_rule(d: int, seed: int = 0, scale: float = 0.5) -> zoo.LearningRule:
  """All its parts are random, and not symmetric: only symmetric parts may count."""
  rng = np.random.default_rng(seed)
  shapes = (d,), (d, d + 1, d + 1), (), (d + 1, d + 1)
  return zoo.LearningRule(*(scale * np.asarray(rng.normal(size=s)) for s in shapes))


def config_for(model: str, d: int = 3, c: int = 4, task=None, **arguments) -> dict:
  """What `zoo.save` needs of a model: its name and arguments, and those of its task."""
  fields = {'name': 'linear_regression', 'num_features': d, 'context_length': c}
  return {'model': {'name': model, **arguments}, 'task': {**fields, **(task or {})}}
