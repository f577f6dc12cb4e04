"""A small state of a run, saved and opened again, and disks that refuse it."""

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.built import abstract_of
from zoo.storage.checkpoints import Checkpoints
from zoo.storage.steps import SUMS

CONTENT = {  # of the config of a run
  'model': {'name': 'yq_lsa'},
  'task': {'name': 'linear_regression'},
  'seed': 0,
}


def state_at(step: int) -> dict:
  return {
    'model': {'w': jnp.arange(100.0) * step},
    'optimizer': {'count': jnp.asarray(step), 'mu': jnp.full(100, step / 3)},
  }


ABSTRACT = jax.tree.map(
  lambda leaf: jax.ShapeDtypeStruct(
    leaf.shape,
    leaf.dtype,
    sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]),
  ),
  jax.eval_shape(lambda: state_at(1)),
)


def save(workdir: pathlib.Path, *steps: int, keep: int = 5) -> None:
  workdir.mkdir(exist_ok=True)
  with Checkpoints(workdir, keep, CONTENT) as checkpoints:
    for step in steps:
      checkpoints.save(step, state_at(step))


def load_latest(workdir: pathlib.Path) -> int | None:
  """Opens as a run does; checks what is loaded, and tells its step."""
  with Checkpoints(workdir, 5, CONTENT) as checkpoints:
    step = checkpoints.latest
    if step is not None:
      loaded = checkpoints.load(step, ABSTRACT)
      jax.tree.map(np.testing.assert_array_equal, loaded, state_at(step))
  return step


def zeros_of(config: Any) -> nnx.State:
  """The state of the model that a config makes, with zeros as weights."""
  return jax.tree.map(
    lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)),
    nnx.state(abstract_of(config)),
  )


def files_of(step_folder: pathlib.Path) -> list[str]:
  """The files that the checksums list and that hold anything."""
  lines = (step_folder / SUMS).read_text().splitlines()
  names = [line.split('  ')[1] for line in lines]
  return [name for name in names if (step_folder / name).stat().st_size]


def flip(path: pathlib.Path) -> None:
  """Changes a bit in the middle of a file, or makes an empty one longer."""
  content = bytearray(path.read_bytes() or b'?')
  content[len(content) // 2] ^= 0x10
  path.write_bytes(bytes(content))


@contextlib.contextmanager
def disk(folder: pathlib.Path, options: str) -> Iterator[pathlib.Path]:
  """A file system of its own, with the options of tmpfs such as `size=1m`."""
  folder.mkdir(exist_ok=True)
  mount = ['mount', '-t', 'tmpfs', '-o', options, 'tmpfs', str(folder)]
  made = subprocess.run(mount, capture_output=True, text=True, check=False)
  if made.returncode:
    pytest.skip(f'no tmpfs can be mounted here: {made.stderr.strip()}')
  try:
    yield folder
  finally:
    subprocess.run(['umount', '--lazy', str(folder)], check=True)


@contextlib.contextmanager
def not_root() -> Iterator[None]:
  """As a user whom permissions bind; tests often run as root."""
  user = os.geteuid()
  if user:
    yield
    return
  os.seteuid(65534)
  try:
    yield
  finally:
    os.seteuid(user)


def let_others_in(folder: pathlib.Path) -> None:
  """Lets other users into a folder of pytest's."""
  # Those of the test, the worker, the session and the user.
  for path in (folder, *list(folder.parents)[:4]):
    path.chmod(path.stat().st_mode | 0o055)
