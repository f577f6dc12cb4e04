"""A small GPT-2 learns linear functions in context nearly as well as least squares."""

import numpy as np

from studies.runner import Trainer, best, load
from studies.study import Expected, Measurement, Study, at_most, near
from zoo.measure.curve import sample_losses, sample_predictions
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLACK, BLUE, GREEN, ORANGE, VERMILION
from zoo.tasks import LinearRegression

_D, _LENGTH = 5, 10
_TASK = LinearRegression(_D, _LENGTH)
# The source prints the errors of averaging for this task.
_SOURCE_TASK = LinearRegression(20, 40)
_FIELDS = {
  'task.num_features': _D,
  'task.context_length': _LENGTH,
  'eval.num_compared': 0,
  'train.num_steps': 5000,
  'train.batch_size': 64,
}
_POINTS = [{'optimizer.learning_rate': rate} for rate in (1e-3, 3e-3)]
_COLOURS = {'ols': GREEN, 'averaging': VERMILION, 'nearest_neighbours': ORANGE}


def measure(train: Trainer) -> Measurement:
  """Measures errors over d of the trained model and of averaging, by examples seen."""
  rows = train('models', 'transformer:gpt2_tiny', _FIELDS, _POINTS)
  baselines = _TASK.baselines()
  shown = {name: baselines[name] for name in _COLOURS}
  predictions = sample_predictions({'model': load(best(rows)), **shown}, _TASK, 4096)
  target = predictions.pop('target')
  errors = {
    name: np.square(prediction - target).mean(axis=0) / _D
    for name, prediction in predictions.items()
  }
  numbers = {f'model_{k}': float(errors['model'][k]) for k in (2, 3, 5, 10)}
  averaging = {'averaging': _SOURCE_TASK.baselines()['averaging']}
  losses = sample_losses(averaging, _SOURCE_TASK, 4096)['averaging'].mean(axis=0)
  numbers |= {f'averaging_{k}': float(losses[k]) / 20 for k in (20, 40)}
  count = np.arange(1, _LENGTH + 1)
  gd = [_gd(_D, k) for k in count.tolist()]
  panel = Panel(
    'a',
    'examples before the query',
    'squared error / d',
    (
      series('trained', 'dots', BLUE, count, errors['model'][1:]),
      *(
        series(name.replace('_', ' '), 'line', colour, count, errors[name][1:])
        for name, colour in _COLOURS.items()
      ),
      series('one GD step', 'dashed', BLACK, count, gd),
    ),
  )
  return Measurement(numbers, (panel,))


def _averaging(printed: float):
  # The standard deviation of a squared error is about twice its mean, and the range is
  # four standard errors wide to each side.
  return near(
    printed, 0.13 * printed, f'Fig. 2, d = 20: {printed}; four standard errors'
  )


def _beyond_one_step(k: int):
  """Returns the range from the Bayes error to halfway between it and one step of GD."""
  bayes = 1 - k / _D
  return Expected(
    0.9 * bayes,
    (bayes + _gd(_D, k)) / 2,
    f'not below Bayes, 1 − k/d = {bayes:.1f}, but for sampling; nearer to it than to '
    'one GD step',
  )


def _gd(d: int, k: int) -> float:
  return (d + 1) / (k + d + 1)


HEADLINE = Study(
  name='garg_toy',
  statement=(
    'One seed: a small transformer is nearer to least squares than to simpler rules.'
  ),
  setting=(
    'Noiseless linear regression, d = 5, 11 points per prompt, weights and features ~ '
    'N(0, I); 3 layers, width 64, 2 heads, 5000 steps of 64 prompts: the better of '
    'the rates 0.001 and 0.003 on held-out prompts.'
  ),
  source='Garg et al., arXiv 2208.01066, Fig. 2, and toy.yaml',
  expected={
    # The source has no number for d = 5. At d and at 2d examples its figure has this
    # order: least squares, the transformer close above it, and the others far above.
    'model_10': at_most(
      _gd(5, 10) / 2, 'Fig. 2: near least squares (0); half of one GD step, the next'
    ),
    'model_5': at_most(_gd(5, 5), 'Fig. 2: below one GD step at k = d, too'),
    'model_2': _beyond_one_step(2),
    'model_3': _beyond_one_step(3),
    'averaging_20': _averaging(1.05),
    'averaging_40': _averaging(0.525),
  },
  minutes=6,
  measure=measure,
)
