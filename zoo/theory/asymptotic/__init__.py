"""Limits of large dimension, beside the exact values for any dimension."""

from zoo.tasks.rotated_regression import power_law as power_law
from zoo.theory.asymptotic.alignment import alignment as alignment
from zoo.theory.asymptotic.depth import depth_limit as depth_limit
from zoo.theory.asymptotic.pretraining import PretrainingRisks as PretrainingRisks
from zoo.theory.asymptotic.pretraining import RestrictedOptimum as RestrictedOptimum
from zoo.theory.asymptotic.pretraining import pretraining as pretraining
from zoo.theory.asymptotic.pretraining import restricted_optimum as restricted_optimum
from zoo.theory.asymptotic.rotations import rotated_limit as rotated_limit
from zoo.theory.asymptotic.rotations import rotated_optimum as rotated_optimum
from zoo.theory.asymptotic.softmax import softmax_pair as softmax_pair
from zoo.theory.asymptotic.softmax import softmax_risk as softmax_risk
