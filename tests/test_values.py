"""Tasks are values: of checked fields, equal field by field, with numbers as leaves."""

import copy
import dataclasses
import pickle
from typing import Any

import jax
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from zoo import theory
from zoo.core import values
from zoo.tasks import BaseTask, FunctionClass, LinearRegression, Sinusoid
from zoo.tasks.base import dot

_D, _C = 3, 4
_COVARIANCE = np.diag([1.0, 2.0, 3.0])


def _linear(**given: Any) -> LinearRegression:
  return LinearRegression(_D, _C, **given)


@values.value
class _Scaled(FunctionClass):
  """A task of a user's own, whose fields are of no declared kind."""

  scale: float
  shape: tuple[int, ...] = (1, 2)
  weights: Any = values.leaf(default=None)
  num_features: int = _D
  context_length: int = _C

  def sample_function(self, key):
    return self.scale * jax.random.normal(key, (self.num_features,))

  def evaluate(self, function, x):
    return dot(x, function[None])


def test_equal_fields_make_equal_values_and_equal_hashes():
  assert _linear(prior_mean=2.0) == _linear(prior_mean=[2.0] * _D)
  assert hash(_linear(prior_mean=2.0)) == hash(_linear(prior_mean=[2.0] * _D))
  assert _linear(prior_mean=2.0) != _linear(prior_mean=2.5)
  assert _linear(prior_covariance=_COVARIANCE) != _linear()
  assert _linear(prior_covariance=_COVARIANCE) == _linear(prior_covariance=_COVARIANCE)
  assert _linear() != zoo.tasks.QuadraticRegression(_D, _C)
  assert _Scaled(1.0, weights=np.ones(2)) == _Scaled(1.0, weights=np.ones(2))
  assert _Scaled(1.0, weights=np.ones(2)) != _Scaled(1.0, weights=50 * np.ones(2))
  assert _Scaled(1.0) != _Scaled(100.0)


def test_a_value_does_not_change():
  mean = np.ones(_D)
  task = _linear(prior_mean=mean)
  mean[:] = 5.0  # the caller's own array
  assert task == _linear(prior_mean=1.0)
  with pytest.raises(dataclasses.FrozenInstanceError):
    task.prior_mean = np.zeros(_D)  # pyright: ignore[reportAttributeAccessIssue]
  with pytest.raises(ValueError, match='read-only'):
    task.prior_mean[:] = 3.0
  weights = np.ones(2)
  assert _Scaled(1.0, weights=weights).weights is not weights
  assert dataclasses.replace(task, prior_mean=3.0) == _linear(prior_mean=3.0)


def test_numbers_are_leaves_and_sizes_are_not():
  task = _linear(prior_mean=2.0, noise_std=0.5)
  leaves, structure = jax.tree.flatten(task)
  assert [np.shape(leaf) for leaf in leaves] == [(_D,), ()]
  assert jax.tree.unflatten(structure, leaves) == task
  assert jax.tree.structure(_linear(prior_mean=1.0, noise_std=0.1)) == structure
  for other in (
    dataclasses.replace(task, context_length=5),
    dataclasses.replace(task, noise_std=0.0),  # another program
    dataclasses.replace(task, prior_covariance=_COVARIANCE),
  ):
    assert jax.tree.structure(other) != structure
  assert jax.tree.leaves(_Scaled(3.0)) == [3.0]


def test_tasks_that_differ_in_numbers_share_a_program():
  sampled: Any = jax.jit(lambda task, key: task.sample(key, 2))
  key = jax.random.key(0)
  for mean, noise in (0.5, 0.1), (2.0, 0.7), (-1.0, 3.0):
    task = _linear(prior_mean=mean, noise_std=noise)
    found = sampled(task, key)
    jax.tree.map(np.testing.assert_array_equal, found, task.sample(key, 2))
  assert sampled._cache_size() == 1


def test_what_a_program_has_closed_over_is_itself_in_another_precision():
  """JAX would otherwise give the float32 buffer to a program of float64."""
  task = _linear(prior_mean=[1.0, 2.0, 3.0], prior_covariance=_COVARIANCE)
  bayes = zoo.estimators.bayes(task)
  key = jax.random.key(0)

  @jax.jit
  def errors(key):
    prompt = task.sample(key, 2)
    return bayes(prompt) - prompt.y_query, task.sample_statistics(key, 2)

  jax.block_until_ready(errors(key))
  rule = zoo.LearningRule.gradient_descent(task.prior_mean, 0.5)
  with jax.enable_x64(True):
    assert task.sample(key, 2).y.dtype == np.float64
    assert task.sample_statistics(key, 2).moment.dtype == np.float64
    assert theory.exact_risk(rule, task) > 0


def test_tasks_are_mapped_over():
  tasks = [_linear(prior_mean=mean, noise_std=0.5) for mean in (0.0, 2.0)]
  stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *tasks)
  key = jax.random.key(0)
  together = jax.jit(jax.vmap(lambda task: task.sample(key, 2)))(stacked)
  for i, task in enumerate(tasks):
    alone = task.sample(key, 2)
    # In another program sums may be rounded otherwise.
    np.testing.assert_allclose(together.y[i], alone.y, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(together.x[i], alone.x)


def test_arguments_make_an_equal_value():
  for task in (_linear(prior_mean=2.0, prior_covariance=_COVARIANCE), Sinusoid(4)):
    assert type(task)(**values.arguments(task)) == task
  # As a config or a file has them.
  task = Sinusoid(amplitude_range=[0.5, 1])  # pyright: ignore[reportArgumentType]
  assert task == Sinusoid(amplitude_range=(0.5, 1.0))
  assert _Scaled(1.0, [3, 4]) == _Scaled(1.0, (3, 4))  # pyright: ignore


def test_a_field_of_no_declared_kind_is_a_number_or_hashable(unchecked):
  with refuses('scale is', 'it must be a finite number'):
    _Scaled('2')  # pyright: ignore[reportArgumentType]
  with refuses('shape is of type dict', 'zoo.core.values.leaf()'):
    _Scaled(1.0, {})  # pyright: ignore[reportArgumentType]


def test_a_class_that_is_no_task_is_refused_in_one_line(register, unchecked):
  def parts(**more: Any) -> dict[str, Any]:
    own = vars(_Scaled)
    return {name: own[name] for name in ('sample_function', 'evaluate')} | more

  with refuses('Own is not a subclass of zoo.tasks.BaseTask'):
    zoo.register_task('own')(type('Own', (), parts()))
  with refuses('the task Own lacks the method evaluate, sample_function'):
    zoo.register_task('own')(type('Own', (FunctionClass,), {}))
  with refuses('Own lacks the field num_features; declare it, such as `num_features'):
    zoo.register_task('own')(type('Own', (FunctionClass,), parts()))
  with refuses("Own: mutable default <class 'list'> for field sizes is not allowed"):
    own = parts(sizes=[1, 2], __annotations__={'sizes': 'list'})
    zoo.register_task('own')(type('Own', (FunctionClass,), own))
  with refuses('Own has an __init__; it must list its arguments as fields'):
    init = lambda self: None  # noqa: E731
    zoo.register_task('own')(type('Own', (FunctionClass,), parts(__init__=init)))
  with refuses('Own is a subclass of the task LinearRegression', 'hold one as a field'):
    type('Own', (LinearRegression,), {})
  with refuses('Own defines sample_one, which a FunctionClass has already'):
    type('Own', (FunctionClass,), parts(sample_one=lambda self, key: None))
  with refuses('Own is a dataclass already; remove that decorator'):
    own = type('Own', (FunctionClass,), parts())
    zoo.register_task('own')(dataclasses.dataclass(frozen=True)(own))
  base = type('Base', (FunctionClass,), {'depth': values.size(default=3)})
  with refuses('Base, from which Own is derived, has an __init__ or fields', 'value'):
    zoo.register_task('own')(type('Own', (base,), parts()))
  with refuses('Bare is not a value: register it with zoo.register_task'):
    zoo.check_task(type('Bare', (FunctionClass,), parts())())


def test_fields_are_checked_whatever_a_base_class_does_after_construction(unchecked):
  class Base(FunctionClass):
    def __post_init__(self):
      values.set_field(self, 'num_features', self.num_features + 1)

  own = vars(_Scaled)
  parts = {name: own[name] for name in ('sample_function', 'evaluate')}
  fields = {
    'num_features': values.size(default=2),
    'context_length': values.size(default=4),
  }
  parts |= fields | {'__annotations__': dict.fromkeys(fields, 'int')}
  kind: Any = values.value(type('Own', (Base,), parts))
  assert kind(2, 4).num_features == 3
  with refuses('context_length is 0; it must be an integer ≥ 1'):
    kind(2, 0)
  with refuses("unknown field of Own 'depth'"):
    values.set_field(kind(2, 4), 'depth', 1)


def test_values_of_another_precision_are_others():
  one, two = (_Scaled(1.0, weights=np.ones(2, kind)) for kind in (np.float32, float))
  assert one != two
  assert one == copy.deepcopy(one) == pickle.loads(pickle.dumps(one))


def test_a_base_task_has_no_baselines_and_longer_contexts():
  assert BaseTask.baselines(_Scaled(1.0)) == {}
  names = [f'context_length={_C * k}' for k in (2, 4, 8, 16, 32)]
  assert [*BaseTask.shifts(_Scaled(1.0))] == names
