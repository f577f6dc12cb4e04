"""What does not fit is refused before anything is written, by XLA's own plan."""

import contextlib
import functools
import types
from typing import Any

import jax
import pytest

import configs
from tests.compare import refuses
from zoo.config import memory
from zoo.config.mesh import make_mesh
from zoo.config.validation import build_task, validate
from zoo.core.errors import RunError, UserError
from zoo.models import DeepLSA
from zoo.training import sweep, train
from zoo.training.compilation import compile_training, make_training
from zoo.training.run import checked_state

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')
GIB = 2**30
MIB = 2**20


def config_of(name='multi_head_lsa', variant='', **fields):
  config: Any = configs.get_config(name, variant)
  config.mesh.data = 1
  config.update_from_flattened_dict(
    {field.replace('__', '.'): value for field, value in fields.items()}
  )
  return config


def compile_step(config):
  """Compiles its training; raises UserError if there is too little memory."""
  compile_training(make_training(config, make_mesh(config)))


# Peaks of whole processes in MiB, by getrusage, jax 0.10.2, one CPU device.
SHORT = {
  'train__num_steps': 4,
  'train__log_every': 2,
  'checkpoint__every': 4,
  'eval__every': 4,
  'eval__num_batches': 2,
}
MEASURED = [
  (2580, 'multi_head_lsa', '', {**SHORT, 'model__num_heads': 200_000}),
  (4352, 'multi_head_lsa', 'smoke', {'model__num_heads': 200_000}),
  (
    *(966, 'lsa', ''),
    {**SHORT, 'train__batch_size': 204_800, 'task__context_length': 1000},
  ),
  (8896, 'yq_lsa', '', {**SHORT, 'train__batch_size': 8, 'task__num_features': 600}),
]


@pytest.mark.slow
@pytest.mark.parametrize(('measured', 'name', 'variant', 'fields'), MEASURED)
def test_what_was_measured_is_between_what_is_planned_and_its_double(
  measured, name, variant, fields, monkeypatch
):
  config = config_of(name, variant, **fields)
  # It is trained where there is as much, and refused where there is half of it.
  monkeypatch.setattr(memory, 'host_bytes', lambda: measured * MIB // 2)
  with refuses('training needs about'):
    compile_step(config)
  monkeypatch.setattr(memory, 'host_bytes', lambda: measured * MIB)
  compile_step(config)


def test_what_asks_for_too_much_is_refused_with_the_number(tmp_path, monkeypatch):
  monkeypatch.setattr(memory, 'host_bytes', lambda: 16 * GIB)
  config = config_of('multi_head_lsa', 'smoke', train__batch_size=10**11)
  advice = 'for a step', 'reduce config.train.batch_size'
  with refuses('GiB of memory, more than the 16.0 GiB', *advice):
    train(config, tmp_path / 'run')
  assert not list(tmp_path.iterdir())


def test_too_many_features_are_refused_before_anything_is_built(monkeypatch):
  monkeypatch.setattr(memory, 'host_bytes', lambda: 16 * GIB)
  with refuses('for reference risks: reduce config.task.num_features'):
    validate(config_of('multi_head_lsa', 'smoke', task__num_features=10**6))


def test_where_there_is_a_gibibyte_a_shipped_config_is_trained(monkeypatch):
  monkeypatch.setattr(memory, 'host_bytes', lambda: GIB)
  compile_step(config_of('multi_head_lsa', 'smoke'))


class Step:
  """A step that XLA has planned, on devices that need not exist."""

  def __init__(self, platform, **sizes):
    device = types.SimpleNamespace(
      platform=platform,
      device_kind='TPU v5 lite',
      memory_stats=lambda: {'bytes_limit': 4 * GIB},
    )
    self.mesh: Any = types.SimpleNamespace(local_devices=[device] * 8)
    self._sizes = {f'{name}_size_in_bytes': size for name, size in sizes.items()}

  def compile(self):
    return self

  def memory_analysis(self):
    return types.SimpleNamespace(peak_memory_in_bytes=5 * GIB, **self._sizes)


_SIZES = {'argument': GIB, 'output': GIB, 'alias': GIB, 'temp': GIB // 2}


@pytest.mark.parametrize(
  ('available', 'every', 'fits'),
  [
    *((12, 10**9, False), (13, 10**9, True), (28, 10, False), (29, 10, True)),
    (None, 10, True),  # unknown
  ],
)
def test_the_cpus_of_this_machine_share_its_memory(
  available, every, fits, monkeypatch, unchecked
):
  """Eight devices of 1.5 GiB, half a GiB for all, and two copies to be saved."""
  monkeypatch.setattr(memory, 'host_bytes', lambda: available and available * GIB)
  config, step = config_of(checkpoint__every=every), Step('cpu', **_SIZES)
  refused = refuses('more than the', 'GiB available on this machine')
  with contextlib.nullcontext() if fits else refused:
    memory.compile_step(step, step.mesh, [config], build_task(config))


def test_a_device_with_memory_of_its_own_has_a_limit(unchecked):
  config, step = config_of(), Step('tpu', **_SIZES)
  with refuses('needs about 5.0 GiB', 'the 4.0 GiB of a TPU v5 lite'):
    memory.compile_step(step, step.mesh, [config], build_task(config))


def test_what_a_compiler_refuses_is_one_line(unchecked):
  config, step = config_of(), Step('tpu', **_SIZES)

  def fail():
    raise exhausted('RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.')

  step.compile = fail
  with refuses('does not fit on a TPU v5 lite', 'Ran out of memory', 'batch_size'):
    memory.compile_step(step, step.mesh, [config], build_task(config))


def test_the_memory_of_imagined_devices_is_not_that_of_this_machine(monkeypatch):
  monkeypatch.setattr(memory, 'host_bytes', lambda: 0)
  validate(config_of(), num_devices=4)


def test_the_memory_of_this_machine_is_known():
  found = memory.host_bytes()
  assert found is None or GIB // 4 < found < 2**60


@pytest.mark.parametrize(
  ('groups', 'limits', 'expected'),
  [
    ('0::/', {'memory.max': 'max'}, []),
    ('0::/', {'memory.max': '7'}, [7]),  # in a container
    # A job of SLURM, whose own limit is above the group of its processes.
    (
      '0::/slurm/job_1/step_0/task_0',
      {'slurm/job_1/memory.max': '5', 'slurm/job_1/step_0/memory.max': 'max'},
      [5],
    ),
    (
      '9:cpu:/a\n4:memory:/slurm/job_1\n0::/',
      {'memory/slurm/job_1/memory.limit_in_bytes': '5', 'memory.max': '9'},
      [5, 9],
    ),
    ('4:cpuset,memory:/of/the/host', {'memory/memory.limit_in_bytes': '5'}, [5]),
    ('', {'memory.max': '9'}, []),
  ],
)
def test_the_limit_is_that_of_the_own_control_group(tmp_path, groups, limits, expected):
  files = {'proc/self/cgroup': groups}
  files |= {f'sys/fs/cgroup/{name}': text for name, text in limits.items()}
  for name, text in files.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f'{text}\n' if text else '')
  assert memory._cgroup_limits(tmp_path) == expected


def exhausted(text='RESOURCE_EXHAUSTED: Out of memory allocating 128 bytes.'):
  return jax.errors.JaxRuntimeError(text)


@pytest.mark.parametrize(
  'error',
  [
    exhausted(),
    exhausted('INTERNAL: Error dispatching computation: Out of memory allocating 9'),
    MemoryError('Unable to allocate 3.64 TiB'),
  ],
)
def test_too_little_memory_is_one_line_with_what_to_change(error, monkeypatch):
  config = config_of('deep_lsa', 'smoke', task__context_length=7)
  said = 'batch_size (64)', 'context_length (7)', 'num_parts (1)', str(error)
  with pytest.raises(RunError) as info, memory.in_config(config):
    raise error
  assert all(part in str(info.value) for part in said)

  def fail(*_, **__):
    raise error

  training = make_training(config, make_mesh(config))
  monkeypatch.setattr(DeepLSA, 'body', fail)
  with pytest.raises(RunError, match='the memory is not enough'):
    checked_state(training)
  monkeypatch.setattr(DeepLSA, '__init__', functools.wraps(DeepLSA.__init__)(fail))
  with pytest.raises(RunError, match='the memory is not enough'):
    validate(config)


def test_other_errors_are_left_as_they_are():
  for error in (exhausted('INTERNAL: a bug'), UserError('a mistake')):
    with pytest.raises(type(error)) as info, memory.in_config(config_of()):
      raise error
    assert info.value is error


def test_a_sweep_counts_the_states_of_all_its_points(tmp_path, monkeypatch):
  config = config_of('multi_head_lsa', 'smoke', model__num_heads=20_000)
  monkeypatch.setattr(memory, 'host_bytes', lambda: 2 * GIB)
  with refuses('training 9 points at once needs', '2.0 GiB', 'train fewer points'):
    sweep(config, [{'task.prior_mean': float(i)} for i in range(9)], tmp_path / 'a')
