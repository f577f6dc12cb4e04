"""The cells of launch.atlas: models and tasks at sizes that a laptop trains.

All transformers have the same sizes, tokens and budget, and differ in their mixer.
"""

import importlib
from typing import Any

import zoo
from zoo.errors import check_name

GUESSES = 'zero', 'linear', 'residual'

_SMALL = {'num_layers': 2, 'width': 32, 'num_heads': 2}
# File, variant and hyper-parameters of the models that are not a mixer's transformer.
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
  'looped': (
    'transformer',
    'looped',
    {'width': 32, 'num_loops': 8, 'num_trained_loops': 6, 'tokens': 'shifted'},
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
# Task, and its fields.
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
}


def list_models() -> list[str]:
  """The models by name; that of a mixer is the transformer that has it."""
  return [*zoo.list_mixers(), *_MODELS]


def list_tasks() -> list[str]:
  """The tasks by name: a task of the zoo at a size, with a prior and a noise level."""
  return [*_TASKS]


def has_guess(model: str) -> bool:
  """Whether a model has the field `guess`; that of the linear family is its own."""
  return model not in ('lsa', 'multi_head_lsa', 'yq_lsa', 'ltb')


def get_config(model: str, task: str, guess: str | None = None) -> Any:
  """The config of a cell; raises UserError for an unknown name."""
  check_name('model', model, list_models())
  task_name, fields = _TASKS[check_name('task', task, _TASKS)]
  own = {**_SMALL, 'mixer': model, 'tokens': 'shifted'}
  file, variant, hyperparameters = _MODELS.get(model, ('transformer', '', own))
  variants = [variant, '' if task_name == 'linear_regression' else f'task={task_name}']
  variant = ','.join(filter(None, variants))
  config = importlib.import_module(f'configs.{file}').get_config(variant)
  config.train.batch_size, config.train.num_steps = 64, 3000
  config.eval.num_batches = 32
  config.model.update(hyperparameters)
  config.task.update(fields)
  if guess is not None:
    config.model.guess = check_name('guess', guess, GUESSES)
  return config
