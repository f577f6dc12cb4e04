"""Real processes of the command lines."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def command(*arguments: str, module: str = 'launch.main') -> list[str]:
  return [sys.executable, '-m', module, *arguments]


def environment(cache: pathlib.Path) -> dict[str, str]:
  """One device, and programs compiled once for all processes that share the cache."""
  return {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'JAX_COMPILATION_CACHE_DIR': str(cache),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }


def launch(
  *arguments: str,
  cache: pathlib.Path,
  cwd: pathlib.Path = ROOT,
  module: str = 'launch.main',
) -> subprocess.CompletedProcess:
  return subprocess.run(
    command(*arguments, module=module),
    cwd=cwd,
    env=environment(cache),
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
