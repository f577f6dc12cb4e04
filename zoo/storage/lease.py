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
_TIMEOUT = 10.0  # seconds for a call
LOCK = '.lock'  # the file or the object that names the holder

_FREE = 'nobody'  # its content while nobody holds the lease
_PARTS = '.locks'  # the folder of such files for parts of the work in a folder

_held: list[tuple[Lease, float]] = []  # by this process, and its patience


class LostLease(RunError):
  """Another program holds the lease that this one held."""


class Lease:
  """The right of one program to write into a folder, local or in a bucket.

  A program takes or renews it by replacing the generation of a file that it has last
  seen, so that only one of several programs succeeds, and one that was suspended learns
  that it has lost the lease.
  """

  def __init__(self, folder: pathlib.Path, name: str = LOCK):
    self.folder = folder if is_url(folder) else folder.resolve()
    self._name = name
    self.me = f'{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}'
    store = {'driver': 'file', 'path': f'{self.folder}/'}
    if is_url(folder):
      bucket, _, path = str(folder).removeprefix('gs://').partition('/')
      store = {'driver': 'gcs', 'bucket': bucket, 'path': f'{path}/'}
    self._store = tensorstore.KvStore.open(store).result()
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
    """Renews the lease in a thread until it is released, or lost."""
    while not self._end.wait(SECONDS / 3):
      try:
        self.renew()
      except LostLease:
        return
      except Exception as error:  # it is out of reach; the next may succeed
        logging.warning('%s: the lock was not renewed: %s', self.folder, _said(error))

  def renew(self, patience: float = 0.0) -> None:
    """Makes sure that this program holds the lease; raises LostLease if it does not.

    It goes on trying for `patience` seconds, and then raises what TensorStore raises.
    """
    deadline = time.monotonic() + patience
    while True:
      try:
        with self._one_at_a_time:
          if not self._end.is_set():
            self._replace(self.me)
          return
      except LostLease:
        raise
      except Exception:
        if time.monotonic() >= deadline:
          raise
        time.sleep(SECONDS / 30)

  def release(self) -> None:
    """Ends the lease, so that another program can take it at once."""
    with self._one_at_a_time:
      self._end.set()
      self._replace(_FREE)

  def _replace(self, holder: str) -> None:
    """Writes a new generation of the object; raises LostLease."""
    if self._lost is not None:
      raise self._lost
    generation = self._write(holder)
    # An earlier renewal may have been carried out although its answer was lost.
    if not generation and self._holder() == self.me:
      generation = self._write(holder)
    if not generation:
      self._lost = LostLease(
        f'another program has taken over {self.folder}, since this one could not '
        f'renew its lock for {SECONDS:g} s; this one ends, and the other goes on'
      )
      raise self._lost
    self._generation = generation

  def _write(self, holder: str) -> bytes:
    """The new generation of the object; b'' if it is not the one last seen."""
    writing = self._store.write(self._name, holder.encode(), if_equal=self._generation)
    return _result(writing).generation

  def _holder(self) -> str:
    """Who holds the lease, as the object says."""
    found = _result(self._store.read(self._name))
    self._generation = found.stamp.generation
    return _FREE if found.state == 'missing' else found.value.decode(errors='replace')

  def _in_use(self, holder: str) -> InUseError:
    return InUseError(
      f'{self.folder} is in use: another process is training in it ({holder:.100}); '
      'wait for it, or give another folder'
    )


def _has_ended(holder: str) -> bool:
  """Whether the holder is known to have ended: a process of this machine."""
  host, number, *_ = [*holder.split(), '', '']
  if host != socket.gethostname() or os.name != 'posix' or not number.isdecimal():
    return False
  try:
    os.kill(int(number), 0)  # sends nothing
  except ProcessLookupError:
    return True
  except (OSError, OverflowError):
    return False
  return False


def _result(call: Any) -> Any:
  """The result of a call of TensorStore, which is not carried out much later."""
  try:
    return call.result(timeout=_TIMEOUT)
  except TimeoutError:
    call.cancel()
    raise


@contextlib.contextmanager
def leased(
  folder: pathlib.Path, patience: float = SECONDS, part: str | None = None
) -> Iterator[str]:
  """Holds the lease of a folder, or of a part of it, and yields what names the holder.

  Different parts may be held at the same time, but not with the whole folder. Renewals
  that fail are tried again for `patience` seconds. Raises InUseError if another program
  holds it, RunError if it cannot be taken.
  """
  lease = Lease(folder, LOCK if part is None else f'{_PARTS}/{part}')
  with _one_line(folder):
    lease.acquire()
  threading.Thread(target=lease.keep, name='lease', daemon=True).start()
  try:
    with _one_line(folder):
      others = [LOCK]
      if part is None:
        others = [f'{_PARTS}/{one.name}' for one in entries(folder / _PARTS)]
      with concurrent.futures.ThreadPoolExecutor(len(others) or 1) as threads:
        list(threads.map(lambda name: Lease(folder, name).wait_for_end(), others))
    _held.append((lease, patience))
    yield lease.me
  finally:
    with contextlib.suppress(ValueError):
      _held.remove((lease, patience))
    with contextlib.suppress(Exception):
      lease.release()


def make_sure(path: pathlib.Path) -> None:
  """Renews the leases that this process holds of a folder around a path.

  Raises LostLease if another program has taken over, RunError if the bucket cannot be
  reached.
  """
  for lease, patience in [*_held]:
    if path.is_relative_to(lease.folder):
      with _one_line(path):
        lease.renew(patience)


@contextlib.contextmanager
def _one_line(path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except (InUseError, RunError):
    raise
  except Exception as error:  # of TensorStore
    raise RunError(f'{path} cannot be locked: {_said(error)}') from error


def _said(error: Exception) -> str:
  return in_one_line(error) or 'it does not answer'
