"""The models and tasks of launch.atlas, and how each cell is trained.

A cell is a model, a task, an initial guess and a context length. All models of a scale
have the same optimizer and batch size and, except for linear attention, the same number
of weights within 10 %. All transformers differ only in their mixer.

Tokens are `joint`: one token has x and its label, as in arXiv 2512.04268. With separate
tokens for x and y a model would first have to learn which of them belong together.
Tokens have no positions, so that a model can read longer contexts. The loss is that of
the query. On tasks whose prompts show no labels, such as `parity`, models that can are
trained on the answer at every symbol.
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
# Models with one layer of linear attention. The task alone sets their size, and each
# has its own guess. On tasks that the theory covers, the atlas takes the lowest known
# risk of the model in place of training it.
LINEAR_ATTENTION = 'lsa', 'multi_head_lsa', 'yq_lsa', 'ltb'

_LAYERS = {'num_layers': 2, 'num_heads': 2}
# Config file, variant and hyper-parameters of the models that are not named by a mixer.
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
  'looped': ('transformer', 'looped', {'num_loops': 8, 'num_trained_loops': 6}),
  'set': ('transformer', 'set', _LAYERS),
  'deep_lsa': ('deep_lsa', '', {'num_layers': 2}),
  'gd_plus_plus': ('deep_lsa', '', {'num_layers': 2, 'form': 'gd_plus_plus'}),
  'lstm': ('lstm', '', {'num_layers': 2}),
  'gru': ('gru', '', {'num_layers': 2}),
}


class _Task(NamedTuple):
  """A task of the atlas.

  Attributes:
    name: The registered name of the task.
    fields: The fields that differ from the defaults of its class.
    guesses: The initial guesses that are trained unless others are named.
  """

  name: str
  fields: Mapping[str, Any]
  guesses: Sequence[str] = ('zero',)


_SMALL = {'num_features': 3, 'context_length': 6, 'prior_mean': 0.0}
_FIVE = {'num_features': 5, 'context_length': 10}
# A prompt has eight keys with a value each, and asks for the value of one of them.
_RECALL = {'num_keys': 8, 'num_values': 8, 'num_pairs': 8, 'context_length': 8}
# A linear guess w·x cannot approximate an even function of x, so the tasks whose mean
# label is even are trained with guesses of networks.
_NETWORKS = 'zero', 'network', 'residual_network'
# On tasks whose names end in `prior`, the mean label depends on x. It is w*·x on
# `prior`, a function of w*·x on `logistic_prior`, and an even function on the others.
_TASKS = {
  'linear': _Task('linear_regression', _SMALL),
  'noisy': _Task('linear_regression', {**_SMALL, 'noise_std': 0.5}),
  'sparse': _Task(
    'sparse_regression', {'num_features': 8, 'context_length': 12, 'num_nonzero': 2}
  ),
  'tree': _Task('decision_tree', {'num_features': 4, 'context_length': 16, 'depth': 2}),
  'recall': _Task('associative_recall', _RECALL),
  'parity': _Task('parity_prefix', {'context_length': 23}),
  # With so many classes a model reads labels from the context (arXiv 2312.03002).
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
  # All prompts have the same chain, whose hidden state has to be inferred.
  'hidden_markov': _Task(
    'hidden_markov', {'num_states': 4, 'num_symbols': 4, 'context_length': 24}
  ),
  # Each prompt has a new chain of order 2, whose transitions have to be counted.
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
  # About three quarters of the second moment of a label come from its mean, which is
  # 0.75 √(20/π) |x|.
  'relu_network_prior': _Task(
    'relu_network', {**_FIVE, 'hidden_features': 20, 'output_mean': 0.75}, _NETWORKS
  ),
  # With phases over a full turn the mean label is 0; with the default, half a turn, it
  # is a cosine of x.
  'sinusoid': _Task(
    'sinusoid', {'context_length': 10, 'phase_range': (0.0, 2 * math.pi)}
  ),
  'sinusoid_prior': _Task('sinusoid', {'context_length': 10}, _NETWORKS),
}
# The tasks that are trained unless others are named.
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
# The tasks that are trained with five seeds; others have three.
_FIVE_SEEDS = 'linear', 'noisy', 'prior'


class Scale(NamedTuple):
  """How large models are, and how long they are trained by default.

  Attributes:
    weights: The number of weights of each model, which it has within 10 %.
    budgets: The numbers of operations for which each seed is trained, increasing.
    task: Fields that are set in all tasks that have them.
    model: Fields that are set in all models that have them.
  """

  weights: int
  budgets: tuple[float, ...]
  task: Mapping[str, Any]
  model: Mapping[str, Any]


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
  # These are the sizes of Garg et al. (arXiv 2208.01066).
  'gpu': Scale(
    9_500_000,
    (1e15, 3e15, 1e16),
    {'num_features': 20, 'context_length': 40},
    {'num_layers': 12, 'num_heads': 8},
  ),
}


def list_models() -> list[str]:
  """Returns the names of all models, your own included.

  The name of a mixer means a transformer with that mixer.
  """
  return [*dict.fromkeys([*zoo.list_mixers(), *_MODELS, *zoo.list_models()])]


def list_tasks() -> list[str]:
  """Returns the names of the tasks above and of all others, which have defaults."""
  return [*dict.fromkeys([*_TASKS, *zoo.list_tasks()])]


def guesses_of(
  model: str, task: str, asked: Sequence[str] = ()
) -> Sequence[str | None]:
  """Returns the initial guesses with which a model is trained on a task.

  Args:
    model: One of `list_models()`.
    task: One of `list_tasks()`.
    asked: The guesses that the user wants; by default those of the task.

  Returns:
    The guesses that the model can take, which its class lists as `guesses`; [None] if
    it takes none of them or has no argument `guess`.

  Raises:
    UserError: If the model is unknown.
  """
  name = check_registered('model', _made(model)[0], MODELS)
  cls = MODELS[name]
  allowed = getattr(cls, 'guesses', ()) if 'guess' in parameters(cls) else ()
  return [guess for guess in asked or _task(task).guesses if guess in allowed] or [None]


def _task(name: str) -> _Task:
  return _TASKS.get(name, _Task(name, {}))


def seeds_of(task: str) -> range:
  """Returns the seeds of each cell of a task: five for some tasks, else three."""
  return range(5 if task in _FIVE_SEEDS else 3)


def _made(model: str) -> tuple[str, str, dict[str, Any]]:
  """Returns the config file, the variant and the hyper-parameters of a model."""
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
  """Returns the config of a cell.

  Args:
    model: One of `list_models()`.
    task: One of `list_tasks()`.
    guess: One of CELL_GUESSES. None keeps the default of the model.
    context_length: Number of examples of a prompt (≥ 1). None takes that of the task at
      this scale.
    scale: One of SCALES.

  Returns:
    A ConfigDict, which does not set the learning rate or the number of steps.

  Raises:
    UserError: If a name is unknown.
  """
  sizes = SCALES[check_name('scale', scale, SCALES)]
  check_name('model', model, list_models())
  task_name, fields, _ = _task(check_name('task', task, list_tasks()))
  file, variant, hyperparameters = _made(model)
  variants = [variant, '' if task_name == 'linear_regression' else f'task={task_name}']
  config: Any = configs.get_config(file, ','.join(filter(None, variants)))
  _set_training(config)
  # On tasks without labels all answers are trained.
  if TASKS[task_name].shows_labels:
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
  """Sets the optimizer and the batches, which all models share."""
  config.objective.name = 'sampled'
  config.train.batch_size = 64
  optimizer = config.optimizer
  # At the smallest budget the slowest models take less than a hundred steps.
  optimizer.schedule, optimizer.clip_norm = 'wsd', 1.0
  optimizer.warmup_steps, optimizer.warmup_share = 20, None
  # The atlas measures its models itself.
  config.eval.num_batches = config.eval.num_compared = 0


def _set_width(config: Any, weights: int) -> None:
  """Sets the width at which the number of weights is nearest to `weights`."""
  heads = config.model.get('num_heads', 1)
  # Imported here because the module is slow to import, and a mistyped flag should be
  # reported at once.
  building = importlib.import_module('zoo.config.building')
  read = importlib.import_module('zoo.config.read').read
  task = building.build_task(read(config))

  @functools.cache
  def count(width: int) -> int:
    config.model.width = width
    return building.num_weights(building.abstract_model(read(config), task))

  # The number of weights grows about as the square of the width.
  width, tried = 32 // heads * heads, set()
  while width not in tried:
    tried.add(width)
    scaled = width * math.sqrt(weights / count(width))
    width = heads * max(round(scaled / heads), 1)
  near = max(width - heads, heads), width, width + heads
  config.model.width = min(near, key=lambda width: abs(count(width) - weights))
