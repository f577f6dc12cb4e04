"""Base classes of tasks, and the shifted tasks on which a trained model is tested.

A task is a frozen dataclass (`flax.struct.dataclass`). Its fields are the parameters of
the distribution of prompts, and its method `sample_one` draws one prompt.
"""

# A size that the base class declares as a field may be a property here.
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
# A loss function takes predictions and targets, and returns the loss of each
# prediction.
Loss = Callable[[Float[Array, '*n'], Float[Array, '*n']], Float[Array, '*m']]
# A change takes a key and the features of one prompt, and returns other features. It is
# a pytree whose numbers are leaves. Tasks whose changes differ only in these numbers
# therefore share their compiled programs.
Change = Callable[[Key[Array, ''], Float[Array, 't d']], Float[Array, 't d']]

# The arrays of one prompt have these types: the weights w, the features of its c + 1
# examples (the query is the last one), and one number for each example.
Weights = Float[Array, ' d']
Points = Float[Array, 't d']
Values = Float[Array, ' t']

# The baseline `bayes` has the least possible loss. The baseline `bayes_estimate` is an
# estimate of it by sampling, whose loss may be larger.
BAYES = 'bayes', 'bayes_estimate'
_SCALES = 1 / 3, 1 / 2, 2.0, 3.0


def register_task(name: str) -> Callable[[_Class], _Class]:
  """Returns a class decorator that enters a task in the registry under a name.

  The task can then be made by `zoo.create_task(name)` and named in a config. The
  decorator stands above `flax.struct.dataclass`, which makes the class a dataclass.

  A class of your own that has the name is replaced without a warning, as when a cell of
  a notebook runs twice. The names of the library's own tasks are refused.

  Args:
    name: Name of the task.

  Returns:
    A decorator that returns the class unchanged.

  Raises:
    UserError: If the name is not a string. The decorator raises it if the name is one
      of the library, if the class is not a subclass of `BaseTask` or not a dataclass,
      if it lacks a method that it must define, if one of the sizes `num_features` and
      `context_length` is missing or is declared as an array of compiled programs, or if
      a field is called `name`.

  Example:
    >>> import flax
    >>> @zoo.register_task('line')
    ... @flax.struct.dataclass
    ... class Line(zoo.tasks.FunctionClass):
    ...   num_features: int = flax.struct.field(pytree_node=False, default=1)
    ...   context_length: int = flax.struct.field(pytree_node=False, default=5)
    ...   def sample_function(self, key):
    ...     return jax.random.normal(key)
    ...   def evaluate(self, function, x):
    ...     return function * x[:, 0]
    >>> zoo.create_task('line').sample(jax.random.key(0), 2).y.shape
    (2, 5)
  """
  enter = entering('task', TASKS, name)

  def check_and_enter(cls: Any) -> Any:
    _check_class(cls)
    return enter(cls)

  return check_and_enter


def _check_class(cls: Any) -> None:
  """Raises UserError if a class cannot be registered as a task."""
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


def check_noise(noise_std: Any, least: float, most: float, reason: str) -> None:
  """Checks that a standard deviation of noise is 0 or within a range.

  Args:
    noise_std: The standard deviation, as a user gave it.
    least: The least one besides 0.
    most: The largest one.
    reason: What goes wrong between 0 and the least one.

  Raises:
    UserError: If it is not.
  """
  check_number('noise_std', noise_std, minimum=0.0, maximum=most)
  if 0 < noise_std < least:
    raise UserError(
      f'noise_std is {noise_std}; it must be 0 or at least {least:g}, because {reason}'
    )


class FunctionClass(BaseTask):
  """Base of tasks whose prompts are a random function at random features.

  Each prompt has features and a function, which are drawn independently of each other.
  The targets are the values of the function at the features, and the labels are the
  targets with noise. A subclass defines `sample_function` and `evaluate`. It may also
  define other distributions of the features (`sample_features`, here `N(0, I)`) and of
  the labels (`sample_labels`, here Gaussian noise). If the features of different
  examples depend on one another, it defines `sample_context`, too.

  Attributes:
    noise_std: Standard deviation σ ≥ 0 of the noise, in the units of the labels; 0 by
      default. A subclass that lets users set it declares it as a field.

  Example:
    >>> import flax
    >>> @flax.struct.dataclass
    ... class Line(zoo.tasks.FunctionClass):
    ...   num_features: int = flax.struct.field(pytree_node=False, default=1)
    ...   context_length: int = flax.struct.field(pytree_node=False, default=5)
    ...   def sample_function(self, key):
    ...     return jax.random.normal(key)
    ...   def evaluate(self, function, x):
    ...     return function * x[:, 0]
    >>> Line(context_length=4).sample(jax.random.key(0), 2).x.shape
    (2, 4, 1)

  References:
    Garg et al., arXiv 2208.01066.
  """

  noise_std: float = 0.0
  exchangeable = True

  def check(self) -> None:
    super().check()
    check_noise(self.noise_std, 1e-18, 1e19, 'its square is 0 in float32')

  @property
  def stationary(self) -> bool:
    """Whether the examples and the query are independent and alike, given the function.

    This holds unless the class defines its own `sample_context` or `sample_one`.
    """
    own = type(self).sample_context, type(self).sample_one
    return own == (FunctionClass.sample_context, FunctionClass.sample_one)

  @property
  def has_normal_features(self) -> bool:
    """Whether the features are known to be `N(0, I)`."""
    return type(self).sample_features is FunctionClass.sample_features

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    """Draws the features of the context examples and, in the last row, of the query.

    Here they are `N(0, I)`.

    Returns:
      Features `[c + 1, d]`.
    """
    return jax.random.normal(key, (self.context_length + 1, self.num_features))

  def sample_context(
    self, key: Key[Array, ''], x_query: Float[Array, ' d']
  ) -> Float[Array, 'c d']:
    """Draws the features of the context examples, given the features of the query.

    Here the features of different examples are independent. A subclass whose
    `sample_features` makes them depend on one another must define this method.

    Args:
      key: Random key.
      x_query: Features of the query `[d]`.

    Returns:
      Features of the context examples `[c, d]`.
    """
    return self.sample_features(key)[:-1]

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    return log_normal(x) if self.has_normal_features else super().log_density(x)

  @abc.abstractmethod
  def sample_function(self, key: Key[Array, '']) -> PyTree:
    """Draws the parameters of a function: a pytree of arrays.

    They are the latents of a prompt.
    """

  @abc.abstractmethod
  def evaluate(self, function: PyTree, x: Float[Array, 't d']) -> Float[Array, ' t *k']:
    """Returns the targets at the features.

    Args:
      function: Parameters that `sample_function` has drawn.
      x: Features `[t, d]` of the examples and the query.

    Returns:
      Values of the function `[t]`. If labels are classes, they are the probabilities of
      the label +1 `[t]`, or of the k classes `[t, k]`.
    """

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t *k']
  ) -> Float[Array, ' t *k']:
    """Draws the labels, given the targets; here the targets with Gaussian noise.

    Args:
      key: Random key.
      targets: What `evaluate` has returned, `[t]` or `[t, k]`.

    Returns:
      Labels of the same shape. Without noise they are equal to the targets bit for bit.
    """
    noise_std = jnp.asarray(self.noise_std, float)

    def with_noise() -> Float[Array, ' t *k']:
      noise = noise_std * jax.random.normal(key, targets.shape)
      return targets + noise.astype(targets.dtype)

    # Noise times 0 is not added, since labels without noise must be the targets bit for
    # bit.
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
    """Returns a prompt with these features and a function independent of them."""
    function = self.sample_function(function_key)
    targets = self.evaluate(function, x)
    labels = self.sample_labels(labels_key, targets)
    return make_prompt(x, labels, None if labels is targets else targets, function)

  def shifts(self) -> dict[str, Task]:
    """Returns tasks, by name, on which to test a model that was trained on this one.

    They have other distributions of the features (see `other_distributions`), scaled
    functions, more noise, or more examples. A subclass whose features cannot take any
    sign and size should return `BaseTask.shifts(self)` instead.
    """
    return other_distributions(self) | super().shifts()


class LinearFunctions(FunctionClass):
  """Base of tasks whose functions are `w·x`, with the weights w as parameters."""

  def evaluate(self, function: Weights, x: Points) -> Values:
    return dot(x, function[None])


def is_squared(task: Task) -> bool:
  """Returns whether a task's labels are numbers and its loss is the squared error.

  Example:
    >>> zoo.tasks.base.is_squared(zoo.tasks.Parity())
    False
  """
  at = jnp.asarray([0.0, 3.0]), jnp.asarray([2.0, -1.0])
  loss, expected = task.loss(*at), losses.squared_error(*at)
  return loss.shape == expected.shape and bool(np.allclose(loss, expected))


def make_prompt(
  x: Float[Array, 't d'],
  labels: Float[Array, ' t *k'],
  targets: Float[Array, ' t *k'] | None,
  latents: PyTree = None,
) -> Prompt:
  """Returns one prompt, without the axis b, whose last example is the query.

  Args:
    x: Features of the context examples and the query, `[t, d]` with t = c + 1.
    labels: Their labels, `[t]` or `[t, k]`.
    targets: Their targets, of the same shape. None means that the labels are the
      targets.
    latents: What the task drew and does not show, such as weights; any pytree of
      arrays.

  Example:
    >>> prompt = zoo.tasks.base.make_prompt(jnp.ones((6, 2)), jnp.zeros(6), None)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((5, 2), (5,), ())
  """
  return Prompt(
    x=x[:-1],
    y=labels[:-1],
    x_query=x[-1],
    y_query=(labels if targets is None else targets)[-1],
    context_targets=None if targets is None else targets[:-1],
    latents=latents,
  )


def check_sampling(task: BaseTask, base: type[BaseTask]) -> None:
  """Raises UserError unless a task draws prompts by the `sample_one` of a base class.

  The `redraw_one` of the base class is right only for such a task.

  Raises:
    UserError: If the task has another `sample_one`.
  """
  if type(task).sample_one is not base.sample_one:
    name = type(task).__name__
    raise UserError(
      f'{name} has a sample_one of its own; define {name}.redraw_one(key, prompt, keep)'
      ', which says how one of its prompts is drawn again'
    )


def inputs_of(prompt: Prompt) -> Float[Array, 't d']:
  """Returns the features `[t, d]` of one prompt without the axis b, the query last."""
  return jnp.concatenate([prompt.x, prompt.x_query[None]])


def exchanged(
  symbols: Int[Array, ' t'], one: Int[Array, ''], other: Int[Array, '']
) -> Int[Array, ' t']:
  """Returns the symbols with two of them exchanged for each other.

  If exchanging symbols does not change the distribution of prompts, prompts with one
  query become prompts with another query in this way.
  """
  return jnp.where(symbols == one, other, jnp.where(symbols == other, one, symbols))


def log_normal(x: Float[Array, '*n']) -> Float[Array, '']:
  """Returns the log density of independent standard normal numbers."""
  return -jnp.sum(jnp.square(x) + math.log(2 * math.pi)) / 2


def sample_signs(
  key: Key[Array, ''], probability: Float[Array, '*n']
) -> Float[Array, '*n']:
  """Returns random labels ±1; `probability` has the probability of +1 for each."""
  positive = jax.random.uniform(key, probability.shape) < probability
  return jnp.where(positive, 1.0, -1.0).astype(probability.dtype)


def dot(
  left: Float[Array, '*n'], right: Float[Array, '*m'], axis: int = -1
) -> Float[Array, '*k']:
  """Returns the dot product over an axis, summed in a fixed order.

  The result therefore has the same bits however many prompts or devices compute
  together.

  Args:
    left: An array with d entries along the axis.
    right: An array with as many entries along the axis. The other axes broadcast.
    axis: The axis over which the products are summed; the last one by default.

  Raises:
    UserError: If the arrays have different numbers of entries along the axis.

  Example:
    >>> float(zoo.tasks.base.dot(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])))
    11.0
  """
  d = left.shape[axis]
  # In the loop below an index out of range would give the last entry.
  if right.shape[axis] != d:
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
  """Returns a number or a vector `[length]` as a read-only float64 vector.

  Anything else is returned as it is, for two reasons. JAX rebuilds a task with tracers,
  shapes or integers (the axes of `vmap`) in place of its numbers. And if a user's value
  is wrong, `check` explains the mistake later.
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
  """Returns a covariance as a read-only float64 matrix, and its symmetric root.

  JAX rebuilds a task with other objects in place of its arrays. Such an object is
  returned as it is, with the root that was given.

  Args:
    name: Name of the covariance in the message of an error.
    covariance: A matrix `[d, d]`, None (the identity), or an object that JAX has put in
      its place.
    root: The root that belongs to the covariance, if it was computed before.

  Raises:
    UserError: If the matrix is not symmetric and positive semi-definite.
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
  """Returns the error of a redraw that keeps the inputs of a sequence of symbols.

  The labels of such a task are symbols of the sequence, so the inputs determine them.
  """
  return UserError(
    f'the labels of {type(task).__name__} are symbols of the sequence, which are its '
    "inputs, too; there are no other labels with the same inputs. keep='query' draws "
    'another sequence with the same last symbol'
  )


def unshifted(baselines: dict[str, Predictor]) -> dict[str, Predictor]:
  """Returns the baselines of a task, renamed for use on a shift of the task.

  `bayes` becomes `bayes_unshifted`, since it is the Bayes predictor of the original
  task only. `bayes_estimate` becomes `bayes_estimate_unshifted`. Other names stay.
  """
  return {
    f'{name}_unshifted' if name in BAYES else name: predictor
    for name, predictor in baselines.items()
  }


@struct.dataclass(eq=False, repr=False)
class ChangedTask(FunctionClass):
  """Base of tasks that have the functions, labels and loss of another task.

  A subclass defines `evaluate`.

  Args:
    task: The other task.
  """

  task: FunctionClass

  @property
  def num_features(self) -> int:
    """Number of features of an example, d."""
    return self.task.num_features

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k."""
    return self.task.num_outputs

  @property
  def context_length(self) -> int:
    """Number of labelled examples of a prompt, C."""
    return self.task.context_length

  @property
  def label_kind(self) -> str:
    """Kind of the labels: 'numbers', 'signs' or 'classes'."""
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

  The changed features are labelled by functions from the distribution of the task.

  Args:
    task: The task that is shifted.
    change: A function of a key and the features of one prompt `[t, d]`, which returns
      the changed features. None leaves the features as they are.
    scale: Factor of the values of the function, which must then be numbers. None is 1.
  """

  change: Change | None = None
  scale: Number = None

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    if self.change is None:
      return self.task.sample_features(key)
    features_key, change_key = jax.random.split(key)
    return self.change(change_key, self.task.sample_features(features_key))

  @property
  def stationary(self) -> bool:
    """Whether the task is stationary and `change` acts on each example separately."""
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
      # One example is equal to the query, and the others are drawn as if it were the
      # query.
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
    """Draws the context for `orthogonal_query`, given the query.

    The features are isotropic. They are drawn without regard to the query and then
    reflected as a whole, so that the query gets its given direction. The norm of the
    query does not depend on the context.

    Returns:
      Features of the context examples `[c, d]`.

    Raises:
      UserError: If the features are not known to be `N(0, I)`.
    """
    if not self.task.has_normal_features:
      raise UserError(
        f'features of {type(self.task).__name__} are not known to be N(0, I); prompts '
        "with an orthogonal query can then be drawn again with keep='inputs' alone"
      )
    x = self.sample_features(key)
    return turned(x[:-1], x[-1], x_query)

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    """Returns the log density of changed features.

    It is known for scaled features, and for a single query with the distribution of the
    task.

    Raises:
      UserError: If the density of the changed features is not known.
    """
    if self.change is None:
      return self.task.log_density(x)
    if isinstance(self.change, Scale):
      factor = jnp.asarray(self.change.factor, x.dtype)
      return self.task.log_density(x / factor) - x.size * jnp.log(factor)
    function = self.change.func if isinstance(self.change, Partial) else self.change
    # With these changes a query by itself has the distribution of an example.
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
    """Returns the baselines of the task, with `bayes` renamed to `bayes_unshifted`.

    `bayes_unshifted` is still the Bayes predictor here if `scale` is None and it does
    not use the distribution of the features.
    """
    return unshifted(self.task.baselines())

  def shifts(self) -> dict[str, Task]:
    return {}


def other_distributions(task: FunctionClass) -> dict[str, Task]:
  """Returns the out-of-distribution tests of Garg et al. for a task, by name.

  - `random_quadrants`, `repeated_query` and `orthogonal_query` (if C < d) change the
    features. They concern the query after the whole context, not the examples of the
    context as queries after fewer examples.
  - `skewed` and `half_subspace` (if d > 1) give the features another covariance.
  - `scale_x=…` multiplies the features by 1/3, 1/2, 2 or 3.
  - `scale_y=…` multiplies the values of the function by the same factors, if labels are
    numbers.
  - `noise_std=1` has this noise, if labels are numbers and the task has such an
    argument with another value.

  The task must allow features of any sign and size.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=5)
    >>> list(zoo.tasks.base.other_distributions(task))[:4]
    ['random_quadrants', 'repeated_query', 'skewed', 'half_subspace']

  References:
    Garg et al., arXiv 2208.01066, and their code.
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
  if not is_squared(task):
    return tasks
  for scale in _SCALES:
    tasks[f'scale_y={scale:.3g}'] = ShiftedTask(task, scale=scale)
  if trees.arguments(task).get('noise_std', 1.0) != 1:
    tasks['noise_std=1'] = dataclasses.replace(task, noise_std=1.0)  # pyright: ignore
  return tasks


@struct.dataclass(eq=False, repr=False)
class Scale(trees.Tree):
  """A change of features: multiplies all of them by one number.

  Args:
    factor: The number, > 0.
  """

  factor: Number

  def __post_init__(self):
    super().__post_init__()
    # JAX puts tracers and other objects in the place of the number.
    if isinstance(self.factor, int | float | np.generic):
      check_number('factor', self.factor, above=0.0)

  def __call__(
    self, key: Key[Array, ''], x: Float[Array, 't d']
  ) -> Float[Array, 't d']:
    return self.factor * x

  def undone(self, task: FunctionClass, x: Float[Array, ' d']) -> Float[Array, ' d']:
    """Returns the features that become x by this change."""
    return x / self.factor


@struct.dataclass(eq=False, repr=False)
class Stretch(trees.Tree):
  """A change of features: multiplies those of each example by a symmetric matrix.

  Args:
    matrix: The matrix, `[d, d]`.
  """

  matrix: Matrix

  def __call__(
    self, key: Key[Array, ''], x: Float[Array, 't d']
  ) -> Float[Array, 't d']:
    return dot(x[:, None], jnp.asarray(self.matrix, x.dtype)[None])

  def undone(self, task: FunctionClass, x: Float[Array, ' d']) -> Float[Array, ' d']:
    """Returns x, if the context does not depend on the query before the change.

    Raises:
      UserError: If the context of the task depends on the features that the query had
        before the change. They cannot be computed, since the matrix may be singular.
    """
    if type(task).sample_context is FunctionClass.sample_context:
      return x
    raise UserError(
      f'the features of {type(task).__name__} depend on one another; where they are '
      "stretched, prompts can be drawn again with keep='inputs' alone"
    )


def stretch(eigenvalues: Float[np.ndarray, ' d']) -> Stretch:
  """Returns a change that multiplies features by `U diag(λ) Uᵀ`.

  U is a random orthogonal matrix, the same one for all prompts. The eigenvalues λ are
  first multiplied by a factor such that `E |x|²` stays the same for isotropic features,
  whose covariance then has eigenvalues proportional to λ².
  """
  d = len(eigenvalues)
  eigenvalues = np.sqrt(d / np.sum(np.square(eigenvalues))) * eigenvalues
  rotation = np.linalg.svd(np.random.default_rng(0).standard_normal((d, d)))[0]
  return Stretch((rotation * eigenvalues) @ rotation.T)


def turned(
  x: Float[Array, 'n d'], own: Float[Array, ' d'], other: Float[Array, ' d']
) -> Float[Array, 'n d']:
  """Returns points, reflected such that one vector gets the direction of another.

  If rotations do not change the distribution of prompts, prompts with one direction of
  the query become prompts with another direction in this way.

  Args:
    x: Points `[n, d]`.
    own: Vector `[d]` whose direction is to change.
    other: Vector `[d]` whose direction it gets.
  """
  own, other = (vector / jnp.sqrt(dot(vector, vector)) for vector in (own, other))
  axis = own - other
  square = dot(axis, axis)
  along = dot(x, axis[None]) / jnp.where(square > 0, square, 1)
  return x - 2 * along[:, None] * axis[None]


def random_quadrants(
  key: Key[Array, ''], x: Float[Array, 't d']
) -> Float[Array, 't d']:
  """Returns features with the context of each prompt moved into one random orthant.

  The query stays as it is.
  """
  signs = jax.random.rademacher(key, x.shape[1:], x.dtype)
  return jnp.concatenate([jnp.abs(x[:-1]) * signs[None], x[-1:]])


def repeated_query(key: Key[Array, ''], x: Float[Array, 't d']) -> Float[Array, 't d']:
  """Returns features with the query replaced by a random example of the context."""
  return x.at[-1].set(x[jax.random.randint(key, (), 0, len(x) - 1)])


def orthogonal_query(
  key: Key[Array, ''], x: Float[Array, 't d']
) -> Float[Array, 't d']:
  """Returns features with the query projected off the span of the context.

  The query keeps its norm. If it lies in the span, rounding errors choose a direction
  orthogonal to the span.
  """
  q, r = jnp.linalg.qr(x.T)
  norm = jnp.sqrt(dot(x[-1], x[-1]))
  return x.at[-1].set(norm * jnp.sign(r[-1, -1]) * q[:, -1])
