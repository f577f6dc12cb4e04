"""Linear regression with a known prior, and the best parameters of its estimators."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, ArrayLike, Float

from zoo.core import trees
from zoo.core.errors import UserError, check_vector
from zoo.core.learning_rule import AnyArray, ArrayT
from zoo.core.matrices import is_scalar, symmetric_root
from zoo.core.protocols import Task
from zoo.core.trees import Matrix, Number, Vector


class LinearPrior(NamedTuple):
  """The distribution of `y = w·x + σ n`, with normal w, x and n of unit variance.

  Attributes:
    mean: the mean w* of w.
    covariance: the covariance of w; None is the identity.
    features: Σ, the covariance of x, whose mean is 0; None is the identity.
    noise_std: σ ≥ 0.
    context_length: C, for which the best parameters are.
  """

  mean: Float[np.ndarray, ' d']
  covariance: Float[np.ndarray, 'd d'] | None
  features: Float[np.ndarray, 'd d'] | None
  noise_std: float
  context_length: int


def prior_of(task: object) -> LinearPrior:
  """Returns `task.linear_prior()`; raises UserError for a task that has none."""
  prior = task.linear_prior() if isinstance(task, Task) else None
  if prior is None:
    raise UserError(
      f'the task is of type {type(task).__name__}; exact theory covers '
      'LinearRegression, for which the estimators are, too'
    )
  return prior


def second_moments(
  task: Task, start: ArrayLike | None = None
) -> tuple[Float[np.ndarray, 'd d'], Float[np.ndarray, 'd d']]:
  """`N = E (ŵ − start)(ŵ − start)ᵀ` and Σ; `start` defaults to the prior mean.

  Raises UserError for a task that exact theory does not cover.
  """
  prior = prior_of(task)
  d = len(prior.mean)
  deviation = np.eye(d) if prior.covariance is None else prior.covariance
  features = np.eye(d) if prior.features is None else prior.features
  if start is not None:
    bias = check_vector('start', start, d) - prior.mean
    deviation = deviation + np.outer(bias, bias)
  return deviation, features


@struct.dataclass(eq=False, repr=False)
class FirstSteps(trees.Tree):
  """The best first steps on a task from one start, for any number of examples k.

  The step of size η has the risk `E |(I − ηS)(start − ŵ) + η Xᵀn/k|²_Σ`, and the best
  matrix step is `N ((1 + 1/k) ΣN + (tr ΣN + σ²)/k)⁻¹`, N and Σ as in `second_moments`
  (docs/theory.md, section 2, with N in place of Λ). With `R R = N` and
  `R Σ R = V diag(μ) Vᵀ` it is `R V diag(1 / ((1 + 1/k) μ + (tr ΣN + σ²)/k)) Vᵀ R`.
  """

  context_length: int = struct.field(pytree_node=False)  # of the task
  slope: Number  # tr ΣΣN
  signal: Number  # tr ΣΣNΣ
  square: Number  # tr ΣΣ
  spread: Number  # tr ΣN + σ²
  basis: Matrix  # R V
  eigenvalues: Vector  # μ

  @classmethod
  def of(cls, task: Task, start: ArrayLike | None = None) -> FirstSteps:
    """The best first steps on a task; `start` defaults to the prior mean."""
    prior = prior_of(task)
    deviation, features = second_moments(task, start)
    product = features @ deviation
    root = symmetric_root(deviation)
    eigenvalues, vectors = np.linalg.eigh(root @ features @ root)
    return cls(
      context_length=prior.context_length,
      slope=float(np.trace(features @ product)),
      signal=float(np.trace(features @ product @ features)),
      square=float(np.trace(features @ features)),
      spread=float(np.trace(product) + prior.noise_std**2),
      basis=root @ vectors,
      eigenvalues=eigenvalues.clip(0),
    )

  # In float64 on the host for a number of examples, and in JAX for an array.

  def step_size(self, count: int | Array) -> Any:
    """The best step size for `count` examples; that for one if there are none."""
    xp = np if isinstance(count, int) else jnp
    part = 1 / xp.maximum(xp.asarray(count, float), 1)
    curvature = (1 + part) * self.signal + part * self.spread * self.square
    return self.slope * _inverse(xp.asarray(curvature))

  def step_matrix(self, count: int | Array) -> Float[AnyArray, 'd d']:
    """The best step matrix for `count` examples; that for one if there are none."""
    xp = np if isinstance(count, int) else jnp
    part, basis = 1 / xp.maximum(xp.asarray(count, float), 1), xp.asarray(self.basis)
    curvatures = (1 + part) * xp.asarray(self.eigenvalues) + part * self.spread
    return (basis * _inverse(curvatures)[None]) @ basis.T


def _inverse(numbers: Float[ArrayT, '*n']) -> Float[ArrayT, '*n']:
  """1 over positive numbers, and 0 for others."""
  xp = numbers.__array_namespace__()
  return xp.where(numbers > 0, 1 / xp.where(numbers > 0, numbers, 1), 0)


def best_first_step(task: Task, start: ArrayLike | None = None) -> float:
  """The step size of least risk for one step; `start` defaults to the prior mean."""
  return float(FirstSteps.of(task, start).step_size(task.context_length))


def best_step_matrix(
  task: Task, start: ArrayLike | None = None
) -> Float[np.ndarray, 'd d']:
  """The matrix step of least risk for one step from `start` (None: the prior mean)."""
  return np.asarray(FirstSteps.of(task, start).step_matrix(task.context_length))


def best_penalty(task: Task, start: ArrayLike | None = None) -> float:
  """The ridge penalty of least risk, `σ² d / tr N`; `start` defaults to the prior mean.

  If Σ is a multiple of the identity, the risk depends on N only through its trace; if N
  is a multiple, ridge is the posterior mean. Otherwise there is no closed form, and
  UserError is raised; the posterior mean is then better than ridge with any penalty.
  """
  noise_std = prior_of(task).noise_std
  if noise_std == 0:
    return 0.0
  deviation, features = second_moments(task, start)
  if not (is_scalar(features) or is_scalar(deviation)):
    raise UserError(
      'penalty is None; for a prior covariance and a feature covariance that both '
      'differ from a multiple of the identity it must be given'
    )
  trace = float(np.trace(deviation))
  if trace == 0:
    raise UserError(
      'penalty is None; no penalty is large enough for a prior covariance of 0: use '
      'prior_mean'
    )
  return noise_std**2 * len(deviation) / trace


def feature_variance(
  task: Task, what: str = 'the exact risk of two or more steps'
) -> float:
  """ς if the feature covariance is ςI; raises UserError if it is not of that kind.

  `what` is known only if it is.
  """
  features = second_moments(task)[1]
  if not is_scalar(features) or features[0, 0] == 0:
    raise UserError(
      f'feature_covariance is not a positive multiple of the identity; {what} is known '
      'only if it is'
    )
  return float(features[0, 0])
