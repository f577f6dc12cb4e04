"""The memory that training needs, as XLA plans it, and what this machine has."""

import contextlib
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from zoo import theory
from zoo.config.building import Config
from zoo.core.errors import RunError, UserError, in_one_line, is_exhausted
from zoo.core.protocols import Model, Task

GIB = 2**30
# Memory of a process that has imported and compiled everything.
_PROGRAM = GIB // 2

_STATE, _STEP, _REFERENCE = 'weights and optimizer state', 'a step', 'reference risks'
# What a user can do to save each part of the memory.
_ADVICE = {
  _STATE: 'reduce config.model and config.task.num_features',
  _STEP: 'reduce config.train.batch_size or config.task, or raise '
  'config.train.num_parts',
  _REFERENCE: 'reduce config.task.num_features',
}


def compile_step(
  lowered: Any, mesh: Mesh, configs: Sequence[Config], task: Task
) -> Any:
  """Compiles the step, a `jax.stages.Lowered`, that trains the models of some configs.

  Raises UserError if it needs more memory than a device has, or than this machine has
  if the devices are its CPUs.
  """
  device, number = mesh.local_devices[0], len(mesh.local_devices)
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if not is_exhausted(error):
      raise
    raise UserError(
      f'training does not fit on a {device.device_kind}: {in_one_line(error)}; '
      f'{_ADVICE[_STEP]}'
    ) from error
  memory = compiled.memory_analysis()
  state = memory.alias_size_in_bytes  # which is donated
  if device.platform == 'cpu':
    others = memory.argument_size_in_bytes + memory.output_size_in_bytes - 2 * state
    parts = {
      _STATE: number * state,
      _STEP: number * (others + memory.temp_size_in_bytes),
      _REFERENCE: reference_bytes(task, len(configs)),
    }
    if configs[0].checkpoint.every < configs[0].train.num_steps:
      # A checkpoint is encoded and written from a copy while training continues.
      parts[_STATE] *= 3
    _check(parts, _PROGRAM, host_bytes(), 'available on this machine', len(configs))
  else:
    parts = {_STATE: state, _STEP: memory.peak_memory_in_bytes - state}
    limit = (device.memory_stats() or {}).get('bytes_limit')
    _check(parts, 0, limit, f'of a {device.device_kind}', len(configs))
  return compiled


def check_weights(model: Model) -> None:
  """Raises UserError unless all devices together have the memory for the weights.

  XLA aborts the process if it compiles a program of arrays that are far too large.
  """
  leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
  size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
  device = jax.local_devices()[0]
  if device.platform == 'cpu':
    share, limit = size // jax.process_count(), host_bytes()
    _check({_STATE: share}, 0, limit, 'available on this machine')
  else:
    limit = (device.memory_stats() or {}).get('bytes_limit')
    share = size // jax.device_count()
    _check({_STATE: share}, 0, limit, f'of a {device.device_kind}')


def check_reference(task: Task) -> None:
  """Raises UserError unless this machine has the memory for the reference risks."""
  parts = {_REFERENCE: reference_bytes(task)}
  _check(parts, 0, host_bytes(), 'available on this machine')


def reference_bytes(task: Task, num_points: int = 1) -> int:
  """Bytes of host memory that the exact risks of the best rules take (float64).

  They take 4.5 arrays of the size of a learning rule's update, `[d, d + 1, d + 1]`, and
  one more for each further point of a sweep.
  """
  if not theory.covers(task):
    return 0
  d = task.num_features
  return (7 + 2 * num_points) * 4 * d * (d + 1) ** 2


def _check(
  parts: Mapping[str, int],
  more: int,
  available: int | None,
  where: str,
  num_points: int = 1,
) -> None:
  """Raises UserError if the parts, and more, are more than is available."""
  needed = more + sum(parts.values())
  if available is None or needed <= available:
    return
  largest = max(parts, key=lambda name: parts[name])
  what, fewer = 'training', ''
  if num_points > 1:
    what = f'training {num_points} points at once'
    fewer = ', or train fewer points in one sweep'
  raise UserError(
    f'{what} needs about {needed / GIB:,.1f} GiB of memory, more than the '
    f'{available / GIB:,.1f} GiB {where}; {parts[largest] / GIB:,.1f} GiB are for '
    f'{largest}: {_ADVICE[largest]}{fewer}'
  )


@contextlib.contextmanager
def in_config(config: Config) -> Iterator[None]:
  """Turns running out of memory in the block into a RunError that names the fields."""
  try:
    yield
  except Exception as error:
    if not is_exhausted(error):
      raise
    length = config.task.get('context_length')
    of_task = '' if length is None else f' or config.task.context_length ({length:,})'
    raise RunError(
      f'the memory is not enough: {in_one_line(error, 200)}; reduce '
      f'config.train.batch_size ({config.train.batch_size:,}){of_task}, or raise '
      f'config.train.num_parts ({config.train.num_parts:,})'
    ) from error


def host_bytes() -> int | None:
  """Available memory of this machine or its container; None if unknown."""
  found = []
  try:
    for line in pathlib.Path('/proc/meminfo').read_text().splitlines():
      name, _, value = line.partition(':')
      if name == 'MemAvailable':
        found.append(1024 * int(value.removesuffix('kB')))
    found += _cgroup_limits(pathlib.Path('/'))
  except (OSError, ValueError):
    pass
  if not found and hasattr(os, 'sysconf'):  # macOS: the physical memory
    found.append(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))
  return min(found, default=None)


def _cgroup_limits(root: pathlib.Path) -> list[int]:
  """The limits on the memory of the control groups that this process is in.

  In a container the outermost group has one; a job of SLURM has one of its own.
  """
  limits, own = [], root / 'proc/self/cgroup'
  for line in own.read_text().splitlines() if own.is_file() else ['0::/']:
    _, kinds, group = line.split(':', 2)
    if kinds and 'memory' not in kinds.split(','):
      continue
    # Version 2 of control groups has no kinds.
    outermost = root / 'sys/fs/cgroup' / ('memory' if kinds else '')
    inner = outermost / group.strip('/')
    for folder in (inner, *inner.parents):
      limit = folder / ('memory.limit_in_bytes' if kinds else 'memory.max')
      if limit.is_file() and (text := limit.read_text().strip()) != 'max':
        limits.append(int(text))
  return limits
