"""A trained model in context, as an estimator of scikit-learn."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float
from numpy.typing import ArrayLike

from zoo.core import trees
from zoo.core.errors import UserError, not_installed
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.predict import predict
from zoo.tasks.arrays import Arrays

try:
  from sklearn.base import BaseEstimator, RegressorMixin
  from sklearn.metrics import r2_score
  from sklearn.utils import assert_all_finite
  from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
  raise not_installed('scikit-learn', 'zoo.Regressor needs', 'baselines') from error


# Prompts of a task with whose examples those of a context are compared, how many times
# larger or smaller than all of them is worth a warning, and the most examples of each.
_NUM_PROMPTS, _FAR, _LONGEST = 256, 2, 256
_SIZES = 'root mean square of the features', 'root mean square of the labels'


class Regressor(RegressorMixin, BaseEstimator):
  """Predicts numbers from a data set in the context of a model, which is not trained.

  `fit` keeps the examples; each row given to `predict` is a query after all of them.
  The model or estimator must take as many features, and examples, as there are.

  `task` is the one that the model was trained on, whose units the examples must have:
  those of the file of an `arrays` task, which are scaled as in training, and for any
  other task those of its prompts. Only an estimator without weights needs none.
  """

  def __init__(self, model: Predictor, task: Task | None = None):
    self.model, self.task = model, task

  def fit(self, X: ArrayLike, y: ArrayLike) -> Regressor:
    """Keeps the examples `X [c, d]` and their labels `y [c]`.

    Warns, once, if sizes, means or mean products of features and labels are far from
    those of all of some prompts of the task, and says which. Raises ValueError, and
    UserError for a trained model without its task, or if it does not take so many
    examples, as a transformer with learned positions takes no more than its
    context_length.
    """
    if self.task is None and isinstance(self.model, nnx.Module):
      raise UserError(
        f'{type(self.model).__name__} is a model without its task, whose units its '
        'examples must have; give both, as in zoo.Regressor(saved.model, saved.task)'
      )
    if self.task is not None and self.task.label_kind == 'classes':
      raise UserError('the task has classes; zoo.Regressor predicts numbers')
    arguments: Any = {'X': X, 'y': y, 'dtype': 'float64', 'y_numeric': True}
    examples: Any = validate_data(self, **arguments)
    self.X_, self.y_ = self._features(examples[0]), self._labels(examples[1])
    jax.eval_shape(self.model, self._prompt(self.X_[:1]))
    if self.task is not None:
      _compare_moments(self.task, self.X_, self.y_)
    return self

  def _features(self, x: Float[np.ndarray, 'b d']) -> Float[np.ndarray, 'b d']:
    """The features in the units of the model."""
    if isinstance(self.task, Arrays):
      if x.shape[1] != self.task.num_features:
        raise UserError(
          f'X has {x.shape[1]} features; the task has {self.task.num_features}'
        )
      x = (x - self.task.table.x_mean) / self.task.table.x_std
    return _float32(x)

  def _labels(self, y: np.ndarray) -> Float[np.ndarray, ' c']:
    """The labels in the units of the model."""
    if isinstance(self.task, Arrays):
      y = (y - self.task.table.y_mean) / self.task.table.y_std
    return _float32(y)

  def _prompt(self, queries: Float[np.ndarray, 'b d']) -> Prompt:
    """A prompt for each query, with all examples."""
    b = len(queries)
    x = jnp.broadcast_to(self.X_, (b, *self.X_.shape))
    y = jnp.broadcast_to(self.y_, (b, len(self.y_)))
    return Prompt(x, y, jnp.asarray(queries), jnp.zeros(b))

  def predict(self, X: ArrayLike) -> Float[np.ndarray, ' b']:
    """The predictions for queries `X [b, d]`, in the units of the labels.

    Raises ValueError.
    """
    check_is_fitted(self)
    if self.task is not None and self.task.label_kind == 'classes':
      raise UserError('the task has classes; zoo.Regressor predicts numbers')
    arguments: Any = {'X': X, 'dtype': 'float64', 'reset': False}
    queries: Any = validate_data(self, **arguments)
    predictions = predict(self.model, self._prompt(self._features(queries)))
    if isinstance(self.task, Arrays):
      return predictions * self.task.table.y_std + self.task.table.y_mean
    return predictions

  # That of RegressorMixin also takes weights, to which scikit-learn adds methods.
  def score(self, X: ArrayLike, y: ArrayLike) -> float:  # pyright: ignore
    """The coefficient of determination R² of the predictions for `X [b, d]`."""
    return float(r2_score(np.asarray(y), self.predict(X)))


def _float32(array: np.ndarray) -> np.ndarray:
  """The numbers as a model takes them; raises ValueError for one that is too large."""
  with np.errstate(over='ignore'):
    numbers = np.asarray(array).astype(np.float32)
  assert_all_finite(numbers)
  return numbers


def _compare_moments(
  task: Task, x: Float[np.ndarray, 'c d'], y: Float[np.ndarray, ' c']
) -> None:
  """Warns if moments of a context are far from those of all contexts of a task."""
  length = min(len(y), _LONGEST)
  prompt = _prompts_of(task, length)
  found = _moments(x[None], y[None])
  drawn = _moments(np.asarray(prompt.x), np.asarray(prompt.y))
  far = []
  for what, (value,) in found.items():
    least, most = float(drawn[what].min()), float(drawn[what].max())
    if what in _SIZES:
      # With few features some functions are near 0, so that sizes differ by orders.
      spread = (most / least) ** 0.5 if least else 1.0
      low, high = least / max(_FAR, spread), most * _FAR
    else:
      width = most - least
      low = min(least / _FAR, least * _FAR, least - width)
      high = max(most / _FAR, most * _FAR, most + width)
    if not low <= value <= high:
      far.append(f'{what} is {value:.3g}, and from {least:.3g} to {most:.3g}')
  if far:
    warnings.warn(
      f'the {", the ".join(far)} in prompts of {type(task).__name__}, on which the '
      'model was trained; make the data like these, or expect wrong predictions',
      stacklevel=3,
    )


def _prompts_of(task: Task, length: int) -> Prompt:
  """Prompts of a task with so many examples, or with as many as it can have."""
  longest = 1 << (length - 1).bit_length()  # so that few programs are compiled
  if longest > task.context_length and 'context_length' in trees.arguments(task):
    with contextlib.suppress(UserError):
      longer = dataclasses.replace(task, context_length=longest)  # pyright: ignore
      longer.check()
      task = longer
  prompt = jax.device_get(task.sample(jax.random.key(0), _NUM_PROMPTS))
  return dataclasses.replace(prompt, x=prompt.x[:, :length], y=prompt.y[:, :length])


def _moments(
  x: Float[np.ndarray, 'b c d'], y: Float[np.ndarray, 'b c']
) -> dict[str, Float[np.ndarray, ' b']]:
  """First and second moments of each context; but for the sizes they have no unit."""
  x, y = x.astype(np.float64), y.astype(np.float64)
  size_x = np.sqrt(np.square(x).mean(axis=(1, 2)))
  size_y = np.sqrt(np.square(y).mean(axis=1))
  # Features or labels that are all 0 stay 0.
  x = x / np.where(size_x, size_x, 1)[:, None, None]
  y = y / np.where(size_y, size_y, 1)[:, None]
  c, d = x.shape[1:]
  products = np.einsum('bcd,bc->bd', x, y) / c
  # X Xᵀ and Xᵀ X have the same largest eigenvalue; the smaller matrix is taken.
  left, right = (x, x.swapaxes(1, 2)) if c < d else (x.swapaxes(1, 2), x)
  largest = np.linalg.eigvalsh(left @ right)[:, -1] / (c * d)
  return {
    _SIZES[0]: size_x,
    _SIZES[1]: size_y,
    'root mean square of mean features, as a share of the size of features,': np.sqrt(
      np.square(x.mean(axis=1)).mean(axis=1)
    ),
    'mean of the labels, as a share of their size,': y.mean(axis=1),
    'share of the features along one direction': largest,
    'root mean square of the mean products of features and labels': np.sqrt(
      np.square(products).mean(axis=1)
    ),
    'mean of the mean products of features and labels': products.mean(axis=1),
  }
