"""A trained model in context, as an estimator of scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float
from numpy.typing import ArrayLike

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


# Prompts of a task with whose examples those of a context are compared, and how many
# times larger or smaller than all of them is worth a warning.
_NUM_PROMPTS, _FAR = 64, 2


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

    Warns if they are far larger or smaller than those of all of some prompts of the
    task. Raises ValueError, and UserError for a trained model without its task, or if
    it does not take so many examples, as a transformer with learned positions takes no
    more than its context_length.
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
      _compare_sizes(self.task, self.X_, self.y_)
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

  def _labels(self, y: Float[np.ndarray, ' c']) -> Float[np.ndarray, ' c']:
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


def _compare_sizes(task: Task, x: np.ndarray, y: np.ndarray) -> None:
  """Warns if the examples of a context are not of the size of those of a task."""
  prompt = jax.device_get(task.sample(jax.random.key(0), _NUM_PROMPTS))
  for what, values, drawn in ('features', x, prompt.x), ('labels', y, prompt.y):
    size = np.sqrt(np.mean(np.square(values)))
    same = drawn[:, : len(values)].reshape(len(drawn), -1)
    sizes = np.sqrt(np.mean(np.square(same), axis=1))
    if not sizes.min() / _FAR <= size <= sizes.max() * _FAR:
      warnings.warn(
        f'the root mean square of the {what} is {size:.3g}, and from {sizes.min():.3g} '
        f'to {sizes.max():.3g} in prompts of {type(task).__name__}, on which the model '
        'was trained; scale them to these, or expect wrong predictions',
        stacklevel=3,
      )
