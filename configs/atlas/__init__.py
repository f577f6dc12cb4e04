"""The cells of launch.atlas: models and tasks at sizes that a laptop trains.

All transformers have the same sizes, tokens and budget, and differ only in their mixer.
Tokens are `joint`, with x and its label in one, as in arXiv 2512.04268. There are no
positions, so that a model can read longer contexts, and the loss is that of the query.
With separate tokens for x and y, a model first has to learn which belong together, and
within these budgets most models learn little else.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import configs
import zoo
from zoo.config.schema import Config
from zoo.core import registry
from zoo.core.errors import check_name

GUESSES = 'zero', 'linear', 'network', 'residual', 'residual_network'

_SMALL = {'num_layers': 2, 'width': 32, 'num_heads': 2}
# File, variant and hyper-parameters of the models that a mixer's name does not give.
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
  'looped': (
    'transformer',
    'looped',
    {'width': 32, 'num_loops': 8, 'num_trained_loops': 6},
  ),
  'set': ('transformer', 'set', _SMALL),
  'deep_lsa': ('deep_lsa', '', {'num_layers': 2}),
  'gd_plus_plus': ('deep_lsa', '', {'num_layers': 2, 'form': 'gd_plus_plus'}),
  'lstm': ('lstm', '', {'num_layers': 2, 'width': 32}),
  'gru': ('gru', '', {'num_layers': 2, 'width': 32}),
  'deep_set': ('deep_set', '', {}),
  'mlp': ('mlp', '', {'width': 128}),
  'mlp_mixer': ('mlp_mixer', '', {}),
  'lsa': ('lsa', '', {}),
  'multi_head_lsa': ('multi_head_lsa', '', {}),
  'yq_lsa': ('yq_lsa', '', {}),
  'ltb': ('ltb', '', {}),
}
_FIVE = {'num_features': 5, 'context_length': 10}
# The task and its fields. If a name ends in `prior`, the mean label given x is not 0
# everywhere: in `prior` and `logistic_prior` it is, or depends on, w*·x; in the others
# it is an even function of x, which no w·x approximates.
_TASKS: dict[str, tuple[str, dict[str, Any]]] = {
  'linear': (
    'linear_regression',
    {'num_features': 3, 'context_length': 6, 'prior_mean': 0.0},
  ),
  'noisy': (
    'linear_regression',
    {'num_features': 3, 'context_length': 6, 'prior_mean': 0.0, 'noise_std': 0.5},
  ),
  'logistic': ('logistic_regression', {'num_features': 3, 'context_length': 12}),
  'prior': (
    'linear_regression',
    {'num_features': 5, 'context_length': 5, 'prior_mean': 2.0},
  ),
  'logistic_prior': ('logistic_regression', {**_FIVE, 'prior_mean': 2.0}),
  'quadratic': ('quadratic_regression', _FIVE),
  'quadratic_prior': ('quadratic_regression', {**_FIVE, 'prior_mean': 2.0}),
  'relu_network': ('relu_network', {**_FIVE, 'hidden_features': 20}),
  # The prior mean 0.75 √(20/π) |x| has about three quarters of the second moment.
  'relu_network_prior': (
    'relu_network',
    {**_FIVE, 'hidden_features': 20, 'output_mean': 0.75},
  ),
  # Over a full turn of phases the mean is 0, over half a turn it is a cosine of x.
  'sinusoid': (
    'sinusoid',
    {'context_length': 10, 'phase_range': (0.0, 2 * math.pi)},
  ),
  'sinusoid_prior': ('sinusoid', {'context_length': 10}),
}
# The tasks that are trained unless others are named.
_DEFAULT_TASKS = 'linear', 'noisy', 'logistic', 'prior'

# No w·x approximates an even function, so these tasks have no linear guess.
_NETWORKS = 'zero', 'network', 'residual_network'
_OF_TASK = {task: ('zero',) for task in _TASKS} | {
  'prior': ('zero', 'linear', 'residual'),
  'logistic_prior': ('zero', 'residual'),
  'quadratic_prior': _NETWORKS,
  'relu_network_prior': _NETWORKS,
  'sinusoid_prior': _NETWORKS,
}


class Scale(NamedTuple):
  """What is trained by default, and sizes in place of those above."""

  models: Sequence[str]
  tasks: Sequence[str]
  guesses: Mapping[str, Sequence[str]]  # of each task
  num_seeds: int
  learning_rates: Sequence[float]
  num_steps: int
  task: Mapping[str, Any]  # fields of all tasks that have them
  model: Mapping[str, Any]  # fields of all models that have them


_LAPTOP = (
  *('softmax', 'relu', 'linear', 'mamba2', 'delta', 'hyena', 'lstm'),
  *('deep_set', 'mlp', 'mlp_mixer', 'deep_lsa', 'lsa', 'multi_head_lsa', 'yq_lsa'),
  'ltb',
)
_LAPTOP_GUESSES = {**_OF_TASK, 'prior': ('zero', 'residual')}


def list_models() -> list[str]:
  """The names of the models; a mixer's name means a transformer with that mixer."""
  return [*zoo.list_mixers(), *_MODELS, *_own_models()]


def list_tasks() -> list[str]:
  """The names of the tasks: those above, and each registered task with its defaults."""
  return list(dict.fromkeys([*_TASKS, *zoo.list_tasks()]))


def _own_models() -> list[str]:
  """The models that --import has registered."""
  return [name for name in zoo.list_models() if name not in configs.models.ABOUT]


def scales() -> dict[str, Scale]:
  """The scales by name: `laptop` takes 40 minutes on 2 cores, `full` an accelerator."""
  rates = 0.003, 0.01
  field = {'num_features': 20, 'context_length': 40}
  gpt2 = {'num_layers': 12, 'width': 256, 'num_heads': 8}
  return {
    'laptop': Scale(_LAPTOP, _DEFAULT_TASKS, _LAPTOP_GUESSES, 2, rates, 1000, {}, {}),
    # The sizes of Garg et al. (arXiv 2208.01066).
    'full': Scale(
      *(list_models(), _DEFAULT_TASKS, _OF_TASK, 3, (1e-4, 3e-4), 500_000, field, gpt2)
    ),
  }


def has_guess(model: str) -> bool:
  """Whether a model has the field `guess`; the paper's models define their own."""
  if model in _own_models():
    return 'guess' in registry.models.parameters(model)
  return model not in ('lsa', 'multi_head_lsa', 'yq_lsa', 'ltb')


def get_config(
  model: str,
  task: str,
  guess: str | None = None,
  context_length: int | None = None,
  scale: str = 'laptop',
) -> Config:
  """The config of a cell; raises UserError for an unknown name.

  Without `context_length`, the task's own length at the scale applies.
  """
  sizes = scales()[check_name('scale', scale, scales())]
  check_name('model', model, list_models())
  task_name, fields = _TASKS.get(check_name('task', task, list_tasks()), (task, {}))
  own = ('transformer', '', {**_SMALL, 'mixer': model})
  if model in _own_models():
    own = model, '', {}
  file, variant, hyperparameters = _MODELS.get(model, own)
  variants = [variant, '' if task_name == 'linear_regression' else f'task={task_name}']
  variant = ','.join(filter(None, variants))
  config = configs.get_config(file, variant)
  config.train.batch_size, config.train.num_steps = 64, sizes.num_steps
  config.eval.num_batches = 32
  config.objective.positions = 'query'
  if 'tokens' in config.model:
    config.model.tokens = 'joint'
  if 'positions' in config.model:
    config.model.positions = 'none'
  config.model.update(hyperparameters)
  config.model.update({k: v for k, v in sizes.model.items() if k in config.model})
  config.task.update(fields)
  config.task.update({k: v for k, v in sizes.task.items() if k in config.task})
  if context_length is not None:
    config.task.context_length = context_length
  if guess is not None:
    config.model.guess = check_name('guess', guess, GUESSES)
  return config
