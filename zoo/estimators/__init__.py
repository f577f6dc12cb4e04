"""Estimators: predictors that are called like a model, but are not trained.

Each predicts the label of a query from the examples of its prompt. Tasks return them as
`baselines`. The modules of `zoo.estimators` do not import those of `zoo.tasks`.
"""

from zoo.estimators.linear import Estimator as Estimator
from zoo.estimators.linear import GDBeta as GDBeta
from zoo.estimators.linear import GradientDescent as GradientDescent
from zoo.estimators.linear import Ridge as Ridge
from zoo.estimators.linear import bayes as bayes
from zoo.estimators.linear import gd_beta as gd_beta
from zoo.estimators.linear import gradient_descent as gradient_descent
from zoo.estimators.linear import ols as ols
from zoo.estimators.linear import prior_mean as prior_mean
from zoo.estimators.linear import ridge as ridge
from zoo.estimators.linear_prior import best_penalty as best_penalty
from zoo.estimators.linear_prior import best_step_matrix as best_step_matrix
