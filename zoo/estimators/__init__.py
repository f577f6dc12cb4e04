"""Estimators: untrained predictors, and their best parameters for a task."""

from zoo.estimators.linear_regression import Estimator as Estimator
from zoo.estimators.linear_regression import GDBeta as GDBeta
from zoo.estimators.linear_regression import GradientDescent as GradientDescent
from zoo.estimators.linear_regression import Ridge as Ridge
from zoo.estimators.linear_regression import bayes as bayes
from zoo.estimators.linear_regression import gd_beta as gd_beta
from zoo.estimators.linear_regression import gradient_descent as gradient_descent
from zoo.estimators.linear_regression import ols as ols
from zoo.estimators.linear_regression import prior_mean as prior_mean
from zoo.estimators.linear_regression import ridge as ridge
from zoo.estimators.tuning import best_penalty as best_penalty
from zoo.estimators.tuning import best_schedule as best_schedule
from zoo.estimators.tuning import best_step_matrix as best_step_matrix
from zoo.estimators.tuning import best_step_size as best_step_size
from zoo.estimators.tuning import polynomial_optimum as polynomial_optimum
