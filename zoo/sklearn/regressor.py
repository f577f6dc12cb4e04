"""`zoo.Regressor`: predicts numbers from a table in the context of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from zoo.core.distributions import Distribution, Mixture, has_distribution
from zoo.core.errors import UserError
from zoo.sklearn.estimator import (
  InContext,
  Member,
  check_no_dates,
  takes_both,
  with_nan,
)
from zoo.sklearn.units import TableDistribution, in_units


class Regressor(RegressorMixin, InContext):
  """Predicts numbers from a table in the context of a model, which is not trained.

  `fit` keeps the rows of the table. Each row that is given to `predict` is a query
  after them. The class follows the conventions of scikit-learn, so `clone`, pipelines,
  `cross_val_score` and `GridSearchCV` work.

  Units: each column is standardised by the rows of `fit`. It then gets the mean and the
  standard deviation that the feature has in prompts of the model's task. The numbers y
  are treated in the same way, and predictions are put back into the units of y. There
  are two exceptions. A model of an `arrays` task gets its columns
  scaled as in training, so the table must hold numbers as they are in the file. A
  predictor without a task gets the numbers as they are.

  Columns: a model for more features than the table has gets zeros in their place. More
  columns than features are refused. A model that takes any number of features gets all
  columns, with the mean 0 and the standard deviation 1.

  Rows: if a model takes no more than `context_length` examples, a longer table is cut
  at random into equal parts. Each part predicts, and the predictions are averaged. At
  most 32 parts are used; a warning says so if rows are left out. A model without such a
  limit takes all rows at once. The exception is a model that needs a copy of the
  context for each query, as attention does: its parts have at most 4,096 rows.

  What a table may hold:

  - A column that is constant in `fit`, up to rounding, is ignored. If y is constant,
    which it is in a table of one row, that number is predicted. (Both are left to the
    predictor without a task, and to a model of the task `arrays`, which was trained on
    columns that vary.)
  - Infinity in X and NaN in y raise a ValueError. So does NaN in X, unless the model
    says `reads_missing = True`: it reads NaN as a missing number. None and the missing
    value of pandas are NaN.
  - Columns of text or of dates raise a UserError, which is a ValueError.
  - Many queries are answered in batches, so that the memory is bounded. Models of the
    linear family, and estimators that fit weights, need their weights once, which takes
    about a second. Other models take time in proportion to the rows that they use,
    times the queries.

  Args:
    model_or_path: A model or an estimator; or the path of a run, of what `zoo.save` or
      `zoo.export` wrote, or of a shipped checkpoint. `fit` opens a path.
    task: The task that the model was trained on. A path brings its own, and an
      estimator without weights needs none.
    num_members: The number of members of an ensemble, ≥ 1, whose predictions are
      averaged. The first has the columns in order, every other one in a random order,
      except for a model of the task `arrays`, whose columns stay in order.
    random_state: Draws the parts of a long table and the orders of members: an
      integer, a RandomState, or None for other draws in each `fit`.

  Attributes:
    model_: The model.
    task_: Its task, or None.
    X_: The rows of `fit`, `[c, d]`.
    y_: Their labels, `[c]`.
    coef_: The weights of the linear family.
    intercept_: Its offset.
    n_features_in_: The number of columns of `fit`.

  Example:
    >>> x = np.random.default_rng(1).normal(20, 5, size=(60, 5))
    >>> y = 100 + x @ [1.0, 2.0, 0.0, 0.0, -1.0]
    >>> model = zoo.Regressor('checkpoints/transformer').fit(x[:40], y[:40])
    >>> [round(number) for number in model.predict(x[40:43])]
    [171, 128, 136]
    >>> [round(number) for number in y[40:43]]
    [173, 129, 137]
    >>> round(model.score(x[40:], y[40:]), 2)
    1.0
  """

  __metadata_request__predict = {'return_std': UNUSED}

  def fit(self, X: ArrayLike, y: ArrayLike) -> Regressor:
    """Keeps rows as the context.

    It warns, once, if moments of the table are far outside the range of those of 256
    prompts of the model's task (docs/scikit_learn.md says how far), and says which, the
    value, and the range. These are moments of what the model sees, so sizes and means
    differ only if the table has fewer columns than the model has features.

    Args:
      X: The rows, `[c, d]`.
      y: Their numbers, `[c]`.

    Returns:
      The estimator itself.

    Raises:
      UserError: If a path has no model, the task has classes, the table has more
        columns than the model has features, a trained model has no task, y has text, or
        X or y have dates.
      ValueError: If X or y hold no finite numbers, or have wrong shapes.
    """
    self._open()
    self._check_kind()
    check_no_dates('y', y)
    y = with_nan(y)
    if np.asarray(y).dtype.kind in 'OUST':
      try:
        y = np.asarray(y).astype(np.float64)
      except (TypeError, ValueError):
        raise UserError(
          'y has text, which is no number; zoo.Classifier predicts names of classes'
        ) from None
    self.X_, y = self._validated(X, y=y, y_numeric=True)
    self.y_ = np.asarray(y, np.float64)
    self._keep(self.X_, self.y_, (), 0, ())
    return self

  def _check_kind(self) -> None:
    """Raises UserError for a model of classes."""
    kind = 'numbers' if self.task_ is None else self.task_.label_kind
    if kind != 'numbers' and not takes_both(self.model_, self.task_):
      raise UserError(
        f'the task {type(self.task_).__name__} has {kind}; zoo.Regressor predicts '
        'numbers, and zoo.Classifier predicts classes'
      )

  def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
    """Predicts the numbers of rows.

    Args:
      X: The rows, `[b, d]`.
      return_std: Whether to return the standard deviations, too. The model must have
        the method `distribution`.

    Returns:
      The predictions, `[b]`, in the units of y; with `return_std` a pair of them and of
      the standard deviations of the observed numbers. These are of the mixture of what
      parts and members predict.

    Raises:
      UserError: If the model has no `distribution`, or X has text.
      ValueError: If X holds no finite numbers, or has another number of columns.
    """
    check_is_fitted(self)
    rows = self._validated(X, reset=False)
    if return_std:
      self._check_distribution('leave out return_std')
    answers, labels = self._answers(), self._units.labels
    # Means and variances are those of labels, whose squares cannot overflow or vanish.
    means, variances = [], []
    for member, x, y in self._contexts():
      queries = member.columns(rows)
      if not return_std:
        means.append(answers.predictions(x, y, queries))
        continue
      mean, std = answers.means_and_stds(x, y, queries)
      means.append(mean)
      variances.append(np.square(std))
    mean = np.mean(means, axis=0)
    if not return_std:
      return labels.back(mean)
    between = np.mean(np.square(np.subtract(means, mean)), axis=0)
    std = np.sqrt(np.mean(variances, axis=0) + between)
    return labels.back(mean), std * labels.unit

  def predict_distribution(self, X: ArrayLike) -> TableDistribution:
    """Predicts the distributions of the observed numbers of rows.

    Args:
      X: The rows, `[b, d]`.

    Returns:
      The distributions, `[b]`, in the units of y and in float64. With several parts or
      members they are the mixture of what these predict. Their `mean` and `std` are
      those of `predict`, `quantile(0.9)` has the numbers below which 90 % of the
      probability lies, and `log_prob` and `cdf` say how likely given numbers are.

    Raises:
      UserError: If the model has no `distribution`, or one that is no
        `zoo.core.distributions.Distribution`; or if X has text.
      ValueError: If X holds no finite numbers, or has another number of columns.

    Example:
      >>> import numpy as np
      >>> task = zoo.create_task(
      ...   'linear_regression', num_features=1, context_length=4, noise_std=0.1
      ... )
      >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])
      >>> model = zoo.Regressor(task.baselines()['bayes'], task)
      >>> label = model.fit(x, [10.0, 12.0, 14.0, 16.0]).predict_distribution([[1.5]])
      >>> print([float(label.quantile(q)[0].round(1)) for q in (0.1, 0.5, 0.9)])
      [12.7, 13.0, 13.3]
    """
    check_is_fitted(self)
    rows = self._validated(X, reset=False)
    self._check_distribution('use predict')
    answers, found = self._answers(), []
    for member, x, y in self._contexts():
      label = answers.distribution(x, y, member.columns(rows))
      if not isinstance(label, Distribution):
        raise UserError(
          f'the distribution of the model is of the type {type(label).__name__}; it '
          'must be a zoo.core.distributions.Distribution'
        )
      found.append(label)
    label = found[0] if len(found) == 1 else Mixture(tuple(found))
    return in_units(label, self._units.labels)

  def _check_distribution(self, otherwise: str) -> None:
    """Raises UserError for a model that does not say how sure it is."""
    if not has_distribution(self.model_):
      raise UserError(
        f'{type(self.model_).__name__} has no distribution(prompt), which says how '
        f'sure it is; {otherwise}'
      )

  def _contexts(self) -> Iterator[tuple[Member, Any, Any]]:
    """Each member with each of its contexts: features and labels of the model."""
    for member in self._members:
      features, labels = member.columns(self.X_), self._units.labels(self.y_)
      for rows in member.parts:
        yield member, features[rows], labels[rows]

  @property
  def coef_(self) -> Float[np.ndarray, ' d']:
    """The weights of a model of the linear family, in the units of X and y, `[d]`.

    They are those of its learning rule or, for an estimator such as ridge, those that
    it fits. Other models raise an AttributeError.
    """
    return self._linear('coef_')[0]

  @property
  def intercept_(self) -> float:
    """The offset: `X @ coef_ + intercept_` are the predictions.

    Models that have no `coef_` raise an AttributeError.
    """
    return self._linear('intercept_')[1]

  def _linear(self, name: str) -> tuple[Float[np.ndarray, ' d'], float]:
    """The weights and the offset, averaged over parts and members."""
    check_is_fitted(self)
    answers, labels = self._answers(), self._units.labels
    if not answers.is_linear:
      raise AttributeError(
        f'{type(self.model_).__name__} has no {name}: it follows no linear learning '
        'rule, as models of the linear family and linear estimators do'
      )
    weights, offsets = [], []
    for member, x, y in self._contexts():
      of_features, offset = answers.weights(x, y)
      of_columns, shift = member.columns.weights(of_features)
      weights.append(of_columns * labels.unit)
      offsets.append(float(labels.back(offset + shift)))
    return np.mean(weights, axis=0), float(np.mean(offsets))

  # That of RegressorMixin also takes weights, to which scikit-learn adds methods.
  def score(self, X: ArrayLike, y: ArrayLike) -> float:  # pyright: ignore
    """Returns the coefficient of determination R² of the predictions.

    Args:
      X: The rows, `[b, d]`.
      y: Their numbers, `[b]`.

    Returns:
      1 for perfect predictions, 0 for the mean of y.
    """
    return float(r2_score(np.asarray(y), self.predict(X)))
