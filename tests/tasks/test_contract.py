"""What every registered task must do; a new one is covered by being registered."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import zoo
from configs import common
from tests.built import task_of
from tests.marks import mostly_full
from zoo.contracts import tasks as contracts

# Small sizes, by field of the config. Three features or more give sums an order.
_SMALL = {
  **{'num_features': 5, 'context_length': 7, 'num_symbols': 3, 'hidden_features': 6},
  **{'num_tasks': 4, 'depth': 2, 'num_keys': 4, 'noise_std': 0.5},
}
# One's own arrays need a file, in tests/tasks/test_arrays.py.
_NAMES = sorted({*zoo.list_tasks()} - {'arrays'})


@functools.cache
def _task(name: str) -> Any:
  section = common.task_section(name).to_dict()
  del section['name']
  small = {field: value for field, value in _SMALL.items() if field in section}
  return zoo.create_task(name, **section | small)


# Half a dozen baselines take some five seconds to compile: one task stands for all.
@pytest.mark.slow
def test_it_keeps_its_contract(unchecked):
  zoo.check_task(_task('sparse_parity'))


# Of three forms: classes, a sequence, and labels that are not shown. Others are checked
# with their baselines.
_FORMS = ['gaussian_clusters', 'markov_chain', 'parity_prefix']


@pytest.mark.parametrize('name', mostly_full([], _NAMES, slow=_FORMS))
def test_its_prompts_and_its_loss_keep_their_contract(name, unchecked, monkeypatch):
  task = _task(name)
  for part in ('baselines', 'shifts'):
    monkeypatch.setattr(type(task), part, lambda task: {})
  zoo.check_task(task)


@pytest.mark.parametrize(
  'name',
  mostly_full([], _NAMES, slow=['linear_regression', 'parity_prefix']),
)
def test_its_prompts_are_those_of_sample_one_but_for_linear_regression(name):
  task = _task(name)

  @jax.jit
  def one_by_one(key):
    keys = [jax.random.fold_in(key, i) for i in range(3)]
    return [task.sample_one(prompt_key) for prompt_key in keys]

  key = jax.random.key(0)
  prompts, expected = jax.device_get((task.sample(key, 3), one_by_one(key)))
  for i, prompt in enumerate(expected):
    if name == 'linear_regression':
      assert not np.isclose(prompts.x[i], prompt.x).any()
    else:
      # The same draws, whose sums may be rounded otherwise.
      np.testing.assert_allclose(prompts.x[i], prompt.x, rtol=1e-5)
      np.testing.assert_allclose(prompts.y[i], prompt.y, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('name', mostly_full([], _NAMES, slow=['linear_regression']))
def test_it_keeps_its_contract_as_its_config_has_it(name, unchecked, monkeypatch, full):
  if not full:  # an eighth of the prompts on which `bayes` is compared
    monkeypatch.setattr(contracts, '_NUM_PAIRED', 64)
  zoo.check_task(task_of(common.with_variant(common.get_config(), f'task={name}')))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('name', mostly_full(['task_pool'], _NAMES))
def test_prompts_are_the_same_bits_on_one_device_and_on_eight(name):
  task = _task(name)
  key = jax.random.key(5)
  # Compiled as well: XLA rounds fused operations otherwise than single ones.
  alone = jax.jit(task.sample, static_argnums=1)(key, 32)
  mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
  split = NamedSharding(mesh, P('data'))
  with jax.set_mesh(mesh):
    sample = jax.jit(task.sample, static_argnums=1, out_shardings=split)
    together = sample(jax.device_put(key, NamedSharding(mesh, P())), 32)
  assert len(together.x.sharding.device_set) == 8
  jax.tree.map(np.testing.assert_array_equal, together, alone)
