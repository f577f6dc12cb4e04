"""The loss of few-shot recall waits at ln 2, and falls when induction is learned."""

import math
from collections.abc import Sequence

import numpy as np

from studies.runner import Trainer, history
from studies.study import Measurement, Study, at_least, at_most, near
from zoo.reports.plots import Panel, level, series
from zoo.reports.style import PALETTE

_WIDTH = 0.05  # losses within ± this many nats are one plateau
_SEEDS = [{'seed': seed} for seed in range(3)]
_FIELDS = {
  'task.num_keys': 50,
  'task.num_values': 5,
  'task.context_length': 2,
  'task.num_pairs': 2,
  'objective.positions': 'query',
  'model.num_layers': 2,
  'model.width': 64,
  'model.num_heads': 8,
  'model.feed_forward': 'none',
  'model.positions': 'rotary',
  'train.num_steps': 62_500,
  'train.batch_size': 32,
  'optimizer.learning_rate': 1e-5,
  'optimizer.warmup_steps': 0,
  'optimizer.schedule': 'constant',
  'eval.every': 250,
  'eval.num_batches': 32,
  'eval.num_compared': 0,
}


def measure(train: Trainer) -> Measurement:
  rows = train(
    'models', 'transformer:gpt2_tiny,task=associative_recall', _FIELDS, _SEEDS
  )
  curves = [history(row) for row in rows]
  waits = [plateau(*curve) for curve in curves]
  farthest = max((wait[0] for wait in waits), key=lambda at: abs(at - math.log(2)))
  panel = Panel(
    'a',
    'training step',
    'loss of the query, nats',
    (
      *(
        series(f'seed {seed}', 'curve', PALETTE[seed], *curve)
        for seed, curve in enumerate(curves)
      ),
      level('ln 2', math.log(2), curves[0][0]),
    ),
  )
  numbers = {
    'plateau': farthest,
    'share': min(wait[1] for wait in waits),
    'end': max(risks[-1] for _, risks in curves),
  }
  return Measurement(numbers, (panel,))


def plateau(steps: Sequence[int], losses: Sequence[float]) -> tuple[float, float]:
  """Finds the plateau of a training curve.

  The plateau is the longest run of logged losses within ± 0.05 of their middle, before
  the loss first falls below ln 2 / 2.

  Args:
    steps: The logged steps, increasing.
    losses: The loss at each of these steps.

  Returns:
    The middle of the losses of the plateau, and the steps that it takes as a share of
    the steps until the loss falls, or of all steps if it never falls.
  """
  below = np.flatnonzero(np.asarray(losses) < math.log(2) / 2)
  end = int(below[0]) if below.size else len(losses)
  longest = 0, 0
  for start in range(end):
    for stop in range(start + 1, end + 1):
      part = losses[start:stop]
      if max(part) - min(part) > 2 * _WIDTH:
        break
      longest = max(longest, (stop - start, start))
  length, start = longest
  part = losses[start : start + length]
  total = steps[min(end, len(steps) - 1)]
  waited = steps[start + length - 1] - steps[start] if length else 0
  return (max(part) + min(part)) / 2 if length else math.nan, waited / total


HEADLINE = Study(
  name='induction',
  statement='The loss of few-shot recall waits at ln 2 before an induction head forms.',
  setting=(
    'Two pairs of a class and a label, new in every prompt, then one of the two '
    'classes, of 50 one-hot classes and 5 labels; attention only, 2 layers, width 64, '
    '8 heads, 62,500 steps of 32 prompts, Adam 1e-5: the loss at the query, 3 seeds.'
  ),
  source='Singh et al., arXiv 2404.07129',
  expected={
    'plateau': near(
      math.log(2),
      _WIDTH,
      'one of the two labels at random costs ln 2; the loss at which it waits longest',
    ),
    'share': at_least(
      0.1, 'it waits and does not just pass: a tenth of the steps until the drop'
    ),
    'end': at_most(math.log(2) / 10, 'then it drops: a tenth of the plateau'),
  },
  minutes=7,
  measure=measure,
)
