"""Tasks, their baselines and saved models are shown on one screen."""

import numpy as np
import pytest
from flax import nnx

import configs
import zoo
from tests.built import model_of
from tests.settings import isotropic
from zoo.core import registry
from zoo.storage.loading import SavedModel


def test_a_task_is_shown_with_its_arguments():
  task = zoo.create_task('sparse_regression', num_features=20, context_length=40)
  assert repr(task).startswith('SparseRegression(num_features=20, context_length=40, ')
  task = isotropic(2, 4, prior_mean=[1.0, 2.0], prior_covariance=np.eye(2))
  assert repr(task) == (
    'LinearRegression(num_features=2, context_length=4, prior_mean=array of 2, '
    'prior_covariance=array of 2 × 2, feature_covariance=None, noise_std=0.0)'
  )
  task = isotropic(10, 10, prior_mean=2.0)
  assert 'prior_mean=2.0, ' in repr(task)


# One's own arrays need a file.
@pytest.mark.parametrize('name', sorted({*zoo.list_tasks()} - {'arrays'}))
def test_a_task_and_its_baselines_fit_a_screen(name):
  fields = {'num_features', 'context_length'} & registry.parameters(
    registry.TASKS[name]
  ).keys()
  task = zoo.create_task(name, **dict.fromkeys(fields, 10))
  assert len(repr(task)) < 300
  assert '\n' not in repr(task)
  for baseline in task.baselines().values():
    assert len(repr(baseline)) < 400, repr(baseline)
    assert '\n' not in repr(baseline)
    assert ' object at 0x' not in repr(baseline)


def test_a_saved_model_is_shown_in_a_line():
  task = isotropic(3, 4, prior_mean=0.5)
  config = configs.get_config('yq_lsa', 'smoke')
  model = nnx.eval_shape(lambda: model_of(config, nnx.Rngs(0)))
  shown = repr(SavedModel(model, task, config, step=0))
  assert shown == f'SavedModel(model=YqLSA(…), task={task!r}, step=0)'
