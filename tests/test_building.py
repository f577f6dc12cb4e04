"""What an abstract model is: that of the config, and of the classes as they are now."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import zoo
from tests.training.runs import small_config
from zoo.config.building import abstract_model, build_model


def shapes(model):
  return [leaf.shape for leaf in jax.tree.leaves(nnx.state(model))]


@pytest.mark.parametrize(
  'changes', [{}, {'model__num_heads': 1}, {'task__num_features': 2}]
)
def test_it_has_the_shapes_of_the_model(changes):
  config = small_config('multi_head_lsa', **changes)
  model = abstract_model(config)
  assert shapes(model) == shapes(build_model(config, nnx.Rngs(0)))
  assert 'float64' not in str(nnx.state(model))
  with jax.enable_x64(True):
    wide = abstract_model(config)
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
  before = abstract_model(config)
  Own.num = 2
  after = abstract_model(config)
  assert shapes(before) != shapes(after)
