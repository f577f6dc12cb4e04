"""States whose transitions have negative or complex eigenvalues can follow a parity.

All models are trained for the same number of steps on the same prompts. The learning
rate of each model is searched with a seed of its own: it is the rate with the lowest
loss on held-out prompts of the length of training. The measured prompts are longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from studies.runner import Trainer, best, load
from studies.study import Measurement, Study, at_least, at_most
from zoo.measure.curve import sample_predictions
from zoo.reports.plots import Panel, Series, series
from zoo.reports.style import BLACK, BLUE, GREEN, GREY, ORANGE, VERMILION
from zoo.tasks import ModularAddition, ParityPrefix

_TRAINED, _LENGTH = 40, 256  # the most symbols in training, and those in the test
_LONG = slice(4 * _TRAINED - 1, 6 * _TRAINED)
_SHORT = slice(_TRAINED)
_NUM_PROMPTS = 1024
_SEEDS = range(3)
_SEARCH_SEED, _SEARCH_STEPS = 3, 3000
_RATES = 1e-3, 3e-3, 1e-2, 3e-2
_FIELDS = {
  'task.context_length': _TRAINED - 1,
  'model.num_layers': 1,
  'model.width': 32,
  'model.num_heads': 8,
  'model.init_scale': 0.5,  # some angles and rates of mamba3 then start large
  'model.feed_forward': 'none',
  'model.positions': 'none',
  'model.tokens': 'shifted',
  # The loss counts symbols 0 to 5 at first, and two more after each 100 steps.
  'curriculum.name': 'growing',
  'curriculum.every': 100,
  'curriculum.examples': 5,
  'curriculum.more_examples': 2,
  'train.num_steps': 12_000,
  'train.batch_size': 32,
  'optimizer.warmup_steps': 100,
  # After many steps with almost no gradient, Adam's next step would be so large that it
  # undoes what was learned. A shorter memory and clipping prevent this.
  'optimizer.beta2': 0.95,
  'optimizer.clip_norm': 1.0,
  'eval.num_batches': 4,
  'eval.num_compared': 0,
}
_NEGATIVE = {'model.mixer_options.negative_eigenvalues': True}
_TURNING = {'model.mixer_options.state_size': 16}
# The task, the mixer and the further fields of each model, in the order of the figure.
_MODELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
  'parity_delta_negative': ('parity_prefix', 'delta', _NEGATIVE),
  'parity_mamba3': ('parity_prefix', 'mamba3', _TURNING),
  'addition_mamba3': ('modular_addition', 'mamba3', _TURNING),
  'parity_delta': ('parity_prefix', 'delta', {}),
  'parity_mamba2': ('parity_prefix', 'mamba2', {}),
  'parity_softmax': ('parity_prefix', 'softmax', {}),
}
# The models in the legend of the figure.
_WORDS = {
  'parity_delta_negative': 'parity, delta, eigenvalues in [−1, 1]',
  'parity_mamba3': 'parity, mamba3',
  'addition_mamba3': 'sums modulo 3, mamba3',
  'parity_delta': 'parity, delta, eigenvalues in [0, 1]',
  'parity_mamba2': 'parity, mamba2',
  'parity_softmax': 'parity, softmax attention',
}
_SOLVE = 'parity_delta_negative', 'parity_mamba3', 'addition_mamba3'
_COLOURS = BLUE, GREEN, ORANGE, VERMILION, BLACK, BLACK
_TASKS = {
  'parity_prefix': ParityPrefix(_LENGTH - 1),
  'modular_addition': ModularAddition(3, _LENGTH - 1),
}


def measure(train: Trainer) -> Measurement:
  numbers, lines = {}, []
  for (name, (task, _, _)), colour in zip(_MODELS.items(), _COLOURS, strict=True):
    accuracies = [accuracy(model, task) for model in trained(name, train)]
    numbers[name] = [float(curve[_LONG].mean()) for curve in accuracies]
    numbers[f'{name}_{_TRAINED}'] = [
      float(curve[_SHORT].mean()) for curve in accuracies
    ]
    lines += _lines(name, colour, accuracies)
  lines.append(series('longest prompt of training', 'mark', GREY, [_TRAINED], [0.0]))
  panel = Panel('a', 'symbols read', 'scaled accuracy, 0 at chance', tuple(lines))
  return Measurement(numbers, (panel,))


def trained(name: str, train: Trainer) -> list[Any]:
  """Returns the trained models of a name, one for each seed."""
  task, mixer, own = _MODELS[name]
  config = f'transformer:gpt2_tiny,task={task}'
  fields = {**_FIELDS, 'model.mixer': mixer, **own}
  search = {**fields, 'train.num_steps': _SEARCH_STEPS, 'seed': _SEARCH_SEED}
  rates = [{'optimizer.learning_rate': rate} for rate in _RATES]
  rate = best(train(f'{name}_rate', config, search, rates))['optimizer.learning_rate']
  seeds = [{'seed': seed} for seed in _SEEDS]
  rows = train(name, config, {**fields, 'optimizer.learning_rate': rate}, seeds)
  return [load(row) for row in rows]


def accuracy(model: Any, task: str) -> Float[np.ndarray, ' t']:
  """Measures (accuracy − chance) / (1 − chance) after each symbol."""
  predictions = sample_predictions({'model': model}, _TASKS[task], _NUM_PROMPTS)
  right = predictions['model'].argmax(axis=-1) == predictions['target'].argmax(axis=-1)
  chance = 1 / predictions['target'].shape[-1]
  return (right.mean(axis=0) - chance) / (1 - chance)


def _lines(
  name: str, colour: str, accuracies: list[Float[np.ndarray, ' t']]
) -> list[Series]:
  """Returns the mean over seeds, and over each 16 neighbouring symbols, as a line."""
  mean = np.mean(accuracies, axis=0).reshape(-1, 16).mean(axis=1)
  kind = 'dashed' if name == 'parity_softmax' else 'curve'
  return [series(_WORDS[name], kind, colour, range(8, _LENGTH, 16), mean)]


_TABLE = 'Grazzi et al., parity with eigenvalues in '

HEADLINE = Study(
  name='state_tracking',
  statement='Eigenvalues below 0 or complex ones follow a parity; others do not.',
  setting=(
    'Parity and sums modulo 3 after each symbol, by one layer of width 32 without '
    'positions and feed-forward network, trained on up to 40 symbols for 12,000 steps '
    'of 32 prompts, each model at the best of four learning rates, 3 seeds: (accuracy '
    '− chance)/(1 − chance) on prompts of 256 symbols, over the symbols 160 to 240; '
    'names that end in 40 are over the first 40.'
  ),
  source='Grazzi et al., arXiv 2411.12537, Table 1; Mamba-3, arXiv 2603.15569',
  expected={
    'parity_delta_negative': at_least(0.99, _TABLE + '[−1, 1]: 1'),
    'parity_mamba3': at_least(0.99, 'Mamba-3: 100 % with rotation, 2.3 % without'),
    'addition_mamba3': at_least(0.99, 'the angle 2π x/3 is one rotation, as x π is'),
    'parity_delta': at_most(0.1, _TABLE + '[0, 1]: 0.017'),
    'parity_mamba2': at_most(0.1, 'Mamba-3: 0.9 % for Mamba-2'),
    'parity_softmax': at_most(0.1, 'Grazzi et al., a transformer: 0.022'),
  },
  minutes=51,
  measure=measure,
)
