"""When an algorithm appears in training: before, with or after the fall of the loss.

Two tasks are trained with three seeds each, and read at kept steps: which algorithm is
nearest to a model of linear regression, and how much of the belief a model of Mess3
holds and uses. The times are compared with the step at which the loss has made half of
its fall. Ranges were set after trials with the seed 100, which the measured seeds do
not include.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float
from scipy import stats

import zoo
from studies.runner import Trainer
from studies.study import Expected, Measurement, Study, at_least, at_most
from zoo.core.prompt import Prompt
from zoo.measure.curve import sample_losses
from zoo.measure.intervals import Estimate
from zoo.measure.predict import loss_of
from zoo.probing import OverTraining, over_training
from zoo.reports.plots import Panel, Series, series
from zoo.reports.style import BLACK, BLUE, GREEN, VERMILION

_SEEDS = range(3)
# The steps that are read. The learning coefficient costs more, and is read at fewer.
_STEPS = {
  'regression': (1, 128, 256, 362, 512, 724, 1024, 2048),
  'mess3': (1, 16, 32, 64, 91, 128, 181, 256, 1024),
}
_COEFFICIENT_STEPS = {
  'regression': (256, 512, 1024, 2048),
  'mess3': (32, 64, 256, 1024),
}
_CONFIGS = {
  'regression': 'transformer:gpt2_tiny,task=linear_regression',
  'mess3': 'transformer:gpt2_tiny,task=hidden_markov',
}
_FIELDS: Mapping[str, Mapping[str, Any]] = {
  'regression': {
    'task.num_features': 5,
    'task.context_length': 10,
    'task.noise_std': 0.5,
    'model.num_layers': 3,
    'model.width': 32,
    'train.batch_size': 64,
    'optimizer.learning_rate': 4e-3,
    'optimizer.warmup_steps': 100,
  },
  'mess3': {
    'task.process': 'mess3',
    'task.context_length': 15,
    'model.num_layers': 2,
    'model.width': 32,
    'model.tokens': 'shifted',
    'train.batch_size': 128,
    'optimizer.learning_rate': 3e-3,
    'optimizer.warmup_steps': 100,
  },
}
_NUM_PROMPTS = 4096
_SITE = 'final.stream'
# The chains of the learning coefficient. The losses differ in curvature by so much that
# the same temperature and localization do not serve both.
_CHAINS: Mapping[str, Mapping[str, Any]] = {
  'regression': {'num_prompts': 1024, 'step_size': 4e-6, 'localization': 3000.0},
  'mess3': {'num_prompts': 8192, 'step_size': 2e-5, 'localization': 300.0},
}
_LENGTH = {'num_steps': 300, 'num_chains': 4, 'batch_size': 16}
_COLOURS = BLUE, VERMILION, GREEN
# The candidates that are drawn: the step of gradient descent of lowest loss, ridge
# regression with the penalty of Bayes, and the one with the penalty that fits best.
_GD, _RIDGE, _FITTED = 'gd', 'ridge', 'ridge regression with'


def measure(train: Trainer) -> Measurement:
  regression, panels = _regression(trained('regression', train))
  mess3, more = _mess3(trained('mess3', train))
  return Measurement({**regression, **mess3}, (*panels, *more))


def trained(task: str, train: Trainer) -> list[Any]:
  """Trains the seeds of a task, and returns their folders."""
  steps = _STEPS[task]
  fields = {
    **_FIELDS[task],
    'train.num_steps': steps[-1],
    'train.log_every': steps[-1],
    'eval.every': steps[-1],
    'eval.num_compared': 0,
    'checkpoint.every': steps[-1],
    'checkpoint.steps': steps,
  }
  # Each seed is trained by itself, since several seeds in one program save no
  # checkpoints during training.
  return [
    train(f'{task}_{seed}', _CONFIGS[task], fields, [{'seed': seed}])[0]['workdir']
    for seed in _SEEDS
  ]


def nearest(model: Any, task: Any, seed: int) -> dict[str, float]:
  """Returns what each candidate leaves, and how many remain after elimination.

  It is an instrument of `over_training`, as are the next two functions. The candidates
  are those of `elimination`: the step of gradient descent and the ridge regression that
  are nearest to the model, and the baselines of the task.

  Args:
    model: A model of linear regression.
    task: Its task.
    seed: The seed of the prompts.

  Returns:
    The loss above Bayes; the number of candidates that remain; and the share of the
    variation over contexts that three candidates leave, by their names.
  """
  found = zoo.probing.elimination(model, task, num_prompts=_NUM_PROMPTS, seed=seed)
  readings = {
    'excess': _excess(model, task, seed),
    'remaining': float(len(found.remaining)),
    # A model that ignores its context has no rows.
    **dict.fromkeys((_GD, _RIDGE, _FITTED), math.nan),
  }
  for row in found.rows:
    if row.candidate.startswith(_FITTED):
      readings[_FITTED] = row.on_task.mean
    for name in {_GD, _RIDGE}.intersection(row.candidate.split(', ')):
      readings[name] = row.on_task.mean
  return readings


def belief(model: Any, task: Any, seed: int) -> dict[str, float | Estimate | None]:
  """Returns what the residual stream holds of the belief, and how far it moves."""
  (steered,) = zoo.probing.steer(model, task, sites=[_SITE], seed=seed)
  return {
    'excess': _excess(model, task, seed),
    'bigram': _excess(task.baselines()['bigram'], task, seed),
    'beyond_rival': beyond_rival(model, task, seed),
    'slope': steered.slope,
  }


def beyond_rival(model: Any, task: Any, seed: int) -> Estimate | None:
  """Returns R² of the belief in the residual stream, beyond that of the rival."""
  scores = zoo.probing.probe_beliefs(model, task, sites=[_SITE], seed=seed)
  return scores[-1].beyond_rival  # The rows before the site are controls.


def coefficient(
  model: Any, task: Any, seed: int, chains: Mapping[str, Any]
) -> Estimate:
  """Returns the local learning coefficient, for the loss after every example."""
  of_task = loss_of(task)

  def losses(model: Any, prompt: Prompt) -> Float[Array, ' b']:
    return of_task(model.predictions(prompt), prompt.targets).mean(axis=1)

  found = zoo.probing.local_learning_coefficient(
    model, task, losses, seed=seed, **chains, **_LENGTH
  )
  return found.value


def half_way(steps: Sequence[int], values: Sequence[float]) -> float:
  """Returns the step at which a curve has first made half of its change.

  Args:
    steps: The steps, ascending.
    values: The value at each step. The change is from the first one to the last.

  Returns:
    The step, as `crossing` finds it; the last one for a curve that does not change.
  """
  middle = (values[0] + values[-1]) / 2
  sign = 1 if values[-1] >= values[0] else -1
  return crossing(steps, [sign * (value - middle) for value in values])


def crossing(steps: Sequence[int], values: Sequence[float]) -> float:
  """Returns the step at which a curve first comes above 0.

  Args:
    steps: The steps, ascending.
    values: The value at each step. NaN counts as not above 0.

  Returns:
    The step. Between two steps the curve is a straight line in the logarithm of the
    step. The last step if the curve is never above 0.
  """
  above = [i for i, value in enumerate(values) if value > 0]
  if not above:
    return float(steps[-1])
  i = above[0]
  if i == 0 or not math.isfinite(values[i - 1]):
    return float(steps[i])
  share = values[i - 1] / (values[i - 1] - values[i])
  return float(steps[i - 1] * (steps[i] / steps[i - 1]) ** share)


def rank_correlation(values: Sequence[float], others: Sequence[float]) -> float:
  """Returns Spearman's rank correlation over the steps at which both are known.

  It is 0 if there are fewer than three, or if all of one kind are equal.
  """
  pairs = np.stack([values, others], axis=1)
  pairs = pairs[np.isfinite(pairs).all(axis=1)]
  if len(pairs) < 3 or 0 in np.ptp(pairs, axis=0):
    return 0.0
  # SciPy's types do not say that the result unpacks into a pair.
  correlation, _ = np.asarray(stats.spearmanr(pairs[:, 0], pairs[:, 1]))
  return float(correlation)


def _excess(model: Any, task: Any, seed: int) -> float:
  """Returns the loss at the query, above that of Bayes."""
  both = {'model': model, 'bayes': task.baselines()['bayes']}
  at_query = [task.context_length]
  losses = sample_losses(both, task, _NUM_PROMPTS, seed, lengths=at_query)
  return float((losses['model'] - losses['bayes']).mean())


def _curves(found: OverTraining, name: str) -> list[list[float]]:
  """Returns a reading at each step, in a list for each run; NaN where it is refused."""
  runs = dict.fromkeys(row.run for row in found.readings)
  steps = dict.fromkeys(row.step for row in found.readings)
  values = {
    (row.run, row.step): row.value.mean
    for row in found.readings
    if row.name == name and row.value is not None
  }
  return [[values.get((run, step), math.nan) for step in steps] for run in runs]


def _ratios(steps: Sequence[float], others: Sequence[float]) -> list[float]:
  return [step / other for step, other in zip(steps, others, strict=True)]


def _regression(runs: Sequence[Any]) -> tuple[dict[str, list[float]], list[Panel]]:
  steps = _STEPS['regression']
  found = over_training(runs, nearest, steps)
  excess, remaining = _curves(found, 'excess'), _curves(found, 'remaining')
  gd, ridge, fitted = (_curves(found, name) for name in (_GD, _RIDGE, _FITTED))
  halves = [half_way(steps, curve) for curve in excess]
  remains = [crossing(steps, np.subtract(curve, 0.5).tolist()) for curve in remaining]
  nearer = [
    crossing(steps, np.log(np.divide(*pair)).tolist())
    for pair in zip(gd, ridge, strict=True)
  ]
  beyond = _curves(over_training(runs, beyond_rival, steps[-1:]), '')
  numbers, coefficients = _coefficients('regression', runs, excess)
  numbers |= {
    'regression_half': halves,
    'regression_remains': _ratios(remains, halves),
    'regression_ridge': _ratios(nearer, halves),
    'regression_left': [curve[-1] for curve in ridge],
    'regression_belief': [curve[-1] for curve in beyond],
  }
  panel = Panel(
    'regression: candidates',
    'training step (log scale)',
    'share that is not explained (log scale)',
    (
      series('step of gradient descent', 'curve', VERMILION, steps, gd),
      series('ridge regression of Bayes', 'curve', BLUE, steps, ridge),
      series('nearest ridge regression', 'curve', GREEN, steps, fitted),
      _loss_line(steps, excess),
    ),
    x_scale='log',
    y_scale='log',
  )
  return numbers, [panel, *coefficients]


def _mess3(runs: Sequence[Any]) -> tuple[dict[str, list[float]], list[Panel]]:
  steps = _STEPS['mess3']
  found = over_training(runs, belief, steps)
  excess, bigram, beyond, slope = (
    _curves(found, name) for name in ('excess', 'bigram', 'beyond_rival', 'slope')
  )
  halves = [half_way(steps, curve) for curve in excess]
  # The loss is then half of what the best rule of one symbol has above Bayes.
  rests = [
    crossing(steps, (np.divide(known, 2) - curve).tolist())
    for known, curve in zip(bigram, excess, strict=True)
  ]
  believed = [half_way(steps, curve) for curve in beyond]
  steered = [half_way(steps, curve) for curve in slope]
  numbers, coefficients = _coefficients('mess3', runs, excess)
  numbers |= {
    'mess3_half': halves,
    'mess3_belief': _ratios(believed, halves),
    'mess3_belief_rest': _ratios(believed, rests),
    'mess3_steer': _ratios(steered, believed),
    'mess3_beyond': [curve[-1] for curve in beyond],
  }
  panel = Panel(
    'mess3: beliefs',
    'training step (log scale)',
    'share',
    (
      series('belief, beyond the rival (R²)', 'curve', BLUE, steps, beyond),
      series('steered predictions (slope)', 'curve', GREEN, steps, slope),
      _loss_line(steps, excess),
    ),
    x_scale='log',
  )
  return numbers, [panel, *coefficients]


def _coefficients(
  task: str, runs: Sequence[Any], excess: Sequence[Sequence[float]]
) -> tuple[dict[str, list[float]], list[Panel]]:
  """Returns how the learning coefficient goes with the loss, and its panel.

  There is no panel if the coefficient is refused everywhere.
  """
  steps = _COEFFICIENT_STEPS[task]
  instrument = functools.partial(coefficient, chains=_CHAINS[task])
  found = _curves(over_training(runs, instrument, steps), '')
  at = [_STEPS[task].index(step) for step in steps]
  numbers = {
    f'{task}_coefficient': [
      rank_correlation([curve[i] for i in at], own)
      for curve, own in zip(excess, found, strict=True)
    ],
    f'{task}_coefficients': [float(np.isfinite(own).sum()) for own in found],
  }
  lines = []
  for seed, colour, own in zip(_SEEDS, _COLOURS, found, strict=False):
    at_steps, values, known = np.array(steps), np.array(own), np.isfinite(own)
    if known.any():
      line = series(f'seed {seed}', 'dots', colour, at_steps[known], values[known])
      lines.append(line)
  panel = Panel(
    f'{task}: coefficient',
    'training step (log scale)',
    'local learning coefficient',
    tuple(lines),
    x_scale='log',
  )
  return numbers, [panel] if lines else []


def _loss_line(steps: Sequence[int], excess: Sequence[Sequence[float]]) -> Series:
  """Returns the loss above Bayes, as a share of its first value, for a panel."""
  shares = [[value / curve[0] for value in curve] for curve in excess]
  return series(
    'loss above Bayes, share of the first', 'dashed curve', BLACK, steps, shares
  )


HEADLINE = Study(
  name='appearance',
  statement=(
    'Ridge regression and beliefs appear after the loss has made half of its fall.'
  ),
  setting=(
    'Linear regression, d = 5, C = 10, σ² = 0.25, three layers of width 32, 2048 steps '
    'of 64 prompts; Mess3, C = 15, two layers of width 32, 1024 steps of 128 prompts; '
    '3 seeds. Ratios of steps: the first step with a remaining candidate, the step '
    'from which ridge regression explains more than the step of gradient descent of '
    'lowest loss, and the step at which the belief beyond the rival has made half of '
    'its change, each over the step at which the loss has made half of its fall; and '
    'the rank correlation of loss and local learning coefficient.'
  ),
  source='arXiv 2402.02364; arXiv 2405.15943; arXiv 2308.12108',
  expected={
    'regression_remains': Expected(0.7, 2.8, 'within a factor of 2 of a trial, 1.4'),
    'regression_ridge': Expected(2.0, 8.0, 'within a factor of 2 of a trial, 4.1'),
    'regression_left': at_most(0.25, 'ridge regression has come; a trial left 0.11'),
    'regression_belief': at_most(
      0.2, 'the weights are needed at the query alone; a trial had 0.00'
    ),
    'regression_coefficient': at_most(
      -0.8, 'it grows as the loss falls: 1.8, 5.3 and 11.7 in a trial'
    ),
    'mess3_belief': at_least(
      3.0, 'about 10 in a trial: the first fall is of the scale'
    ),
    'mess3_belief_rest': Expected(1.25, 5.0, 'within a factor of 2 of a trial, 2.5'),
    'mess3_steer': Expected(0.5, 2.0, 'held and read together; 0.85 in a trial'),
    'mess3_beyond': at_least(0.9, 'the belief has come; a trial had 0.98'),
  },
  minutes=29,
  measure=measure,
)
