"""Copies of the working tree, and runs of their tests in processes of their own."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]


def copy_to(tree: pathlib.Path, tests: pathlib.Path | None) -> None:
  """Copies the working tree without what git ignores, with the tests of a folder."""
  command = ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard']
  listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
  for name in filter(None, listed.stdout.split('\0')):
    if (ROOT / name).is_file():  # it may be deleted, but not for git yet
      (tree / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(ROOT / name, tree / name)
  if tests is not None:
    shutil.rmtree(tree / 'tests')
    shutil.copytree(tests, tree / 'tests', ignore=shutil.ignore_patterns('__pycache__'))


def failures(tree: pathlib.Path, *arguments: str) -> list[str]:
  """Runs pytest in a tree; returns the tests that failed, or how it ended instead."""
  options = '-p', 'no:cacheprovider', '--color=no'
  process = subprocess.Popen(
    [sys.executable, '-m', 'pytest', '-q', '--tb=no', *options, *arguments],
    cwd=tree,
    env={**os.environ, 'PYTHONPATH': str(tree)},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    start_new_session=True,  # so that its workers end with it
  )
  try:
    output, _ = process.communicate()
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()
  if process.returncode in (0, 5):  # all passed, or all are left out without --slow
    return []
  failed = re.findall(r'^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$', output, re.MULTILINE)
  return failed or [f'pytest ended with the code {process.returncode}']


@contextlib.contextmanager
def changed(path: pathlib.Path, old: str, new: str, seconds: int) -> Iterator[None]:
  """Puts `new` in place of `old` in a file, whose time becomes later, until the end."""
  text, status = path.read_text(encoding='utf-8'), path.stat()
  path.write_text(text.replace(old, new), encoding='utf-8')
  # Compiled modules are told apart by the time of their source, in whole seconds.
  os.utime(path, (status.st_atime, status.st_mtime + seconds))
  try:
    yield
  finally:
    path.write_text(text, encoding='utf-8')
    os.utime(path, (status.st_atime, status.st_mtime))
