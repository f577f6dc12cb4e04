"""Real processes of the command lines."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

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
  return run(command(*arguments, module=module), cache, cwd)


def run(
  words: Sequence[str], cache: pathlib.Path, cwd: pathlib.Path = ROOT
) -> subprocess.CompletedProcess:
  """Runs any command to its end, as `launch` does a module."""
  return subprocess.run(
    bound(words),
    cwd=cwd,
    env=environment(cache),
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


def interrupt(
  *arguments: str,
  cache: pathlib.Path,
  module: str,
  number: signal.Signals,
  code: int,
  ready: Callable[[], bool],
) -> None:
  """Sends a signal as soon as it is time; the process has to end well, and say so."""
  process = subprocess.Popen(
    command(*arguments, module=module),
    cwd=ROOT,
    env=environment(cache),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    deadline = time.monotonic() + 120
    while not ready():
      assert process.poll() is None, 'it ended before its time'
      assert time.monotonic() < deadline, 'no progress in two minutes'
      time.sleep(0.01)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
  finally:
    process.kill()
    process.communicate()
  assert process.returncode == code, stderr
  assert 'Traceback' not in stderr
  from launch import cli  # imports JAX, which not all that use this module need

  if number != signal.SIGKILL:
    assert cli.RESUME in stdout + stderr


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('', 0))
    return probe.getsockname()[1]


def start_member(
  *arguments: str,
  port: int,
  number: int,
  process_id: int,
  cache: pathlib.Path,
  num_devices: int = 1,
  module: str = 'launch.main',
) -> subprocess.Popen:
  """Starts one process of a run of several, with so many devices."""
  address = f'--coordinator=127.0.0.1:{port}', f'--num_processes={number}'
  flags = *arguments, *address, f'--process_id={process_id}'
  return subprocess.Popen(
    command(*flags, module=module),
    cwd=ROOT,
    env={**environment(cache), 'JAX_NUM_CPU_DEVICES': str(num_devices)},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def start_together(
  *arguments: str,
  number: int,
  cache: pathlib.Path,
  num_devices: int = 1,
  module: str = 'launch.main',
  own: Sequence[Sequence[str]] = (),
  ids: Sequence[int] = (),
  port: int | None = None,
) -> list[subprocess.Popen]:
  """Starts a run of several processes, with so many devices each.

  `own` has the flags that each of them alone is given, and `ids` their numbers, if they
  are not 0, 1, and so on.
  """
  port = free_port() if port is None else port
  return [
    start_member(
      *arguments,
      *flags,
      port=port,
      number=number,
      process_id=process_id,
      cache=cache,
      num_devices=num_devices,
      module=module,
    )
    for process_id, flags in zip(
      ids or range(number), own or [()] * number, strict=True
    )
  ]


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
