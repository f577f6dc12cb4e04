"""JAX's devices: what XLA must be told before they start, and their memory."""

import importlib.util
import os
import pathlib
import re
from typing import Any

import jax

# With as many threads for each device, a CPU device that waits leaves others to work.
_THREADS_PER_DEVICE = 16
_NUM_THREADS = 'NPROC'  # XLA reads this variable when its CPU devices start.
# With this pass XLA aborts, or never ends, while it compiles a transformer for a GPU
# (openxla/xla, issue 47381). XLA also aborts if it does not know a flag, so the flag
# must be tried before the bounds of jax in pyproject.toml change.
_PASS = '--xla_gpu_enable_triton_gemm'


def start_devices() -> None:
  """Starts JAX's devices, with more threads than XLA's own number if CPUs are several.

  The devices of a CPU share a pool of threads, by default one for each device or core.
  A collective waits in a thread of this pool for the other devices. In jaxlib 0.10 the
  decomposition of many small matrices also waits in such a thread, for other threads of
  the pool. If all of them wait, the run never ends. The mixer `mesa` factorizes a
  matrix for each token, and so do some tasks.

  Nothing changes if the devices have started before, or if the variable NPROC is set.
  """
  # JAX no longer divides these decompositions among threads since its commit 859992407
  # of July 2026. This function can go when the bounds of jax in pyproject.toml allow
  # only releases that have it.
  number = num_cpu_devices()
  if number == 1 or _NUM_THREADS in os.environ:
    return
  os.environ[_NUM_THREADS] = str(_THREADS_PER_DEVICE * number)
  try:
    jax.devices()
  finally:
    del os.environ[_NUM_THREADS]  # Processes that are started later have other devices.


def num_cpu_devices() -> int:
  """Returns the number of devices into which the config of JAX divides the CPU."""
  number = jax.config.values['jax_num_cpu_devices']
  if number >= 1:
    return number
  flags = os.environ.get('XLA_FLAGS', '')
  flag = re.search(r'--xla_force_host_platform_device_count=(\d+)', flags)
  return int(flag[1]) if flag else 1


def leave_out_pass() -> None:
  """Sets the flag of XLA that leaves out a pass, unless the user has set the flag.

  XLA reads its flags when JAX starts, so `import zoo` calls this function. Without a
  plugin of JAX for other devices than CPUs and TPUs, nothing is set.
  """
  if importlib.util.find_spec('jax_plugins') is None:
    return
  flags = os.environ.get('XLA_FLAGS', '').split()
  if not any(flag.partition('=')[0] == _PASS for flag in flags):
    os.environ['XLA_FLAGS'] = ' '.join([*flags, f'{_PASS}=false'])


def memory_of(device: Any) -> int | None:
  """Returns the bytes of memory of a device, or None if they are not known.

  The devices of a CPU share the memory of the machine, or of its container.
  """
  if device.platform != 'cpu':
    return (device.memory_stats() or {}).get('bytes_limit')
  if not hasattr(os, 'sysconf'):  # Windows lacks it.
    return None
  memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  container = pathlib.Path('/sys/fs/cgroup/memory.max')
  limit = container.read_text().strip() if container.exists() else 'max'
  return memory if limit == 'max' else min(memory, int(limit))
