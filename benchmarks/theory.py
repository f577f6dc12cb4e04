"""Times functions of zoo.theory, and prints a Markdown table.

  OPENBLAS_NUM_THREADS=1 python benchmarks/theory.py

The tasks have as many examples as features, C = d. The second call of a function is
timed, when programs are compiled and spectra are known. A call is left out if the
function refuses it or if it would take minutes. Run this from the root of the
repository.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flax import nnx

import zoo
from docs.programs import invariant
from studies.paper import labels
from zoo import theory
from zoo.reports import Table

SIZES = 10, 200


def calls(d: int) -> dict[str, Callable[[], Any]]:
  """Returns the calls by name, for d features and d examples."""
  task, noisy, general = (
    zoo.create_task(
      'linear_regression', num_features=d, context_length=d, prior_mean=2.0, **options
    )
    for options in (
      {},
      {'noise_std': 1.0},
      {'feature_covariance': np.diag(np.linspace(0.5, 2, d))},
    )
  )
  rule = theory.optimal_rule(task)
  two, deep = (
    zoo.create_model(
      'deep_lsa', num_features=d, form='scalar', num_layers=layers, rngs=nnx.Rngs(0)
    )
    for layers in (2, 4)
  )
  every = {
    'exact_risk(rule)': lambda: theory.exact_risk(rule, task),
    'exact_risk(rule), general Σ': lambda: theory.exact_risk(rule, general),
    'optimal_rule': lambda: theory.optimal_rule(task),
    'polynomial_optimum, degree 13': lambda: theory.polynomial_optimum(noisy, 13),
    'bayes_risk, σ = 1': lambda: theory.bayes_risk(noisy),
    'exact_risk(deep_lsa), scalar, L = 4': lambda: theory.exact_risk(deep, task),
    'exact_risk(deep_lsa), scalar, L = 2, general Σ': lambda: theory.exact_risk(
      two, general
    ),
    'invariant_optimum': lambda: invariant.invariant_optimum(task),
    'deep.gd_plus_plus_optimum, L = 2': lambda: theory.deep.gd_plus_plus_optimum(
      task, 2
    ),
    'deep.lower_bound, degree 4': lambda: theory.deep.lower_bound(task, 4),
    'sequential.risk_curve': lambda: theory.sequential.risk_curve(
      task, 1.0, 0.08, 0.08
    ),
    'sequential.optimal_delta_rule': lambda: theory.sequential.optimal_delta_rule(task),
  }
  if d <= 48:
    every['deep.sampled_risk, L = 4, 10,000 draws'] = lambda: theory.deep.sampled_risk(
      deep, task, 10_000
    )
    every['labels.optimum, tanh'] = lambda: labels.optimum(task, 'tanh')
  return every


def main() -> None:
  seconds: dict[str, dict[int, float]] = {}
  for d in SIZES:
    for name, call in calls(d).items():
      call()
      start = time.perf_counter()
      call()
      seconds.setdefault(name, {})[d] = time.perf_counter() - start
  rows = [
    [f'`{name}`', *(f'{of_sizes[d]:.2g} s' if d in of_sizes else '–' for d in SIZES)]
    for name, of_sizes in seconds.items()
  ]
  print(Table(rows, ['call of `theory`', *(f'd = C = {d}' for d in SIZES)]).markdown())


if __name__ == '__main__':
  main()
