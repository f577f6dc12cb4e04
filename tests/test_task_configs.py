"""Every task has a part of a config, with the arguments of its constructor."""

import importlib

import numpy as np
import pytest

import configs
import zoo
from configs import defaults
from tests.compare import refuses
from zoo.config import schema
from zoo.config.validation import build_task
from zoo.core import registry


# One's own arrays need a file.
@pytest.mark.parametrize('name', sorted({*zoo.list_tasks()} - {'arrays'}))
def test_the_section_of_a_task_has_its_fields_and_their_defaults(name):
  section = schema.section('task', name).to_dict()
  assert section.pop('name') == name
  assert section.keys() == registry.tasks.parameters(name).keys()
  config = defaults.get_config(f'smoke,task={name}')
  # Table 1 of the paper has a prior mean of 2, which is no default of the task.
  mean = {'prior_mean': 2.0} if name == 'linear_regression' else {}
  assert build_task(config) == zoo.create_task(name, **section | mean)
  assert zoo.create_task(name, **section) == zoo.create_task(name)


def test_a_vector_may_be_given_for_a_number():
  config = defaults.get_config('smoke')
  config.task.prior_mean = [0.5] * 10
  config.task.prior_covariance = [
    [2.0 * (i == j) for i in range(10)] for j in range(10)
  ]
  assert build_task(config) == zoo.create_task(
    'linear_regression', prior_mean=0.5, prior_covariance=2.0 * np.eye(10)
  )


def test_a_task_of_ones_own_has_the_fields_of_its_constructor(register):
  @zoo.register_task('own')
  class Own(zoo.tasks.BaseTask):
    num_features: int
    context_length: int = 4
    scale: float | None = None

    def sample_one(self, key):
      raise NotImplementedError

  fields = schema.section('task', 'own').to_dict()
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
    defaults.get_config(variant)


def test_the_config_of_a_model_is_imported_like_a_file():
  module = importlib.import_module('configs.yq_lsa')
  assert module is vars(configs)['yq_lsa']
  config = module.get_config('smoke')
  assert (config.model.name, config.train.num_steps) == ('yq_lsa', 20)
