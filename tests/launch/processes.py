"""Real processes of the command lines."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence

ROOT = pathlib.Path(__file__).parents[2]


def command(*arguments: str, module: str = 'launch.main') -> list[str]:
  return bound([sys.executable, '-m', module, *arguments])


def bound(words: Sequence[str], number: str = 'KILL') -> list[str]:
  """The command, which gets a signal when the process that starts it is gone.

  More exactly, when the thread is that starts it. So a test that is killed leaves
  nothing behind, on Linux.
  """
  leash = ['setpriv', '--pdeathsig', number] if shutil.which('setpriv') else []
  return [*leash, *words]


def environment(cache: pathlib.Path) -> dict[str, str]:
  """One device, and programs compiled once for all processes that share the cache."""
  # JAX has set the level of the log here, which a command does not find in a shell.
  variables = {
    name: value for name, value in os.environ.items() if name != 'TF_CPP_MIN_LOG_LEVEL'
  }
  return {
    **variables,
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
  return run(command(*arguments, module=module), cache, cwd)


def run(
  words: Sequence[str],
  cache: pathlib.Path,
  cwd: pathlib.Path = ROOT,
  **variables: str,
) -> subprocess.CompletedProcess:
  """Runs any command to its end, as `launch` does a module, with variables set."""
  return subprocess.run(
    bound(words),
    cwd=cwd,
    env=environment(cache) | variables,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('', 0))
    return probe.getsockname()[1]


def start_together(
  *arguments: str,
  number: int,
  cache: pathlib.Path,
  num_devices: int = 1,
  module: str = 'launch.main',
  own: Sequence[Sequence[str]] = (),
) -> list[subprocess.Popen]:
  """Starts a run of several processes, with so many devices each.

  `own` has the flags that each of them alone is given.
  """
  address = [f'--coordinator=127.0.0.1:{free_port()}', f'--num_processes={number}']
  if module == 'launch.main':  # A lost process is found sooner than by default.
    address.append('--config.mesh.heartbeat_timeout=10')
  return [
    subprocess.Popen(
      command(*arguments, *flags, *address, f'--process_id={i}', module=module),
      cwd=ROOT,
      env={**environment(cache), 'JAX_NUM_CPU_DEVICES': str(num_devices)},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for i, flags in enumerate(own or [()] * number)
  ]


def wait_until(
  ready: Callable[[], bool],
  processes: Iterable[subprocess.Popen] = (),
  seconds: float = 240,
) -> None:
  """Waits until something is so; fails if that takes too long, or if a process ends."""
  deadline = time.monotonic() + seconds
  while not ready():
    for process in processes:
      assert process.poll() is None, process.communicate()[0]
    assert time.monotonic() < deadline, f'not so after {seconds} s'
    time.sleep(0.02)


def finish(
  processes: list[subprocess.Popen], timeout: float = 300
) -> list[tuple[int, str]]:
  """The exit codes and what was said, once all have ended; none is left behind."""
  try:
    said = [process.communicate(timeout=timeout)[0] for process in processes]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  return [
    (process.returncode, text) for process, text in zip(processes, said, strict=True)
  ]
