"""Few classes are learned in weights, many in context, and both if bursts are mixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.prompt import Prompt
from zoo.reports.plots import Panel, level, series
from zoo.reports.style import BLUE, GREEN, VERMILION
from zoo.studies.runner import Trainer, load
from zoo.studies.study import Measurement, Study, at_least, at_most, near
from zoo.tasks import LabelledClusters
from zoo.tasks.labelled_clusters import TESTS

_CHANCE = 1 / 32  # of L labels
_NUM_PROMPTS = 8192
# The classes, K, of the models whose numbers have a range.
_FEW, _MANY, _BOTH = 32, 8192, 512
_SIZES = 32, 128, 512, 2048, 8192  # K of the figure
FIELDS = {
  'objective.positions': 'query',
  'model.num_layers': 2,
  'model.width': 64,
  'model.num_heads': 1,
  # A token holds an example and its label, so that a layer can compare the query with
  # examples. With a token for each no induction head forms in 3000 steps.
  'model.tokens': 'joint',
  'model.positions': 'none',
  'train.batch_size': 128,
  'optimizer.learning_rate': 3e-3,
  'optimizer.warmup_steps': 100,
  'optimizer.schedule': 'constant',
  'eval.num_batches': 16,
  'eval.num_compared': 0,
}
_TRAINED = {**FIELDS, 'train.num_steps': 1500}
_MIXED = {
  'task.parts': tuple(
    {'name': 'labelled_clusters', 'num_classes': _BOTH, 'burstiness': burstiness}
    for burstiness in (0, 4)
  ),
  'task.weights': (1.0, 1.0),
  'task.num_features': 63,
  'task.context_length': 8,
}


def measure(train: Trainer) -> Measurement:
  (mixed,) = train('both', 'transformer:gpt2_tiny,task=mixture', _TRAINED | _MIXED)
  models = {
    'few': _trained(train, _FEW, 0),
    'many': _trained(train, _MANY, 4),
    'both': accuracies(
      load(mixed), prompts_of(LabelledClusters(num_classes=_BOTH, burstiness=4))
    ),
  }
  numbers = {
    f'{name}_{test}': share
    for name, shares in models.items()
    for test, share in shares.items()
  }
  by_size = [_trained(train, size, 1) for size in _SIZES]
  lines = [
    series(
      test.replace('_', ' '),
      'curve',
      colour,
      _SIZES,
      [shares[test] for shares in by_size],
    )
    for test, colour in zip(TESTS, (BLUE, GREEN, VERMILION), strict=True)
  ]
  panel = Panel(
    'a',
    'classes, K (log scale)',
    'share of labels that are right',
    (*lines, level('chance', _CHANCE, _SIZES)),
    x_scale='log',
  )
  return Measurement(numbers, (panel,))


def _trained(train: Trainer, num_classes: int, burstiness: int) -> dict[str, float]:
  """The accuracies of a model that was trained on K classes in bursts of B."""
  sizes = {'num_classes': num_classes, 'burstiness': burstiness}
  own = {f'task.{name}': size for name, size in sizes.items()}
  name = f'{num_classes}_{burstiness}'
  (row,) = train(name, 'transformer:gpt2_tiny,task=labelled_clusters', _TRAINED | own)
  return accuracies(load(row), prompts_of(LabelledClusters(**sizes)))


def prompts_of(task: LabelledClusters) -> dict[str, Prompt]:
  """Prompts of each test of a task."""
  tests = task.shifts()
  key = jax.random.key(1)
  return {name: tests[name].sample(key, _NUM_PROMPTS) for name in TESTS}


def accuracies(model: nnx.Module, prompts: Mapping[str, Prompt]) -> dict[str, float]:
  """The share of right labels on each test."""
  return {test: float(_accuracy(model, prompts[test])) for test in TESTS}


@nnx.jit
def _accuracy(model: Any, prompt: Prompt) -> Float[Array, '']:
  right = model(prompt).argmax(axis=-1) == prompt.y_query.argmax(axis=-1)
  return jnp.mean(right.astype(float))


_FIGURE = 'Fig. 2: '

HEADLINE = Study(
  name='clusters',
  statement='Few classes are learned in weights, many in context, and both if mixed.',
  setting=(
    'D = 63, L = 32, N = 8, ε = 0.1; two layers of attention with one head, each with '
    'a network, width 64, joint tokens, after 1500 steps of 128 prompts, Adam 3e-3: the '
    'share of right labels for new classes (in context), for known ones with permuted '
    'labels (swapped), and for known ones that are not in the context (in weights). '
    'Few: K = 32, no bursts. Many: K = 8192, B = 4. Both: K = 512, half of the prompts '
    'with B = 4, half without bursts.'
  ),
  source='Reddy, arXiv 2312.03002, Fig. 2',
  expected={
    'few_in_weights': at_least(
      0.95, _FIGURE + 'few classes without bursts are learned'
    ),
    # Four standard errors of 8192 prompts.
    'few_in_context': near(
      _CHANCE,
      0.008,
      'labels of new classes are drawn: 1/L for what ignores the context',
    ),
    'many_in_context': at_least(
      0.95, _FIGURE + 'with many in bursts new ones are read'
    ),
    'many_swapped': at_least(
      0.95, 'it follows the context, not what it was trained on'
    ),
    # An example of another class has the label of the query with probability 255/8191.
    'many_in_weights': at_most(2 * _CHANCE, 'twice the chance, 1/L'),
    'both_in_context': at_least(0.95, _FIGURE + 'bursts in some prompts: both'),
    'both_in_weights': at_least(0.95, 'the same; prompts without bursts need it'),
  },
  minutes=10,
  measure=measure,
)
