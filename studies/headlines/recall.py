"""One-head attention recalls values by their keys."""

from studies.runner import Trainer, best, history, load
from studies.study import Measurement, Study, at_least, near
from zoo.measure.curve import sample_predictions
from zoo.reports.plots import Panel, level, series
from zoo.reports.style import BLUE, VERMILION
from zoo.tasks import AssociativeRecall

_NUM_PAIRS, _NUM_KEYS, _LENGTH = 4, 64, 31
_TASK = AssociativeRecall(_NUM_KEYS, _NUM_KEYS, _LENGTH, _NUM_PAIRS)
_FIELDS = {
  'task.num_keys': _NUM_KEYS,
  'task.num_values': _NUM_KEYS,
  'task.context_length': _LENGTH,
  'task.num_pairs': _NUM_PAIRS,
  'model.num_layers': 2,
  'model.width': 64,
  'model.num_heads': 1,
  'model.feed_forward': 'none',
  'train.num_steps': 2000,
  'train.batch_size': 64,
  'eval.every': 250,
  'eval.num_batches': 16,
  'eval.num_compared': 0,
}
_RATES = 4.6e-4, 2.2e-3  # the middle two of the four rates of the source


def measure(train: Trainer) -> Measurement:
  points = [{'optimizer.learning_rate': rate} for rate in _RATES]
  rows = train(
    'models', 'transformer:gpt2_tiny,task=associative_recall', _FIELDS, points
  )
  model = load(best(rows))
  predictions = sample_predictions({'model': model}, _TASK, 4096)
  right = predictions['model'].argmax(axis=-1) == predictions['target'].argmax(axis=-1)
  accuracy = right.mean(axis=0)
  numbers = {
    'accuracy': float(accuracy[_NUM_PAIRS:].mean()),
    'new_keys': float(accuracy[0]),
  }
  count = range(_LENGTH + 1)
  steps, risks = history(best(rows))
  by_example = Panel(
    'a',
    'pairs before the query',
    'share of values that are right',
    (
      series('attention', 'dots', BLUE, count, accuracy),
      level('all', 1.0, count),
    ),
  )
  learning = Panel(
    'b',
    'training step',
    'loss of the query, nats',
    (series('attention, held out', 'curve', VERMILION, steps, risks),),
  )
  return Measurement(numbers, (by_example, learning))


HEADLINE = Study(
  name='recall',
  statement=(
    'One seed: two layers of one-head attention solve multi-query recall at T = 64.'
  ),
  setting=(
    '4 keys with their values, then 28 queries, each for one of these keys at random, '
    'with its value, of 64 keys and 64 values; softmax attention, 2 layers, width 64, '
    '1 head, 2000 steps of 64 prompts: the better of two rates.'
  ),
  source='Arora et al. (zoology), arXiv 2312.04927, Fig. 2',
  expected={
    'accuracy': at_least(
      0.99, 'Fig. 2: > .99 at width 64; an independent run on a CPU has .9917'
    ),
    # The width is three standard errors of 4096 draws with a probability of 1/64.
    'new_keys': near(1 / 64, 0.006, 'chance: the key has not been shown yet'),
  },
  minutes=7,
  measure=measure,
)
