"""The moments that exact theory needs: those of a task, and those of its contexts."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from zoo.tasks.linear_regression import require_covered

# The annotations are for the host; under vmap or tracing the fields are JAX arrays.


class Moments(NamedTuple):
  """Everything in a task that the risk depends on, as a pytree."""

  context_length: float
  prior_mean: Float[np.ndarray, ' d']
  prior_covariance: Float[np.ndarray, 'd d']
  feature_covariance: Float[np.ndarray, 'd d'] | None  # None, the identity, is cheaper
  noise_variance: float


class ContextMoments(NamedTuple):
  """Moments of what a context tells about ε = ŵ − w* (docs/theory.md, section 2).

  With labels minus w*·x, the context enters through `S = XᵀX/C`, `r = Sε + σ Xᵀn/C` and
  `q = (1/C) Σ_i (ε·x_i + σ n_i)²`.
  """

  features: Float[np.ndarray, 'd d']  # Σ = E S
  spread: Float[np.ndarray, 'd d']  # ΣΛ = E r εᵀ
  mean_q: float  # τ = tr ΣΛ + σ²
  variance_q: float
  variance_label: float  # D, of the part of q that is uncorrelated with S
  second_moment_r: Float[np.ndarray, 'd d']  # M = E r rᵀ


def task_moments(task: object) -> Moments:
  """The moments of a task in float64; raises UserError if theory does not cover it."""
  task = require_covered(task)
  prior = task.prior_covariance
  return Moments(
    context_length=task.context_length,
    prior_mean=task.mean_weights(),
    prior_covariance=np.eye(task.num_features) if prior is None else prior,
    feature_covariance=task.feature_covariance,
    noise_variance=task.noise_std**2,
  )


def context_moments(moments: Moments) -> ContextMoments:
  """The moments of a context, in NumPy or JAX like those of the task."""
  c, mean, prior, features, noise = moments
  if features is None:
    xp = prior.__array_namespace__()
    features = xp.eye(mean.size, dtype=prior.dtype)
  spread = features @ prior
  tau = spread.trace() + noise
  square = (spread * spread.T).sum()  # tr ΣΛΣΛ
  return ContextMoments(
    features=features,
    spread=spread,
    mean_q=tau,
    variance_q=2 * square + (2 / c) * (tau * tau + 2 * square),
    variance_label=2 * (1 + 1 / c) * square + 2 * tau * tau / c,
    second_moment_r=(1 + 1 / c) * spread @ features + tau / c * features,
  )
