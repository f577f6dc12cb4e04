"""A trained model in context, as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from zoo.core.errors import not_installed
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.measure.predict import predict

try:
  from sklearn.base import BaseEstimator, RegressorMixin
  from sklearn.metrics import r2_score
  from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
  raise not_installed('scikit-learn', 'zoo.Regressor needs', 'baselines') from error


class Regressor(RegressorMixin, BaseEstimator):
  """Predicts numbers from a data set in the context of a model, which is not trained.

  `fit` keeps the examples; each row given to `predict` is a query after all of them.
  The model or estimator must take as many features, and examples, as there are.
  """

  def __init__(self, model: Predictor):
    self.model = model

  def fit(self, X: ArrayLike, y: ArrayLike) -> Regressor:
    """Keeps the examples `X [c, d]` and their labels `y [c]`.

    Raises ValueError, and UserError if the model does not take so many examples, as a
    transformer with learned positions takes no more than its context_length.
    """
    given: Any = {'X': X, 'y': y, 'dtype': 'float32', 'y_numeric': True}
    self.X_, self.y_ = map(jnp.asarray, validate_data(self, **given))
    jax.eval_shape(self.model, self._prompt(self.X_[:1]))
    return self

  def _prompt(self, queries: Float[Array, 'b d']) -> Prompt:
    """A prompt for each query, with all examples."""
    b = len(queries)
    x = jnp.broadcast_to(self.X_, (b, *self.X_.shape))
    y = jnp.broadcast_to(self.y_.astype('float32'), (b, len(self.y_)))
    return Prompt(x, y, queries, jnp.zeros(b))

  def predict(self, X: ArrayLike) -> Float[np.ndarray, ' b']:
    """The predictions for queries `X [b, d]`; raises ValueError."""
    check_is_fitted(self)
    given: Any = {'X': X, 'dtype': 'float32', 'reset': False}
    queries = jnp.asarray(validate_data(self, **given))
    return predict(self.model, self._prompt(queries))

  # That of RegressorMixin also takes weights, to which scikit-learn adds methods.
  def score(self, X: ArrayLike, y: ArrayLike) -> float:  # pyright: ignore
    """The coefficient of determination R² of the predictions for `X [b, d]`."""
    return float(r2_score(np.asarray(y), self.predict(X)))
