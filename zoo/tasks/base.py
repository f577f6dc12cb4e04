"""Base classes of tasks, which have all but the sampling of a single prompt."""

from __future__ import annotations

import copy
import functools
import inspect
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from zoo import losses
from zoo.errors import UserError, check_count
from zoo.prompt import Prompt
from zoo.protocols import Predictor, Task
from zoo.registry import Arguments, arguments_of

Loss = Callable[[Float[Array, '*n'], Float[Array, '*n']], Float[Array, '*m']]

# Compiled as a whole, since otherwise each operation would be compiled separately.
# Equal tasks share programs. JAX keeps the task as a key of its cache, so it needs a
# copy: the caller may change attributes of the original.
compiled = functools.partial(jax.jit, static_argnums=(0, 2))


class BaseTask:
  """A task whose `sample_one` draws a single prompt; equal attributes, equal tasks.

  This includes attributes whose names begin with an underscore. Setting an attribute
  after construction changes the task, and so its hash.
  """

  num_features: int
  context_length: int
  num_outputs: int = 1  # k for classes whose labels are one-hot vectors

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    """Draws one prompt, without the axis b: `x [c, d]`, `y [c, *k]`, and so on.

    Sum with `dot` wherever the result is a label: the order in which XLA adds depends
    on the shapes, and so on how many devices share a batch.
    """
    raise NotImplementedError(f'{type(self).__name__} has no sample_one')

  def sample(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    """Samples `batch_size` ≥ 1 prompts on the device.

    A prompt is a pure function of the key and of its position in the batch: it is the
    same on any number of devices, and in a larger batch.
    """
    task, draw = copy.copy(self), type(self)._prompts
    if _owner(type(self), '_prompts') is not BaseTask and _overrides(
      type(self), _PARTS, than='_prompts'
    ):
      draw = BaseTask._prompts  # a subclass redefines a part that the parent skips
    return draw(task, key, check_count('batch_size', batch_size))

  @compiled
  def _prompts(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch_size))
    return jax.vmap(self.sample_one)(keys)

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    """The loss of each prediction; here the squared error."""
    return losses.squared_error(prediction, target)

  def baselines(self) -> dict[str, Predictor]:
    """Untrained predictors to compare a model with; the first is the one to beat.

    A baseline named `bayes` has the least expected loss of all predictors, or estimates
    the one that has.
    """
    return {}

  def shifts(self) -> dict[str, Task]:
    """Tasks, by name, on which to test a model that was trained on this one.

    Here the same task with 2 to 32 times as many examples.
    """
    # Imported here since shifted tasks are tasks.
    from zoo.tasks.shifts import longer_contexts

    return longer_contexts(self)

  def __repr__(self) -> str:
    """The class and those of its arguments that are attributes, on one line."""
    names = inspect.signature(type(self)).parameters
    parts = [
      f'{one}={shown(getattr(self, one))}' for one in names if hasattr(self, one)
    ]
    return f'{type(self).__name__}({", ".join(parts)})'

  def __eq__(self, other: object) -> bool:
    """Whether both sample the same prompts from a key."""
    if type(self) is not type(other):
      return NotImplemented
    if attribute_values(vars(self)) != attribute_values(vars(other)):
      return False
    # The library's own attributes say all; 2 and [2, 2] are the same prior mean. A
    # user's class may keep an argument where it is not compared.
    ours = type(self).__module__.startswith('zoo.')
    return ours or arguments_of(self) == arguments_of(other)

  def __hash__(self) -> int:
    return hash(attribute_values(vars(self)))


class FunctionClass(BaseTask):
  """A task whose prompts are a random function at independent random features.

  (Garg et al., arXiv 2208.01066.) A subclass defines `sample_function` and `evaluate`.
  """

  noise_std: float = 0.0  # σ, in the units of the labels

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    """The features of the context examples and the query, here `N(0, I)`."""
    return jax.random.normal(key, (self.context_length + 1, self.num_features))

  def sample_function(self, key: Key[Array, '']) -> PyTree:
    """The parameters of a function."""
    raise NotImplementedError(f'{type(self).__name__} has no sample_function')

  def evaluate(self, function: PyTree, x: Float[Array, 't d']) -> Float[Array, ' t *k']:
    """The targets at the features: values of the function, or probabilities."""
    raise NotImplementedError(f'{type(self).__name__} has no evaluate')

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t *k']
  ) -> Float[Array, ' t *k']:
    """The labels, given the targets; here the targets with Gaussian noise."""
    if self.noise_std == 0:
      return targets
    return targets + self.noise_std * jax.random.normal(key, targets.shape)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    features_key, function_key, labels_key = jax.random.split(key, 3)
    x = self.sample_features(features_key)
    targets = self.evaluate(self.sample_function(function_key), x)
    labels = self.sample_labels(labels_key, targets)
    return make_prompt(x, labels, None if labels is targets else targets)

  def shifts(self) -> dict[str, Task]:
    """Tasks, by name, on which to test a model that was trained on this one.

    Here they have other distributions of the features, scaled functions, more noise, or
    more examples. A subclass whose features are not numbers of any sign and size should
    return `BaseTask.shifts(self)`; one that overrides `sample` or `sample_one` does so
    already.
    """
    from zoo.tasks.shifts import other_distributions

    longer = super().shifts()
    if _overrides(type(self), ('sample', 'sample_one'), than='evaluate'):
      return longer  # the prompts are not made of these functions
    return other_distributions(self) | longer


def shown(value: object) -> str:
  """A value in few letters: an array by its shape, or its number if all are equal."""
  if not isinstance(value, np.ndarray | jax.Array):
    # Long values are cut, but for tasks, which cut their own.
    return repr(value) if isinstance(value, BaseTask) else reprlib.repr(value)
  # The values of an array in a compiled program are not known.
  if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
    return f'{value.flat[0].item()!r}'
  return f'array of {" × ".join(map(str, value.shape))}'


def loss_of(task: Task) -> Loss:
  """The loss of a task; the squared error for a class that has none."""
  return getattr(task, 'loss', losses.squared_error)


def num_outputs_of(task: Task) -> int:
  """The number of outputs of a task; 1 for a class that has none."""
  return getattr(task, 'num_outputs', 1)


def baselines_of(task: Task) -> dict[str, Predictor]:
  """The baselines of a task; none for a class that has none.

  A subclass inherits baselines, and may sample or measure differently. `bayes` is then
  renamed after the class whose Bayes predictor it is, unless the subclass defines
  `baselines` or sets `exact_theory = True`.
  """
  baselines = getattr(task, 'baselines', dict)()
  kind = type(task)
  if 'bayes' in baselines and vars(kind).get('exact_theory') is not True:
    owner = _owner(kind, 'baselines')
    changed = kind.__mro__[: kind.__mro__.index(owner)]
    if any(name in vars(cls) for cls in changed for name in _LAW):
      return {
        f'bayes_of_{owner.__name__}' if name == 'bayes' else name: baseline
        for name, baseline in baselines.items()
      }
  return baselines


def shifts_of(task: Task) -> dict[str, Task]:
  """The shifts of a task; none for a class that has none."""
  return getattr(task, 'shifts', dict)()


# The methods that define which prompts a task samples, and how they are measured.
_PARTS = (
  *('sample_one', 'sample_features', 'sample_function', 'evaluate', 'sample_labels'),
)
_LAW = (*_PARTS, 'sample', 'loss', '_prompts', '_draw', '_examples')


def _owner(kind: type, name: str) -> type:
  """The class from which a class has an attribute."""
  return next(cls for cls in kind.__mro__ if name in vars(cls))


def _overrides(kind: type, names: tuple[str, ...], than: str) -> bool:
  """Whether a class gets one of the attributes from a subclass of the owner of `than`.

  For example, a subclass that samples differently than its `evaluate` says.
  """
  place = kind.__mro__.index(_owner(kind, than))
  return any(kind.__mro__.index(_owner(kind, name)) < place for name in names)


def make_prompt(
  x: Float[Array, 't d'],
  labels: Float[Array, ' t *k'],
  targets: Float[Array, ' t *k'] | None,
) -> Prompt:
  """One prompt, whose last example is the query; `targets` defaults to the labels."""
  return Prompt(
    x=x[:-1],
    y=labels[:-1],
    x_query=x[-1],
    y_query=(labels if targets is None else targets)[-1],
    context_targets=None if targets is None else targets[:-1],
  )


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
    found = right.shape[axis]
    raise UserError(f'vectors of {d} and {found} entries have no dot product')
  at = functools.partial(jax.lax.dynamic_index_in_dim, axis=axis, keepdims=False)

  def product(i: Any) -> Array:
    return at(left, i) * at(right, i)

  return jax.lax.fori_loop(
    1, d, lambda i, total: total + product(i), product(0), unroll=min(d, 16)
  )


def symmetric_root(covariance: Float[np.ndarray, 'd d']) -> Float[np.ndarray, 'd d']:
  """The symmetric root R of a covariance, which may be singular: R R = covariance."""
  eigenvalues, vectors = np.linalg.eigh(covariance)
  return (vectors * np.sqrt(eigenvalues.clip(0))) @ vectors.T


def attribute_values(attributes: Mapping[str, object]) -> tuple:
  """Attributes, possibly arrays, as a tuple that can be hashed and compared.

  The constructor arguments that a registry records are left out. In an attribute whose
  name begins with an underscore, lists, dicts and sets are compared by content.
  """
  return tuple(
    (name, _as_key(value, inside=name.startswith('_')))
    for name, value in sorted(attributes.items())
    if not isinstance(value, Arguments)
  )


def _as_key(value: object, inside: bool) -> object:
  """A value that can be hashed; a container of such values if `inside`."""
  if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
    value = jax.random.key_data(value)
  if isinstance(value, np.ndarray | jax.Array):
    return value.shape, str(value.dtype), np.asarray(value).tobytes()
  if inside and isinstance(value, list | tuple | set | dict):
    each = value.items() if isinstance(value, dict) else value
    keys = [_as_key(one, inside) for one in each]
    is_ordered = isinstance(value, list | tuple)
    return type(value), tuple(keys) if is_ordered else frozenset(keys)
  return value
