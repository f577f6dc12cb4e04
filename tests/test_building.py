"""What an abstract model is, and which of them are kept."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import zoo
from tests.training.runs import small_config
from zoo.config import building
from zoo.config.building import abstract_model
from zoo.config.validation import build_model, validate
from zoo.core import registry


def shapes(model):
  return [leaf.shape for leaf in jax.tree.leaves(nnx.state(model))]


@pytest.fixture
def builds(monkeypatch):
  """The names of the models that are built in a test."""
  built, create = [], registry.models.create

  def counted(name, **given):
    built.append(name)
    return create(name, **given)

  monkeypatch.setattr(building, '_KEPT', {})
  monkeypatch.setattr(registry.models, 'create', counted)
  return built


def test_a_model_of_the_library_is_built_once_and_belongs_to_each_caller(builds):
  config = small_config('multi_head_lsa')
  first = abstract_model(config)
  registry.forget_arguments(first)
  validate(config)
  second = abstract_model(config)
  assert builds == ['multi_head_lsa']
  assert registry.arguments_of(second) is not None
  assert shapes(second) == shapes(build_model(config, nnx.Rngs(0)))


@pytest.mark.parametrize(
  'changes', [{'model__num_heads': 1}, {'task__num_features': 2}]
)
def test_one_of_other_fields_is_another(builds, changes):
  whole = abstract_model(small_config('multi_head_lsa'))
  other = abstract_model(small_config('multi_head_lsa', **changes))
  assert len(builds) == 2
  assert shapes(other) != shapes(whole)
  assert 'float64' not in str(nnx.state(other))
  with jax.enable_x64(True):
    wide = abstract_model(small_config('multi_head_lsa', **changes))
  assert 'float64' in str(nnx.state(wide))


def test_one_of_a_class_of_ones_own_is_built_each_time(builds, register):
  class Own(zoo.models.LinearAttention):
    num = 1

    def __init__(self, num_features, *, rngs):
      super().__init__(num_features, self.num, 0.1, rngs=rngs)

    def initial_guess(self):
      return jnp.zeros(self.num_features), jnp.zeros(())

  register('own')(Own)
  config = small_config(model={'name': 'own'})
  one = abstract_model(config)
  Own.num = 2
  two = abstract_model(config)
  assert len(builds) == 2
  assert shapes(one) != shapes(two)


def test_a_mixer_of_ones_own_too(builds, register):
  @zoo.register_mixer('own')
  class Own(zoo.mixers.Mixer):
    def __init__(self, width, num_heads, *, rngs):
      pass

    def __call__(self, tokens):
      return tokens

  for _ in range(2):
    abstract_model(small_config('transformer', model__mixer='own'))
  assert len(builds) == 2
