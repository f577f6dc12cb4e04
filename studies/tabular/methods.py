"""The methods of scikit-learn with which a model is compared.

Each method has the defaults of scikit-learn except for what `ABOUT` names. A missing
feature is replaced by the mean of its column in the context. For methods with distances
or penalties, columns are standardised by their mean and deviation in the context.
"""

from __future__ import annotations

import math
from typing import Any

from sklearn.ensemble import (
  GradientBoostingClassifier,
  GradientBoostingRegressor,
  RandomForestClassifier,
  RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from studies.tabular.tables import REGRESSION

PROCESS = 'Gaussian process'
ABOUT = {
  'ridge': 'RidgeCV, standardised; the penalty is 0.1, 1 or 10 by leave-one-out',
  'logistic regression': 'LogisticRegression, standardised; up to 1,000 steps',
  PROCESS: (
    'GaussianProcessRegressor, standardised, with normalize_y; the kernel is a '
    'constant times an RBF, which begins with the length √d, plus white noise, all '
    'fitted by likelihood'
  ),
  'random forest': '100 trees',
  'gradient boosting': '100 trees of depth 3, GradientBoostingRegressor or …Classifier',
  'nearest neighbours': '5, or all rows of a smaller context; standardised',
}
# The time of a Gaussian process grows as the cube of the rows. With more rows than
# these it would take minutes.
MOST_OF_PROCESS = 2000


def methods(kind: str, num_rows: int, d: int, seed: int) -> dict[str, Any]:
  """Returns the methods by name, not fitted.

  Args:
    kind: 'classification' or 'regression'.
    num_rows: The number of rows of the context. With more than 2,000 rows there is no
      Gaussian process.
    d: The number of features.
    seed: The `random_state` of methods that have one.

  Returns:
    Pipelines of scikit-learn, which fill in missing features first.
  """
  neighbours = min(5, num_rows)
  if kind != REGRESSION:
    return {
      'logistic regression': _of_scaled(LogisticRegression(max_iter=1000)),
      'random forest': _of_plain(RandomForestClassifier(random_state=seed)),
      'gradient boosting': _of_plain(GradientBoostingClassifier(random_state=seed)),
      'nearest neighbours': _of_scaled(KNeighborsClassifier(neighbours)),
    }
  kernel = ConstantKernel() * RBF(math.sqrt(d)) + WhiteKernel()
  process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
  found = {
    'ridge': _of_scaled(RidgeCV()),
    PROCESS: _of_scaled(process),
    'random forest': _of_plain(RandomForestRegressor(random_state=seed)),
    'gradient boosting': _of_plain(GradientBoostingRegressor(random_state=seed)),
    'nearest neighbours': _of_scaled(KNeighborsRegressor(neighbours)),
  }
  if num_rows > MOST_OF_PROCESS:
    del found[PROCESS]
  return found


def _of_plain(method: Any) -> Any:
  return make_pipeline(SimpleImputer(keep_empty_features=True), method)


def _of_scaled(method: Any) -> Any:
  imputer = SimpleImputer(keep_empty_features=True)
  return make_pipeline(imputer, StandardScaler(), method)
