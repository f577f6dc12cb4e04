"""One Mamba layer counts transitions as Bayes does, if it has its convolution."""

import numpy as np
from scipy.special import log_softmax

from studies.runner import Trainer, load
from studies.study import Measurement, Study, at_least, at_most
from zoo.measure.curve import sample_predictions
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLUE, VERMILION
from zoo.tasks import MarkovChain

_TASK = MarkovChain(num_symbols=2, context_length=100)
_NUM_PROMPTS = 4096
_FIELDS = {
  'model.num_layers': 1,
  'model.num_heads': 1,
  'model.width': 16,
  'model.mixer': 'mamba',
  'model.feed_forward': 'none',
  'model.positions': 'none',
  'model.tokens': 'shifted',
  'train.num_steps': 3000,
  'train.batch_size': 64,
  'optimizer.learning_rate': 3e-3,
  'optimizer.warmup_steps': 50,
  'eval.num_compared': 0,
}
_MODELS = {'mamba': {}, 'without_convolution': {'convolution': False}}
# The models in the legend of the figure.
_WORDS = {'mamba': 'Mamba', 'without_convolution': 'Mamba without convolution'}


def measure(train: Trainer) -> Measurement:
  subjects = {'bayes': _TASK.baselines()['bayes']}
  for name, options in _MODELS.items():
    fields = {**_FIELDS, 'model.mixer_options': options}
    (row,) = train(name, 'transformer:gpt2_tiny,task=markov_chain', fields)
    subjects[name] = load(row)
  predictions = sample_predictions(subjects, _TASK, _NUM_PROMPTS)
  logs = {
    name: log_softmax(predictions[name].astype(float), axis=-1) for name in subjects
  }
  bayes, lengths = logs.pop('bayes'), range(_TASK.context_length + 1)
  divergences = {
    name: np.mean(np.sum(np.exp(bayes) * (bayes - log), axis=-1), axis=0)
    for name, log in logs.items()
  }
  colours = zip(divergences.items(), (BLUE, VERMILION), strict=True)
  panel = Panel(
    'a',
    'transitions seen',
    'KL from Bayes, nats (log scale)',
    tuple(
      series(_WORDS[name], 'curve', colour, lengths, values)
      for (name, values), colour in colours
    ),
    y_scale='log',
  )
  numbers = {f'kl_{name}': float(kl.mean()) for name, kl in divergences.items()}
  return Measurement(numbers, (panel,))


HEADLINE = Study(
  name='laplace',
  statement=(
    'One seed: one Mamba layer learns to count transitions, but not without '
    'convolution.'
  ),
  setting=(
    'Fresh chains of 2 symbols with rows ~ Dirichlet(1, 1), 101 symbols; one Mamba '
    'layer of width 16 without a network, 3000 steps of 64 chains: the mean KL from '
    'the Bayes predictor over all lengths.'
  ),
  source='Bondaschi et al., arXiv 2502.10178',
  expected={
    'kl_mamba': at_most(1e-3, 'one layer is the add-β rule, up to rounding'),
    'kl_without_convolution': at_least(
      1e-2, 'ten times as far: a token knows no symbol but its own'
    ),
  },
  minutes=10,
  measure=measure,
)
