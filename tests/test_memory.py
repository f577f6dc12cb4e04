"""Memory is estimated before anything is built, near to what was measured."""

import jax
import pytest
from flax import nnx

import configs
from tests.compare import refuses
from zoo.config import memory
from zoo.config.validation import build_model, build_task, validate
from zoo.core.errors import RunError, UserError
from zoo.training import sweep

GIB = 2**30
MIB = 2**20


def config_of(name='multi_head_lsa', variant='', **fields):
  config = configs.get_config(name, variant)
  config.mesh.data = 1
  config.update_from_flattened_dict(
    {field.replace('__', '.'): value for field, value in fields.items()}
  )
  return config


def estimate(config, mesh_shape=(1, 1), num_points=1):
  task = build_task(config)
  model = nnx.eval_shape(lambda: build_model(config, nnx.Rngs(0)))
  return memory.estimate(config, task, model, mesh_shape, num_points)


# Peaks of whole processes in MiB, by getrusage, jax 0.10.2, one CPU device.
SHORT = {
  'train__num_steps': 4,
  'train__log_every': 2,
  'checkpoint__every': 4,
  'eval__every': 4,
  'eval__num_batches': 2,
}
MEASURED = [
  (569, 'yq_lsa', '', SHORT),
  (555, 'multi_head_lsa', '', SHORT),
  (607, 'ltb', '', SHORT),
  (763, 'multi_head_lsa', '', {**SHORT, 'model__num_heads': 10_000}),
  (2580, 'multi_head_lsa', '', {**SHORT, 'model__num_heads': 200_000}),
  (4352, 'multi_head_lsa', 'smoke', {'model__num_heads': 200_000}),
  (905, 'multi_head_lsa', '', {**SHORT, 'train__batch_size': 204_800}),
  (
    966,
    'lsa',
    '',
    {**SHORT, 'train__batch_size': 204_800, 'task__context_length': 1000},
  ),
  (2821, 'yq_lsa', '', {**SHORT, 'train__batch_size': 8, 'task__num_features': 400}),
  (8896, 'yq_lsa', '', {**SHORT, 'train__batch_size': 8, 'task__num_features': 600}),
  (
    4809,
    'lsa',
    '',
    {
      **SHORT,
      'train__batch_size': 4000,
      'task__num_features': 256,
      'task__context_length': 256,
    },
  ),
]


@pytest.mark.parametrize(('measured', 'name', 'variant', 'fields'), MEASURED)
def test_what_was_measured_is_between_what_is_estimated_and_its_double(
  measured, name, variant, fields, monkeypatch
):
  config = config_of(name, variant, **fields)
  devices = jax.local_devices()[:1]
  monkeypatch.setattr(jax, 'local_devices', lambda: devices)
  # It is trained where there is as much, and refused where there is half of it.
  monkeypatch.setattr(memory, 'host_bytes', lambda: measured * MIB)
  validate(config)
  monkeypatch.setattr(memory, 'host_bytes', lambda: measured * MIB // 2)
  with refuses('training needs about'):
    validate(config)


@pytest.mark.parametrize(
  ('field', 'value', 'part', 'reduce'),
  [
    ('train__batch_size', 10**11, 'prompts of a batch', 'config.train.batch_size'),
    ('eval__num_batches', 2 * 10**9, 'held-out batches', 'config.eval.num_batches'),
    ('task__num_features', 10**6, 'exact reference', 'config.task.num_features'),
    ('model__num_heads', 10**6, 'weights and', 'config.model and config.task'),
  ],
)
def test_what_asks_for_too_much_is_refused_with_the_number(
  field, value, part, reduce, monkeypatch
):
  monkeypatch.setattr(memory, 'host_bytes', lambda: 16 * GIB)
  with refuses('GiB of memory, more than the 16.0 GiB', f'for {part}', reduce):
    validate(config_of('multi_head_lsa', 'smoke', **{field: value}))


@pytest.mark.parametrize('name', ['lsa', 'multi_head_lsa', 'yq_lsa', 'ltb'])
@pytest.mark.parametrize('variant', ['', 'paper', 'smoke'])
def test_the_shipped_configs_are_trained_where_there_is_a_gibibyte(
  name, variant, monkeypatch
):
  monkeypatch.setattr(memory, 'host_bytes', lambda: GIB)
  validate(config_of(name, variant))


class Chip:
  """A device with memory of its own."""

  platform, device_kind = 'tpu', 'TPU v5 lite'

  def __init__(self, num_bytes):
    self._statistics = {'bytes_limit': num_bytes}

  def memory_stats(self):
    return self._statistics


@pytest.mark.parametrize('mesh_shape', [(1, 4), (8, 4), (64, 4)])
def test_the_config_of_scale_goes_on_slices_on_which_it_fits(mesh_shape, monkeypatch):
  """launch.aot, which has the compiler plan it, tells of 7.3 GiB on v5e:2x2."""
  config = config_of('scale')
  task, model = (
    build_task(config),
    nnx.eval_shape(lambda: build_model(config, nnx.Rngs(0))),
  )
  monkeypatch.setattr(jax, 'local_devices', lambda: [Chip(int(15.75 * GIB))])
  memory.check(config, task, model, mesh_shape)
  monkeypatch.setattr(jax, 'local_devices', lambda: [Chip(GIB // 8)])
  with refuses('of a TPU v5 lite'):
    memory.check(config, task, model, mesh_shape)


def test_the_state_is_shared_as_the_mesh_says():
  config = config_of(model__num_heads=512)
  whole = estimate(config)['weights and optimizer state']
  assert whole == 4 * 4 * 4 * 512 * 11**2  # weights, two moments, gradient
  assert estimate(config, (2, 4))['weights and optimizer state'] == whole / 4
  config.mesh.fsdp = True
  assert estimate(config, (2, 4))['weights and optimizer state'] == whole / 8
  assert estimate(config, num_points=3)['weights and optimizer state'] == 3 * whole / 1
  config.optimizer.name = 'sgd'
  assert estimate(config)['weights and optimizer state'] == whole / 2


def test_the_devices_of_this_machine_share_its_memory(monkeypatch):
  config = config_of(model__num_heads=100_000)
  monkeypatch.setattr(memory, 'host_bytes', lambda: 4 * GIB)
  validate(config)
  config.mesh.data = 8
  with refuses('more than the 4.0 GiB available on this machine'):
    validate(config)


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


def test_where_it_is_unknown_nothing_is_refused(monkeypatch):
  monkeypatch.setattr(memory, 'host_bytes', lambda: None)
  validate(config_of(train__batch_size=10**11))


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

  def fail(*_):
    raise error

  monkeypatch.setattr('zoo.models.DeepLSA.body', fail)
  with pytest.raises(RunError, match='the memory is not enough'):
    validate(config)


def test_other_errors_are_left_as_they_are():
  for error in (exhausted('INTERNAL: a bug'), UserError('a mistake')):
    with pytest.raises(type(error)) as info, memory.in_config(config_of()):
      raise error
    assert info.value is error


def test_a_sweep_counts_the_states_of_all_its_points(tmp_path, monkeypatch):
  config = config_of('multi_head_lsa', 'smoke', model__num_heads=20_000)
  devices = jax.local_devices()[:1]
  monkeypatch.setattr(jax, 'local_devices', lambda: devices)
  monkeypatch.setattr(memory, 'host_bytes', lambda: GIB)
  validate(config)
  with refuses('training 9 points at once needs', '1.0 GiB', 'train fewer points'):
    sweep(config, [{'task.prior_mean': float(i)} for i in range(9)], tmp_path / 'a')
