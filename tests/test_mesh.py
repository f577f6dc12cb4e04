"""The mesh of a config on devices; tests/test_aot.py has those of real slices."""

import types

from tests.compare import refuses
from tests.training.runs import small_config
from zoo.config.read import read
from zoo.sharding import make_mesh, mesh_shape
from zoo.training import train


def test_devices_that_cannot_form_the_mesh_are_refused(unchecked):
  devices = [
    types.SimpleNamespace(
      id=i,
      coords=(i // 2, i % 2, 0),
      core_on_chip=0,
      process_index=0,
      platform='tpu',
      device_kind='TPU v5 lite',
    )
    for i in range(4)
  ]
  with refuses("3 of the 4 devices of kind 'TPU v5 lite' cannot form it"):
    make_mesh(read(small_config(mesh__data=3, train__batch_size=24)), devices)


def test_devices_that_are_left_idle_are_said_once(caplog):
  assert mesh_shape(read(small_config(mesh__data=-1, mesh__model=4))) == (2, 4)
  assert not caplog.messages
  config = small_config(mesh__data=-1, mesh__model=3)
  assert make_mesh(read(config)).size == 6
  assert mesh_shape(read(config)) == (2, 3)
  (said,) = caplog.messages
  assert 'config.mesh.model is 3' in said
  assert 'the 8 devices: 2 of them are idle' in said


def test_a_mesh_of_too_many_devices_is_refused_before_anything_is_written(tmp_path):
  with refuses('config.mesh is data 4 × model 3; it needs 12 devices, and there are 8'):
    train(small_config(mesh__data=4, mesh__model=3), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
