"""Base classes of tasks, and the tasks on which a trained model is tested.

A task is a frozen dataclass (`flax.struct.dataclass`) that lists its fields and says
how a prompt is drawn.
"""

# A size that follows from fields is a property.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int, Key, PyTree

from zoo.core import losses, trees
from zoo.core.errors import UserError, check_covariance, check_number
from zoo.core.matrices import symmetric_root
from zoo.core.prompt import Prompt
from zoo.core.protocols import BaseTask, Predictor, Task
from zoo.core.registry import TASKS, entering
from zoo.core.trees import Matrix, Number, Vector

_Class = TypeVar('_Class', bound=type)
# The loss of each prediction, from the predictions and the targets.
Loss = Callable[[Float[Array, '*n'], Float[Array, '*n']], Float[Array, '*m']]
# Changes the features of one prompt. It is a pytree, whose numbers are leaves, so that
# tasks whose changes differ only in them share their compiled programs.
Change = Callable[[Key[Array, ''], Float[Array, 't d']], Float[Array, 't d']]

# Of one prompt: weights w, the features of its c + 1 examples, and a number for each.
Weights = Float[Array, ' d']
Points = Float[Array, 't d']
Values = Float[Array, ' t']

# The names of a baseline with the least possible loss, and of an estimate of it by
# sampling, whose loss may be larger.
BAYES = 'bayes', 'bayes_estimate'
_SCALES = 1 / 3, 1 / 2, 2.0, 3.0


def register_task(name: str) -> Callable[[_Class], _Class]:
  """A class decorator that enters a task in the registry under `name`.

  It stands over the decorator that makes the class a dataclass. A second class under
  the same name replaces the first. Raises UserError for a class that is not such a
  subclass of BaseTask, or that lacks a method or a size.
  """
  enter = entering('task', TASKS, name)

  def check_and_enter(cls: Any) -> Any:
    _check_class(cls)
    return enter(cls)

  return check_and_enter


def _check_class(cls: Any) -> None:
  """Raises UserError for what cannot be registered as a task."""
  name = getattr(cls, '__name__', repr(cls))
  if not isinstance(cls, type) or not issubclass(cls, BaseTask):
    raise UserError(
      f'{name} is not a subclass of zoo.tasks.BaseTask, which a task must be'
    )
  if missing := sorted(cls.__abstractmethods__):
    raise UserError(f'the task {name} lacks the method {", ".join(missing)}')
  if '__dataclass_fields__' not in vars(cls):
    raise UserError(
      f'the task {name} is not a dataclass; decorate it with flax.struct.dataclass, '
      'under zoo.register_task'
    )
  fields: Any = {field.name: field for field in dataclasses.fields(cls)}
  for size in ('num_features', 'context_length'):
    mistake = None
    if size not in fields and not hasattr(cls, size):
      mistake = f'lacks the field {size}'
    elif size in fields:
      metadata = fields[size].metadata
      if metadata.get('pytree_node', 'static' not in metadata):
        mistake = f'has {size} as an array of compiled programs'
    if mistake:
      raise UserError(
        f'the task {name} {mistake}; declare it, such as `{size}: int = '
        'flax.struct.field(pytree_node=False, default=5)`'
      )


class FunctionClass(BaseTask):
  """A task whose prompts are a random function at independent random features.

  (Garg et al., arXiv 2208.01066.) A subclass defines `sample_function` and `evaluate`.
  The function does not depend on the features; `sample_context` says whether features
  of different examples depend on one another.
  """

  noise_std: float = 0.0  # σ, in the units of the labels

  def check(self) -> None:
    super().check()
    check_number('noise_std', self.noise_std, minimum=0.0)

  @property
  def stationary(self) -> bool:
    """Whether examples are independent given the function, and the query is like them.

    That is so unless the class has a `sample_context` or `sample_one` of its own.
    """
    own = type(self).sample_context, type(self).sample_one
    return own == (FunctionClass.sample_context, FunctionClass.sample_one)

  @property
  def has_normal_features(self) -> bool:
    """Whether features are known to be `N(0, I)`."""
    return type(self).sample_features is FunctionClass.sample_features

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    """The features of the context examples and the query, here `N(0, I)`."""
    return jax.random.normal(key, (self.context_length + 1, self.num_features))

  def sample_context(
    self, key: Key[Array, ''], x_query: Float[Array, ' d']
  ) -> Float[Array, 'c d']:
    """The features of the context examples, given those of the query.

    Here the features of different examples are independent. A subclass whose
    `sample_features` makes them depend on one another defines this, too.
    """
    return self.sample_features(key)[:-1]

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    return log_normal(x) if self.has_normal_features else super().log_density(x)

  @abc.abstractmethod
  def sample_function(self, key: Key[Array, '']) -> PyTree:
    """The parameters of a function: arrays, which are the latents of a prompt."""

  @abc.abstractmethod
  def evaluate(self, function: PyTree, x: Float[Array, 't d']) -> Float[Array, ' t *k']:
    """The targets at the features: values of the function, or probabilities."""

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t *k']
  ) -> Float[Array, ' t *k']:
    """The labels, given the targets; here the targets with Gaussian noise."""
    noise_std = jnp.asarray(self.noise_std, float)

    def with_noise() -> Float[Array, ' t *k']:
      noise = noise_std * jax.random.normal(key, targets.shape)
      return targets + noise.astype(targets.dtype)

    # Not multiplied by 0, so that labels without noise are the targets bit for bit.
    return jax.lax.cond(noise_std > 0, with_noise, lambda: targets)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    features_key, function_key, labels_key = jax.random.split(key, 3)
    x = self.sample_features(features_key)
    return self._labelled(x, function_key, labels_key)

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    check_sampling(self, FunctionClass)
    features_key, *others = jax.random.split(key, 3)
    x = inputs_of(prompt)
    if keep == 'query':
      x = x.at[:-1].set(self.sample_context(features_key, prompt.x_query))
    return self._labelled(x, *others)

  def _labelled(
    self,
    x: Float[Array, 't d'],
    function_key: Key[Array, ''],
    labels_key: Key[Array, ''],
  ) -> Prompt:
    """A prompt with these features, and a function that does not depend on them."""
    function = self.sample_function(function_key)
    targets = self.evaluate(function, x)
    labels = self.sample_labels(labels_key, targets)
    return make_prompt(x, labels, None if labels is targets else targets, function)

  def shifts(self) -> dict[str, Task]:
    """Tasks, by name, on which to test a model that was trained on this one.

    Here they have other distributions of the features, scaled functions, more noise, or
    more examples. A subclass whose features are not numbers of any sign and size should
    return `BaseTask.shifts(self)`.
    """
    return other_distributions(self) | super().shifts()


class LinearFunctions(FunctionClass):
  """The functions `w·x`, whose parameters are the weights w."""

  def evaluate(self, function: Weights, x: Points) -> Values:
    return dot(x, function[None])


def is_squared(task: Task) -> bool:
  """Whether a task's labels are numbers and its loss is the squared error."""
  at = jnp.asarray([0.0, 3.0]), jnp.asarray([2.0, -1.0])
  loss, expected = task.loss(*at), losses.squared_error(*at)
  return loss.shape == expected.shape and bool(np.allclose(loss, expected))


def make_prompt(
  x: Float[Array, 't d'],
  labels: Float[Array, ' t *k'],
  targets: Float[Array, ' t *k'] | None,
  latents: PyTree = None,
) -> Prompt:
  """One prompt, whose last example is the query; `targets` defaults to the labels."""
  return Prompt(
    x=x[:-1],
    y=labels[:-1],
    x_query=x[-1],
    y_query=(labels if targets is None else targets)[-1],
    context_targets=None if targets is None else targets[:-1],
    latents=latents,
  )


def check_sampling(task: BaseTask, base: type[BaseTask]) -> None:
  """Raises UserError if a task has another `sample_one` than the base, for a redraw."""
  if type(task).sample_one is not base.sample_one:
    name = type(task).__name__
    raise UserError(
      f'{name} has a sample_one of its own; define {name}.redraw_one(key, prompt, keep)'
      ', which says how one of its prompts is drawn again'
    )


def inputs_of(prompt: Prompt) -> Float[Array, 't d']:
  """The features of one prompt without the axis b, those of the query last."""
  return jnp.concatenate([prompt.x, prompt.x_query[None]])


def exchanged(
  symbols: Int[Array, ' t'], one: Int[Array, ''], other: Int[Array, '']
) -> Int[Array, ' t']:
  """The symbols with one of them exchanged for another, and that one for it.

  Of prompts whose distribution does not change when symbols are exchanged, those with
  one query become those with another.
  """
  return jnp.where(symbols == one, other, jnp.where(symbols == other, one, symbols))


def log_normal(x: Float[Array, '*n']) -> Float[Array, '']:
  """The log density of independent standard normal numbers."""
  return -jnp.sum(jnp.square(x) + math.log(2 * math.pi)) / 2


def sample_signs(
  key: Key[Array, ''], probability: Float[Array, '*n']
) -> Float[Array, '*n']:
  """Labels ±1, each +1 with its probability."""
  positive = jax.random.uniform(key, probability.shape) < probability
  return jnp.where(positive, 1.0, -1.0).astype(probability.dtype)


def dot(
  left: Float[Array, '*n'], right: Float[Array, '*m'], axis: int = -1
) -> Float[Array, '*k']:
  """The dot product over an axis, summed in a fixed order.

  Its bits therefore do not depend on how many prompts or devices compute together.
  """
  d = left.shape[axis]
  if right.shape[axis] != d:  # an index out of range would give the last entry
    size = right.shape[axis]
    raise UserError(f'vectors of {d} and {size} entries have no dot product')
  at = functools.partial(jax.lax.dynamic_index_in_dim, axis=axis, keepdims=False)
  return jax.lax.fori_loop(
    1,
    d,
    lambda i, total: total + at(left, i) * at(right, i),
    at(left, 0) * at(right, 0),
    unroll=min(d, 16),
  )


def as_vector(content: Vector, length: int) -> Vector:
  """A number or `[length]` as a read-only float64 vector; anything else as it is.

  JAX rebuilds a task with tracers, shapes, or integers (the axes of `vmap`) in place of
  its numbers, and `check` says what is wrong with others.
  """
  if not isinstance(content, float | list | tuple | np.ndarray | np.floating):
    return content
  array = np.asarray(content)
  is_size = isinstance(length, int | np.integer) and not isinstance(length, bool)
  is_sized = is_size and array.shape in ((), (length,))
  if not is_sized or array.dtype.kind not in 'iuf' or not np.isfinite(array).all():
    return content
  if array.shape == () or array.dtype != np.float64 or array.flags.writeable:
    array = np.full(length, array, np.float64)
    array.flags.writeable = False
  return array


def with_root(name: str, covariance: Matrix, root: Matrix) -> tuple[Matrix, Matrix]:
  """A covariance as a read-only float64 matrix, and its symmetric root.

  What JAX puts in its place stays as it is, with the root that belongs to it. Raises
  UserError, with the covariance's name, for a matrix that is none.
  """
  if covariance is None:
    return None, None
  is_new = isinstance(covariance, jax.Array) and not isinstance(root, jax.Array)
  is_traced = isinstance(covariance, Tracer)
  if isinstance(covariance, list | tuple | np.ndarray) or (is_new and not is_traced):
    array = np.asarray(covariance)
    if array.ndim == 2 and array.dtype.kind in 'iuf' and len(array) == array.shape[1]:
      covariance = check_covariance(name, array, len(array))
      root = symmetric_root(covariance)
      covariance.flags.writeable = root.flags.writeable = False
  return covariance, root


def inputs_are_labels(task: BaseTask) -> UserError:
  """The error for a redraw of a sequence that keeps its symbols."""
  return UserError(
    f'the labels of {type(task).__name__} are symbols of the sequence, which are its '
    "inputs, too; there are no other labels with the same inputs. keep='query' draws "
    'another sequence with the same last symbol'
  )


def unshifted(baselines: dict[str, Predictor]) -> dict[str, Predictor]:
  """The baselines of a task for a shift of it, `bayes` named `bayes_unshifted`.

  An estimate of it, `bayes_estimate`, is renamed in the same way.
  """
  return {
    f'{name}_unshifted' if name in BAYES else name: predictor
    for name, predictor in baselines.items()
  }


@struct.dataclass(eq=False, repr=False)
class ChangedTask(FunctionClass):
  """A task with the functions, labels and loss of another, which it holds.

  A subclass defines `evaluate`.
  """

  task: FunctionClass

  @property
  def num_features(self) -> int:
    """Features of an example, d."""
    return self.task.num_features

  @property
  def num_outputs(self) -> int:
    """Outputs of a prediction, k."""
    return self.task.num_outputs

  @property
  def context_length(self) -> int:
    """Labelled examples of a prompt, C."""
    return self.task.context_length

  @property
  def label_kind(self) -> str:
    """What labels are: 'numbers', 'signs' or 'classes'."""
    return self.task.label_kind

  @property
  def noise_std(self) -> Number:
    """Standard deviation of the noise of the labels, σ."""
    return self.task.noise_std

  def sample_function(self, key: Key[Array, '']) -> PyTree:
    return self.task.sample_function(key)

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t *k']
  ) -> Float[Array, ' t *k']:
    return self.task.sample_labels(key, targets)

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    return self.task.loss(prediction, target)

  def accuracy(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m'] | None:
    return self.task.accuracy(prediction, target)

  def held_out(self) -> Task:
    held_out = self.task.held_out()
    return self if held_out is self.task else dataclasses.replace(self, task=held_out)


@struct.dataclass(eq=False, repr=False)
class ShiftedTask(ChangedTask):
  """A task with changed features or a scaled function, and the same noise.

  The changed features are labelled by functions from the same distribution.
  """

  change: Change | None = None
  # It multiplies the values of the function, which must be numbers then.
  scale: Number = None

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    if self.change is None:
      return self.task.sample_features(key)
    features_key, change_key = jax.random.split(key)
    return self.change(change_key, self.task.sample_features(features_key))

  @property
  def stationary(self) -> bool:
    """Whether the task is, and its features are changed one example at a time."""
    changes_each = self.change is None or isinstance(self.change, Scale | Stretch)
    return changes_each and self.task.stationary

  def sample_context(
    self, key: Key[Array, ''], x_query: Float[Array, ' d']
  ) -> Float[Array, 'c d']:
    if self.change is None:
      return self.task.sample_context(key, x_query)
    if isinstance(self.change, Scale | Stretch):
      before = self.change.undone(self.task, x_query)
      return self.change(key, self.task.sample_context(key, before))
    function = self.change.func if isinstance(self.change, Partial) else self.change
    if function is orthogonal_query:
      return self._context_orthogonal_to(key, x_query)
    features_key, change_key = jax.random.split(key)
    context = self.task.sample_context(features_key, x_query)
    if function is random_quadrants:
      return self.change(change_key, jnp.concatenate([context, x_query[None]]))[:-1]
    if function is repeated_query:
      # One example is the query's, and the others are as if it were the query.
      return context.at[jax.random.randint(change_key, (), 0, len(context))].set(
        x_query
      )
    raise UserError(
      f'the change {function!r} of features does not say how examples depend on the '
      "query; its prompts can be drawn again with keep='inputs' alone"
    )

  def _context_orthogonal_to(
    self, key: Key[Array, ''], x_query: Float[Array, ' d']
  ) -> Float[Array, 'c d']:
    """The context of `orthogonal_query`, given the query.

    Isotropic features are turned as a whole, so that the query has the direction it
    should have. The query's norm does not depend on the rest.
    """
    if not self.task.has_normal_features:
      raise UserError(
        f'features of {type(self.task).__name__} are not known to be N(0, I); prompts '
        "with an orthogonal query can then be drawn again with keep='inputs' alone"
      )
    x = self.sample_features(key)
    return turned(x[:-1], x[-1], x_query)

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    """That of the task for scaled features, and for queries that are not changed."""
    if self.change is None:
      return self.task.log_density(x)
    if isinstance(self.change, Scale):
      factor = jnp.asarray(self.change.factor, x.dtype)
      return self.task.log_density(x / factor) - x.size * jnp.log(factor)
    function = self.change.func if isinstance(self.change, Partial) else self.change
    # A query by itself has the distribution of an example.
    same = function in (random_quadrants, repeated_query) or (
      function is orthogonal_query and self.task.has_normal_features
    )
    if len(x) == 1 and same:
      return self.task.log_density(x)
    return super().log_density(x)

  def evaluate(self, function: PyTree, x: Float[Array, 't d']) -> Float[Array, ' t *k']:
    targets = self.task.evaluate(function, x)
    return targets if self.scale is None else self.scale * targets

  def baselines(self) -> dict[str, Predictor]:
    """The baselines of the task, whose Bayes predictor is named `bayes_unshifted`.

    That predictor has the least loss only if `scale` is None and it does not use the
    distribution of the task's features.
    """
    return unshifted(self.task.baselines())

  def shifts(self) -> dict[str, Task]:
    return {}


def other_distributions(task: FunctionClass) -> dict[str, Task]:
  """The out-of-distribution tests of Garg et al. (arXiv 2208.01066, and their code).

  Features must be numbers of any sign and size. `random_quadrants`, `orthogonal_query`
  and `repeated_query` concern only the query after the whole context, not an example of
  the context as the query after those before it. If labels are numbers, the function is
  also scaled, and a task with the argument `noise_std` also gets σ = 1.
  """
  d = task.num_features
  changes: dict[str, Change] = {
    'random_quadrants': Partial(random_quadrants),
    'repeated_query': Partial(repeated_query),
  }
  if d > 1:
    changes['skewed'] = stretch(1 / np.arange(1, d + 1))
    changes['half_subspace'] = stretch(np.repeat([1.0, 0.0], [d // 2, d - d // 2]))
  if task.context_length < d:
    changes['orthogonal_query'] = Partial(orthogonal_query)
  changes |= {f'scale_x={scale:.3g}': Scale(scale) for scale in _SCALES}
  tasks: dict[str, Task] = {
    name: ShiftedTask(task, change) for name, change in changes.items()
  }
  if not is_squared(task):  # the labels are classes
    return tasks
  for scale in _SCALES:
    tasks[f'scale_y={scale:.3g}'] = ShiftedTask(task, scale=scale)
  if trees.arguments(task).get('noise_std', 1.0) != 1:
    tasks['noise_std=1'] = dataclasses.replace(task, noise_std=1.0)  # pyright: ignore
  return tasks


@struct.dataclass(eq=False, repr=False)
class Scale(trees.Tree):
  """Multiplies all features."""

  factor: Number

  def __call__(
    self, key: Key[Array, ''], x: Float[Array, 't d']
  ) -> Float[Array, 't d']:
    return self.factor * x

  def undone(self, task: FunctionClass, x: Float[Array, ' d']) -> Float[Array, ' d']:
    """The features of a query of the task that becomes x."""
    return x / self.factor


@struct.dataclass(eq=False, repr=False)
class Stretch(trees.Tree):
  """Multiplies the features of each example by a symmetric matrix."""

  matrix: Matrix

  def __call__(
    self, key: Key[Array, ''], x: Float[Array, 't d']
  ) -> Float[Array, 't d']:
    return dot(x[:, None], jnp.asarray(self.matrix, x.dtype)[None])

  def undone(self, task: FunctionClass, x: Float[Array, ' d']) -> Float[Array, ' d']:
    """The features of a query of the task that becomes x.

    Raises UserError if the matrix may be singular, and the task asks what they were.
    """
    if type(task).sample_context is FunctionClass.sample_context:
      return x  # the context does not depend on it
    raise UserError(
      f'the features of {type(task).__name__} depend on one another; where they are '
      "stretched, prompts can be drawn again with keep='inputs' alone"
    )


def stretch(eigenvalues: Float[np.ndarray, ' d']) -> Stretch:
  """Multiplies features by `U diag(λ) Uᵀ`, with the same random U for all prompts.

  Isotropic features thus get a covariance with eigenvalues proportional to λ², which
  are given up to a factor: `E |x|²` does not change.
  """
  d = len(eigenvalues)
  eigenvalues = np.sqrt(d / np.sum(np.square(eigenvalues))) * eigenvalues
  rotation = np.linalg.svd(np.random.default_rng(0).standard_normal((d, d)))[0]
  return Stretch((rotation * eigenvalues) @ rotation.T)


def turned(
  x: Float[Array, 'n d'], own: Float[Array, ' d'], other: Float[Array, ' d']
) -> Float[Array, 'n d']:
  """Points, reflected so that the direction of one vector becomes that of another.

  Of prompts whose distribution does not change in rotations, those with one direction
  of the query become those with another.
  """
  own, other = (vector / jnp.sqrt(dot(vector, vector)) for vector in (own, other))
  axis = own - other
  square = dot(axis, axis)
  along = dot(x, axis[None]) / jnp.where(square > 0, square, 1)
  return x - 2 * along[:, None] * axis[None]


def random_quadrants(
  key: Key[Array, ''], x: Float[Array, 't d']
) -> Float[Array, 't d']:
  """Moves the context of each prompt into a random orthant, but not the query."""
  signs = jax.random.rademacher(key, x.shape[1:], x.dtype)
  return jnp.concatenate([jnp.abs(x[:-1]) * signs[None], x[-1:]])


def repeated_query(key: Key[Array, ''], x: Float[Array, 't d']) -> Float[Array, 't d']:
  """Replaces the query by a random example of the context."""
  return x.at[-1].set(x[jax.random.randint(key, (), 0, len(x) - 1)])


def orthogonal_query(
  key: Key[Array, ''], x: Float[Array, 't d']
) -> Float[Array, 't d']:
  """Removes the query's part in the span of the context, and keeps its norm.

  If nothing is left of the query, rounding errors choose a direction orthogonal to the
  span.
  """
  q, r = jnp.linalg.qr(x.T)
  norm = jnp.sqrt(dot(x[-1], x[-1]))
  return x.at[-1].set(norm * jnp.sign(r[-1, -1]) * q[:, -1])
