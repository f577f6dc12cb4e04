"""Estimators of linear regression: gradient descent, ridge and the posterior mean.

A function makes each from a task, for which it gets the best parameters, or from given
parameters. All hold float64 and compute in the precision of the prompt.
"""

from __future__ import annotations

import abc
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, ArrayLike, Float

from zoo.core.distributions import Gaussian
from zoo.core.errors import (
  UserError,
  check_array,
  check_count,
  check_number,
  check_vector,
)
from zoo.core.learning_rule import LearningRule
from zoo.core.matrices import scales_and_axes
from zoo.core.prompt import Prompt, check_prompt
from zoo.core.protocols import Task
from zoo.core.trees import Matrix, Number, Vector
from zoo.estimators.baselines import Baseline, Describing, Examples, check_numbers
from zoo.estimators.linear_prior import (
  FirstSteps,
  best_first_step,
  best_penalty,
  best_step_matrix,
  prior_of,
)

MAX_STEPS = 10_000  # of gradient descent; each has a step size


def gradient_descent(
  task_or_start: Task | ArrayLike,
  step_size: float | ArrayLike | None = None,
  num_steps: int = 1,
) -> GradientDescent:
  """Gradient descent from a start `[d]`, or from the prior mean of a task.

  `step_size` is one number for all steps, or one for each, `[num_steps]`. For one step
  it defaults to the best one on the task; `zoo.theory` has `best_step_size` and
  `best_schedule` for several. Raises UserError naming the argument that is wrong.
  """
  num_steps = check_count('num_steps', num_steps, maximum=MAX_STEPS)
  start, task = _start(task_or_start)
  if step_size is None and num_steps > 1:
    raise UserError(
      f'step_size is None; it must be given for {num_steps} steps, such as '
      f'zoo.theory.best_step_size(task, {num_steps})'
    )
  if step_size is None:
    step_size = best_first_step(_given('step_size', task))
  return GradientDescent(start, check_vector('step_size', step_size, num_steps))


def gd_beta(
  task_or_start: Task | ArrayLike, step_matrix: ArrayLike | None = None
) -> GDBeta:
  """GD-β from a start `[d]`, or from the prior mean of a task.

  `step_matrix` defaults to `best_step_matrix` of the task. Raises UserError naming the
  argument that is wrong.
  """
  start, task = _start(task_or_start)
  if step_matrix is None:
    step_matrix = best_step_matrix(_given('step_matrix', task))
  return GDBeta(start, check_array('step_matrix', step_matrix, [(start.size,) * 2]))


def prior_mean(task: Task) -> GradientDescent:
  """Predicts with the prior mean, whatever the context: zero steps of descent.

  Raises UserError unless the task is a LinearRegression.
  """
  return GradientDescent(prior_of(task).mean, np.zeros(0))


def ridge(task_or_start: Task | ArrayLike, penalty: float | None = None) -> Ridge:
  """Ridge regression towards a start `[d]`, or towards the prior mean of a task.

  `penalty` is λ in `Σ_i (w·x_i − y_i)² + λ|w − start|²`; it defaults to `best_penalty`
  of the task. Raises UserError naming the argument that is wrong.
  """
  start, task = _start(task_or_start)
  if penalty is None:
    penalty = best_penalty(_given('penalty', task))
  penalty = check_number('penalty', penalty, minimum=0.0)
  return Ridge(penalty, start)


def ols(task_or_start: Task | ArrayLike) -> Ridge:
  """Least squares; of several solutions, the weights nearest to the start.

  The start is `[d]`, or the prior mean of a task. With fewer than d examples the
  weights keep the start in the directions that no example has, so that without examples
  the prior mean predicts. A start of zeros gives the usual pseudo-inverse.
  """
  return ridge(task_or_start, 0.0)


def bayes(task: Task) -> Ridge:
  """The posterior mean, the estimator of least risk.

  The penalty is the noise variance, and the norm that of the prior. Raises UserError
  unless the task is a LinearRegression.
  """
  prior, root = prior_of(task), None
  if prior.covariance is not None:
    scales, vectors = scales_and_axes(prior.covariance)
    root = vectors * scales
  return Ridge(prior.noise_std**2, prior.mean, root, prior_std=1.0)


class Estimator(Baseline):
  """Predicts `w·x_q` from weights `w` that it fits to the context.

  Without examples the weights are the start; None is 0.
  """

  start: Vector

  def weights(self, prompt: Prompt) -> Float[Array, 'b d']:
    """The weights fitted to each prompt's context."""
    check_prompt(prompt)
    count = prompt.x.shape[1]
    return jax.vmap(lambda x, y: self._fit(x, y, count))(prompt.x, prompt.y)

  def predict(self, examples: Examples) -> Float[Array, '']:
    check_numbers(self, examples, 'SoftmaxRegression')
    x, y, _, x_query = examples.zeroed()
    return jnp.dot(x_query, self._fit(x, y, examples.num_seen))

  @abc.abstractmethod
  def _fit(
    self, x: Float[Array, 'c d'], y: Float[Array, ' c'], count: int | Array
  ) -> Float[Array, ' d']:
    """The weights fitted to `count` examples; all other examples and labels are 0."""

  def _start(self, x: Float[Array, 'c d']) -> Float[Array, ' d']:
    """The start in the precision of the features."""
    if self.start is None:
      return jnp.zeros(x.shape[1], x.dtype)
    if x.shape[1] != self.start.size:
      raise UserError(
        f'the estimator is for {self.start.size} features; the prompt has {x.shape[1]}'
      )
    return jnp.asarray(self.start, x.dtype)


@struct.dataclass(eq=False, repr=False)
class GradientDescent(Estimator):
  """Steps of gradient descent on the context's loss `Σ_i (w·x_i − y_i)² / (2C)`."""

  start: Vector
  step_sizes: Vector
  # At other context lengths the one step has the best size.
  tuned: FirstSteps | None = None

  def _fit(
    self, x: Float[Array, 'c d'], y: Float[Array, ' c'], count: int | Array
  ) -> Float[Array, ' d']:
    weights, step_sizes = self._start(x), jnp.asarray(self.step_sizes, x.dtype)
    if self.tuned is not None:
      best = self.tuned.step_size(jnp.asarray(count)).astype(x.dtype)
      step_sizes = jnp.where(count == self.tuned.context_length, step_sizes, best)
    for step_size in step_sizes:
      weights = weights - step_size * _gradient(weights, x, y, count)
    return weights

  def at_length(self, context_length: int) -> GradientDescent:
    """The steps that it takes after so many examples."""
    if self.tuned is None or context_length == self.tuned.context_length:
      return self
    return GradientDescent(self.start, self.tuned.step_size(context_length).reshape(1))

  def learning_rule(self) -> LearningRule:
    """This estimator as a learning rule; raises UserError for two steps or more."""
    if self.step_sizes.size > 1:
      raise UserError(
        f'{self.step_sizes.size} steps of gradient descent are no learning rule; only '
        'zero or one step is affine in the second moment G'
      )
    return LearningRule.gradient_descent(self.start, self.step_sizes.sum())


@struct.dataclass(eq=False, repr=False)
class GDBeta(Estimator):
  """One step of gradient descent whose step size is a matrix (arXiv 2402.14951)."""

  start: Vector
  step_matrix: Matrix
  # At other context lengths the step has the best matrix.
  tuned: FirstSteps | None = None

  def _fit(
    self, x: Float[Array, 'c d'], y: Float[Array, ' c'], count: int | Array
  ) -> Float[Array, ' d']:
    weights, step_matrix = self._start(x), jnp.asarray(self.step_matrix, x.dtype)
    if self.tuned is not None:
      best = self.tuned.step_matrix(jnp.asarray(count)).astype(x.dtype)
      step_matrix = jnp.where(count == self.tuned.context_length, step_matrix, best)
    return weights - step_matrix @ _gradient(weights, x, y, count)

  def at_length(self, context_length: int) -> GDBeta:
    """The step that it takes after so many examples."""
    if self.tuned is None or context_length == self.tuned.context_length:
      return self
    return GDBeta(self.start, np.asarray(self.tuned.step_matrix(context_length)))

  def learning_rule(self) -> LearningRule:
    """This estimator as a learning rule."""
    return LearningRule.gd_beta(self.start, self.step_matrix)


@struct.dataclass(eq=False, repr=False)
class Ridge(Estimator, Describing):
  """Minimises `Σ_i (w·x_i − y_i)² + penalty (w − start)ᵀ K⁻¹ (w − start)`.

  `K = root rootᵀ` may be singular, and `w` then stays in `start` plus its range. A
  penalty of 0 is the limit from above: the least-squares solution nearest to `start`.

  Attributes:
    penalty: λ ≥ 0; 0 is least squares.
    start: the weights `[d]` without examples; None is 0.
    root: a root of K, `[d, k]`; None is the identity.
    squares: whether x is replaced by its squares, entry by entry.
    prior_std: τ, if this is the posterior mean of weights `~ N(start, τ² K)`, with
      labels whose noise has the variance τ² λ; the posterior then gives the
      distribution of labels. None for any other estimator.
  """

  penalty: Number = 0.0
  start: Vector = None
  root: Matrix = None
  squares: bool = struct.field(pytree_node=False, default=False)
  prior_std: Number = None

  @property
  def has_distribution(self) -> bool:
    """Whether it is a posterior mean."""
    return self.prior_std is not None

  def predicting(self) -> Ridge:
    return dataclasses.replace(self, prior_std=None)  # pyright: ignore[reportCallIssue]

  def describe(self, examples: Examples) -> Gaussian:
    """N(w·x_q, τ² (λ + φᵀ (I − Aᵀ (A Aᵀ + λ)⁻¹ A) φ)), φ = rootᵀ x_q, A = X root.

    Raises UserError for an estimator that is not a posterior mean.
    """
    if self.prior_std is None:
      raise UserError(
        f'{self} has no prior_std, so that it is not known as a posterior mean; '
        "task.baselines()['bayes'] is one, and has a distribution"
      )
    mean = self.predict(examples)
    x, _, _, x_query = examples.zeroed()
    if self.squares:
      x, x_query = jnp.square(x), jnp.square(x_query)
    if self.root is not None:
      root = jnp.asarray(self.root, x.dtype)
      x, x_query = x @ root, x_query @ root
    penalty, prior_std = (
      jnp.asarray(number, x.dtype) for number in (self.penalty, self.prior_std)
    )
    variance = penalty + unexplained(x, x_query, penalty)
    return Gaussian(mean, prior_std * jnp.sqrt(variance))

  def weights(self, prompt: Prompt) -> Float[Array, 'b d']:
    if self.squares:
      prompt = dataclasses.replace(prompt, x=jnp.square(prompt.x))
    return super().weights(prompt)

  def predict(self, examples: Examples) -> Float[Array, '']:
    if self.squares:
      x, y, seen, x_query = examples.zeroed()
      examples = Examples(jnp.square(x), y, seen, jnp.square(x_query))
    return super().predict(examples)

  def _fit(
    self, x: Float[Array, 'c d'], y: Float[Array, ' c'], count: int | Array
  ) -> Float[Array, ' d']:
    start = self._start(x)
    if self.root is None:
      return start + least_squares(x, y - x @ start, self.penalty)
    root = jnp.asarray(self.root, x.dtype)
    return start + root @ least_squares(x @ root, y - x @ start, self.penalty)


def least_squares(
  x: Float[Array, 'c d'], y: Float[Array, ' c'], penalty: float | Array
) -> Float[Array, ' d']:
  """The weights of ridge regression; those of least norm for a penalty of 0."""
  # Not by the normal equations, which would square the condition number.
  u, s, vt = jnp.linalg.svd(x, full_matrices=False)
  # Below this a singular value is rounding error, as usual for a pseudo-inverse.
  noise_floor = s[0] * jnp.finfo(s.dtype).eps * max(x.shape)
  return ((y @ u) * jnp.where(s > noise_floor, s / (s * s + penalty), 0)) @ vt


def unexplained(
  x: Float[Array, 'c d'], x_query: Float[Array, ' d'], penalty: float | Array
) -> Float[Array, '']:
  """`x_qᵀ (I − Xᵀ (X Xᵀ + penalty)⁻¹ X) x_q`, as a sum of terms that are not negative.

  It is the posterior variance of w·x_q for weights N(0, I), divided by their variance.
  """
  _, s, vt = jnp.linalg.svd(x, full_matrices=False)
  noise_floor = s[0] * jnp.finfo(s.dtype).eps * max(x.shape)
  along = vt @ x_query
  some = jnp.where(s > noise_floor, s * s + penalty, 1)
  left = jnp.where(s > noise_floor, penalty / some, 1)
  variance = jnp.sum(jnp.square(along) * left)
  if len(s) < len(x_query):  # else the axes span all directions
    variance += jnp.sum(jnp.square(x_query - along @ vt))
  return variance


def _gradient(
  weights: Float[Array, ' d'],
  x: Float[Array, 'c d'],
  y: Float[Array, ' c'],
  count: int | Array,
) -> Float[Array, ' d']:
  """The gradient of `Σ_i (w·x_i − y_i)² / (2 count)`, 0 without examples."""
  return -(y - x @ weights) @ x / jnp.maximum(count, 1).astype(x.dtype)


def _given(name: str, task: Task | None) -> Task:
  """The task, for which an argument has a best value; raises UserError for None."""
  if task is None:
    raise UserError(
      f'{name} is None; it must be given with a start, and may be None with a task'
    )
  return task


def _start(
  task_or_start: Task | ArrayLike,
) -> tuple[Float[np.ndarray, ' d'], Task | None]:
  """The start, for a task its prior mean, and the task if one is given."""
  if isinstance(task_or_start, Task):
    return prior_of(task_or_start).mean, task_or_start
  shape = np.shape(task_or_start)
  if len(shape) != 1:
    raise UserError(f'the start has shape {shape}; it must be a task or a vector [d]')
  return check_vector('the start', task_or_start, shape[0]), None
