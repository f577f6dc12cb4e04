"""The placement of the mesh's axes on devices; tests/test_aot.py has real slices."""

import types
from typing import Any

import numpy as np
import pytest

from tests.compare import refuses
from tests.training.runs import small_config
from zoo.config import mesh
from zoo.config.validation import mesh_shape
from zoo.training import train


def made_up_devices(*slices):
  """Devices that say in which slice they are, in no particular arrangement."""
  return [
    types.SimpleNamespace(
      id=number, slice_index=one, platform='none', device_kind='made up'
    )
    for number, one in enumerate(slices)
  ]


@pytest.fixture(autouse=True)
def any_device(monkeypatch):
  """A mesh is only what is placed where, as JAX's own takes no made-up devices."""
  monkeypatch.setattr(mesh, 'Mesh', lambda placed, names, axis_types: placed)


def sliced(**changes: Any) -> Any:
  fields: Any = {'mesh__data': -1, 'train__batch_size': 24} | changes
  return small_config(**fields)


@pytest.mark.parametrize('order', ['one after the other', 'in turns'])
def test_each_slice_has_a_range_of_the_batch_and_all_heads(unchecked, order):
  in_turns = order == 'in turns'
  devices = made_up_devices(*([0, 1] * 6 if in_turns else [0] * 6 + [1] * 6))
  placed: Any = mesh.make_mesh(sliced(mesh__slices=2, mesh__model=3), devices)
  indices = np.vectorize(lambda device: device.slice_index)(placed)
  assert indices.tolist() == [[0] * 3] * 2 + [[1] * 3] * 2
  assert len({device.id for device in placed.flat}) == 12


def test_devices_that_are_not_in_such_slices_are_refused(unchecked):
  for indices, sizes in ([0] * 8, '8'), ([0] * 5 + [1] * 3, '5 + 3'):
    with refuses('slices=2', f'in slices of {sizes}, cannot form it'):
      mesh.make_mesh(sliced(mesh__slices=2), made_up_devices(*indices))


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'mesh__slices': 3}, 'config.mesh.slices is 3; it must divide the data axis'),
    ({'mesh__slices': 2, 'mesh__data': 6}, 'leaves out 2 of 8 devices; with several'),
  ],
)
def test_slices_must_fit_the_mesh(changes, said):
  with refuses(said):
    mesh_shape(sliced(**changes))


def test_a_mesh_that_cannot_be_formed_is_refused_before_anything_is_written(tmp_path):
  with refuses('slices=2', "of kind 'cpu', which are in slices of 8, cannot form it"):
    train(sliced(mesh__slices=2, train__batch_size=16), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
