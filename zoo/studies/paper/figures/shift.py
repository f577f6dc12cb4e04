"""Beyond the paper: models trained on one task, tested on others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import zoo
from zoo import probing
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLACK
from zoo.studies.paper import setting
from zoo.studies.paper.figures.beyond import MODELS, converged
from zoo.studies.paper.figures.parts import RISK, Figure
from zoo.studies.paper.training import Runs

NUM_PROMPTS = 16384


class _Axis(NamedTuple):
  """One way in which the test task differs from the training task."""

  name: str  # the shift, one of probing.SHIFTS
  label: str
  scale: str
  shown: tuple[float, ...]  # values on the axis
  values: tuple[float, ...]  # of the shift at these


_CONTEXTS = 5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0, 56.0, 80.0
_MEANS = 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0
_SCALES = 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5
# How far w* is moved to get each value of its entries.
_DISTANCES = tuple(
  (mean - setting.PRIOR_MEAN) * setting.NUM_FEATURES**0.5 for mean in _MEANS
)
_AXES = (
  _Axis('context_length', 'context length C at test', 'log', _CONTEXTS, _CONTEXTS),
  _Axis('prior_mean', 'each entry of w* at test', 'linear', _MEANS, _DISTANCES),
  _Axis('feature_scale', 'scale of the features at test', 'linear', _SCALES, _SCALES),
)


def _shift(runs: Runs) -> tuple[Panel, ...]:
  trained = {
    label: [zoo.load(row['workdir']).model for row in runs[converged(label)]]
    for label in MODELS
  }
  firsts = [models[0] for models in trained.values()]
  panels = []
  for key, axis in zip('abc', _AXES, strict=True):
    tests = probing.shifted_tasks(setting.task(), axis.name, axis.values)
    # Every second task is sampled too, which is enough to show the agreement.
    sampled = np.array(
      [probing.sampled_shifted_risks(firsts, test, NUM_PROMPTS) for test in tests[::2]]
    )
    lines = []
    for index, (label, models) in enumerate(trained.items()):
      colour = MODELS[label][0]
      exact = [
        [probing.exact_shifted_risk(model, test) for test in tests] for model in models
      ]
      lines.append(series(f'{label}, exact', 'curve', colour, axis.shown, exact))
      mean, stderr = sampled[:, index].T
      y = [mean - stderr, mean, mean + stderr]
      lines.append(series(f'{label}, sampled', 'dots', colour, axis.shown[::2], y))
    best = [setting.gd_risk(test.task) for test in tests]
    lines.append(series('GD tuned to the test', 'dashed', BLACK, axis.shown, best))
    panels.append(Panel(key, axis.label, RISK, tuple(lines), axis.scale, 'log'))
  return tuple(panels)


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
