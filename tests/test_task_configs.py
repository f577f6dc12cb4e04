"""Every task has a part of a config, with the arguments of its constructor."""

import importlib
import pathlib

import numpy as np
import pytest
from flax import nnx, struct

import configs
import zoo
from configs import common
from tests.built import task_of
from tests.compare import refuses
from zoo.config.defaults import model_section, task_section
from zoo.core import registry


# One's own arrays need a file.
@pytest.mark.parametrize('name', sorted({*zoo.list_tasks()} - {'arrays'}))
def test_the_section_of_a_task_has_its_fields_and_their_defaults(name):
  section = common.task_section(name).to_dict()
  assert section.pop('name') == name
  if name != 'mixture':  # whose tasks are sections themselves
    assert section.keys() == registry.parameters(registry.TASKS[name]).keys()
  config = common.with_variant(common.get_config(), f'smoke,task={name}')
  assert task_of(config) == zoo.create_task(name, **section)
  assert zoo.create_task(name, **section) == zoo.create_task(name)


def test_a_vector_may_be_given_for_a_number():
  config = common.get_config()
  config.task.prior_mean = [0.5] * 10
  config.task.prior_covariance = [
    [2.0 * (i == j) for i in range(10)] for j in range(10)
  ]
  assert task_of(config) == zoo.create_task(
    'linear_regression', prior_mean=0.5, prior_covariance=2.0 * np.eye(10)
  )


def test_a_task_of_ones_own_has_the_fields_of_its_constructor(register):
  @zoo.register_task('own')
  @struct.dataclass
  class Own(zoo.tasks.BaseTask):
    num_features: int = struct.field(pytree_node=False)
    context_length: int = struct.field(pytree_node=False, default=4)
    scale: float | None = None

    def sample_one(self, key):
      raise NotImplementedError

  fields = common.task_section('own').to_dict()
  sizes = {'num_features': None, 'context_length': 4}
  assert fields == {'name': 'own', 'scale': None} | sizes


@pytest.mark.parametrize(
  ('variant', 'said'),
  [
    ('task=', "unknown task ''"),
    ('task=logistic', "did you mean 'logistic_regression'?"),
    ('task=parity,task=majority', 'names several tasks; it can name one'),
    ('paper,task=parity', 'has a task that the paper does not have'),
    ('smok', "unknown variant 'smok'; known: paper, smoke, task=NAME"),
  ],
)
def test_a_mistake_in_a_variant_is_one_line(variant, said):
  with refuses(said):
    common.with_variant(common.get_config(), variant)


@pytest.mark.parametrize('name', sorted({*zoo.list_models()}))
def test_the_file_of_a_model_has_the_fields_of_its_class(name):
  """A field that a file lacks could not be set by a flag."""
  config = importlib.import_module(f'configs.{name}').get_config('smoke')
  assert pathlib.Path(f'configs/{name}.py').is_file()
  section, own = model_section(name), config.model
  assert own.keys() == section.keys()
  assert [own.get_type(key) for key in own] == [section.get_type(key) for key in own]
  # Its own number, which the picture risk.png has; everything else is the default.
  differing = {key for key in own if own.to_dict()[key] != section.to_dict()[key]}
  assert differing == ({'num_heads'} if name == 'multi_head_lsa' else set())
  assert (config.model.name, config.train.num_steps) == (name, 20)


def test_the_common_file_has_every_field_of_its_task():
  task = common.get_config().task
  default = common.task_section('linear_regression')
  assert task.keys() == default.keys()
  assert [task.get_type(key) for key in task] == [default.get_type(key) for key in task]


def test_a_registered_model_of_ones_own_has_a_config_without_a_file(register):
  @zoo.register_model('own')
  class Own(nnx.Module):
    def __init__(self, num_features, width=3, *, rngs):
      self.w = nnx.Param(np.zeros((num_features, width)))

  config = configs.get_config('own', 'smoke')
  assert config.model.to_dict() == {'name': 'own', 'width': 3}
  assert config.train.num_steps == 20


@pytest.mark.parametrize('name', ['yq_lsa', 'transformer'])
def test_a_config_made_in_python_has_the_fields_of_the_file_of_its_model(name):
  config = zoo.default_config(name)
  file = importlib.import_module(f'configs.{name}').get_config()
  for section in file:
    if section != 'seed':
      assert {*config[section]} == {*file[section]}
  if name == 'yq_lsa':  # whose file has the prior mean of the paper
    assert config.task.prior_mean == 0
    config.task.prior_mean = 2.0
    assert config.task == file.task
  with pytest.raises(AttributeError, match='num_step'):
    config.train.num_step = 3


def test_a_config_made_in_python_may_have_another_task():
  config = zoo.default_config('transformer', 'logistic_regression')
  own = task_section('logistic_regression').to_dict()
  assert config.task.to_dict() == own
  with refuses("did you mean 'yq_lsa'"):
    zoo.default_config('yqlsa')
  with refuses("did you mean 'logistic_regression'"):
    zoo.default_config('yq_lsa', 'logistic')
