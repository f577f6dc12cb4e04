"""In-context learning comes first, and goes while classes are learned in weights.

It is measured for one number of classes. Settings and ranges were fixed after trials
with the seeds 0 and 1, which studies/headlines/SETTINGS.md lists. The seeds here were
not used in these trials.
"""

from __future__ import annotations

from collections.abc import Sequence

from studies.headlines.clusters import (
  CHANCE,
  FIELDS,
  accuracies,
  half_bursty,
  prompts_of,
)
from studies.runner import Trainer, load
from studies.study import Measurement, Study, at_least, at_most
from zoo.reports.plots import Panel, level, series
from zoo.reports.style import BLUE, VERMILION

_NUM_CLASSES = 2048
_SEEDS = range(2, 7)
_STEPS = tuple(range(250, 3001, 250))  # accuracies are measured after each of these
_FIELDS = {
  **FIELDS,
  **half_bursty(_NUM_CLASSES),
  'optimizer.name': 'adamw',
  'optimizer.decay': 'hidden,embedding',
}
# The decay of weights, which the learning rate multiplies. With a decay of 0.3
# in-context learning goes, too. With 2 next to nothing is learned in weights.
_DECAYS = {'free': 0.0, 'decayed': 2.0}


def measure(train: Trainer) -> Measurement:
  fields = {
    **_FIELDS,
    'train.num_steps': _STEPS[-1],
    'train.log_every': _STEPS[0],
    'checkpoint.every': _STEPS[0],
    'checkpoint.keep': len(_STEPS),
  }
  prompts = prompts_of(_NUM_CLASSES, 4)
  numbers, panels = {}, []
  for name, decay in _DECAYS.items():
    own = {**fields, 'optimizer.weight_decay': decay}
    in_context, in_weights = [], []
    for seed in _SEEDS:
      # Each seed is trained by itself, since several seeds in one program save no
      # checkpoints during training.
      (row,) = train(
        f'{name}_{seed}', 'transformer:gpt2_tiny,task=mixture', own, [{'seed': seed}]
      )
      shares = [accuracies(load(row, step), prompts) for step in _STEPS]
      in_context.append([share['in_context'] for share in shares])
      in_weights.append([share['in_weights'] for share in shares])
    numbers |= {
      f'{name}_peak': [max(curve) for curve in in_context],
      f'{name}_drop': [max(curve) - curve[-1] for curve in in_context],
      f'{name}_in_weights': [curve[-1] for curve in in_weights],
    }
    panels.append(_panel(decay, in_context, in_weights))
  return Measurement(numbers, tuple(panels))


def _panel(
  decay: float,
  in_context: Sequence[Sequence[float]],
  in_weights: Sequence[Sequence[float]],
) -> Panel:
  """Returns a panel of the shares after each step; rows are seeds."""
  return Panel(
    f'weight decay {decay:g}',
    'training step',
    'share of right labels',
    (
      series('in context', 'curve', BLUE, _STEPS, in_context),
      series('in weights', 'curve', VERMILION, _STEPS, in_weights),
      level('chance', CHANCE, _STEPS),
    ),
  )


HEADLINE = Study(
  name='transience',
  statement=(
    'With 2048 classes in-context learning comes, and goes as weights learn them.'
  ),
  setting=(
    'The labelled clusters and the model of `clusters`, K = 2048, half of the prompts '
    'with B = 4, half without bursts, 3000 steps of 128 prompts, AdamW 3e-3 with and '
    'without a weight decay of 2: the largest share of right labels for new classes '
    'at every 250th step, that minus the last one, and the last one in weights. Five '
    'seeds.'
  ),
  source='Singh et al., arXiv 2311.08360',
  expected={
    'free_peak': at_least(0.5, 'it comes: nearer to 1 than to chance, 1/32'),
    'free_drop': at_least(0.5, 'it goes: by more than half; in the source to chance'),
    'free_in_weights': at_least(0.9, 'what it gives way to'),
    'decayed_peak': at_least(0.5, 'it comes'),
    'decayed_drop': at_most(0.1, 'with a weight decay of 2 it stays'),
  },
  minutes=29,
  measure=measure,
)
