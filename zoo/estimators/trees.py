"""Tree baselines, which scikit-learn fits; they need the extra `baselines`."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from zoo.errors import UserError
from zoo.estimators.baseline import HostBaseline


@runtime_checkable
class Regressor(Protocol):
  """The methods that are used of scikit-learn's regressors."""

  def fit(self, X: np.ndarray, y: np.ndarray) -> Regressor: ...
  def predict(self, X: np.ndarray) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class _Trees(HostBaseline):
  """Predicts with a regressor of scikit-learn, and 0 before the first example.

  Raises UserError where scikit-learn is not installed.
  """

  signs: bool = True  # whether features are replaced by their signs

  def regressor(self) -> Regressor:
    """A regressor that is not fitted yet."""
    raise NotImplementedError

  def fit_and_predict(
    self,
    x: Float[np.ndarray, 'k d'],
    y: Float[np.ndarray, ' k'],
    x_query: Float[np.ndarray, ' d'],
  ) -> float:
    if len(y) == 0:
      return 0.0
    if self.signs:
      x, x_query = np.sign(x), np.sign(x_query)
    return float(self.regressor().fit(x, y).predict(x_query[None])[0])


@dataclasses.dataclass(frozen=True)
class GreedyTree(_Trees):
  """One tree, grown greedily until it fits all examples, or to a depth."""

  max_depth: int | None = None

  def regressor(self) -> Regressor:
    # The seed chooses between equally good splits.
    return _import('sklearn.tree').DecisionTreeRegressor(
      max_depth=self.max_depth, random_state=0
    )


@dataclasses.dataclass(frozen=True)
class Boosting(_Trees):
  """Gradient boosting with 50 trees of depth 4 and the learning rate 0.1."""

  def regressor(self) -> Regressor:
    return _import('sklearn.ensemble').GradientBoostingRegressor(
      n_estimators=50, max_depth=4, learning_rate=0.1, random_state=0
    )


def _import(name: str) -> Any:
  try:
    importlib.import_module('sklearn')
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    if error.name is None or error.name.partition('.')[0] != 'sklearn':
      raise
    raise UserError(
      'scikit-learn is not installed; the baselines boosting and greedy_tree need pip '
      "install 'icl-zoo[baselines]'"
    ) from None
