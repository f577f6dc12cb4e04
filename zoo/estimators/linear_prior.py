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
  """The distribution of `y = w·x + σ n`, with normal w, x and n; n has the variance 1.

  Attributes:
    mean: Mean w* of w, `[d]`.
    covariance: Covariance of w, `[d, d]`. None is the identity.
    features: Covariance Σ of x, whose mean is 0, `[d, d]`. None is the identity.
    noise_std: Standard deviation σ ≥ 0 of the noise.
    context_length: Number of examples C for which the best parameters are computed.
  """

  mean: Float[np.ndarray, ' d']
  covariance: Float[np.ndarray, 'd d'] | None
  features: Float[np.ndarray, 'd d'] | None
  noise_std: float
  context_length: int


def prior_of(task: object) -> LinearPrior:
  """Returns the prior of a task, `task.linear_prior()`.

  Raises:
    UserError: If the task has none: it is not a `LinearRegression`.
  """
  prior = task.linear_prior() if isinstance(task, Task) else None
  if prior is None:
    raise UserError(
      f'the task is of type {type(task).__name__}; exact theory covers '
      'LinearRegression, and the estimators that take a task are for it, too'
    )
  return prior


def second_moments(
  task: Task, start: ArrayLike | None = None
) -> tuple[Float[np.ndarray, 'd d'], Float[np.ndarray, 'd d']]:
  """Returns `N = E (ŵ − start)(ŵ − start)ᵀ` and the covariance Σ of the features.

  Args:
    task: A `LinearRegression`.
    start: Weights `[d]`. None is the prior mean.

  Raises:
    UserError: If exact theory does not cover the task, or the start has the wrong
      shape.
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
  """The best first steps of gradient descent on a task, for any number of examples k.

  The step of size η from a start has the risk `E |(I − ηS)(start − ŵ) + η Xᵀn/k|²_Σ`,
  with `S = XᵀX/k`. The best matrix step is `N ((1 + 1/k) ΣN + (tr ΣN + σ²)/k)⁻¹`, with
  N and Σ as in `second_moments` (docs/theory_one_layer.md, section 3, with N in place
  of Λ). With `R R = N` and `R Σ R = V diag(μ) Vᵀ` it is
  `R V diag(1 / ((1 + 1/k) μ + (tr ΣN + σ²)/k)) Vᵀ R`.

  Attributes:
    context_length: Number of examples C of the task.
    slope: `tr ΣΣN`.
    signal: `tr ΣΣNΣ`.
    square: `tr ΣΣ`.
    spread: `tr ΣN + σ²`.
    basis: `R V`, `[d, d]`.
    eigenvalues: μ, `[d]`.
  """

  context_length: int = struct.field(pytree_node=False)
  slope: Number
  signal: Number
  square: Number
  spread: Number
  basis: Matrix
  eigenvalues: Vector

  @classmethod
  def of(cls, task: Task, start: ArrayLike | None = None) -> FirstSteps:
    """Returns the best first steps on a task from a start; None is the prior mean.

    Raises:
      UserError: If exact theory does not cover the task, or the start has the wrong
        shape.
    """
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

  # If the number of examples is an int, the methods below compute in float64 on the
  # host. If it is an array, they compute in JAX.

  def step_size(self, count: int | Array) -> Any:
    """Returns the best step size for `count` examples; for 0 that for 1."""
    xp = np if isinstance(count, int) else jnp
    part = 1 / xp.maximum(xp.asarray(count, float), 1)
    curvature = (1 + part) * self.signal + part * self.spread * self.square
    return self.slope * _inverse(xp.asarray(curvature))

  def step_matrix(self, count: int | Array) -> Float[AnyArray, 'd d']:
    """Returns the best step matrix for `count` examples; for 0 that for 1."""
    xp = np if isinstance(count, int) else jnp
    part, basis = 1 / xp.maximum(xp.asarray(count, float), 1), xp.asarray(self.basis)
    curvatures = (1 + part) * xp.asarray(self.eigenvalues) + part * self.spread
    return (basis * _inverse(curvatures)[None]) @ basis.T


def _inverse(numbers: Float[ArrayT, '*n']) -> Float[ArrayT, '*n']:
  """Returns 1 over positive numbers, and 0 for others."""
  xp = numbers.__array_namespace__()
  return xp.where(numbers > 0, 1 / xp.where(numbers > 0, numbers, 1), 0)


def best_first_step(task: Task, start: ArrayLike | None = None) -> float:
  """Returns the step size of least risk for one step of gradient descent.

  Args:
    task: A `LinearRegression`.
    start: Weights `[d]` before the step. None is the prior mean.

  Raises:
    UserError: If exact theory does not cover the task, or the start has the wrong
      shape.
  """
  return float(FirstSteps.of(task, start).step_size(task.context_length))


def best_step_matrix(
  task: Task, start: ArrayLike | None = None
) -> Float[np.ndarray, 'd d']:
  """Returns the step matrix of least risk for one step of gradient descent (GD-β).

  It is `N ((1 + 1/C) ΣN + ((tr ΣN + σ²)/C) I)⁻¹`, where Σ is the covariance of the
  features and `N = E (ŵ − start)(ŵ − start)ᵀ` (docs/theory_one_layer.md, section 3).

  Args:
    task: A `LinearRegression`.
    start: Weights `[d]` before the step. None is the prior mean.

  Returns:
    The matrix `[d, d]`, in float64.

  Raises:
    UserError: If the task is not a `LinearRegression`, or the start has the wrong
      shape.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=5)
    >>> zoo.estimators.best_step_matrix(task).round(3).tolist()
    [[0.625, 0.0], [0.0, 0.625]]
  """
  return np.asarray(FirstSteps.of(task, start).step_matrix(task.context_length))


def best_penalty(task: Task, start: ArrayLike | None = None) -> float:
  """Returns the ridge penalty of least risk, `σ² d / tr N`.

  Here `N = E (ŵ − start)(ŵ − start)ᵀ`. The formula holds in two cases: if the
  covariance Σ of the features is a multiple of the identity, the risk depends on N only
  through its trace; if N is such a multiple, ridge regression is the posterior mean. In
  other cases there is no closed form, and the posterior mean is better than ridge
  regression with any penalty.

  Args:
    task: A `LinearRegression`.
    start: Weights `[d]` towards which ridge regression shrinks. None is the prior mean.

  Returns:
    The penalty λ ≥ 0. It is 0 if the labels have no noise, where this is the best: in
    the two cases, or with at least d examples, which then determine the weights.

  Raises:
    UserError: If the task is not a `LinearRegression` or the start has the wrong shape.
      If neither Σ nor N is a multiple of the identity, unless there is no noise and
      there are at least d examples. If N is 0 and there is noise.

  Example:
    >>> task = zoo.tasks.LinearRegression(2, 5, noise_std=0.5)
    >>> zoo.estimators.best_penalty(task)
    0.25
  """
  prior = prior_of(task)
  deviation, features = second_moments(task, start)
  # Without noise so many examples determine the weights.
  is_known = prior.noise_std == 0 and prior.context_length >= len(deviation)
  if not (is_known or is_scalar(features) or is_scalar(deviation)):
    raise UserError(
      'penalty is None; for a prior covariance and a feature covariance that both '
      'differ from a multiple of the identity it must be given'
    )
  if prior.noise_std == 0:
    return 0.0
  trace = float(np.trace(deviation))
  if trace == 0:
    raise UserError(
      'penalty is None; no penalty is large enough for a prior covariance of 0: use '
      'prior_mean'
    )
  return prior.noise_std**2 * len(deviation) / trace


def feature_variance(
  task: Task, what: str = 'the exact risk of two or more steps'
) -> float:
  """Returns ς if the covariance of the features is ςI.

  Args:
    task: A `LinearRegression`.
    what: What is known only for such a covariance; the message of the error says so.

  Raises:
    UserError: If the covariance is not a positive multiple of the identity.
  """
  features = second_moments(task)[1]
  if not is_scalar(features) or features[0, 0] == 0:
    raise UserError(
      f'feature_covariance is not a positive multiple of the identity; {what} is known '
      'only if it is'
    )
  return float(features[0, 0])
