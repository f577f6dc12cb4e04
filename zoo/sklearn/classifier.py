"""`zoo.Classifier`: predicts classes from a table in the context of a model."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from zoo.core.errors import UserError, shown
from zoo.sklearn.estimator import InContext, Member, takes_both, with_nan
from zoo.tasks.arrays import Arrays


class Classifier(ClassifierMixin, InContext):
  """Predicts classes from a table in the context of a model, which is not trained.

  `fit` keeps the rows of the table. Each row that is given to `predict` is a query
  after them. The class follows the conventions of scikit-learn, so `clone`, pipelines,
  `cross_val_score` and `GridSearchCV` work. Labels may be of any type.

  Units, columns, rows and what a table may hold are as `zoo.Regressor` says, except for
  y, which is not scaled. The probabilities of the parts of a long table are averaged.
  From a table of one class that class is predicted, except by a model of the task
  `arrays`.

  A model of the task `arrays` was trained on the columns and the classes of a file. Its
  table may have these classes alone, and `classes_` has all of them, each with a
  probability. Members have columns and classes in the order of the file, so that more
  than one member changes a prediction only for a long table, which is cut at random.

  Classes: any other model has as many classes as its task. If a table has fewer, the
  probabilities of the others are dropped, and the rest are divided by their sum. More
  classes are refused. A model of the labels ±1 has two classes. A model with the
  attribute `num_classes` takes up to so many: its one-hot vectors have an entry for
  each class of the table, and at least two. The same holds for a predictor without a
  task, which takes any number of classes.

  Args:
    model_or_path: A model or an estimator; or the path of a run, of what `zoo.save` or
      `zoo.export` wrote, or of a shipped checkpoint. `fit` opens a path.
    task: The task that the model was trained on. A path brings its own, and an
      estimator without weights needs none.
    num_members: The number of members of an ensemble, ≥ 1, whose probabilities are
      averaged. The first has columns and classes in order, every other one in a random
      order.
    random_state: Draws the parts of a long table and the orders of members: an
      integer, a RandomState, or None for other draws in each `fit`.

  Attributes:
    model_: The model.
    task_: Its task, or None.
    X_: The rows of `fit`, `[c, d]`.
    y_: The place of their labels in `classes_`, `[c]`.
    classes_: The labels, sorted, `[k]`.
    n_features_in_: The number of columns of `fit`.

  Example:
    >>> from zoo.estimators.classes import NearestMean
    >>> x, y = [[0.0], [1.0], [4.0], [5.0]], ['low', 'low', 'high', 'high']
    >>> model = zoo.Classifier(NearestMean()).fit(x, y)
    >>> model.predict([[0.4], [3.9]]).tolist()
    ['low', 'high']
    >>> model.predict_proba([[2.5]]).tolist()
    [[0.5, 0.5]]
  """

  def __sklearn_tags__(self) -> Tags:
    tags = super().__sklearn_tags__()
    task = getattr(self, 'task_', self.task)
    tags.classifier_tags.multi_class = task is None or task.label_kind != 'signs'
    return tags

  def fit(self, X: ArrayLike, y: ArrayLike) -> Classifier:
    """Keeps rows as the context.

    It warns, once, if moments of the features are far from those of all of 256 prompts
    of the model's task, and says which, the value, and the range.

    Args:
      X: The rows, `[c, d]`.
      y: Their labels, of any type, `[c]`.

    Returns:
      The estimator itself.

    Raises:
      UserError: If a path has no model, the labels of the task are numbers, the table
        has more columns than the model has features or more classes than it knows, or
        a trained model has no task.
      ValueError: If X holds no finite numbers, or X and y have wrong shapes.
    """
    self._open()
    self._check_kind()
    self.X_, y = self._validated(X, y=with_nan(y))
    check_classification_targets(y)
    self.classes_, self.y_ = self._classes_of(np.asarray(y))
    k = len(self.classes_)
    most = self._most_classes(k)
    if k > most and self._has_signs:
      raise UserError(
        f'y has {k} classes; {type(self.model_).__name__} has two, the labels ±1. Only '
        'binary classification is supported.'
      )
    if k > most:
      raise UserError(
        f'y has {k} classes; {type(self.model_).__name__} takes at most {most}'
      )
    axes = () if self._has_signs else (self._num_outputs(k),)
    self._keep(self.X_, None, axes, k, axes)
    return self

  def _classes_of(self, y: np.ndarray) -> tuple[np.ndarray, Int[np.ndarray, ' c']]:
    """Numbers the classes of a table.

    A model that was trained on the rows of a table knows its classes by their numbers
    there, so that a table with fewer classes keeps these numbers.

    Returns:
      The classes that the model knows, and the number of the class of each row.

    Raises:
      UserError: If the table has a class that such a model was not trained on.
    """
    classes, numbers = np.unique(y, return_inverse=True)
    if not isinstance(self.task_, Arrays) or self.task_.label_kind != 'classes':
      return classes, numbers
    known = self.task_.class_names
    unknown = [name for name in classes.tolist() if name not in known]
    if unknown:
      raise UserError(
        f'y has the class {unknown[0]!r}; the model was trained on the classes '
        f'{shown([*map(repr, known)])} of {self.task_.path!r}'
      )
    places = np.array([known.index(name) for name in classes.tolist()])
    return np.array(known), places[numbers]

  def _check_kind(self) -> None:
    """Raises UserError for a model of numbers."""
    is_of_both = takes_both(self.model_, self.task_)
    if self.task_ is not None and self.task_.label_kind == 'numbers' and not is_of_both:
      raise UserError(
        f'the labels of the task {type(self.task_).__name__} are numbers; '
        'zoo.Classifier predicts classes, and zoo.Regressor predicts numbers'
      )

  @property
  def _has_signs(self) -> bool:
    """Whether the labels of the model are ±1, and its prediction is a logit."""
    is_of_signs = self.task_ is not None and self.task_.label_kind == 'signs'
    return is_of_signs and not takes_both(self.model_, self.task_)

  def _most_classes(self, k: int) -> int:
    """The most classes that the model takes, for a table of k."""
    if takes_both(self.model_, self.task_):
      return self.model_.num_classes
    if self._has_signs:
      return 2
    return k if self.task_ is None else self.task_.num_outputs

  def _num_outputs(self, k: int) -> int:
    """The length of the one-hot vectors that the model is given."""
    if self.task_ is None or takes_both(self.model_, self.task_):
      return max(k, 2)
    return self.task_.num_outputs

  def predict_proba(self, X: ArrayLike) -> Float[np.ndarray, 'b k']:
    """Returns the probability of each class for rows.

    Args:
      X: The rows, `[b, d]`.

    Returns:
      Probabilities `[b, k]`, in the order of `classes_`; each row sums to 1.

    Raises:
      UserError: If X has text.
      ValueError: If X holds no finite numbers, or has another number of columns.
    """
    check_is_fitted(self)
    rows = self._validated(X, reset=False)
    answers, found = self._answers(), []
    for member in self._members:
      features, labels = member.columns(self.X_), self._labels(member)
      queries = member.columns(rows)
      for part in member.parts:
        logits = answers.predictions(features[part], labels[part], queries)
        if self._has_signs:
          logits = np.stack([np.zeros_like(logits), logits], axis=1)
        found.append(softmax(logits[:, member.classes], axis=1))
    return np.mean(found, axis=0)

  def _labels(self, member: Member) -> np.ndarray:
    """The labels of the context as the model reads them."""
    places = member.classes[self.y_]
    if self._has_signs:
      return 2.0 * places - 1
    return np.eye(self._num_outputs(len(self.classes_)))[places]

  def predict(self, X: ArrayLike) -> np.ndarray:
    """Returns the most probable class of rows.

    Args:
      X: The rows, `[b, d]`.

    Returns:
      Labels, `[b]`; the first in the order of `classes_` if several are as probable.

    Raises:
      UserError: If X has text.
      ValueError: If X holds no finite numbers, or has another number of columns.
    """
    check_is_fitted(self)
    return self.classes_[np.argmax(self.predict_proba(X), axis=1)]

  # That of ClassifierMixin also takes weights, to which scikit-learn adds methods.
  def score(self, X: ArrayLike, y: ArrayLike) -> float:  # pyright: ignore
    """Returns the share of rows whose class is predicted.

    Args:
      X: The rows, `[b, d]`.
      y: Their labels, `[b]`.

    Returns:
      The accuracy, from 0 to 1.
    """
    return float(accuracy_score(np.asarray(y), self.predict(X)))
