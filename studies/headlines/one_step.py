"""One trained layer of linear attention is one step of gradient descent."""

import numpy as np

from studies.runner import Trainer, histories, load
from studies.study import Measurement, Study, at_least, at_most
from zoo import estimators, probing, theory
from zoo.measure.curve import sample_predictions
from zoo.reports.plots import Panel, level, series
from zoo.reports.style import BLACK, BLUE, VERMILION
from zoo.tasks import LinearRegression

_TASK = LinearRegression(num_features=10, context_length=10)
_SHOWN = 200  # the number of prompts in the picture


def measure(train: Trainer) -> Measurement:
  rows = train('lsa', 'lsa', {'task.prior_mean': 0.0}, [{'seed': i} for i in range(3)])
  gd = estimators.gradient_descent(_TASK)
  gd_risk = float(theory.exact_risk(gd, _TASK))
  models = [load(row) for row in rows]
  alignments = [
    probing.alignment(model, gd, _TASK, num_prompts=16384) for model in models
  ]
  shown = sample_predictions(
    {'model': models[0], 'gd': gd.learning_rule()}, _TASK, _SHOWN
  )
  at_gd, at_model = shown['gd'][:, -1], shown['model'][:, -1]
  order = np.argsort(at_gd)
  steps, risks = histories(rows, 'exact_risk')
  learning = Panel(
    'a',
    'training step',
    'exact in-context risk',
    (
      series('trained, 3 seeds', 'curve', BLUE, steps, risks),
      level('gradient descent', gd_risk, steps),
    ),
  )
  agreement = Panel(
    'b',
    'prediction of one step of gradient descent',
    'prediction of the trained layer',
    (
      series(f'{_SHOWN} prompts, seed 0', 'dots', VERMILION, at_gd, at_model),
      series('equal', 'dashed', BLACK, at_gd[order], at_gd[order]),
    ),
  )
  size = float(np.abs(at_gd).mean())
  differences = [alignment.prediction_difference.mean for alignment in alignments]
  return Measurement(
    {
      'cosine': min(alignment.cosine_similarity.mean for alignment in alignments),
      'difference': max(differences) / size,
      'excess_risk': max(row['exact_risk'] for row in rows) / gd_risk - 1,
    },
    (learning, agreement),
  )


_FIGURE = 'arXiv 2212.07677, Fig. 2: '

HEADLINE = Study(
  name='one_step',
  statement='A trained layer of linear self-attention is one step of gradient descent.',
  setting=(
    'Linear regression, d = C = 10, weights and features ~ N(0, I); lsa after 5000 '
    'steps of 2048 prompts, Adam 5e-3 decaying to 0: the worst of 3 seeds against the '
    'best single step from 0.'
  ),
  source='von Oswald et al., arXiv 2212.07677',
  expected={
    'cosine': at_least(0.99, _FIGURE + 'the cosine of the sensitivities tends to 1'),
    'difference': at_most(
      0.05, _FIGURE + 'the difference of predictions tends to 0 (here over their size)'
    ),
    'excess_risk': at_most(
      0.01, 'the loss of the layer is that of gradient descent, 110/21 here'
    ),
  },
  minutes=1,
  measure=measure,
)
