"""The models and tasks of an atlas."""

import json
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from configs import atlas as sizes
from tests.built import abstract_of, task_of
from tests.marks import mostly_full
from zoo.config.building import num_weights
from zoo.core.errors import UserError
from zoo.core.registry import TASKS

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def _check_weights(model, task):
  config: Any = sizes.get_config(model, task, 'zero')
  count = num_weights(abstract_of(config))
  assert abs(count / 25_000 - 1) <= 0.1, (model, count, config.model.width)


@pytest.mark.slow
def test_a_transformer_and_an_lstm_have_the_same_number_of_weights():
  for model in 'softmax', 'lstm':
    _check_weights(model, 'linear')


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
  'task', mostly_full(['recall'], ['linear', 'noisy', 'sparse', 'tree', 'prior'])
)
def test_all_models_have_the_same_number_of_weights(task):
  """Within 10 %, but for linear attention, whose size is that of its matrices."""
  of_their_own = {*sizes.LINEAR_ATTENTION, 'deep_lsa'}
  for model in {*sizes.DEFAULT_MODELS} - of_their_own:
    _check_weights(model, task)


def test_any_model_and_task_that_is_registered_has_a_cell():
  config = sizes.get_config('sequential', 'quadratic_regression')
  assert config.model.name == 'sequential'
  assert config.task.name == 'quadratic_regression'
  assert {'sequential', 'softmax', 'set'} < {*sizes.list_models()}


def test_guesses_are_those_that_the_field_of_a_model_allows(register):
  @zoo.register_model('own')
  class Own(nnx.Module):
    guesses = 'zero', 'residual', 'other'

    def __init__(self, num_features: int, guess: str = 'other', *, rngs: nnx.Rngs): ...

  assert sizes.guesses_of('gla', 'prior') == ['zero', 'linear', 'residual']
  assert sizes.guesses_of('gla', 'tree') == ['zero']
  assert sizes.guesses_of('gla', 'tree', ['network']) == ['network']
  assert sizes.guesses_of('own', 'prior') == ['zero', 'residual']
  assert sizes.guesses_of('sequential', 'prior') == ['zero', 'linear']
  for model in 'yq_lsa', 'own', 'sequential':
    assert sizes.guesses_of(model, 'prior', ['network']) == [None]


@pytest.mark.slow
@pytest.mark.full
def test_all_models_have_the_same_optimizer():
  models = 'lsa', 'multi_head_lsa', 'deep_lsa', 'softmax', 'looped', 'deep_set'
  optimizers = set()
  for model in models:
    config: Any = sizes.get_config(model, 'linear')
    config.optimizer.learning_rate = 0.1
    optimizers.add(json.dumps([config.optimizer.to_dict(), config.train.batch_size]))
    assert config.optimizer.schedule == 'wsd'
  assert len(optimizers) == 1


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('model', mostly_full(['deep_set'], sizes.list_models()))
def test_every_config_is_valid(model):
  """With each task and guess for a laptop, and with one of each on an accelerator."""
  for task in [*sizes.DEFAULT_TASKS, 'quadratic_prior', 'sinusoid_prior']:
    for guess in sizes.guesses_of(model, task):
      config: Any = sizes.get_config(model, task, guess)
      # Models without a choice of guess cannot have classes.
      if guess is not None or TASKS[config.task.name].label_kind != 'classes':
        zoo.training.validate(config)
  (guess,) = sizes.guesses_of(model, 'prior', ['residual'])
  zoo.training.validate(sizes.get_config(model, 'prior', guess, scale='gpu'))


@pytest.mark.slow
@pytest.mark.full
def test_a_parity_is_learned_from_every_symbol_and_from_the_last_if_not_causal():
  def trained(model):
    config: Any = sizes.get_config(model, 'parity', 'zero')
    return config.objective.positions, config.model.get('tokens')

  assert trained('delta') == ('every', 'shifted') == trained('lstm')
  assert trained('set') == ('query', 'joint')
  assert trained('mlp_mixer')[0] == 'query'
  assert sizes.get_config('delta', 'noisy').objective.positions == 'query'
  for task in 'modular_addition', 'permutations', 'modular_arithmetic':
    assert sizes.get_config('delta', task).objective.positions == 'every'


@pytest.mark.slow
@pytest.mark.parametrize(
  'task', mostly_full(['logistic'], ['quadratic', 'relu_network', 'sinusoid'])
)
def test_a_prior_has_a_mean_and_its_control_has_none(task):
  """In the mean over prompts of the labels, or probabilities, at given features."""
  x = np.random.default_rng(0).uniform(0.5, 2, (4, 5))
  for name, is_zero in ((task, True), (f'{task}_prior', False)):
    made: Any = task_of(sizes.get_config('gru', name, 'zero'))
    functions = jax.vmap(made.sample_function)(
      jax.random.split(jax.random.key(0), 10_000)
    )
    at = jax.numpy.asarray(x[:, : made.num_features], 'float32')
    values = np.asarray(jax.vmap(made.evaluate, (0, None))(functions, at))
    means = values.mean(axis=0) - (0.5 if task == 'logistic' else 0)
    errors = values.std(axis=0) / np.sqrt(len(values))
    assert np.all((np.abs(means) <= 4 * errors) == is_zero), name


def test_what_is_unknown_is_named():
  unknown: list[Any] = [('gpt5', 'linear'), ('gru', 'poker'), ('gru', 'linear', 'wild')]
  for names in unknown:
    with pytest.raises(UserError, match=f'unknown .* {names[-1]!r}|gpt5|poker'):
      sizes.get_config(*names)
