"""Batches in parts, layers computed twice, and bfloat16: the same training."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tests.built import abstract_of, model_of, task_of
from tests.marks import SLOW
from tests.training.runs import small_config
from zoo.config.read import read
from zoo.objectives import build_objective, inputs_of
from zoo.objectives.lanes import num_lanes
from zoo.sharding import make_mesh


def _config(**changes):
  return small_config('transformer', model__num_layers=1, model__width=8, **changes)


def _gradient(changes, num_lanes=1, make_config=_config):
  """The loss and the gradient of one step at the same weights."""
  return _gradients(tuple(changes.items()), num_lanes, make_config)


@functools.cache
def _gradients(changes, num_lanes, make_config):
  config = make_config(**dict(changes))
  task = task_of(config)
  objective = build_objective(read(config), task, abstract_of(config))
  loss_of = functools.partial(objective.loss_of_step, num_lanes=num_lanes)

  @jax.jit
  def gradient(key):  # weights and all in one program
    model = model_of(config, nnx.Rngs(0))
    loss, gradients = nnx.value_and_grad(loss_of)(model, key, inputs_of(task))
    return loss, nnx.to_pure_dict(gradients)

  with jax.set_mesh(make_mesh(read(config))):
    return jax.device_get(gradient(jax.random.key(1)))


def _assert_close(gradients, expected, relative):
  """Relative to the largest entry of the whole gradient: some entries are 0."""
  largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=relative * largest),
    *(gradients, expected),
  )


@pytest.mark.parametrize(
  ('make_config', 'changes'),
  [
    (small_config, {'train__num_parts': 4}),  # linear attention
    pytest.param(_config, {'train__num_parts': 4}, marks=SLOW),
    pytest.param(_config, {'model__remat': True}, marks=SLOW),
    pytest.param(_config, {'train__num_parts': 4, 'mesh__data': 4}, marks=SLOW),
  ],
)
def test_gradients_are_the_same(make_config, changes):
  gradients, expected = (
    _gradient(fields, make_config=make_config) for fields in (changes, {})
  )
  # The same terms in float32, each good to 1e-7, in another order.
  _assert_close(gradients, expected, 1e-5)


@pytest.mark.slow
def test_gradients_computed_at_the_same_time_are_the_same():
  _assert_close(_gradient({}, num_lanes=2), _gradient({}), 1e-5)


@pytest.mark.parametrize(
  ('changes', 'num_models', 'lanes'),
  [
    ({}, 1, 4),  # 10⁵ weights, 64 prompts of 41 examples: 2.6 · 10⁸
    ({'task__context_length': 10}, 1, 1),  # 7 · 10⁷
    ({'task__context_length': 10}, 2, 4),
    ({'train__batch_size': 63}, 1, 1),  # cannot be divided
    ({'train__num_parts': 32}, 1, 1),  # two prompts a part
    ({'mesh__data': 2}, 1, 1),  # the devices share the batch
  ],
  ids=str,
)
def test_large_steps_on_a_cpu_are_computed_in_parts_at_the_same_time(
  changes, num_models, lanes
):
  config = _config(**{'train__batch_size': 64, 'task__context_length': 40, **changes})
  weights = [jax.ShapeDtypeStruct((num_models, 10**5), 'float32')]
  assert (
    num_lanes(read(config), task_of(config), make_mesh(read(config)), weights) == lanes
  )


@pytest.mark.slow
def test_a_gradient_in_bfloat16_is_near():
  gradients, expected = _gradient({'train__compute_dtype': 'bfloat16'}), _gradient({})
  assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {np.dtype('float32')}
  # bfloat16 has 8 bits: each product is off by 0.4 %, and a dozen follow each other.
  _assert_close(gradients, expected, 0.05)
