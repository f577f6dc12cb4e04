"""Tasks on which to test a model that was trained on another task."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from zoo.errors import UserError
from zoo.protocols import Predictor, Task
from zoo.registry import arguments_of
from zoo.tasks.base import BaseTask, FunctionClass, dot

_SCALES = 1 / 3, 1 / 2, 2.0, 3.0
_LENGTHS = 2, 4, 8, 16, 32

# Changes the features of one prompt. Equal changes have equal hashes.
Change = Callable[[Key[Array, ''], Float[Array, 't d']], Float[Array, 't d']]


class ShiftedTask(FunctionClass):
  """A task with changed features or a scaled function, and the same noise.

  The changed features are labelled by functions from the same distribution.
  """

  def __init__(
    self, task: FunctionClass, change: Change | None = None, scale: float = 1.0
  ):
    """`scale` multiplies the values of the function, which must be numbers."""
    self.task, self.change, self.scale = task, change, scale
    self.num_features, self.num_outputs = task.num_features, task.num_outputs
    self.context_length, self.noise_std = task.context_length, task.noise_std

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    if self.change is None:
      return self.task.sample_features(key)
    features_key, change_key = jax.random.split(key)
    return self.change(change_key, self.task.sample_features(features_key))

  def sample_function(self, key: Key[Array, '']) -> PyTree:
    return self.task.sample_function(key)

  def evaluate(self, function: PyTree, x: Float[Array, 't d']) -> Float[Array, ' t *k']:
    targets = self.task.evaluate(function, x)
    return targets if self.scale == 1 else self.scale * targets

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t *k']
  ) -> Float[Array, ' t *k']:
    return self.task.sample_labels(key, targets)

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    return self.task.loss(prediction, target)

  def baselines(self) -> dict[str, Predictor]:
    """The baselines of the task, whose Bayes predictor is named `bayes_unshifted`.

    That predictor has the least loss only if `scale` is 1 and it does not use the
    distribution of the task's features.
    """
    return {
      'bayes_unshifted' if name == 'bayes' else name: predictor
      for name, predictor in self.task.baselines().items()
    }

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
    'random_quadrants': random_quadrants,
    'repeated_query': repeated_query,
  }
  if d > 1:
    changes['skewed'] = Stretch.of(1 / np.arange(1, d + 1))
    changes['half_subspace'] = Stretch.of(np.where(np.arange(d) < d // 2, 1.0, 0.0))
  if task.context_length < d:
    changes['orthogonal_query'] = orthogonal_query
  changes |= {f'scale_x={scale:.3g}': Scale(scale) for scale in _SCALES}
  found: dict[str, Task] = {
    name: ShiftedTask(task, change) for name, change in changes.items()
  }
  if type(task).loss is not BaseTask.loss:  # the labels are classes
    return found
  for scale in _SCALES:
    found[f'scale_y={scale:.3g}'] = ShiftedTask(task, scale=scale)
  arguments = arguments_of(task)
  if arguments is not None and arguments.values().get('noise_std', 1) != 1:
    found['noise_std=1'] = _remade(task, 'noise_std', 1.0)
  return found


def longer_contexts(task: BaseTask) -> dict[str, Task]:
  """The task with contexts 2 to 32 times as long (Lee et al., arXiv 2310.08049).

  Lengths that the task refuses are left out.
  """
  found: dict[str, Task] = {}
  for factor in _LENGTHS:
    length = factor * task.context_length
    with contextlib.suppress(UserError):
      found[f'context_length={length}'] = _remade(task, 'context_length', length)
  return found


def _remade(task: BaseTask, name: str, value: int | float) -> BaseTask:
  """The task as constructed, but with another value for one argument.

  If the arguments of a task are not known, the attribute of that name is changed.
  """
  arguments = arguments_of(task)
  if arguments is not None and not arguments.unrecorded:
    return type(task)(**arguments.values() | {name: value})
  changed = copy.copy(task)
  setattr(changed, name, value)
  return changed


@dataclasses.dataclass(frozen=True)
class Scale:
  """Multiplies all features."""

  factor: float

  def __call__(
    self, key: Key[Array, ''], x: Float[Array, 't d']
  ) -> Float[Array, 't d']:
    return self.factor * x


@dataclasses.dataclass(frozen=True)
class Stretch:
  """Multiplies the features by `U diag(λ) Uᵀ`, with the same random U for all prompts.

  Isotropic features thus get a covariance with the eigenvalues λ².
  """

  eigenvalues: tuple[float, ...]

  @classmethod
  def of(cls, eigenvalues: Float[np.ndarray, ' d']) -> Stretch:
    """A Stretch with eigenvalues rescaled to `Σ λ² = d`, so that it keeps `E |x|²`."""
    scale = np.sqrt(len(eigenvalues) / np.sum(np.square(eigenvalues)))
    return cls(tuple((scale * eigenvalues).tolist()))

  def __call__(
    self, key: Key[Array, ''], x: Float[Array, 't d']
  ) -> Float[Array, 't d']:
    d = len(self.eigenvalues)
    rotation = np.linalg.svd(np.random.default_rng(0).standard_normal((d, d)))[0]
    matrix = (rotation * np.asarray(self.eigenvalues)) @ rotation.T
    return dot(x[:, None], jnp.asarray(matrix, x.dtype)[None])


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
