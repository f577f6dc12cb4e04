"""What an abstract model is: that of the config, and of the classes as they are now."""

from typing import Any, Optional

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import zoo
from tests.built import abstract_of, model_of
from tests.compare import refuses
from tests.training.runs import small_config


def shapes(model):
  return [leaf.shape for leaf in jax.tree.leaves(nnx.state(model))]


@pytest.mark.parametrize(
  'changes', [{}, {'model__num_heads': 1}, {'task__num_features': 2}]
)
def test_it_has_the_shapes_of_the_model(changes):
  config = small_config('multi_head_lsa', **changes)
  model = abstract_of(config)
  assert shapes(model) == shapes(model_of(config, nnx.Rngs(0)))
  assert 'float64' not in str(nnx.state(model))
  with jax.enable_x64(True):
    wide = abstract_of(config)
  assert 'float64' in str(nnx.state(wide))


def test_a_class_that_has_changed_is_built_anew(register):
  class Own(zoo.models.LinearAttention):
    num = 1

    def __init__(self, num_features, *, rngs):
      super().__init__(num_features, self.num, 0.1, rngs=rngs)

    def initial_guess(self):
      return jnp.zeros(self.num_features), jnp.zeros(())

  register('own')(Own)
  config = small_config(model={'name': 'own'})
  before = abstract_of(config)
  Own.num = 2
  after = abstract_of(config)
  assert shapes(before) != shapes(after)


def _own(constructor):
  """A registered model with this constructor, and its config."""
  members = {'__init__': constructor, '__call__': lambda self, prompt: prompt.y[:, 0]}
  zoo.register_model('own')(type('Own', (nnx.Module,), members))
  config: Any = zoo.default_config('own')
  return config


def test_a_constructor_without_rngs_is_named(register):
  def no_rngs(self, num_features):
    self.num_features = num_features

  register('own')(nnx.Module)  # It is forgotten after the test.
  with refuses("the constructor of 'own' does not take 'rngs'"):
    model_of(_own(no_rngs), nnx.Rngs(0))


def test_an_argument_without_a_default_needs_a_value_unless_it_may_be_none(register):
  def plain(self, num_features, width, *, rngs):
    self.width = width

  def typed(self, num_features, width: int, *, rngs):
    self.width = width

  def optional(self, num_features, width: Optional[int], *, rngs):  # noqa: UP045
    self.width = width

  def union(self, num_features, width: int | None, *, rngs):
    self.width = width

  register('own')(nnx.Module)
  for constructor in plain, typed:
    config = _own(constructor)
    with refuses("config.model.width is None; the constructor of 'own' has no default"):
      model_of(config, nnx.Rngs(0))
  for constructor in optional, union:
    model: Any = model_of(_own(constructor), nnx.Rngs(0))
    assert model.width is None


@pytest.mark.slow
def test_only_tabular_reads_one_class_more_as_a_number_and_classes(register):
  def classes(self, num_features, num_outputs, num_classes=2, *, rngs):
    self.num_classes = num_classes

  register('own')(nnx.Module)
  task = {'name': 'gaussian_clusters', 'num_classes': 3, 'num_features': 4}
  config = zoo.default_config('tabular', task='gaussian_clusters')
  config.task.update(task)
  config.model.num_classes = 2
  with refuses('would read its labels as a number and 2 classes', 'num_classes = 3'):
    model_of(config, nnx.Rngs(0))
  config = _own(classes)
  config.task = zoo.default_config('tabular', task='gaussian_clusters').task
  config.task.update(task)
  model: Any = model_of(config, nnx.Rngs(0))
  assert model.num_classes == 2
