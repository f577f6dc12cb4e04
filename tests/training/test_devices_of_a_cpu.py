"""No mesh of CPU devices waits for ever: training, comparison, sweep and probe.

The eight devices of the tests share the threads of one pool. In jaxlib 0.10 a matrix
decomposition waits in a thread of this pool for other threads of it. If all of them
wait, the run never ends, and uses no processor time.
"""

import subprocess
import sys
from typing import Any

import pytest

import zoo
from tests.marks import mostly_full
from tests.training.runs import small_config
from zoo.host.parts import Part
from zoo.training import sweep, train

# XLA may hang, so each test has a limit, after which pytest says where it stands.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

_MESHES: dict[str, dict[str, Any]] = {
  'data': {'mesh__data': 8},
  'model': {'mesh__data': 4, 'mesh__model': 2},
  'fsdp': {'mesh__data': 4, 'mesh__model': 2, 'mesh__fsdp': True},
}
_RATE = 'optimizer.learning_rate'


@pytest.fixture
def times(request) -> int:
  return 20 if request.config.getoption('--full') else 1


def _config(mesh: str) -> Any:
  config = small_config('multi_head_lsa', model__num_heads=4, **_MESHES[mesh])
  config.eval.num_compared = 64
  config.task.context_length = 12  # Programs of fewer steps run without the pool.
  return config


@pytest.mark.parametrize('mesh', mostly_full(['fsdp'], _MESHES))
def test_a_run_ends_with_its_comparison_and_can_be_probed(mesh, times, tmp_path):
  for i in range(times):
    summary = train(_config(mesh), tmp_path / str(i), compare=True)
    assert summary is not None
    assert summary['comparison']
    if times == 1:  # without --full
      return
    saved = zoo.load(tmp_path / str(i))
    assert not zoo.probing.probe(saved.model, saved.task, num_prompts=64).failures


@pytest.mark.parametrize('mesh', _MESHES)
@pytest.mark.full
def test_a_sweep_ends_in_parts(mesh, times, tmp_path):
  points = [{_RATE: rate} for rate in (1e-3, 2e-3, 3e-3, 4e-3)]
  for i in range(times):
    for part in Part(1, 2), Part(2, 2), None:
      assert sweep(_config(mesh), points, tmp_path / str(i), part)


@pytest.mark.parametrize('mesh', _MESHES)
@pytest.mark.full
def test_a_batch_in_parts_ends(mesh, times, tmp_path):
  config = _config(mesh)
  config.train.num_parts = 2
  for i in range(times):
    assert train(config, tmp_path / str(i), compare=True)


_DECOMPOSES = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from zoo.host.devices import start_devices
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
start_devices()
mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))

@jax.jit
def program(x):
  def body(z):
    u, s, v = jnp.linalg.svd(z, full_matrices=False)
    return (0.9 * u * s[:, None]) @ v
  loop = jax.lax.fori_loop(0, 20, lambda _, z: body(z), x)
  return loop, [jnp.sort(i * x) for i in range(10)]

x = jax.random.normal(jax.random.key(0), (128, 16, 16))
x = jax.device_put(x, NamedSharding(mesh, P('data')))
for _ in range(20):
  jax.block_until_ready(program(x))
"""


def test_programs_that_decompose_matrices_on_every_device_end():
  """Such as the steps of the mixer `mesa`. With XLA's number of threads none ends."""
  subprocess.run([sys.executable, '-c', _DECOMPOSES], check=True, timeout=100)
