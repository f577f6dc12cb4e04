"""The cells of launch.atlas: models and tasks, and how they are trained.

All models of a scale have the same optimizer and batch size and, but for linear
attention, the same number of weights. All transformers differ only in their mixer.
Tokens are `joint`, with x and its label in one, as in arXiv 2512.04268. There are no
positions, so that a model can read longer contexts, and the loss is that of the query.
With separate tokens for x and y, a model first has to learn which belong together.
Where prompts have no labels, as in `parity`, models that can are trained on the answer
at every symbol.
"""

import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import configs
import zoo
from zoo.core.errors import check_name
from zoo.core.registry import MODELS, TASKS, check_registered, parameters

CELL_GUESSES = 'zero', 'linear', 'network', 'residual', 'residual_network'
# One layer of linear attention: its size is that of its matrices, and it has its own
# guess. Where theory covers the task, its lowest known risk is taken.
LINEAR_ATTENTION = 'lsa', 'multi_head_lsa', 'yq_lsa', 'ltb'

_LAYERS = {'num_layers': 2, 'num_heads': 2}
# File, variant and hyper-parameters of the models that a mixer's name does not give.
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
  'looped': ('transformer', 'looped', {'num_loops': 8, 'num_trained_loops': 6}),
  'set': ('transformer', 'set', _LAYERS),
  'deep_lsa': ('deep_lsa', '', {'num_layers': 2}),
  'gd_plus_plus': ('deep_lsa', '', {'num_layers': 2, 'form': 'gd_plus_plus'}),
  'lstm': ('lstm', '', {'num_layers': 2}),
  'gru': ('gru', '', {'num_layers': 2}),
}


class _Task(NamedTuple):
  """A task with fields that differ from its defaults."""

  name: str
  fields: Mapping[str, Any]
  guesses: Sequence[str] = ('zero',)  # that are trained unless others are named


_SMALL = {'num_features': 3, 'context_length': 6, 'prior_mean': 0.0}
_FIVE = {'num_features': 5, 'context_length': 10}
# Eight keys with a value each, of which one is asked for.
_RECALL = {'num_keys': 8, 'num_values': 8, 'num_pairs': 8, 'context_length': 8}
# No w·x approximates an even function, so these tasks have no linear guess.
_NETWORKS = 'zero', 'network', 'residual_network'
# If a name ends in `prior`, the mean label given x is not 0 everywhere. In `prior` and
# `logistic_prior` it is, or depends on, w*·x; in the others it is even in x.
_TASKS = {
  'linear': _Task('linear_regression', _SMALL),
  'noisy': _Task('linear_regression', {**_SMALL, 'noise_std': 0.5}),
  'sparse': _Task(
    'sparse_regression', {'num_features': 8, 'context_length': 12, 'num_nonzero': 2}
  ),
  'tree': _Task('decision_tree', {'num_features': 4, 'context_length': 16, 'depth': 2}),
  'recall': _Task('associative_recall', _RECALL),
  'parity': _Task('parity_prefix', {'context_length': 23}),
  # So many classes that their labels are read from the context (arXiv 2312.03002).
  'clusters': _Task(
    'labelled_clusters',
    {
      'num_features': 16,
      'context_length': 8,
      'num_classes': 1024,
      'num_labels': 8,
      'burstiness': 2,
    },
  ),
  # The same chain in all prompts, of which the hidden state has to be inferred.
  'hidden_markov': _Task(
    'hidden_markov', {'num_states': 4, 'num_symbols': 4, 'context_length': 24}
  ),
  # A fresh chain of order 2 in each prompt, whose transitions have to be counted.
  'markov': _Task('markov_chain', {'num_symbols': 2, 'order': 2, 'context_length': 24}),
  'prior': _Task(
    'linear_regression',
    {'num_features': 5, 'context_length': 5, 'prior_mean': 2.0},
    ('zero', 'linear', 'residual'),
  ),
  'logistic': _Task('logistic_regression', {'num_features': 3, 'context_length': 12}),
  'logistic_prior': _Task(
    'logistic_regression', {**_FIVE, 'prior_mean': 2.0}, ('zero', 'residual')
  ),
  'quadratic': _Task('quadratic_regression', _FIVE),
  'quadratic_prior': _Task(
    'quadratic_regression', {**_FIVE, 'prior_mean': 2.0}, _NETWORKS
  ),
  'relu_network': _Task('relu_network', {**_FIVE, 'hidden_features': 20}),
  # The prior mean 0.75 √(20/π) |x| has about three quarters of the second moment.
  'relu_network_prior': _Task(
    'relu_network', {**_FIVE, 'hidden_features': 20, 'output_mean': 0.75}, _NETWORKS
  ),
  # Over a full turn of phases the mean is 0, over half a turn it is a cosine of x.
  'sinusoid': _Task(
    'sinusoid', {'context_length': 10, 'phase_range': (0.0, 2 * math.pi)}
  ),
  'sinusoid_prior': _Task('sinusoid', {'context_length': 10}, _NETWORKS),
}
# The tasks that are trained unless others are named; those with five seeds.
DEFAULT_TASKS = (
  'linear',
  'noisy',
  'sparse',
  'tree',
  'recall',
  'parity',
  'prior',
  'clusters',
  'hidden_markov',
  'markov',
)
_FIVE_SEEDS = 'linear', 'noisy', 'prior'


class Scale(NamedTuple):
  """How large models are, and how long they are trained by default."""

  weights: int  # of each model, within 10 %
  budgets: tuple[float, ...]  # of operations of training, for each seed
  task: Mapping[str, Any]  # fields of all tasks that have them
  model: Mapping[str, Any]  # fields of all models that have them


DEFAULT_MODELS = (
  'softmax',
  'relu',
  'fox',
  'linear',
  'gla',
  'mamba2',
  'mamba3',
  'delta',
  'gated_delta',
  'kda',
  'rwkv7',
  'ttt',
  'looped',
  'set',
  'lstm',
  'gru',
  'deep_set',
  'mlp_mixer',
  'deep_lsa',
  *LINEAR_ATTENTION,
)
SCALES = {
  'laptop': Scale(25_000, (1e11, 3e11, 1e12), {}, {}),
  # The sizes of Garg et al. (arXiv 2208.01066).
  'gpu': Scale(
    9_500_000,
    (1e15, 3e15, 1e16),
    {'num_features': 20, 'context_length': 40},
    {'num_layers': 12, 'num_heads': 8},
  ),
}


def list_models() -> list[str]:
  """The names of the models, also of one's own.

  A mixer's name means a transformer with that mixer.
  """
  return [*dict.fromkeys([*zoo.list_mixers(), *_MODELS, *zoo.list_models()])]


def list_tasks() -> list[str]:
  """The names of the tasks: of those above, and of all others with their defaults."""
  return [*dict.fromkeys([*_TASKS, *zoo.list_tasks()])]


def guesses_of(
  model: str, task: str, asked: Sequence[str] = ()
) -> Sequence[str | None]:
  """The guesses that a model is trained with on a task, of those asked for if any.

  A class that has an argument `guess` lists in `guesses` what it may be. None if the
  model has no such argument, or takes none of them.
  """
  name = check_registered('model', _made(model)[0], MODELS)
  cls = MODELS[name]
  allowed = getattr(cls, 'guesses', ()) if 'guess' in parameters(cls) else ()
  return [guess for guess in asked or _task(task).guesses if guess in allowed] or [None]


def _task(name: str) -> _Task:
  return _TASKS.get(name, _Task(name, {}))


def seeds_of(task: str) -> range:
  """The seeds of each cell of a task: five on the tasks of the README, else three."""
  return range(5 if task in _FIVE_SEEDS else 3)


def _made(model: str) -> tuple[str, str, dict[str, Any]]:
  """The file, the variant and the hyper-parameters of a model."""
  if model in zoo.list_mixers():
    return 'transformer', '', {**_LAYERS, 'mixer': model}
  return _MODELS.get(model, (model, '', {}))


def get_config(
  model: str,
  task: str,
  guess: str | None = None,
  context_length: int | None = None,
  scale: str = 'laptop',
) -> Any:
  """The config of a cell; raises UserError for an unknown name.

  Without `context_length`, the task's own length at the scale applies.
  """
  sizes = SCALES[check_name('scale', scale, SCALES)]
  check_name('model', model, list_models())
  task_name, fields, _ = _task(check_name('task', task, list_tasks()))
  file, variant, hyperparameters = _made(model)
  variants = [variant, '' if task_name == 'linear_regression' else f'task={task_name}']
  config: Any = configs.get_config(file, ','.join(filter(None, variants)))
  _set_training(config)
  if TASKS[task_name].shows_labels:  # otherwise all answers are trained
    config.objective.positions = 'query'
  if 'tokens' in config.model:
    is_query = config.objective.positions == 'query'
    config.model.tokens = 'joint' if is_query else 'shifted'
  if 'positions' in config.model:
    config.model.positions = 'none'
  config.model.update(hyperparameters)
  config.model.update({k: v for k, v in sizes.model.items() if k in config.model})
  config.task.update(fields)
  config.task.update({k: v for k, v in sizes.task.items() if k in config.task})
  if context_length is not None:
    config.task.context_length = context_length
  if guess is not None:
    config.model.guess = check_name('guess', guess, CELL_GUESSES)
  if 'width' in config.model:
    _set_width(config, sizes.weights)
  return config


def _set_training(config: Any) -> None:
  """The same optimizer and batches for all models."""
  config.objective.name = 'sampled'
  config.train.batch_size = 64
  optimizer = config.optimizer
  # The largest models have less than a hundred steps of the smallest budget.
  optimizer.schedule, optimizer.warmup_steps, optimizer.clip_norm = 'wsd', 20, 1.0
  # The atlas measures its models itself.
  config.eval.num_batches = config.eval.num_compared = 0


def _set_width(config: Any, weights: int) -> None:
  """Sets the width at which the model has as nearly as possible so many weights."""
  heads = config.model.get('num_heads', 1)
  # Late: a mistyped flag is reported once config files are read, and soon.
  building = importlib.import_module('zoo.config.building')

  @functools.cache
  def count(width: int) -> int:
    config.model.width = width
    return building.num_weights(building.abstract_model(config))

  # Weights grow about as the square of the width.
  width, tried = 32 // heads * heads, set()
  while width not in tried:
    tried.add(width)
    scaled = width * math.sqrt(weights / count(width))
    width = heads * max(round(scaled / heads), 1)
  near = max(width - heads, heads), width, width + heads
  config.model.width = min(near, key=lambda width: abs(count(width) - weights))
