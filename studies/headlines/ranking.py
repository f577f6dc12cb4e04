"""Architectures differ widely in how well they learn a linear function in context."""

import numpy as np
from scipy import stats

from studies.headlines.short import SHORT
from studies.runner import Trainer, load
from studies.study import Measurement, Study, at_least, at_most
from zoo.measure.curve import sample_predictions
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLACK, GREY, PALETTE
from zoo.tasks import LinearRegression

_D, _LENGTH, _LONGEST = 5, 8, 32
# Each model has its config, its fields, and the error that the source has for it at
# d = 20 after 31 examples.
_MODELS = {
  'softmax': ('transformer', {'model.positions': 'rotary'}, 0.01),
  'retention': ('transformer', {'model.positions': 'rotary'}, 0.02),
  'mamba2': ('transformer', {'model.positions': 'none'}, 0.03),
  'hyena': ('transformer', {'model.positions': 'none'}, 1.16),
  'lstm': ('lstm', {}, 4.39),
  'gru': ('gru', {}, 4.94),
  's4d': ('transformer', {'model.positions': 'none'}, 5.23),
}
_FIELDS = {
  **SHORT,
  'task.num_features': _D,
  'task.context_length': _LENGTH,
  'task.prior_mean': 0.0,
  'model.width': 64,
  'model.tokens': 'interleaved',
}


def measure(train: Trainer) -> Measurement:
  task = LinearRegression(_D, _LONGEST)
  curves = {}
  for name, (config, fields, _) in _MODELS.items():
    fields = {**_FIELDS, **fields}
    if config == 'transformer':
      fields['model.mixer'] = name
    (row,) = train(name, config, fields)
    predictions = sample_predictions({'model': load(row)}, task, 4096)
    errors = np.square(predictions['model'] - predictions['target']).mean(axis=0)
    curves[name] = errors / _D
  at_end = {name: float(curve[_LENGTH]) for name, curve in curves.items()}
  growth = {
    name: float(curve[_LONGEST] / curve[_LENGTH]) for name, curve in curves.items()
  }
  known = [error for _, _, error in _MODELS.values()]
  good, poor = ('softmax', 'retention', 'mamba2'), ('lstm', 'gru', 's4d')
  # SciPy's types do not say that the result unpacks into a pair.
  spearman, _ = np.asarray(stats.spearmanr(known, [*at_end.values()]))
  numbers = {
    'rank_correlation': float(spearman),
    'best_recurrent': min(at_end[name] for name in poor)
    / max(at_end[name] for name in good),
    'retention_beyond': growth['retention'],
    'softmax_beyond': growth['softmax'],
  }
  count = np.arange(_LONGEST + 1)
  colours = *PALETTE, BLACK
  panel = Panel(
    'a',
    'examples before the query',
    'squared error / d (log scale)',
    (
      *(
        series(name, 'curve', colour, count, curve)
        for (name, curve), colour in zip(curves.items(), colours, strict=True)
      ),
      series('longest prompt of training', 'mark', GREY, [_LENGTH], [1.0]),
    ),
    y_scale='log',
  )
  return Measurement(numbers, (panel,))


_NOTEBOOK = 'linear regression in its notebook: '

HEADLINE = Study(
  name='ranking',
  statement=(
    'One seed: attention, RetNet and Mamba learn linear functions; LSTM, GRU, S4 '
    'hardly.'
  ),
  setting=(
    'Noiseless linear regression, d = 5, 8 examples; 2 layers of width 64, Mamba-2 '
    'and S4D for Mamba and S4, after 4000 steps of 64 prompts, Adam 1e-3: the error '
    'after 8 examples, and beyond, that after 32 over that after 8.'
  ),
  source='Lee et al., arXiv 2310.08049',
  expected={
    'rank_correlation': at_least(
      0.714, _NOTEBOOK + 'its order; 5 % level of Spearman’s rank test for 7 models'
    ),
    'best_recurrent': at_least(
      1, _NOTEBOOK + 'all of LSTM, GRU, S4 are worse than attention, RetNet and Mamba'
    ),
    'retention_beyond': at_most(
      1, 'only RetNet does not fail beyond twice the training length'
    ),
    'softmax_beyond': at_least(1, 'attention fails beyond twice the training length'),
  },
  minutes=6,
  measure=measure,
)
