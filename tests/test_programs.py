"""Programs are compiled once for all that compute the same, and never for others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import zoo
from tests.compiled import counted
from tests.marks import mostly_full
from zoo.core import programs
from zoo.core.programs import compiled
from zoo.models.transformer import Transformer

_NUMBERS = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def no_programs(monkeypatch):
  """Nothing is known from other tests."""
  monkeypatch.setattr(programs, '_executables', {})


def _num_compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
  with counted() as found:
    result = jax.device_get(function(*arguments))
  return result, len(found)


def test_a_function_that_computes_the_same_is_compiled_once():
  results = []
  for _ in range(2):
    program = compiled(lambda tree, b: {'a': tree['a'] + b, 'b': (b,)})
    results.append(_num_compiled(program, {'a': _NUMBERS}, 2 * _NUMBERS))
  # Other names, and other trees of as many arrays.
  other = compiled(lambda first, second: [first[0] + second, second])
  results.append(_num_compiled(other, [_NUMBERS], 2 * _NUMBERS))
  (first, compiles), (second, again), (third, of_other) = results
  assert [compiles, again, of_other] == [1, 0, 0]
  np.testing.assert_array_equal(first['a'], 3 * _NUMBERS)
  np.testing.assert_array_equal(first['b'][0], 2 * _NUMBERS)
  assert jax.tree.all(jax.tree.map(np.array_equal, first, second))
  assert [*map(type, (third, *third))] == [list, np.ndarray, np.ndarray]
  np.testing.assert_array_equal(third[0], 3 * _NUMBERS)


def test_a_program_is_traced_once_for_arguments_of_one_type():
  traced = []

  def noted(a):
    traced.append(a.shape)
    return a + 1

  program = compiled(noted)
  for numbers in _NUMBERS, _NUMBERS + 1, jnp.asarray(_NUMBERS):
    np.testing.assert_array_equal(program(numbers), numbers + 1)
  assert traced == [(4,)]
  program(_NUMBERS[:2])
  assert traced == [(4,), (2,)]


def test_static_arguments_are_part_of_a_program():
  program = compiled(lambda power, a: a**power, num_static=1)
  counts = []
  for power in 2, 3, 2:
    result, count = _num_compiled(program, power, _NUMBERS)
    np.testing.assert_array_equal(result, _NUMBERS**power)
    counts.append(count)
  assert counts == [1, 1, 0]


@pytest.mark.parametrize('size', [1, 2000])
def test_programs_that_differ_in_a_constant_alone_are_two(size):
  """A printed jaxpr has no more of a constant than its shape."""
  first, second = np.ones(size, np.float32), np.ones(size, np.float32)
  second[-1] += 1e-6
  one = _num_compiled(compiled(lambda a: a + first), np.zeros_like(first))
  other = _num_compiled(compiled(lambda a: a + second), np.zeros_like(first))
  assert (one[1], other[1]) == (1, 1)
  np.testing.assert_array_equal(one[0], first)
  np.testing.assert_array_equal(other[0], second)


def _by_pure_callback(python: Callable[[Any], Any]) -> Callable[[Any], Any]:
  shape = jax.ShapeDtypeStruct((4,), np.float32)
  return lambda a: jax.pure_callback(python, shape, a)


def _by_io_callback(python: Callable[[Any], Any]) -> Callable[[Any], Any]:
  shape = jax.ShapeDtypeStruct((4,), np.float32)
  return lambda a: io_callback(python, shape, a, ordered=True)


@pytest.mark.parametrize('call', [_by_pure_callback, _by_io_callback])
def test_programs_that_differ_in_a_callback_alone_are_two(call):
  for factor in 2, 3, 2:
    program = compiled(
      call(lambda a, factor=factor: np.asarray(a) * np.float32(factor))
    )
    np.testing.assert_array_equal(program(_NUMBERS), factor * _NUMBERS)
  assert not programs._executables


def test_a_debug_callback_calls_its_own_function():
  for name in 'first', 'second':
    seen: list[Any] = []
    program = compiled(lambda a, seen=seen: jax.debug.callback(seen.append, a))
    program(_NUMBERS)
    jax.effects_barrier()
    assert len(seen) == 1, name


def test_programs_that_read_other_inputs_are_two():
  pair = _NUMBERS, _NUMBERS + 1
  np.testing.assert_array_equal(compiled(lambda a, b: a)(*pair), pair[0])
  np.testing.assert_array_equal(compiled(lambda a, b: b)(*pair), pair[1])


def test_types_that_are_not_told_apart_in_stablehlo_are_told_apart():
  key = jax.random.key(0)
  bits = jax.random.key_data(key)
  assert compiled(lambda a: a)(bits).dtype == bits.dtype
  assert compiled(lambda a: a)(key).dtype == key.dtype
  weak, strong = (compiled(lambda a: a)(a) for a in (2.0, np.float32(2.0)))
  assert (weak.weak_type, strong.weak_type) == (True, False)
  with jax.enable_x64(True):
    assert compiled(lambda a: a)(np.ones(2)).dtype == np.float64
  assert compiled(lambda a: a)(np.ones(2)).dtype == np.float32


def test_programs_for_other_devices_are_others():
  for device in jax.devices()[:3]:
    there = SingleDeviceSharding(device)
    given = jax.device_put(_NUMBERS, device)
    assert compiled(lambda a: a + 1)(given).sharding == there
    named = compiled(lambda a, at=there: jax.lax.with_sharding_constraint(a + 1, at))
    assert named(_NUMBERS).sharding == there
    with jax.default_device(device):
      assert compiled(lambda a: a + 1)(_NUMBERS).sharding == there


def test_programs_for_other_meshes_are_others():
  for devices in jax.devices()[:2], jax.devices()[2:4], jax.devices()[1::-1]:
    there = NamedSharding(Mesh(np.array(devices), 'x'), PartitionSpec('x'))
    given = jax.device_put(_NUMBERS, there)
    shared = compiled(lambda a: a + 1)(given)
    named = compiled(lambda a, at=there: jax.lax.with_sharding_constraint(a + 1, at))
    for result in shared, named(_NUMBERS):
      assert result.sharding.is_equivalent_to(there, 1)
      np.testing.assert_array_equal(result, _NUMBERS + 1)


def test_constants_that_jax_passes_as_inputs_are_part_of_a_program():
  first, second = jnp.ones(2000), jnp.full(2000, 2.0)
  config = 'jax_use_simplified_jaxpr_constants'
  before = jax.config.values[config]
  try:
    jax.config.update(config, True)
    for constant in first, second, first:
      result = compiled(lambda a, constant=constant: a + constant)(first)
      np.testing.assert_array_equal(result, first + constant)
  finally:
    jax.config.update(config, before)


def test_within_another_program_and_without_programs_it_is_a_function():
  def outer(a):
    closed_over = compiled(lambda b: a * b)(_NUMBERS)
    return closed_over.sum() + compiled(jnp.sum)(a)

  np.testing.assert_array_equal(jax.jit(jax.grad(outer))(_NUMBERS), _NUMBERS + 1)
  seen: list[Any] = []
  with jax.disable_jit():
    compiled(lambda a: seen.append(float(a[1])))(_NUMBERS)
  assert seen == [1.0]
  assert not programs._executables


def test_precision_and_options_are_part_of_a_program():
  program = compiled(jnp.dot, compiler_options={'xla_cpu_enable_fast_math': True})
  counts = [_num_compiled(program, _NUMBERS, _NUMBERS)[1]]
  for precision in 'highest', 'bfloat16', 'highest':
    with jax.default_matmul_precision(precision):
      counts.append(_num_compiled(compiled(jnp.dot), _NUMBERS, _NUMBERS)[1])
  assert counts == [1, 1, 1, 0]


def test_those_used_last_are_kept(monkeypatch):
  monkeypatch.setattr(programs, '_MOST', 2)

  def count(number: int) -> int:
    return _num_compiled(compiled(lambda a: a + number), _NUMBERS)[1]

  assert [count(1), count(2), count(1), count(3)] == [1, 1, 0, 1]
  assert [count(1), count(2)] == [0, 1]
  assert len(programs._executables) == 2


# What the model below calls, as a helper in a cell of a notebook that is changed.
factor = 1.0


class _Own(Transformer):
  """A transformer of a user's own, which calls a helper."""

  def embedded(self, tokens):
    return super().embedded(factor * tokens)


def _model(seed: int = 0) -> _Own:
  sizes: dict[str, Any] = {'width': 4, 'num_layers': 1, 'num_heads': 1}
  model = _Own(num_features=2, context_length=4, **sizes, rngs=nnx.Rngs(seed))
  model.read_out.kernel[...] += 1.0  # so that it does not predict 0
  return model


_TASK = zoo.create_task('linear_regression', num_features=2, context_length=4)
_SHIFTED = zoo.create_task(
  'linear_regression', num_features=2, context_length=4, prior_mean=1.0
)


def _prompt(seed: int) -> zoo.Prompt:
  return _TASK.sample(jax.random.key(seed), 16)


def _cross_validation(model: Any, seed: int) -> Any:
  pytest.importorskip('sklearn')
  from sklearn.model_selection import cross_val_predict  # an extra

  x, y = np.random.default_rng(seed).standard_normal((2, 6, 2))
  regressor = zoo.Regressor(model, _TASK)
  return cross_val_predict(regressor, x[:5], y[:5, 0], cv=5)


_MEASUREMENTS: dict[str, Callable[[Any, int], Any]] = {
  'predict': lambda model, seed: zoo.predict(model, _prompt(seed)),
}
_SLOW: dict[str, Callable[[Any, int], Any]] = {
  'capture': lambda model, seed: zoo.probing.capture(
    model, _prompt(seed), ['read_out']
  ),
  'predict after some examples': lambda model, seed: zoo.predict(
    model, _prompt(seed), np.arange(16) % 5
  ),
  'curve': lambda model, seed: zoo.curve(model, _TASK, 32, seed),
  'risks': lambda model, seed: zoo.probing.risks(
    model, _TASK.baselines()['gd'], _TASK, 32, seed
  ),
  'effects': lambda model, seed: zoo.probing.effects(
    model, _TASK, _prompt(seed), _prompt(seed + 10)
  ),
  'strategies': lambda model, seed: zoo.probing.strategies(
    model, _TASK, {name: _TASK.baselines()[name] for name in ('gd', 'zero')}, 64, seed
  ),
  'task_shift': lambda model, seed: zoo.probing.task_shift(
    model, _TASK.baselines()['gd'], 'other prior', _SHIFTED, 64, seed
  ),
  'sampled_algorithm': lambda model, seed: zoo.probing.sampled_algorithm(
    model, _TASK, 2048, seed
  ),
  'layer_algorithms': lambda model, seed: zoo.probing.layer_algorithms(
    model, _TASK, 64, 2, seed
  ),
  'Regressor': _cross_validation,
}


@pytest.mark.parametrize(
  'name',
  mostly_full([*_MEASUREMENTS], _SLOW, slow=['curve', 'capture']),
)
def test_a_second_call_compiles_nothing_until_a_helper_changes(name, monkeypatch):
  measure = (_MEASUREMENTS | _SLOW)[name]
  model, other = _model(), _model(1)
  first, _ = _num_compiled(measure, model, 0)
  again, count = _num_compiled(measure, model, 0)
  counts, (of_seed, count_of_seed) = [count], _num_compiled(measure, model, 1)
  of_other, count_of_other = _num_compiled(measure, other, 0)
  assert [*counts, count_of_seed, count_of_other] == [0, 0, 0]
  assert repr(again) == repr(first)
  assert repr(of_seed) != repr(first)
  assert repr(of_other) != repr(first)

  monkeypatch.setitem(globals(), 'factor', 2.0)
  changed, count = _num_compiled(measure, model, 0)
  assert count
  assert repr(changed) != repr(first)
  monkeypatch.setitem(globals(), 'factor', 1.0)
  before, count = _num_compiled(measure, model, 0)
  assert count == 0
  assert repr(before) == repr(first)
