"""Tasks are frozen dataclasses, equal field by field, with numbers as leaves."""

import copy
import dataclasses
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import zoo
from tests.compare import refuses
from tests.training.runs import lines_of, small_config
from zoo import theory
from zoo.core import trees
from zoo.tasks import BaseTask, FunctionClass, LinearRegression, Sinusoid
from zoo.tasks.base import LinearFunctions, dot

_D, _C = 3, 4
_COVARIANCE = np.diag([1.0, 2.0, 3.0])


def _linear(**fields: Any) -> LinearRegression:
  return LinearRegression(_D, _C, **fields)


@struct.dataclass(eq=False, repr=False)
class _Scaled(FunctionClass):
  """A task of a user's own."""

  scale: float
  shape: tuple[int, ...] = struct.field(pytree_node=False, default=(1, 2))
  weights: Any = None
  num_features: int = struct.field(pytree_node=False, default=_D)
  context_length: int = struct.field(pytree_node=False, default=_C)

  def sample_function(self, key):
    return self.scale * jax.random.normal(key, (self.num_features,))

  def evaluate(self, function, x):
    return dot(x, function[None])


def test_equal_fields_make_equal_tasks_and_equal_hashes():
  assert _linear(prior_mean=2.0) == _linear(prior_mean=[2.0] * _D)
  assert hash(_linear(prior_mean=2.0)) == hash(_linear(prior_mean=[2.0] * _D))
  assert _linear(prior_mean=2.0) != _linear(prior_mean=2.5)
  assert _linear(prior_covariance=_COVARIANCE) != _linear()
  assert _linear(prior_covariance=_COVARIANCE) == _linear(prior_covariance=_COVARIANCE)
  assert _linear() != zoo.tasks.QuadraticRegression(_D, _C)
  assert _Scaled(1.0, weights=np.ones(2)) == _Scaled(1.0, weights=np.ones(2))
  assert _Scaled(1.0, weights=np.ones(2)) != _Scaled(1.0, weights=50 * np.ones(2))
  assert _Scaled(1.0) != _Scaled(100.0)


def test_a_task_does_not_change():
  mean = np.ones(_D)
  task = _linear(prior_mean=mean)
  mean[:] = 5.0  # the caller's own array
  assert task == _linear(prior_mean=1.0)
  with pytest.raises(dataclasses.FrozenInstanceError):
    task.prior_mean = np.zeros(_D)  # pyright: ignore[reportAttributeAccessIssue]
  with pytest.raises(ValueError, match='read-only'):
    task.prior_mean[:] = 3.0
  assert dataclasses.replace(task, prior_mean=3.0) == _linear(prior_mean=3.0)


def test_the_root_is_that_of_the_covariance_of_the_task():
  """However the task was made: by a constructor, `replace`, or JAX."""
  task = _linear(prior_covariance=_COVARIANCE)
  other = dataclasses.replace(task, prior_covariance=4 * _COVARIANCE)
  assert other == _linear(prior_covariance=4 * _COVARIANCE)
  on_device = _linear(prior_covariance=jnp.asarray(_COVARIANCE))
  assert on_device == task
  assert dataclasses.replace(task, prior_covariance=jnp.eye(_D)) == _linear(
    prior_covariance=np.eye(_D)
  )
  assert dataclasses.replace(task, prior_covariance=None) == _linear()
  axes = jax.tree.map(lambda leaf: 0, task)
  assert jax.tree.leaves(axes) == [0] * len(jax.tree.leaves(task))


def test_numbers_are_leaves_and_sizes_are_not():
  task = _linear(prior_mean=2.0, noise_std=0.5)
  leaves, structure = jax.tree.flatten(task)
  assert [np.shape(leaf) for leaf in leaves] == [(_D,), ()]
  assert jax.tree.unflatten(structure, leaves) == task
  for noise_std in (0.1, 0.0):  # 0 is a number like any other
    same = _linear(prior_mean=1.0, noise_std=noise_std)
    assert jax.tree.structure(same) == structure
  for other in (
    dataclasses.replace(task, context_length=5),
    dataclasses.replace(task, prior_covariance=_COVARIANCE),
  ):
    assert jax.tree.structure(other) != structure
  assert jax.tree.leaves(_Scaled(3.0)) == [3.0]


def test_classes_with_equal_fields_have_programs_of_their_own():
  """JAX 0.10.1 compares the fields of dataclasses that are no arrays, not the class."""

  def make(number: int) -> BaseTask:
    class Own(_Scaled):
      def sample_function(self, key):
        return jnp.full(self.num_features, float(number))

    return struct.dataclass(Own)(1.0)

  made = [make(number) for number in range(60)]
  assert len({jax.tree.structure(task) for task in made}) == len(made)
  assert jax.tree.structure(made[0]) != jax.tree.structure(made[1])
  called = jax.jit(lambda task: task.sample_function(None)[0])
  assert [float(called(task)) for task in made[::30]] == [0, 30]


def test_tasks_that_differ_in_numbers_share_a_program():
  sampled: Any = jax.jit(lambda task, key: task.sample(key, 2))
  key = jax.random.key(0)
  for mean, noise in (0.5, 0.1), (2.0, 0.7), (-1.0, 3.0), (1.0, 0.0):
    task = _linear(prior_mean=mean, noise_std=noise)
    prompt = sampled(task, key)
    jax.tree.map(np.testing.assert_array_equal, prompt, task.sample(key, 2))
  assert sampled._cache_size() == 1


def test_without_noise_labels_are_targets():
  """Other tasks show it in their own files."""
  loud, quiet = (
    jax.device_get(_linear(noise_std=std).sample(jax.random.key(0), 2))
    for std in (0.5, 0.0)
  )
  np.testing.assert_array_equal(quiet.y, quiet.targets[:, :-1])
  np.testing.assert_array_equal(loud.targets, quiet.targets)


@pytest.mark.slow
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


@pytest.mark.slow
def test_tasks_are_mapped_over():
  tasks = [_linear(prior_mean=mean, noise_std=std) for mean, std in ((0, 0.5), (2, 0))]
  stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *map(_as_floats, tasks))
  key = jax.random.key(0)
  together = jax.device_get(
    jax.jit(jax.vmap(lambda task: task.sample(key, 2)))(stacked)
  )
  for i, task in enumerate(tasks):
    alone = task.sample(key, 2)
    # In another program sums may be rounded otherwise.
    np.testing.assert_allclose(together.y[i], alone.y, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(together.x[i], alone.x)


def _as_floats(task: LinearRegression) -> LinearRegression:
  return dataclasses.replace(task, prior_mean=task.mean_weights())


def test_an_integer_is_a_mean_like_any_other():
  for task in (_linear(prior_mean=2), _linear(prior_mean=2.0)):
    np.testing.assert_array_equal(task.mean_weights(), [2.0] * _D)
  prompts = [
    task.sample(jax.random.key(0), 2).y
    for task in (_linear(prior_mean=2), _linear(prior_mean=2.0))
  ]
  np.testing.assert_array_equal(prompts[0], prompts[1])


def test_arguments_make_an_equal_task():
  for task in (_linear(prior_mean=2.0, prior_covariance=_COVARIANCE), Sinusoid(4)):
    assert type(task)(**trees.arguments(task)) == task
  # As a config or a file has them.
  task = Sinusoid(amplitude_range=[0.5, 1.0])  # pyright: ignore[reportArgumentType]
  assert task == Sinusoid(amplitude_range=(0.5, 1.0))


def test_a_class_that_is_no_task_is_refused_in_one_line(register, unchecked):
  def parts(**more: Any) -> dict[str, Any]:
    own = vars(_Scaled)
    return {name: own[name] for name in ('sample_function', 'evaluate')} | more

  def refuse(cls: Any, *said: str) -> None:
    with refuses(*said):
      zoo.register_task('own')(cls)

  refuse(type('Own', (), parts()), 'Own is not a subclass of zoo.tasks.BaseTask')
  own = type('Own', (FunctionClass,), {})
  refuse(own, 'the task Own lacks the method evaluate, sample_function')
  refuse(type('Own', (FunctionClass,), parts()), 'Own is not a dataclass; decorate it')
  refuse(type('Own', (_Scaled,), {}), 'Own is not a dataclass; decorate it with flax')
  own = struct.dataclass(type('Own', (FunctionClass,), parts()))
  refuse(own, 'Own lacks the field num_features; declare it, such as `num_features')
  own = struct.dataclass(
    type(
      'Own',
      (FunctionClass,),
      parts(num_features=3, __annotations__={'num_features': 'int'}),
    )
  )
  refuse(own, 'Own has num_features as an array of compiled programs; declare it')
  bare = type('Bare', (FunctionClass,), parts(num_features=3, context_length=4))
  with refuses('Bare is no pytree; decorate it with flax.struct.dataclass'):
    zoo.check_task(bare())

  def without_super(self):
    del self

  own = struct.dataclass(type('Own', (_Scaled,), {'__post_init__': without_super}))
  with refuses('Own has a __post_init__ that does not call super().__post_init__()'):
    zoo.check_task(own(1.0))


@pytest.mark.usefixtures('register')
def test_a_subclass_of_a_task_is_sampled_as_itself_and_theory_does_not_cover_it():
  @zoo.register_task('own')
  @struct.dataclass
  class Own(LinearRegression):
    def sample_function(self, key):
      return jnp.full(self.num_features, 7.0)

  own = zoo.create_task('own', num_features=_D, context_length=_C)
  prompt = jax.device_get(own.sample(jax.random.key(0), 8))
  np.testing.assert_allclose(prompt.y_query, 7 * prompt.x_query.sum(1), rtol=1e-5)
  assert not theory.covers(own)
  assert {*own.baselines()} == {'ols', 'averaging', 'nearest_neighbours', 'zero'}
  assert own.posterior() is None
  with refuses('the task is of type Own; exact theory covers LinearRegression'):
    theory.task_moments(own)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures('register', 'promotion_that_optax_needs')
def test_a_subclass_of_a_task_is_trained_as_itself(tmp_path):
  def sevens(self, key):
    return jnp.full(self.num_features, 7.0)

  @zoo.register_task('own')
  @struct.dataclass
  class Own(LinearRegression):
    sample_function = sevens

  @zoo.register_task('same')
  @struct.dataclass
  class Same(LinearFunctions):
    num_features: int = struct.field(pytree_node=False)
    context_length: int = struct.field(pytree_node=False)
    sample_function = sevens

  losses = []
  for name in ('own', 'same'):
    task = {'name': name, 'num_features': _D, 'context_length': _C}
    zoo.train(small_config('yq_lsa', task=task), tmp_path / name)
    losses.append([line['loss'] for line in lines_of(tmp_path / name)])
  np.testing.assert_allclose(*losses, rtol=1e-5)


def test_tasks_of_another_precision_are_others():
  single, double = (
    _Scaled(1.0, weights=np.ones(2, kind)) for kind in (np.float32, float)
  )
  assert single != double
  assert single == copy.deepcopy(single) == pickle.loads(pickle.dumps(single))


def test_a_base_task_has_no_baselines_and_longer_contexts():
  assert BaseTask.baselines(_Scaled(1.0)) == {}
  names = [f'context_length={_C * k}' for k in (2, 4, 8, 16, 32)]
  assert [*BaseTask.shifts(_Scaled(1.0))] == names
