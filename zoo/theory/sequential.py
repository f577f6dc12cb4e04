"""Exact risks of linear recurrences that see one example at a time.

docs/theory_sequences.md has the notation and the proofs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import (
  UserError,
  check_array,
  check_number,
  check_same,
  check_vector,
)
from zoo.core.exact_forms import Recurrence
from zoo.core.protocols import Task
from zoo.estimators.linear_prior import feature_variance, second_moments
from zoo.tasks.linear_regression import require_covered
from zoo.theory.precision import double_precision
from zoo.theory.risk import Moments, task_moments

Numbers = ArrayLike | Sequence[Any]  # Nested lists of numbers are accepted, too.


class OptimalDeltaRule(NamedTuple):
  """The delta rule of least risk, after every number of examples.

  Attributes:
    curve: The risks after 0, …, C examples, `[C + 1]`.
    steps: The step matrices H_i, `[C, d, d]`. Each is both the `erase` and the `write`
      of `risk_curve`.
  """

  curve: Float[np.ndarray, ' n']
  steps: Float[np.ndarray, 'c d d']


def risk_curve(
  task: Task,
  decay: Numbers = 1.0,
  erase: Numbers = 0.0,
  write: Numbers = 1.0,
  start: Numbers | None = None,
) -> Float[np.ndarray, ' n']:
  """Computes the exact risks of `w_i·x_q` after i = 0, …, C examples, in float64.

  The weights follow `w_i = α w_{i−1} − H x_i x_iᵀ w_{i−1} + K x_i y_i`. The
  coefficients α, H and K do not depend on the prompt. Special cases are

  - linear attention (arXiv 2006.16236): α = 1 and H = 0;
  - RetNet (arXiv 2307.08621): α < 1 and H = 0;
  - the delta rule (arXiv 2102.11174): α = 1 and H = K;
  - gated DeltaNet (arXiv 2412.06464): H = αK.

  It takes O(C d³) time.

  Args:
    task: A `linear_regression` with C examples.
    decay: α. Like `erase` and `write`, it is a number or a matrix `[d, d]` for all
      examples, or one for each example: `[C]` or `[C, d, d]`.
    erase: H, which removes what the weights predict at an example.
    write: K, which adds the label.
    start: The initial weights w_0: a number for all features, or `[d]`. None means the
      prior mean.

  Returns:
    The risks `[C + 1]`.

  Raises:
    UserError: If the theory does not cover the task, if an argument has a wrong shape
      or is not finite, or if a risk is too large for float64.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> curve = zoo.theory.sequential.risk_curve(task, erase=0.25, write=0.25)
    >>> curve.round(4).tolist()
    [2.0, 1.5, 1.125, 0.8438]
  """
  moments = task_moments(task)
  c, d = int(moments.context_length), moments.prior_mean.size
  numbers = {'decay': decay, 'erase': erase, 'write': write}
  coefficients = {}
  for name, value in numbers.items():
    array = check_array(name, value, [(), (c,), (d, d), (c, d, d)])
    is_for_all = array.ndim in (0, 2)
    coefficients[name] = (
      np.broadcast_to(array, (c, *array.shape)) if is_for_all else array
    )
  first = moments.prior_mean if start is None else check_vector('start', start, d)
  with double_precision():
    risks = np.array(_curve(Recurrence(first, **coefficients), moments))
  known = np.isfinite(risks)
  if not known.all():
    raise UserError(
      f'the risk is too large for float64 after {int(np.argmin(known))} of {c} '
      'examples; decay, erase and write must be smaller'
    )
  return risks


def recurrence_moments(form: Recurrence, task: Task) -> Moments:
  """Returns the moments of a task for a recurrence, of which only the shapes are read.

  Args:
    form: The recurrence, for d features and C examples. Its coefficients are numbers,
      one for each example.
    task: A `linear_regression` of the same sizes.

  Returns:
    The moments of the task, in float64.

  Raises:
    UserError: If the theory does not cover the task, or its sizes differ.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> form = zoo.core.exact_forms.Recurrence(
    ...   start=np.zeros(2), decay=np.ones(3), erase=np.zeros(3), write=np.ones(3)
    ... )
    >>> zoo.theory.sequential.recurrence_moments(form, task).context_length
    3
  """
  moments = task_moments(task)
  check_same('features', np.shape(form.start)[-1], np.size(moments.prior_mean))
  length = int(moments.context_length)
  check_same('examples', np.shape(form.write)[-1], length)
  return moments


def recurrence_curve(form: Recurrence, moments: Moments) -> Float[Array, ' n']:
  """Returns the `risk_curve` of a recurrence, as a function for jit, grad and vmap.

  Args:
    form: The recurrence. Its coefficients may also be matrices, `[C, d, d]`.
    moments: Those of the task, from `recurrence_moments` or, if the coefficients are
      matrices, from `zoo.theory.task_moments`.

  Returns:
    The risks `[C + 1]`, in the precision of the form.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> step = np.full(3, 0.25)
    >>> form = zoo.core.exact_forms.Recurrence(np.zeros(2), np.ones(3), step, step)
    >>> moments = zoo.theory.sequential.recurrence_moments(form, task)
    >>> print(np.round(zoo.theory.sequential.recurrence_curve(form, moments), 3))
    [2.    1.5   1.125 0.844]
  """
  dtype = jnp.result_type(form.write)
  _, mean, prior, features, noise = jax.tree.map(
    lambda leaf: jnp.asarray(leaf, dtype), moments
  )
  identity = jnp.eye(mean.size, dtype=dtype)
  if features is None:
    features = identity
  shift = jnp.asarray(form.start) - mean
  # The moments are those of the weights ŵ and of the error e = w − ŵ.
  truth = prior + jnp.outer(mean, mean)  # E ŵ ŵᵀ
  error = prior + jnp.outer(shift, shift)  # E e eᵀ
  cross = jnp.outer(shift, mean) - prior  # E e ŵᵀ

  def spread(moment: Array) -> Array:
    """Returns `E xxᵀMxxᵀ − ΣMΣ`."""
    return features @ moment.T @ features + jnp.sum(features * moment) * features

  def learn(
    errors: tuple[Array, Array], numbers: tuple[Array, ...]
  ) -> tuple[tuple[Array, Array], Array]:
    """Returns the moments after one more example, and the risk.

    The error becomes `e' = (α − Hxxᵀ) e + (α − 1 − (H − K)xxᵀ) ŵ + σ Kxn`. The factors
    of e and ŵ have the means `on_error` and `on_truth`. The other terms come from the
    variance of `xxᵀ`.
    """
    error, cross = errors
    alpha, h, k = (number if number.ndim else number * identity for number in numbers)
    excess = h - k
    on_error = alpha - h @ features
    on_truth = alpha - identity - excess @ features
    mixed = on_error @ cross @ on_truth.T + h @ spread(cross) @ excess.T
    error = (
      on_error @ error @ on_error.T
      + h @ spread(error) @ h.T
      + mixed
      + mixed.T
      + on_truth @ truth @ on_truth.T
      + excess @ spread(truth) @ excess.T
      + noise * k @ features @ k.T
    )
    error = (error + error.T) / 2
    return (error, on_error @ cross + on_truth @ truth), jnp.sum(features * error)

  coefficients = (
    jnp.asarray(form.decay),
    jnp.asarray(form.erase),
    jnp.asarray(form.write),
  )
  _, risks = jax.lax.scan(learn, (error, cross), coefficients)
  return jnp.append(jnp.sum(features * error), risks)


_curve = jax.jit(recurrence_curve)


def optimal_delta_rule(task: Task) -> OptimalDeltaRule:
  """Returns the delta rule with the best step matrix for every example.

  It starts from the prior mean. With `e = w_{i−1} − ŵ` and `M = E e eᵀ` before example
  i, the step is `H_i = M (2 ΣM + (tr ΣM + σ²) I)⁻¹`. No other steps lead to a lower
  risk after any number of examples. It takes O(C d³) time.

  Args:
    task: A `linear_regression` with C examples.

  Returns:
    The risks after 0, …, C examples, and the step matrices.

  Raises:
    UserError: If the theory does not cover the task.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> zoo.theory.sequential.optimal_delta_rule(task).curve.round(4).tolist()
    [2.0, 1.5, 1.125, 0.8438]
  """
  task = require_covered(task)
  m, features = second_moments(task)
  identity = np.eye(len(m))
  risks, steps = [np.sum(features * m)], []
  for _ in range(task.context_length):
    size = risks[-1] + task.noise_std**2
    step = np.zeros_like(m)
    if size > 0:  # Otherwise the weights are known already.
      step = np.linalg.solve(2 * m @ features + size * identity, m).T
    m = m - step @ features @ m
    m = (m + m.T) / 2
    risks.append(np.sum(features * m))
    steps.append(step)
  return OptimalDeltaRule(np.array(risks), np.array(steps))


def normalised_delta_rule(task: Task, step: float = 1.0) -> Float[np.ndarray, ' n']:
  """Computes the exact risks of the delta rule with keys `x/|x|`.

  The weights start from the prior mean and follow
  `w_i = w_{i−1} − step x_i (x_iᵀ w_{i−1} − y_i)/|x_i|²`. Without noise, and with step
  1, the risks are `tr ΣΛ (1 − 1/d)ⁱ`.

  Args:
    task: A `linear_regression` with C examples, whose feature covariance is a positive
      multiple of the identity.
    step: The step size, a finite number.

  Returns:
    The risks `[C + 1]` after 0, …, C examples.

  Raises:
    UserError: If the theory does not cover the task or its feature covariance, or if
      labels have noise and there are fewer than 3 features: the risk is then infinite.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> zoo.theory.sequential.normalised_delta_rule(task).round(4).tolist()
    [2.0, 1.0, 0.5, 0.25]
  """
  task = require_covered(task)
  step = check_number('step', step)
  prior, features = second_moments(task)
  d, noise = task.num_features, task.noise_std**2
  feature_variance(task, 'the risk with normalised keys')
  if noise > 0 and d < 3:
    raise UserError(
      f'num_features is {d}; with label noise the risk with normalised keys is finite '
      'only for 3 features or more'
    )
  factor = 1 - step * (2 - step) / d
  risks = [np.sum(features * prior)]
  for _ in range(task.context_length):
    risks.append(factor * risks[-1] + (step**2 * noise / (d - 2) if noise else 0.0))
  return np.array(risks)
