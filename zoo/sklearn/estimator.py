"""What `zoo.Regressor` and `zoo.Classifier` share."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import validate_data

from zoo.core.errors import RunError, UserError, check_count
from zoo.core.protocols import Predictor, Task, require_task
from zoo.measure.predict import check_predictor
from zoo.sklearn.contexts import (
  Answers,
  longest_context,
  num_features_of,
  shape_of_prediction,
  stateless,
)
from zoo.sklearn.units import Columns, units_of, warn_if_far
from zoo.storage.loading import SavedModel, load
from zoo.tasks.arrays import Arrays

# The most parts of a context that each predict every query: more of them cost time, and
# change the average little.
_MOST_PARTS = 32


@dataclasses.dataclass(frozen=True)
class Member:
  """A member of an ensemble.

  Attributes:
    columns: How columns of the table become features of the model.
    classes: The place of each class among the model's classes; empty for numbers.
    parts: The rows of each part of the context.
  """

  columns: Columns
  classes: Int[np.ndarray, ' k']
  parts: list[np.ndarray]


class InContext(BaseEstimator):
  """An estimator that keeps a table as the context of a model."""

  def __init__(
    self,
    model_or_path: Predictor | str | os.PathLike[str],
    task: Task | None = None,
    num_members: int = 1,
    random_state: Any = 0,
  ):
    self.model_or_path, self.task = model_or_path, task
    self.num_members, self.random_state = num_members, random_state

  def __sklearn_tags__(self) -> Tags:
    tags = super().__sklearn_tags__()
    model = getattr(self, 'model_', self.model_or_path)
    if isinstance(model, str | os.PathLike):  # There was no `fit`, which opens it.
      tags.input_tags.allow_nan = self._path_reads_missing(model)
    else:
      tags.input_tags.allow_nan = _reads_missing(model)
    return tags

  def _path_reads_missing(self, path: str | os.PathLike[str]) -> bool:
    """Whether the model of a path reads NaN; False if `fit` will not open the path."""
    # Pipelines ask for tags often, so the answer is kept.
    kept = vars(self).setdefault('_reads_missing_at', {})
    if path not in kept:
      try:
        kept[path] = _reads_missing(load(path).model)
      except (UserError, RunError):
        return False
    return kept[path]

  def __sklearn_is_fitted__(self) -> bool:
    """Whether the last `fit` came to its end."""
    return hasattr(self, '_members')

  def _open(self) -> None:
    """Sets the model and its task; raises UserError for a model without its task."""
    vars(self).pop('_members', None)
    model, task = self.model_or_path, self.task
    if isinstance(model, str | os.PathLike):
      saved = load(model)
      model, task = saved.model, saved.task if task is None else task
    name = type(self).__name__
    if isinstance(model, SavedModel):
      raise UserError(
        f'the model is what zoo.load returns; give its parts, as in zoo.{name}('
        'saved.model, saved.task), or the path'
      )
    check_predictor(model)
    if task is not None:
      require_task(task)
    if task is None and isinstance(model, nnx.Module):
      raise UserError(
        f'{type(model).__name__} is a model without its task, which says in what units '
        f'examples must be; give both, as in zoo.{name}(saved.model, saved.task)'
      )
    if task is not None and not task.shows_labels:
      raise UserError(
        f'prompts of {type(task).__name__} do not show the labels of their examples; '
        f'zoo.{name} needs a model that reads labels'
      )
    number = getattr(model, 'num_features', None)
    if task is not None and number not in (None, task.num_features):
      raise UserError(
        f'the task has {task.num_features} features, and the model is for {number}; '
        'give the task that it was trained on'
      )
    check_count('num_members', self.num_members)
    self.model_: Any = model
    self.task_: Any = task

  def _validated(self, X: ArrayLike, **settings: Any) -> Any:
    """What `validate_data` gives, with one line for columns of text or of dates."""
    check_no_dates('X', X)
    settings |= {'X': with_nan(X), 'dtype': 'float64'}
    settings['ensure_all_finite'] = 'allow-nan' if _reads_missing(self.model_) else True
    try:
      return validate_data(self, **settings)
    except ValueError as error:
      if 'could not convert string' not in str(error):
        raise
      raise UserError(
        f'X has text, which is no number ({error}); encode such columns first, as '
        'sklearn.preprocessing.OrdinalEncoder or OneHotEncoder does'
      ) from None

  def _keep(
    self,
    x: Float[np.ndarray, 'c d'],
    y: Float[np.ndarray, ' c'] | None,
    axes: tuple[int, ...],
    num_classes: int,
    prediction: tuple[int, ...],
  ) -> None:
    """Finds the units, the members and their parts.

    Args:
      x: The columns of the table.
      y: The numbers to predict; None for classes.
      axes: The axes of a label of the model: none, or `(k,)`.
      num_classes: The number of classes of the table; 0 for numbers.
      prediction: The axes of the model's prediction for a query.

    Raises:
      UserError: If the model cannot take or predict what the table has.
    """
    c, d = x.shape
    with stateless(self.model_):
      num_features = num_features_of(self.model_, self.task_)
    if isinstance(self.task_, Arrays):
      # A column has its own scale in the file, so none can be left out.
      num_features = self.task_.num_features
      if d != num_features:
        raise UserError(f'X has {d} features; the task has {num_features}')
    if num_features is not None and d > num_features:
      raise UserError(
        f'X has {d} features; {type(self.model_).__name__} takes at most '
        f'{num_features}. Choose some, as sklearn.feature_selection.SelectKBest does'
      )
    n = d if num_features is None else num_features
    with stateless(self.model_):
      self._longest = longest_context(self.model_, n, axes)
    if self._longest == 0:
      raise UserError(f'{type(self.model_).__name__} takes no examples')
    found = shape_of_prediction(self.model_, min(c, self._longest or c), n, axes)
    if found != prediction:
      raise UserError(
        f'{type(self.model_).__name__} predicts arrays of shape {found} for a query; '
        f'zoo.{type(self).__name__} needs {prediction}'
      )
    # A model that standardises by itself has no moments that a table could be far from.
    standardizes = getattr(self.model_, 'standardizes', False) is True
    self._units = units_of(
      x, y, self.task_, num_features, self._longest, standardizes=standardizes
    )
    self._members = list(self._draw_members(c, d, n, num_classes, axes))
    used = sum(map(len, self._members[0].parts))
    if used < c:
      warnings.warn(
        f'{type(self.model_).__name__} takes {self._longest} examples; each member '
        f'uses {used} of the {c} rows, in {_MOST_PARTS} parts drawn at random',
        stacklevel=3,
      )
    has_labels = y is None or np.ptp(y) > 0
    has_moments = num_features is not None and has_labels and not standardizes
    if self.task_ is not None and has_moments:
      features = self._members[0].columns(x)
      if not np.isnan(features).any():
        labels = None if y is None else self._units.labels(y)
        warn_if_far(self.task_, features, labels, self._longest)

  def _draw_members(
    self, c: int, d: int, n: int, num_classes: int, axes: tuple[int, ...]
  ) -> Iterator[Member]:
    """The members; features and classes of the first one are in order."""
    generator = check_random_state(self.random_state)
    most = axes[0] if axes else max(num_classes, 2)
    for index in range(self.num_members):
      places, classes = np.arange(d), np.arange(num_classes)
      # A model that was trained on the rows of a file knows its columns and classes by
      # their places.
      if index > 0 and not isinstance(self.task_, Arrays):
        places = generator.permutation(n)[:d]
        classes = generator.permutation(most)[:num_classes]
      parts = [np.arange(c)]
      if self._longest is not None and c > self._longest:
        order = generator.permutation(c)[: _MOST_PARTS * self._longest]
        parts = np.array_split(order, math.ceil(len(order) / self._longest))
      yield Member(self._units.columns(places), classes, parts)

  def _answers(self) -> Answers:
    return Answers(self.model_, self._longest)


def takes_both(model: Predictor, task: Task | None) -> bool:
  """Whether a model was trained on numbers and on classes, as `tabular` may be."""
  num_classes = getattr(model, 'num_classes', None)
  if num_classes is None or task is None:
    return num_classes is not None
  return task.label_kind == 'numbers' and task.num_outputs == 1 + num_classes


def with_nan(table: Any) -> Any:
  """A table or labels with NaN in place of None and of the missing value of pandas."""
  if hasattr(table, 'isna') and hasattr(table, 'mask'):  # pandas
    return table.mask(table.isna(), np.nan)
  if not isinstance(table, np.ndarray | list | tuple):
    return table
  array = np.asarray(table)
  if array.dtype != object or not array.ndim:
    return table
  missing = [entry is None or type(entry).__name__ == 'NAType' for entry in array.flat]
  return np.where(np.reshape(missing, array.shape), np.nan, array)


def check_no_dates(name: str, table: Any) -> None:
  """Raises UserError for a table, or labels, with dates or durations."""
  # As numbers they would be in a unit that depends on how they were made.
  dtypes = getattr(table, 'dtypes', getattr(table, 'dtype', None))  # pandas, NumPy
  for dtype in dtypes if np.iterable(dtypes) else [dtypes]:
    if getattr(dtype, 'kind', '') in ('M', 'm'):
      raise UserError(
        f'{name} has dates or durations ({dtype}), which have no unit as numbers; '
        'give numbers, such as the days since the first date'
      )


def _reads_missing(model: object) -> bool:
  """Whether a model reads NaN as a missing number, as it says itself."""
  return getattr(model, 'reads_missing', False) is True
