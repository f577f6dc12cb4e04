"""Decision trees and boosted trees of scikit-learn, fitted to each prompt."""

from __future__ import annotations

import abc
import importlib
from typing import Any

import numpy as np
from flax import struct
from jaxtyping import Float

from zoo.core.errors import not_installed
from zoo.estimators.baselines import HostBaseline


@struct.dataclass(eq=False, repr=False)
class _Trees(HostBaseline):
  """Base of predictors by a regressor of scikit-learn; 0 before the first example.

  Predicting raises UserError if scikit-learn is not installed.
  """

  # This says whether features are replaced by their signs.
  signs: bool = struct.field(pytree_node=False, default=True)

  @abc.abstractmethod
  def regressor(self) -> Any:
    """Returns a regressor that is not fitted yet."""

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


@struct.dataclass(eq=False, repr=False)
class GreedyTree(_Trees):
  """One tree, grown greedily until it fits all examples or reaches a depth.

  Args:
    signs: Whether features are replaced by their signs.
    max_depth: Greatest depth of the tree. None does not limit it.
  """

  max_depth: int | None = struct.field(pytree_node=False, default=None)

  def regressor(self) -> Any:
    # The seed chooses between equally good splits.
    return _import('sklearn.tree').DecisionTreeRegressor(
      max_depth=self.max_depth, random_state=0
    )


@struct.dataclass(eq=False, repr=False)
class Boosting(_Trees):
  """Gradient boosting with 50 trees of depth 4 and the learning rate 0.1.

  Args:
    signs: Whether features are replaced by their signs.
  """

  def regressor(self) -> Any:
    return _import('sklearn.ensemble').GradientBoostingRegressor(
      n_estimators=50, max_depth=4, learning_rate=0.1, random_state=0
    )


def _import(name: str) -> Any:
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError:
    needs = 'the baselines boosting and greedy_tree need'
    raise not_installed('scikit-learn', needs, 'baselines') from None
