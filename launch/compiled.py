"""The cache of compiled programs on disk, so that a second launch starts faster."""

import contextlib
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import stat

import jax

from zoo.core.errors import UserError
from zoo.host.files import user_path

_CACHE_BYTES = 2**30  # This holds about 20,000 programs.


def keep_compiled_programs() -> None:
  """Sets JAX's cache on disk, unless the user has set one."""
  if not jax.config.values['jax_compilation_cache_dir']:
    try:
      caches = os.environ.get('XDG_CACHE_HOME') or user_path('~/.cache')
    except UserError:  # The user has no home folder, as in some containers.
      return
    folder = pathlib.Path(caches, 'icl_zoo', this_machine())
    jax.config.update('jax_compilation_cache_dir', str(folder))
    delete_least_used(folder, _CACHE_BYTES)
  if 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS' not in os.environ:
    # JAX keeps programs that take a second to compile; most of ours take less.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.05)


def this_machine() -> str:
  """Returns a name for the release of jaxlib and the instruction set of the CPU.

  JAX's own key of a program leaves out the instruction set. Computers that share a home
  folder would otherwise read programs with instructions that they lack.
  """
  words = [platform.machine()]
  with contextlib.suppress(OSError):  # Only Linux has this file.
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      if line.startswith(('flags', 'Features')):  # These are the names on x86 and Arm.
        words += sorted(line.partition(':')[2].split())
        break
  digest = hashlib.sha256(' '.join(words).encode()).hexdigest()
  return f'{importlib.metadata.version("jaxlib")}-{digest[:12]}'


def delete_least_used(folder: pathlib.Path, max_bytes: int) -> None:
  """Deletes the least recently read files of a folder until `max_bytes` remain.

  JAX can also limit the size of its cache, but then reads all of it whenever it adds a
  program, which takes a second with 20,000 programs.
  """
  # Errors are ignored, since another process may delete the same files.
  with contextlib.suppress(OSError):
    entries = [
      (entry.stat(follow_symlinks=False), entry.path) for entry in os.scandir(folder)
    ]
    files = [entry for entry in entries if stat.S_ISREG(entry[0].st_mode)]
    excess = sum(status.st_size for status, _ in files) - max_bytes
    # Some file systems do not record when a file was read.
    files.sort(key=lambda entry: max(entry[0].st_atime, entry[0].st_mtime))
    for status, path in files:
      if excess <= 0:
        break
      with contextlib.suppress(OSError):
        os.unlink(path)
      excess -= status.st_size
