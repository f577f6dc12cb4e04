"""Two layers of attention or Mamba predict almost as well as the forward algorithm."""

import math

import jax.numpy as jnp
import numpy as np

from studies.runner import Trainer, load
from studies.study import Measurement, Study, at_most
from zoo.measure.curve import sample_predictions
from zoo.reports.plots import Panel, series
from zoo.reports.style import BLUE, GREEN, PURPLE, VERMILION
from zoo.tasks import HiddenMarkov

_TASK = HiddenMarkov()
_NUM_PROMPTS = 4096
_FIELDS = {
  'model.num_layers': 2,
  'model.num_heads': 2,
  'model.width': 64,
  'model.tokens': 'shifted',
  'train.num_steps': 1500,
  'train.batch_size': 32,
  'optimizer.learning_rate': 2e-3,
  'optimizer.warmup_steps': 100,
  'eval.num_compared': 0,
}
_MODELS = {
  'softmax': {'model.positions': 'rotary'},
  'mamba': {'model.mixer': 'mamba', 'model.positions': 'none'},
}
_COLOURS = BLUE, VERMILION, GREEN, PURPLE
# The predictors in the legend of the figure.
_WORDS = {
  'softmax': 'softmax attention',
  'mamba': 'Mamba',
  'trigram': 'trigram rule',
  'bigram': 'bigram rule',
}


def measure(train: Trainer) -> Measurement:
  known = {name: _TASK.baselines()[name] for name in ('bayes', 'trigram', 'bigram')}
  subjects = {}
  for name, own in _MODELS.items():
    config = 'transformer:gpt2_tiny,task=hidden_markov'
    (row,) = train(name, config, {**_FIELDS, **own})
    subjects[name] = load(row)
  predictions = sample_predictions({**subjects, **known}, _TASK, _NUM_PROMPTS)
  losses = {
    name: np.asarray(
      _TASK.loss(*map(jnp.asarray, (predictions[name], predictions['target'])))
    ).mean(axis=0)
    for name in (*subjects, *known)
  }
  bayes = losses.pop('bayes')
  excess = {name: (loss - bayes) / math.log(2) for name, loss in losses.items()}
  lengths = range(1, len(bayes) + 1)
  panel = Panel(
    'a',
    'symbols seen',
    'loss above the forward algorithm, bits',
    tuple(
      series(_WORDS[name], 'curve', colour, lengths, values)
      for (name, values), colour in zip(excess.items(), _COLOURS, strict=True)
    ),
  )
  means = {name: float(values.mean()) for name, values in excess.items()}
  numbers = {f'excess_{name}': mean for name, mean in means.items()}
  shares = {f'share_{name}': means[name] / means['trigram'] for name in subjects}
  return Measurement({**numbers, **shares}, (panel,))


_LINE = 'far below the best rule of two symbols: they remember more'

HEADLINE = Study(
  name='filter',
  statement=(
    'One seed: attention and Mamba come near the forward algorithm of a hidden chain.'
  ),
  setting=(
    'One hidden chain of 8 states, which stay with probability 0.9 or more, and 8 '
    'symbols, 101 of them; 2 layers of width 64, 1500 steps of 32 sequences: the mean '
    'loss above the forward algorithm, in bits, and its share of that of the '
    'law given two symbols.'
  ),
  source='arXiv 2512.22471',
  expected={f'share_{name}': at_most(0.5, _LINE) for name in _MODELS},
  minutes=20,
  measure=measure,
)
