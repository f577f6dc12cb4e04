"""Leases of folders, which their holders renew as long as they live."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import tensorstore
from absl import logging

from zoo.core.errors import InUseError, RunError, in_one_line
from zoo.host.files import entries, is_url

SECONDS = 30.0  # without renewal, after which a lease has expired
_TIMEOUT = 10.0  # seconds for a call, unless its caller has more patience
LOCK = '.lock'  # the file or the object that names the holder

_FREE = 'nobody'  # its content while nobody holds the lease
_PARTS = '.locks'  # the folder of such files for parts of the work in a folder

_held: list[Lease] = []  # by this process


class LostLease(RunError):
  """Another program holds the lease that this one held, or its file was deleted."""


class Lease:
  """The right of one program to write into a folder, local or in a bucket.

  A program takes or renews it by replacing the generation of a file that it has last
  seen, so that only one of several programs succeeds, and one that was suspended learns
  that it has lost the lease. All methods raise RunError if the file is out of reach.
  """

  def __init__(
    self, folder: pathlib.Path, name: str = LOCK, patience: float = _TIMEOUT
  ):
    """Of the file `name`; `make_sure` tries for `patience` seconds to reach it."""
    self.folder = folder if is_url(folder) else folder.resolve()
    self.patience = patience
    self._name = name
    self.me = f'{machine()} {os.getpid()} {secrets.token_hex(8)}'
    store: dict[str, Any] = {'driver': 'file', 'path': f'{self.folder}/'}
    if is_url(folder):
      bucket, _, path = str(folder).removeprefix('gs://').partition('/')
      store = {'driver': 'gcs', 'bucket': bucket, 'path': f'{path}/'}
      # Its longest pause must be shorter than a lease.
      store['gcs_request_retries'] = {'max_retries': 10**6, 'max_delay': '1s'}
    self._store = self._result(tensorstore.KvStore.open(store))
    self._generation = b''  # that this program has seen last
    self._one_at_a_time = threading.Lock()
    self._end = threading.Event()
    self._lost: LostLease | None = None

  def acquire(self) -> None:
    """Takes the lease if it is free, or once its holder has stopped renewing it.

    Raises InUseError if another program holds it.
    """
    self.wait_for_end()
    try:
      self.renew()
    except LostLease:
      raise self._in_use(self._holder()) from None

  def wait_for_end(self) -> None:
    """Waits until nobody holds the lease; raises InUseError if it is renewed."""
    holder = self._holder()
    if holder == _FREE or _has_ended(holder):
      return
    logging.info('%s was locked by %s; waiting for that to end', self.folder, holder)
    # How long ago another program has renewed it is unknown: clocks differ.
    seen, deadline = self._generation, time.monotonic() + SECONDS
    while holder != _FREE and time.monotonic() < deadline:
      time.sleep(SECONDS / 30)
      holder = self._holder()
      if holder != _FREE and self._generation != seen:
        raise self._in_use(holder)

  def keep(self) -> None:
    """Renews the lease until it is released, or lost; for a thread of its own."""
    while not self._end.wait(SECONDS / 3):
      try:
        self.renew()
      except LostLease:
        return
      except RunError as error:  # the next may succeed
        logging.warning('the lock was not renewed: %s', error)

  def renew(self, patience: float = _TIMEOUT) -> None:
    """Makes sure that this program holds the lease; raises LostLease if it does not."""
    with self._one_at_a_time:
      if not self._end.is_set():
        self._replace(self.me, patience)

  def agree(self, text: str) -> str:
    """What the file holds: this text, unless another program has written one before."""
    found = self._holder()
    if found == _FREE and self._write(text, _TIMEOUT):
      return text
    return self._holder() if found == _FREE else found

  def release(self) -> None:
    """Ends the lease, so that another program can take it at once."""
    with self._one_at_a_time:
      self._end.set()
      self._replace(_FREE, _TIMEOUT)

  def _replace(self, holder: str, patience: float) -> None:
    """Writes a new generation of the file; raises LostLease."""
    if self._lost is not None:
      raise self._lost
    generation = self._write(holder, patience)
    if not generation:
      found = self._read()
      # An earlier renewal may have been carried out although its answer was lost.
      if found == self.me:
        generation = self._write(holder, patience)
      if not generation:
        self._lost = self._loss(found)
        raise self._lost
    self._generation = generation

  def check(self) -> None:
    """Raises LostLease unless a local folder names this program as its holder.

    It only reads, so it can be called often.
    """
    if is_url(self.folder):
      return
    try:
      found = (self.folder / self._name).read_text(errors='replace')
    except FileNotFoundError:
      found = None
    if found != self.me:
      self._lost = self._loss(found)
      raise self._lost

  def _loss(self, holder: str | None) -> LostLease:
    """That the file names another holder, or is missing."""
    if holder is None:
      return LostLease(
        f'{self.folder} has gone, or its file {self._name}: it was deleted while this '
        'program was working in it; this program ends'
      )
    return LostLease(
      f'another program has taken over {self.folder}, since this one could not '
      f'renew its lock for {SECONDS:g} s; this one ends, and the other goes on'
    )

  def _write(self, holder: str, patience: float) -> bytes:
    """The new generation of the file; b'' if it is not the one last seen."""
    writing = self._store.write(self._name, holder.encode(), if_equal=self._generation)
    return self._result(writing, patience).generation

  def _holder(self) -> str:
    """Who holds the lease, as the file says."""
    found = self._read()
    return _FREE if found is None else found

  def _read(self) -> str | None:
    """The content of the file; None if it is missing."""
    found = self._result(self._store.read(self._name))
    self._generation = found.stamp.generation
    return None if found.state == 'missing' else found.value.decode(errors='replace')

  def _result(self, call: Any, patience: float = _TIMEOUT) -> Any:
    """The result of a call of TensorStore, which is not carried out much later."""
    try:
      return call.result(timeout=patience)
    except Exception as error:
      call.cancel()
      reason = in_one_line(error) or 'it does not answer'
      raise RunError(f'{self.folder} cannot be locked: {reason}') from error

  def _in_use(self, holder: str) -> InUseError:
    return InUseError(
      f'{self.folder} is in use: another process is training in it ({holder:.100}); '
      'wait for it, or give another folder'
    )


def machine() -> str:
  """The host, and on Linux the namespace of process numbers, as of a container."""
  try:
    return f'{socket.gethostname()}/{os.stat("/proc/self/ns/pid").st_ino}'
  except OSError:
    return socket.gethostname()


def _has_ended(holder: str) -> bool:
  """Whether the holder is known to have ended: a process of this machine."""
  host, number, *_ = [*holder.split(), '', '']
  if host != machine() or os.name != 'posix' or not number.isdecimal():
    return False
  try:
    os.kill(int(number), 0)  # sends nothing
  except ProcessLookupError:
    return True
  except (OSError, OverflowError):
    pass
  return False


@contextlib.contextmanager
def leased(
  folder: pathlib.Path, patience: float = SECONDS, part: str | None = None
) -> Iterator[str]:
  """Holds the lease of a folder, or of a part of it, and yields what names the holder.

  Different parts may be held at the same time, but not with the whole folder. A bucket
  out of reach is tried again for `patience` seconds before a write. Raises InUseError
  if another program holds the lease, RunError if it cannot be taken.
  """
  lease = Lease(folder, LOCK if part is None else f'{_PARTS}/{part}', patience)
  lease.acquire()
  threading.Thread(target=lease.keep, name='lease', daemon=True).start()
  _held.append(lease)
  try:
    others = [LOCK]
    if part is None:
      others = [f'{_PARTS}/{one.name}' for one in entries(folder / _PARTS)]
    with concurrent.futures.ThreadPoolExecutor(len(others) or 1) as threads:
      list(threads.map(lambda name: Lease(folder, name).wait_for_end(), others))
    yield lease.me
  finally:
    _held.remove(lease)
    with contextlib.suppress(RunError):
      lease.release()


def make_sure(path: pathlib.Path) -> None:
  """Renews the leases that this process holds of a folder around a path.

  Raises LostLease if another program has taken over, RunError if the bucket cannot be
  reached.
  """
  for lease in [*_held]:
    if path.is_relative_to(lease.folder):
      lease.renew(lease.patience)


def check(path: pathlib.Path) -> None:
  """Raises LostLease if a lease of a local folder around a path is lost.

  It only reads a small file, and a holder that has not noticed the loss yet does.
  """
  for lease in [*_held]:
    if path.is_relative_to(lease.folder):
      lease.check()
