"""Estimates the memory that a config needs, and reports when there is too little.

The estimate is a lower bound: activations, gradients of activations and what baselines
compute are not counted.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx

from zoo import theory
from zoo.config.optimizers import OPTIMIZERS
from zoo.core.errors import RunError, UserError, in_one_line
from zoo.core.protocols import Model, Task

if TYPE_CHECKING:
  from zoo.config.validation import Config
else:  # `zoo.config.validation` imports this module
  from ml_collections import ConfigDict as Config

GIB = 2**30
FLOAT = 4  # bytes
# Memory of a process that has imported and compiled everything.
_PROGRAM = GIB // 2

# The fields that a user can reduce to save each part of the memory.
_FIELDS = {
  'weights and optimizer state': 'config.model and config.task.num_features',
  'prompts of a batch': 'config.train.batch_size and config.task',
  'held-out batches': 'config.eval.num_batches',
  'exact reference risks': 'config.task.num_features',
}


def check(
  config: Config,
  task: Task,
  model: Model,
  mesh_shape: tuple[int, int],
  num_points: int = 1,
) -> None:
  """Raises UserError if training a config needs more memory than is available.

  The memory is that of a device, or of this machine if the devices are its CPUs.
  `model` may be abstract, and `mesh_shape` has the sizes of the axes `data` and
  `model`. Models that are trained side by side, as in a sweep, have `num_points` states
  on each device.
  """
  parts = estimate(config, task, model, mesh_shape, num_points)
  device = jax.local_devices()[0]
  if device.platform == 'cpu':
    available, where = host_bytes(), 'available on this machine'
    devices = math.prod(mesh_shape) // jax.process_count()
    parts = {name: devices * size for name, size in parts.items()}
    if config.checkpoint.every < config.train.num_steps:
      # A checkpoint is encoded and written from a copy while training continues.
      parts['weights and optimizer state'] += 2 * state_bytes(config, model, num_points)
    parts['exact reference risks'] = reference_bytes(task, num_points)
    total = _PROGRAM + sum(parts.values())
  else:
    statistics = device.memory_stats() or {}
    available, where = statistics.get('bytes_limit'), f'of a {device.device_kind}'
    total = sum(parts.values())
  if available is not None and total > available:
    largest = max(parts, key=lambda name: parts[name])
    what = 'training' if num_points == 1 else f'training {num_points} points at once'
    fewer = '' if num_points == 1 else ', or train fewer points in one sweep'
    raise UserError(
      f'{what} needs about {total / GIB:,.1f} GiB of memory, more than the '
      f'{available / GIB:,.1f} GiB {where}; {parts[largest] / GIB:,.1f} GiB are for '
      f'{largest}: reduce {_FIELDS[largest]}{fewer}'
    )


@contextlib.contextmanager
def in_config(config: Config) -> Iterator[None]:
  """Turns running out of memory in the block into a RunError that names the fields."""
  try:
    yield
  except Exception as error:
    reason = error.__cause__ or error  # a failed check of a model has it as its cause
    if not is_exhausted(reason):
      raise
    length = config.task.get('context_length')
    of_task = '' if length is None else f' or config.task.context_length ({length:,})'
    raise RunError(
      f'the memory is not enough: {in_one_line(reason, 200)}; reduce '
      f'config.train.batch_size ({config.train.batch_size:,}){of_task}, or raise '
      f'config.train.num_parts ({config.train.num_parts:,})'
    ) from error


def is_exhausted(error: BaseException) -> bool:
  """Whether an error of Python, NumPy or JAX says that the memory is not enough."""
  return isinstance(error, MemoryError) or (
    isinstance(error, jax.errors.JaxRuntimeError)
    and any(said in str(error) for said in ('RESOURCE_EXHAUSTED', 'Out of memory'))
  )


def estimate(
  config: Config,
  task: Task,
  model: Model,
  mesh_shape: tuple[int, int],
  num_points: int = 1,
) -> dict[str, float]:
  """Bytes that training needs on each device, part by part.

  Only the indispensable parts count: the state and the gradient; each prompt twice, as
  random words and as numbers, and its second moment, from which gradient descent
  predicts; the risk of each held-out batch.
  """
  data, _ = mesh_shape
  d = task.num_features
  c = task.context_length
  prompt = (c + 1) * (d + 1)
  held_out = config.eval.num_batches
  if getattr(task, 'has_long_context', False) and hasattr(model, 'learning_rule'):
    prompt = (d + 1) * (d + 2) // 2 + d + 1  # its statistics: see zoo.core.statistics
  if held_out and theory.covers(task):
    prompt += (d + 1) ** 2 / 2
  sampled = held_out or config.objective.name != 'exact'
  share = _share(model, mesh_shape, config.mesh.fsdp)
  gradient = FLOAT * num_points * _num_parameters(model)
  return {
    'weights and optimizer state': share
    * (state_bytes(config, model, num_points) + gradient),
    'prompts of a batch': 2 * FLOAT * prompt * config.train.batch_size / data
    if sampled
    else 0.0,
    # Mean and mean square for the model, gradient descent, and their difference.
    'held-out batches': 6 * FLOAT * num_points * held_out,
  }


def state_bytes(config: Config, model: Model, num_points: int = 1) -> int:
  """Bytes of the weights and the optimizer state, which a checkpoint holds."""
  moments = _num_moments(config.optimizer.name)
  return num_points * (1 + moments) * FLOAT * _num_parameters(model)


def reference_bytes(task: Task, num_points: int = 1) -> float:
  """Bytes of host memory that the exact risks of the best rules take (float64).

  They take 4.5 arrays of the size of a learning rule's update, `[d, d + 1, d + 1]`, and
  one more for each further point of a sweep.
  """
  if not theory.covers(task):
    return 0.0
  return (3.5 + num_points) * 8 * task.num_features * (task.num_features + 1) ** 2


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


@functools.cache
def _num_moments(optimizer: str) -> int:
  """How many numbers an optimizer stores for each weight."""
  weights = jax.ShapeDtypeStruct((2,), np.float32)
  state = jax.eval_shape(OPTIMIZERS[optimizer](1.0).init, weights)
  return sum(leaf.shape == weights.shape for leaf in jax.tree.leaves(state))


def _num_parameters(model: Model) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def _share(model: Model, mesh_shape: tuple[int, int], fsdp: bool) -> float:
  """The fraction of the weights that each device holds."""
  data, heads = mesh_shape
  here = 0.0
  for _, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
    axes = variable.get_metadata().get('out_sharding') or ()
    parts = (heads if 'model' in axes else 1) * (data if fsdp else 1)
    here += variable.get_value().size / parts
  return here / max(_num_parameters(model), 1)
