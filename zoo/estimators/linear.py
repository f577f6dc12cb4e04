"""Estimators of linear regression: gradient descent, ridge and the posterior mean.

The functions make an estimator from a task, for which they choose the best parameters,
or from given parameters. Estimators hold float64 and compute in the precision of the
prompt. A task must be a `LinearRegression`, and not of a subclass of it.
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
from zoo.core.prompt import Prompt, checked_prompt
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

# Gradient descent may have at most this many steps, each with its own step size.
MAX_STEPS = 10_000


def gradient_descent(
  task_or_start: Task | ArrayLike,
  step_size: float | ArrayLike | None = None,
  num_steps: int = 1,
) -> GradientDescent:
  """Makes gradient descent on the loss of the context.

  The loss is `Σ_i (w·x_i − y_i)² / (2C)`. See also `gd_beta`, whose step size is a
  matrix; `ridge`, `ols` and `bayes`, which solve for the weights.

  Args:
    task_or_start: A `LinearRegression`, whose prior mean is the start of the weights,
      or the start itself `[d]`.
    step_size: One number for all steps, or one for each `[num_steps]`. For one step on
      a task, None is the step size of least risk. For several steps
      `zoo.theory.best_step_size` and `zoo.theory.best_schedule` compute it.
    num_steps: Number of steps, from 1 to 10,000. Exact risks are known for at most 128.

  Returns:
    The estimator, which predicts `w·x_q`.

  Raises:
    UserError: If an argument is out of its range, the task is not a `LinearRegression`,
      or `step_size` is None for several steps or for a start.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=5)
    >>> model = zoo.estimators.gradient_descent(task)
    >>> float(model.step_sizes[0])  # C / (C + d + 1)
    0.625
    >>> print(model(task.sample(jax.random.key(0), 3)).round(2))
    [-0.35  2.24 -0.02]
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
  """Makes GD-β: one step of gradient descent whose step size is a matrix.

  Args:
    task_or_start: A `LinearRegression`, whose prior mean is the start of the weights,
      or the start itself `[d]`.
    step_matrix: The matrix `[d, d]`. On a task, None is the matrix of least risk, as
      `best_step_matrix` returns it.

  Returns:
    The estimator, which predicts `w·x_q`.

  Raises:
    UserError: If an argument has the wrong shape, the task is not a `LinearRegression`,
      or `step_matrix` is None for a start.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=5)
    >>> zoo.estimators.gd_beta(task).step_matrix.round(3).tolist()
    [[0.625, 0.0], [0.0, 0.625]]

  References:
    arXiv 2402.14951.
  """
  start, task = _start(task_or_start)
  if step_matrix is None:
    step_matrix = best_step_matrix(_given('step_matrix', task))
  return GDBeta(start, check_array('step_matrix', step_matrix, [(start.size,) * 2]))


def prior_mean(task: Task) -> GradientDescent:
  """Makes the estimator that predicts with the prior mean, whatever the context.

  It is gradient descent with no steps.

  Args:
    task: A `LinearRegression`.

  Returns:
    The estimator.

  Raises:
    UserError: If the task is not a `LinearRegression`.

  Example:
    >>> task = zoo.tasks.LinearRegression(2, 5, prior_mean=2.0)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> prediction = zoo.estimators.prior_mean(task)(prompt)
    >>> target = 2 * prompt.x_query.sum(axis=1)
    >>> print(np.asarray(prediction).round(2), np.asarray(target).round(2))
    [-3.53  3.93 -0.13] [-3.53  3.93 -0.13]
  """
  return GradientDescent(prior_of(task).mean, np.zeros(0))


def ridge(task_or_start: Task | ArrayLike, penalty: float | None = None) -> Ridge:
  """Makes ridge regression towards a start.

  The weights minimise `Σ_i (w·x_i − y_i)² + λ |w − start|²`.

  Args:
    task_or_start: A `LinearRegression`, whose prior mean is the start, or the start
      itself `[d]`.
    penalty: λ ≥ 0. On a task, None is the penalty of least risk, as `best_penalty`
      returns it.

  Returns:
    The estimator, which predicts `w·x_q`.

  Raises:
    UserError: If the penalty is not a number ≥ 0, the task is not a `LinearRegression`,
      `penalty` is None for a start, or the task's best penalty has no closed form.

  Example:
    >>> task = zoo.tasks.LinearRegression(2, 5, noise_std=0.5)
    >>> zoo.estimators.ridge(task).penalty
    0.25
  """
  start, task = _start(task_or_start)
  if penalty is None:
    penalty = best_penalty(_given('penalty', task))
  penalty = check_number('penalty', penalty, minimum=0.0)
  return Ridge(penalty, start)


def ols(task_or_start: Task | ArrayLike) -> Ridge:
  """Makes least squares; if there are several solutions, the one nearest to the start.

  With fewer than d examples the weights equal the start in the directions in which no
  example varies. Without examples the start therefore predicts. A start of zeros gives
  the usual pseudo-inverse.

  Args:
    task_or_start: A `LinearRegression`, whose prior mean is the start, or the start
      itself `[d]`.

  Returns:
    The estimator, which predicts `w·x_q`.

  Raises:
    UserError: If the start is not a vector, or the task is not a `LinearRegression`.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> prediction = zoo.estimators.ols(task)(prompt)
    >>> print(prediction.round(2), prompt.y_query.round(2))  # there is no noise
    [-0.32  2.03 -0.04] [-0.32  2.03 -0.04]
  """
  return ridge(task_or_start, 0.0)


def bayes(task: Task) -> Ridge:
  """Makes the posterior mean of a task, the estimator of least risk.

  It is ridge regression towards the prior mean w*, with the penalty
  σ² (w − w*)ᵀ Λ⁻¹ (w − w*), where σ² is the variance of the noise and Λ the prior
  covariance. It also gives the distribution of labels.

  Args:
    task: A `LinearRegression`.

  Returns:
    The estimator, which predicts `w·x_q`, and has a method `distribution`.

  Raises:
    UserError: If the task is not a `LinearRegression`.

  Example:
    >>> task = zoo.tasks.LinearRegression(2, 5, noise_std=0.5)
    >>> model = zoo.estimators.bayes(task)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> model(prompt).shape, bool((model.distribution(prompt).std > 0.5).all())
    ((3,), True)
  """
  prior, root = prior_of(task), None
  if prior.covariance is not None:
    scales, vectors = scales_and_axes(prior.covariance)
    root = vectors * scales
  return Ridge(prior.noise_std**2, prior.mean, root, prior_std=1.0)


class Estimator(Baseline):
  """Base of estimators that fit weights w to the context, and predict `w·x_q`.

  Attributes:
    start: Weights `[d]` without examples. None is 0.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> print(zoo.estimators.ols(task).weights(prompt)[0].round(2))
    [-0.14  0.48]
  """

  start: Vector

  def weights(self, prompt: Prompt) -> Float[Array, 'b d']:
    """Returns the weights that are fitted to the context of each prompt, `[b, d]`.

    Raises:
      UserError: If the prompt is not a `zoo.Prompt`, or has another number of features
        than the start.
    """
    prompt = checked_prompt(prompt)
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
    """Fits weights to `count` examples; all other features and labels are 0."""

  def _start(self, x: Float[Array, 'c d']) -> Float[Array, ' d']:
    """Returns the start in the precision of the features."""
    if self.start is None:
      return jnp.zeros(x.shape[1], x.dtype)
    if x.shape[1] != self.start.size:
      raise UserError(
        f'the estimator is for {self.start.size} features; the prompt has {x.shape[1]}'
      )
    return jnp.asarray(self.start, x.dtype)


@struct.dataclass(eq=False, repr=False)
class GradientDescent(Estimator):
  """Steps of gradient descent on the loss of the context, `Σ_i (w·x_i − y_i)² / (2C)`.

  Args:
    start: Weights `[d]` before the first step. None is 0.
    step_sizes: Size of each step `[num_steps]`.
    tuned: The best steps on a task for each number of examples, an object of
      `zoo.estimators.linear_prior.FirstSteps` such as `FirstSteps.of(task)`. With it,
      the one step has the best size for each length of the context; `step_sizes` is for
      the task's length. None takes the same steps at all lengths.

  Example:
    >>> model = zoo.estimators.GradientDescent(np.zeros(2), np.array([0.5]))
    >>> prompt = zoo.tasks.LinearRegression(2, 5).sample(jax.random.key(0), 3)
    >>> print(model(prompt).round(2))
    [-0.28  1.79 -0.01]
  """

  start: Vector
  step_sizes: Vector
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
    """Returns the estimator of the steps that it takes after this many examples."""
    if self.tuned is None or context_length == self.tuned.context_length:
      return self
    return GradientDescent(self.start, self.tuned.step_size(context_length).reshape(1))

  def learning_rule(self) -> LearningRule:
    """Returns this estimator as a learning rule.

    Raises:
      UserError: If there are two steps or more, or `start` is None.
    """
    if self.step_sizes.size > 1:
      raise UserError(
        f'{self.step_sizes.size} steps of gradient descent are no learning rule; only '
        'zero or one step is affine in the second moment G'
      )
    if self.start is None:
      raise UserError(
        'start is None, which means weights of 0 for any number d of features; a '
        'learning rule is for one number: give start=np.zeros(d)'
      )
    return LearningRule.gradient_descent(self.start, self.step_sizes.sum())


@struct.dataclass(eq=False, repr=False)
class GDBeta(Estimator):
  """GD-β: one step of gradient descent whose step size is a matrix.

  The loss is `Σ_i (w·x_i − y_i)² / (2C)`.

  Args:
    start: Weights `[d]` before the step. None is 0.
    step_matrix: The matrix Γ `[d, d]` that multiplies the gradient.
    tuned: The best steps on a task for each number of examples, an object of
      `zoo.estimators.linear_prior.FirstSteps` such as `FirstSteps.of(task)`. With it,
      the step has the best matrix for each length of the context; `step_matrix` is for
      the task's length. None takes the same step at all lengths.

  Raises:
    UserError: If the labels of a prompt are one-hot, or if a prompt has another number
      of features than the start. The call raises it.

  Example:
    >>> model = zoo.estimators.GDBeta(np.zeros(2), 0.5 * np.eye(2))
    >>> prompt = zoo.tasks.LinearRegression(2, 5).sample(jax.random.key(0), 3)
    >>> print(model(prompt).round(2))
    [-0.28  1.79 -0.01]

  References:
    arXiv 2402.14951.
  """

  start: Vector
  step_matrix: Matrix
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
    """Returns the estimator of the step that it takes after this many examples."""
    if self.tuned is None or context_length == self.tuned.context_length:
      return self
    return GDBeta(self.start, np.asarray(self.tuned.step_matrix(context_length)))

  def learning_rule(self) -> LearningRule:
    """Returns this estimator as a learning rule."""
    start = np.zeros(len(self.step_matrix)) if self.start is None else self.start
    return LearningRule.gd_beta(start, self.step_matrix)


@struct.dataclass(eq=False, repr=False)
class Ridge(Estimator, Describing):
  """Ridge regression: minimises `Σ_i (w·x_i − y_i)² + λ (w − start)ᵀ K⁻¹ (w − start)`.

  `K = root rootᵀ` may be singular; `w − start` then stays in its range. A penalty of 0
  is the limit from above: the least-squares solution nearest to the start.

  Args:
    penalty: λ ≥ 0; 0 is least squares.
    start: Weights `[d]` without examples. None is 0.
    root: A root of K, `[d, k]`. None is the identity.
    squares: Whether x is replaced by its squares, entry by entry.
    prior_std: Standard deviation τ of a prior `w ~ N(start, τ² K)`, if this is the
      posterior mean under that prior and noise of the variance `τ² λ`. The posterior
      then gives the distribution of labels. None for any other estimator.

  Raises:
    UserError: If the penalty is a number below 0, infinite or NaN.

  Example:
    >>> model = zoo.estimators.Ridge(penalty=0.25, prior_std=1.0)
    >>> task = zoo.tasks.LinearRegression(2, 5, noise_std=0.5)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> model(prompt).shape, model.distribution(prompt).std.shape
    ((3,), (3,))
  """

  penalty: Number = 0.0
  start: Vector = None
  root: Matrix = None
  squares: bool = struct.field(pytree_node=False, default=False)
  prior_std: Number = None

  def __post_init__(self):
    super().__post_init__()
    # JAX also makes an object whose leaves are arrays or placeholders.
    if isinstance(self.penalty, int | float | np.floating):
      check_number('penalty', self.penalty, minimum=0.0)

  @property
  def has_distribution(self) -> bool:
    """Whether this is a posterior mean, whose labels have a known distribution."""
    return self.prior_std is not None

  def predicting(self) -> Ridge:
    return dataclasses.replace(self, prior_std=None)  # pyright: ignore[reportCallIssue]

  def describe(self, examples: Examples) -> Gaussian:
    """Returns the normal distribution of the observed label of the query.

    Its mean is `w·x_q`, and its variance is `τ² (λ + φᵀ (I − Aᵀ (A Aᵀ + λ)⁻¹ A) φ)`
    with `φ = rootᵀ x_q` and `A = X root`.

    Raises:
      UserError: If the estimator is not a posterior mean: `prior_std` is None.
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
  """Returns the weights of ridge regression; for a penalty of 0, those of least norm.

  Args:
    x: Features `[c, d]`.
    y: Labels `[c]`.
    penalty: λ ≥ 0.
  """
  # The normal equations would square the condition number.
  u, s, vt = jnp.linalg.svd(x, full_matrices=False)
  # A singular value below this is a rounding error, as is usual for a pseudo-inverse.
  noise_floor = s[0] * jnp.finfo(s.dtype).eps * max(x.shape)
  return ((y @ u) * jnp.where(s > noise_floor, s / (s * s + penalty), 0)) @ vt


def unexplained(
  x: Float[Array, 'c d'], x_query: Float[Array, ' d'], penalty: float | Array
) -> Float[Array, '']:
  """Returns `x_qᵀ (I − Xᵀ (X Xᵀ + penalty)⁻¹ X) x_q`, as a sum of terms ≥ 0.

  It is the posterior variance of `w·x_q` divided by the prior variance of the weights,
  whose prior is isotropic.

  Args:
    x: Features `[c, d]`.
    x_query: Features of the query `[d]`.
    penalty: The penalty, ≥ 0.
  """
  _, s, vt = jnp.linalg.svd(x, full_matrices=False)
  noise_floor = s[0] * jnp.finfo(s.dtype).eps * max(x.shape)
  along = vt @ x_query
  some = jnp.where(s > noise_floor, s * s + penalty, 1)
  left = jnp.where(s > noise_floor, penalty / some, 1)
  variance = jnp.sum(jnp.square(along) * left)
  # With d singular values the axes span all directions.
  if len(s) < len(x_query):
    variance += jnp.sum(jnp.square(x_query - along @ vt))
  return variance


def _gradient(
  weights: Float[Array, ' d'],
  x: Float[Array, 'c d'],
  y: Float[Array, ' c'],
  count: int | Array,
) -> Float[Array, ' d']:
  """Returns the gradient of `Σ_i (w·x_i − y_i)² / (2 count)`, 0 without examples."""
  return -(y - x @ weights) @ x / jnp.maximum(count, 1).astype(x.dtype)


def _given(name: str, task: Task | None) -> Task:
  """Returns the task; raises UserError if there is none to choose the argument for."""
  if task is None:
    raise UserError(
      f'{name} is None; it must be given with a start, and may be None with a task'
    )
  return task


def _start(
  task_or_start: Task | ArrayLike,
) -> tuple[Float[np.ndarray, ' d'], Task | None]:
  """Returns the start (of a task the prior mean), and the task if one is given."""
  if isinstance(task_or_start, Task):
    return prior_of(task_or_start).mean, task_or_start
  shape = np.shape(task_or_start)
  if len(shape) != 1:
    raise UserError(f'the start has shape {shape}; it must be a task or a vector [d]')
  return check_vector('the start', task_or_start, shape[0]), None
