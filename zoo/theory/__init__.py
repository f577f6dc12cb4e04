"""Exact theory of the linear family: risks, optima, certificates, constructions."""

from zoo.theory.exact import exact_risk as exact_risk
from zoo.theory.exact import excess_risk as excess_risk
from zoo.theory.exact import squared_difference as squared_difference
from zoo.theory.optimum import optimal_rule as optimal_rule
from zoo.theory.risk import moments as moments
from zoo.theory.risk import population_risk as population_risk
