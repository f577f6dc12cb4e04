"""The configs that ship: what they say, and what they reach."""

from typing import Any

import pytest
from flax import nnx

import configs
from tests.built import model_of, task_of
from tests.marks import mostly_full
from zoo.core.registry import MODELS, parameters
from zoo.training import train, validate

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')

# Infima of the exact risk at d = C = 10, w* = [2, …, 2] (arXiv 2512.04268, Table 1).
REACHED = {'lsa': 14.430617, 'multi_head_lsa': 6.022409, 'yq_lsa': 5.238095}
REACHED['ltb'] = REACHED['yq_lsa']


def config_of(name, variant=''):
  return configs.get_config(name, variant)


@pytest.mark.parametrize('variant', ['', 'paper', 'smoke'])
@pytest.mark.parametrize('name', REACHED)
def test_every_variant_is_valid_and_locked(name, variant):
  config: Any = config_of(name, variant)
  validate(config)
  assert config.model.name == name
  assert config.is_locked


@pytest.mark.parametrize('name', REACHED)
def test_the_paper_variant_is_the_papers_setting(name):
  config = config_of(name, 'paper')
  assert (config.task.num_features, config.task.context_length) == (10, 10)
  assert config.task.prior_mean == 2.0
  assert (config.task.noise_std, config.task.prior_covariance) == (0.0, None)
  assert (config.train.batch_size, config.train.num_steps) == (2048, 5000)
  optimizer = config.optimizer
  assert (optimizer.name, optimizer.learning_rate) == ('adam', 5e-4)
  assert (optimizer.schedule, optimizer.clip_norm) == ('constant', None)
  assert config.objective.name == 'sampled'


def test_clusters_are_the_papers_data():
  config = config_of('clusters')
  task = config.task
  assert (task.num_features, task.num_labels, task.context_length) == (63, 32, 8)
  assert config.objective.positions == 'query'
  validate(config)


@pytest.mark.slow
def test_half_of_the_prompts_of_half_bursty_clusters_have_bursts():
  config = config_of('clusters', 'half_bursty')
  validate(config)
  task: Any = task_of(config)
  assert [part.burstiness for part in task.tasks] == [4, 0]
  assert {part.num_classes for part in task.tasks} == {2048}
  assert [*task.probabilities] == [0.5, 0.5]
  # launch.strategies asks these two which of them the model follows.
  assert {'context_1', 'weights'} <= {*task.baselines()}
  assert config.optimizer.name == 'adamw'


def test_omniglot_has_as_many_classes_as_there_are_characters():
  config = config_of('omniglot')
  task = config.task
  assert task.num_classes + task.held_out_classes <= 1623
  assert task.num_classes % task.num_labels == 0
  assert (task.dataset, config.model.read_in) == ('omniglot', 'convolutional')


def test_options_reach_the_model():
  config = config_of('transformer', 'smoke')
  config.model.hidden_features = 7
  model: Any = nnx.eval_shape(lambda: model_of(config, nnx.Rngs(0)))
  assert model.layers[0].feed_forward.up.kernel.shape == (64, 7)


def test_the_config_file_of_a_model_has_the_defaults_of_its_class():
  for name in MODELS:
    known = parameters(MODELS[name])
    for field, value in configs.get_config(name).model.to_dict().items():
      if field != 'name' and known[field].default is not known[field].empty:
        default = known[field].default
        assert value == default or (value == {} and default is None), (name, field)


@pytest.mark.slow
@pytest.mark.usefixtures('compiled_well')
@pytest.mark.parametrize('name', mostly_full(['yq_lsa'], REACHED))
def test_by_default_a_model_comes_within_half_a_percent_of_its_infimum(tmp_path, name):
  summary: Any = train(config_of(name), tmp_path)
  assert summary is not None
  # Below the infimum it can only be by the float32 rounding of the weights.
  assert -1e-5 < summary['exact_risk'] / REACHED[name] - 1 < 0.005
