"""Models in context as estimators of scikit-learn: `zoo.Regressor`, `zoo.Classifier`.

`estimator` has what both share: opening a model, the checks of `fit`, the members of an
ensemble and the parts of a long context. `regressor` and `classifier` have the two
classes. `units` puts the columns of a table into the units of a model's task, and warns
of data that differ from its prompts. `contexts` finds out what a model takes, and
answers many queries of one context.

All of it needs scikit-learn, which the extra `baselines` installs.
"""

import importlib

from zoo.core.errors import not_installed

try:
  importlib.import_module('sklearn')
except ModuleNotFoundError as error:
  needs = 'zoo.Regressor and zoo.Classifier need'
  raise not_installed('scikit-learn', needs, 'baselines') from error
