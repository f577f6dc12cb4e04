"""Exact theory of the linear family: risks, optima, certificates, constructions."""

from zoo.estimators.tuning import polynomial_optimum as polynomial_optimum
from zoo.tasks.coverage import covers as covers
from zoo.theory import constructions as constructions
from zoo.theory import deep as deep
from zoo.theory import labels as labels
from zoo.theory import sequential as sequential
from zoo.theory.certificates import certificate as certificate
from zoo.theory.certificates import is_global_optimum as is_global_optimum
from zoo.theory.exact import exact_risk as exact_risk
from zoo.theory.exact import exact_risks as exact_risks
from zoo.theory.exact import excess_risk as excess_risk
from zoo.theory.exact import squared_difference as squared_difference
from zoo.theory.head_limit import head_limited_risk as head_limited_risk
from zoo.theory.isotropic import isotropic_head_limit as isotropic_head_limit
from zoo.theory.moments import Moments as Moments
from zoo.theory.moments import task_moments as task_moments
from zoo.theory.optimum import optimal_rule as optimal_rule
from zoo.theory.prior_shift import transport as transport
from zoo.theory.ridge import bayes_risk as bayes_risk
from zoo.theory.ridge import ridge_risk as ridge_risk
from zoo.theory.risk import population_risk as population_risk
from zoo.theory.trust import check_rule as check_rule
from zoo.theory.trust import is_ours as is_ours
