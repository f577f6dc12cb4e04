"""Trained deep linear attention has the risks that its theory knows."""

import numpy as np

from studies.runner import Trainer, load
from studies.study import Expected, Measurement, Study, at_most
from zoo import theory
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLACK, BLUE, GREEN, PURPLE, VERMILION
from zoo.tasks import LinearRegression

_DEPTHS = 1, 2, 3, 4
_TASK = LinearRegression(num_features=5, context_length=20)
_FIELDS = {
  'task.num_features': 5,
  'task.context_length': 20,
  'task.prior_mean': 0.0,
  'model.form': 'gd_plus_plus',
  'train.num_steps': 10000,
  'train.batch_size': 512,
  'eval.num_batches': 64,
  # Gradients are clipped, since a few prompts dominate them. The source clips the
  # gradient of each matrix.
  'model.init_scale': 1e-4,
  'optimizer.learning_rate': 0.01,
  'optimizer.clip_norm': 0.01,
  'optimizer.beta2': 0.9,
  'eval.num_compared': 0,
}


def measure(train: Trainer) -> Measurement:
  numbers, risks, held_out, distances = {}, [], [], []
  for depth in _DEPTHS:
    fields = {**_FIELDS, 'model.num_layers': depth}
    (row,) = train(f'layers_{depth}', 'deep_lsa', fields)
    model = load(row)
    risks.append(theory.deep.sampled_risk(model, _TASK).mean)
    held_out.append(row['eval_risk'])
    numbers[f'risk_{depth}'] = risks[-1]
    if depth <= 3:
      distances += [_distance(matrix) for matrix in _matrices(model)]
  numbers['anisotropy'] = max(distances)
  steps = [theory.polynomial_optimum(_TASK, depth).risk for depth in _DEPTHS]
  lowest = [theory.deep.gd_plus_plus_optimum(_TASK, depth, -1.0) for depth in _DEPTHS]
  upper = [optimum.upper for optimum in lowest]
  lower = [optimum.lower for optimum in lowest]
  at = range(len(_DEPTHS))
  panel = Panel(
    'a',
    'layers',
    'in-context risk (log scale)',
    (
      series('trained, all prompts', 'dots', BLUE, at, risks),
      series('trained, 32,768 prompts', 'dots', PURPLE, at, held_out),
      series('gradient descent, best steps', 'line', GREEN, at, steps),
      series('lowest known', 'line', VERMILION, at, upper),
      series('proved bound', 'dashed', BLACK, at, lower),
    ),
    y_scale='log',
    x_names=tuple(map(str, _DEPTHS)),
  )
  return Measurement(numbers, (panel,))


def _matrices(model) -> list[np.ndarray]:
  """Returns the A of each layer, and B of all but the last, where it has no effect."""
  a = [np.asarray(layer.a[...][0]) for layer in model.layers]
  return a + [np.asarray(layer.b[...][0]) for layer in model.layers[:-1]]


def _distance(matrix: np.ndarray) -> float:
  """Returns the relative distance of a matrix from the nearest multiple of I."""
  nearest = np.trace(matrix) / len(matrix) * np.eye(len(matrix))
  return float(np.linalg.norm(matrix - nearest) / np.linalg.norm(matrix))


def _between(lower: float, trained: float) -> Expected:
  return Expected(
    lower,
    1.1 * trained,
    f'not below the proved bound (docs/theory_depth.md); not above {trained:g}, '
    'from an independent training of 4000 steps, plus a tenth for sampling error',
  )


HEADLINE = Study(
  name='deep_linear',
  statement=(
    'One seed: L trained layers have at most the risks of an independent training.'
  ),
  setting=(
    'Linear regression, d = 5, C = 20, weights and features ~ N(0, I); L = 1 … 4 '
    'layers with trained A and B after 10,000 steps of 512 prompts: the risk by '
    'theory.deep.sampled_risk.'
  ),
  source='Ahn et al., arXiv 2306.00297, section 4, and their notebook',
  expected={
    # A risk up to one per cent above the optimum is training noise. A risk below it
    # would be a bug.
    'risk_1': Expected(
      15 / 13 - 1e-6, 1.01 * 15 / 13, 'd (d + 1)/(C + d + 1) = 15/13 = 1.1538, proved'
    ),
    'risk_2': _between(0.050887, 0.0864),
    'risk_3': _between(2.8604e-4, 1.3e-3),
    'risk_4': _between(2.348e-7, 5e-5),
    'anisotropy': at_most(
      0.023,
      'A and B from the nearest multiple of I, L ≤ 3, in the same independent training',
    ),
  },
  minutes=5,
  measure=measure,
)
