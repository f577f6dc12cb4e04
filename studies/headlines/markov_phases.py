"""On Markov chains a transformer goes from uniform to unigram to bigram predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import log_softmax, xlogy

from studies.runner import Trainer, load
from studies.study import Expected, Measurement, Study, at_most, near
from zoo.measure.curve import sample_predictions
from zoo.reports.plots import Panel, level, series
from zoo.reports.style import BLUE, GREEN, VERMILION
from zoo.tasks import MarkovChain

_TASK = MarkovChain(num_symbols=2, context_length=100)
_PHASES = {'zero': 'uniform', 'unigram': 'unigram', 'bigram': 'bigram'}
_COLOURS = GREEN, VERMILION, BLUE
# The number of steps, and the steps between checkpoints. The first 50 steps are trained
# twice with bit-identical results, to save more checkpoints of them.
_PARTS = {'start': (50, 5), 'whole': (2000, 50)}
_NUM_PROMPTS = 4096
_FIELDS = {
  'model.num_layers': 2,
  'model.num_heads': 1,
  'model.width': 16,
  'model.feed_forward': 'none',
  'model.positions': 'rotary',
  'model.tokens': 'shifted',
  # minGPT has this scale, with which the first predictions are uniform.
  'model.init_scale': 0.02,
  'train.batch_size': 64,
  'optimizer.learning_rate': 1e-3,
  'optimizer.schedule': 'constant',
  'optimizer.warmup_steps': 0,
  'eval.num_compared': 0,
}


def measure(train: Trainer) -> Measurement:
  clean, observed = (_measure(train, labels) for labels in ('clean', 'observed'))
  of_models = 'kl_model', 'phases', 'unigram_phase'
  numbers = {f'{name}_observed': observed.numbers[name] for name in of_models}
  others = [
    dataclasses.replace(panel, key=key)
    for key, panel in zip('cd', observed.panels, strict=True)
  ]
  return Measurement({**clean.numbers, **numbers}, (*clean.panels, *others))


def _measure(train: Trainer, labels: str) -> Measurement:
  """Trains on one kind of labels and measures.

  Args:
    train: Trains the models.
    labels: `clean` for the true rows of the chains, or `observed` for drawn symbols, as
      in the source.

  Returns:
    The measured numbers, and the panels of the picture.
  """
  saved = {}
  for name, (last, every) in _PARTS.items():
    fields = {
      **_FIELDS,
      'objective.labels': labels,
      'train.num_steps': last,
      'train.log_every': every,
      'checkpoint.every': every,
      'checkpoint.keep': last // every,
    }
    (row,) = train(name, 'transformer:gpt2_tiny,task=markov_chain', fields)
    saved |= dict.fromkeys(range(every, last + 1, every), row)
  steps = [*saved]
  known = {name: _TASK.baselines()[name] for name in _PHASES}
  of_known = sample_predictions(known, _TASK, _NUM_PROMPTS)
  truth = of_known['target']
  logs = {name: log_softmax(of_known[name], axis=-1) for name in known}
  risks, distances = [], {name: [] for name in known}
  for step, row in saved.items():
    model = load(row, step)
    predictions = sample_predictions({'model': model}, _TASK, _NUM_PROMPTS)
    log_model = log_softmax(predictions['model'], axis=-1)
    risks.append(_divergence(truth, log_model))
    for name, log_known in logs.items():
      distances[name].append(_divergence(np.exp(log_known), log_model))
  divergences = np.array([*distances.values()])
  nearest = divergences.argmin(axis=0)
  lines = {name: _divergence(truth, log) for name, log in logs.items()}
  to_uniform = _divergence(np.exp(logs['unigram']), logs['zero'])
  numbers = {
    'kl_uniform': lines['zero'],
    'kl_unigram': lines['unigram'],
    'kl_bigram': lines['bigram'],
    'kl_model': risks[-1],
    'phases': float(len(set(nearest)) if np.all(np.diff(nearest) >= 0) else 0),
    'unigram_phase': min(distances['unigram']) / to_uniform,
  }
  return Measurement(numbers, _panels(steps, risks, lines, distances))


def _panels(
  steps: Sequence[int],
  risks: Sequence[float],
  lines: Mapping[str, float],
  distances: Mapping[str, Sequence[float]],
) -> tuple[Panel, Panel]:
  colours = dict(zip(lines, _COLOURS, strict=True))
  learning = Panel(
    'a',
    'training step (log scale)',
    'KL to the truth, nats (log scale)',
    (
      series('model', 'curve', '#000000', steps, risks),
      *(
        level(_PHASES[name], lines[name], steps, colour)
        for name, colour in colours.items()
      ),
    ),
    x_scale='log',
    y_scale='log',
  )
  phases = Panel(
    'b',
    'training step (log scale)',
    'KL to the strategy, nats (log scale)',
    tuple(
      series(_PHASES[name], 'curve', colour, steps, distances[name])
      for name, colour in colours.items()
    ),
    x_scale='log',
    y_scale='log',
  )
  return learning, phases


def _divergence(
  p: Float[np.ndarray, 'p t s'], log_q: Float[np.ndarray, 'p t s']
) -> float:
  """Returns the mean of KL(p ‖ q) at the last symbol, in nats."""
  p, log_q = p[:, -1].astype(float), log_q[:, -1].astype(float)
  return float(np.mean(np.sum(xlogy(p, p) - p * log_q, axis=-1)))


_LINES = 'measured independently; five standard errors of this sample'

_OF_MODELS = {
  'kl_model': Expected(
    0.0082,
    0.0184,
    'no better than the bigram counts, .0092 ± .001, and at most as far from them as '
    'they are from the truth; unigram counts are nine times as far',
  ),
  'phases': near(3, 0, 'all three in this order; 0 if it returns to an earlier one'),
  'unigram_phase': at_most(
    0.5,
    'the least KL from unigram to the model, over that to uniform: it comes near',
  ),
}

HEADLINE = Study(
  name='markov_phases',
  statement=(
    'One seed: on Markov chains a transformer is uniform, then unigram, then bigram.'
  ),
  setting=(
    'Chains of 2 symbols with rows ~ Dirichlet(1, 1), 101 symbols; attention only, 2 '
    'layers, width 16, 1 head, 2000 steps of 64 chains: Kullback–Leibler divergences '
    'from the true row for the last symbol, and the nearest of the three strategies '
    'at every 5th, then every 50th step. Trained on true rows (a, b), and on drawn '
    'symbols, as in the source (c, d).'
  ),
  source='Edelman et al., arXiv 2402.11004, Fig. 1',
  expected={
    'kl_uniform': near(0.2175, 0.012, _LINES + ' (.216 and .219)'),
    'kl_unigram': near(0.084, 0.008, _LINES),
    'kl_bigram': near(0.0092, 0.001, _LINES),
    **_OF_MODELS,
    **{f'{name}_observed': range_ for name, range_ in _OF_MODELS.items()},
  },
  minutes=3,
  measure=measure,
)
