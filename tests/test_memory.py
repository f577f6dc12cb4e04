"""Running out of memory is one line with the fields that save some."""

import functools
from typing import Any

import jax
import pytest

import configs
from tests.built import abstract_of
from tests.compare import refuses
from tests.marks import SLOW
from zoo.config.building import num_weights, within_memory
from zoo.config.read import read
from zoo.core.errors import RunError, UserError
from zoo.host.interruption import Interruption
from zoo.models import DeepLSA
from zoo.training import compilation, run, train
from zoo.training.compilation import compile_training, make_training
from zoo.training.evaluation import Measured
from zoo.training.experiment import build, validate
from zoo.training.loop import Loop, _Call
from zoo.training.run import checked_state

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def config_of(name='deep_lsa', variant='smoke', **fields):
  config: Any = configs.get_config(name, variant)
  config.mesh.data = 1
  config.update_from_flattened_dict(
    {field.replace('__', '.'): value for field, value in fields.items()}
  )
  return config


def exhausted(text='RESOURCE_EXHAUSTED: Out of memory allocating 128 bytes.'):
  return jax.errors.JaxRuntimeError(text)


@pytest.mark.parametrize(
  'error',
  [
    exhausted(),
    pytest.param(
      exhausted('INTERNAL: Error dispatching computation: Out of memory allocating 9'),
      marks=SLOW,
    ),
    pytest.param(MemoryError('Unable to allocate 3.64 TiB'), marks=SLOW),
  ],
)
def test_too_little_memory_is_one_line_with_what_to_change(error, monkeypatch):
  config = config_of(task__context_length=7, model__num_layers=1)
  said = 'batch_size (64)', 'context_length (7)', 'num_parts (1)', str(error)
  with pytest.raises(RunError) as info, within_memory(read(config)):
    raise error
  assert all(part in str(info.value) for part in said)

  def fail(*_, **__):
    raise error

  training = make_training(build(config))
  monkeypatch.setattr(run, 'has_own_classes', lambda *_: True)
  monkeypatch.setattr(DeepLSA, 'body', fail)
  with pytest.raises(RunError, match='the memory is not enough'):
    checked_state(training)
  monkeypatch.setattr(DeepLSA, '__init__', functools.wraps(DeepLSA.__init__)(fail))
  with pytest.raises(RunError, match='the memory is not enough'):
    validate(config)


@pytest.mark.slow
def test_a_program_that_the_compiler_refuses_is_one_line(monkeypatch):
  def fail(*_, **__):
    raise exhausted('RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.')

  monkeypatch.setattr(compilation, 'compile_evaluation', fail)
  config = config_of('lsa')
  with pytest.raises(RunError, match=r'not enough: .*Ran out of memory.*batch_size'):
    compile_training(make_training(build(config)))


def test_memory_that_is_missing_only_while_a_step_computes_is_one_line(monkeypatch):
  def fail(*_, **__):
    raise exhausted()

  config = config_of('lsa')
  training = make_training(build(config))
  steps = Loop(training, {}, 0, lambda step: False, Interruption(), looks_ahead=False)
  monkeypatch.setattr(jax, 'block_until_ready', fail)
  with pytest.raises(RunError, match=r'the memory is not enough: .*batch_size \(64\)'):
    steps._fetch(_Call(0.0, 1, {}, Measured()))


@pytest.mark.slow
def test_weights_that_no_memory_holds_are_refused_before_anything_is_written(tmp_path):
  config = config_of('multi_head_lsa', model__num_heads=10**11)
  with refuses('the memory is not enough', 'or config.model, or raise'):
    train(config, tmp_path / 'run')
  assert not list(tmp_path.iterdir())


def test_weights_gradients_and_moments_are_compared_with_the_memory(
  tmp_path, monkeypatch
):
  """Adam has two moments for each weight, and counters of a few bytes."""
  config = config_of('multi_head_lsa', model__num_heads=4)
  least = 4 * 4 * num_weights(abstract_of(config))
  monkeypatch.setattr(run, 'memory_of', lambda device: least - 1)
  with refuses('the memory is not enough: the weights, their gradients', 'GiB'):
    train(config, tmp_path / 'run')
  assert not list(tmp_path.iterdir())
  monkeypatch.setattr(run, 'memory_of', lambda device: least + 100)
  checked_state(make_training(build(config)))


def test_other_errors_are_left_as_they_are():
  for error in (exhausted('INTERNAL: a bug'), UserError('a mistake')):
    with pytest.raises(type(error)) as info, within_memory(read(config_of())):
      raise error
    assert info.value is error
