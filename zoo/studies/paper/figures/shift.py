"""Beyond the paper: models trained on one task, tested on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import zoo
from zoo import theory
from zoo.core.protocols import Predictor
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.predict import (
  BATCH_SIZE,
  gather,
  loss_of,
  losses_at_query,
  run,
  sample_batches,
)
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLACK
from zoo.studies.paper import setting
from zoo.studies.paper.figures.beyond import MODELS, converged
from zoo.studies.paper.figures.parts import RISK, Figure
from zoo.studies.paper.training import Runs
from zoo.tasks import LinearRegression

NUM_PROMPTS = 16384


class _Axis(NamedTuple):
  """One way in which the test task differs from the training task."""

  label: str
  scale: str
  values: tuple[float, ...]
  task: Callable[[float], LinearRegression]


_AXES = (
  _Axis(
    'context length C at test',
    'log',
    (5, 7, 10, 14, 20, 28, 40, 56, 80),
    lambda c: setting.task(round(c)),
  ),
  _Axis(
    'each entry of w* at test',
    'linear',
    (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0),
    lambda mean: setting.task(mean=mean),
  ),
  _Axis(
    'scale of the features at test',
    'linear',
    (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5),
    lambda scale: setting.task(
      feature_covariance=scale**2 * np.eye(setting.NUM_FEATURES)
    ),
  ),
)


def _shift(runs: Runs) -> tuple[Panel, ...]:
  trained = {
    label: [zoo.load(row['workdir']).model for row in runs[converged(label)]]
    for label in MODELS
  }
  firsts = [models[0] for models in trained.values()]
  panels = []
  for key, axis in zip('abc', _AXES, strict=True):
    tests = [axis.task(value) for value in axis.values]
    # Every second task is sampled too, which is enough to show the agreement.
    sampled = np.array([_sampled_risks(firsts, test) for test in tests[::2]])
    lines = []
    for index, (label, models) in enumerate(trained.items()):
      colour = MODELS[label][0]
      exact = [
        [float(theory.exact_risk(model, test)) for test in tests] for model in models
      ]
      lines.append(series(f'{label}, exact', 'curve', colour, axis.values, exact))
      mean, stderr = sampled[:, index].T
      y = [mean - stderr, mean, mean + stderr]
      lines.append(series(f'{label}, sampled', 'dots', colour, axis.values[::2], y))
    best = [setting.gd_risk(test) for test in tests]
    lines.append(series('GD tuned to the test', 'dashed', BLACK, axis.values, best))
    panels.append(Panel(key, axis.label, RISK, tuple(lines), axis.scale, 'log'))
  return tuple(panels)


def _sampled_risks(
  models: Sequence[Predictor], test: LinearRegression
) -> list[Estimate]:
  """The risk of each model on the same prompts."""
  loss = loss_of(test)
  losses = gather(
    lambda prompt: run(losses_at_query, models, prompt, loss),
    sample_batches(test, 0, NUM_PROMPTS, BATCH_SIZE),
  )
  return [estimate(one) for one in losses]


FIGURES = {
  'shift': Figure(
    'Beyond the paper. Trained models on other tasks',
    'Models trained at C = 10, w* = (2, …, 2) and features of variance 1, tested on '
    f'other tasks: exact, and sampled on {NUM_PROMPTS} prompts with one standard '
    'error. yq-LSA and LTB coincide.',
    tuple(converged(label) for label in MODELS),
    _shift,
  ),
}
