"""Locks on folders in a bucket, which their holders renew as long as they live."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from absl import logging

from zoo.core.errors import InUseError, RunError
from zoo.host.files import UnreadableFile, parse_json
from zoo.storage.buckets import Conflict, Content, Folder

LEASE = 30.0  # seconds without renewal after which a lock expires
LOCK = 'lock'  # the name of the object that locks a whole folder
_PARTS = 'locks/'  # the prefix of those that lock a part of it


class LostLock(RunError):
  """Another program holds the lock that this one held."""


class Lock:
  """A lock on a folder or a part of it, which its holder renews as long as it lives.

  An object in the folder names the holder. A program takes or renews the lock by
  replacing the generation of the object that it last saw, so that only one of several
  programs succeeds, and a program that was suspended learns that it has lost the lock.
  """

  def __init__(self, folder: Folder, name: str = LOCK):
    self._folder = folder
    self._name = name
    self._me = f'{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}'
    self._renewals = 0
    self.generation = 0
    self._released = False
    # The generation that another holder has written, and when it was first seen here:
    # the time of its renewal is of no use, since the clocks of machines differ.
    self._seen = (0, 0.0)
    self._one_at_a_time = threading.Lock()

  def acquire(self) -> None:
    """Takes the lock if it is free, or once its holder has stopped renewing it.

    Raises InUseError if another program holds it.
    """
    while not self.try_acquire():
      wait_for_end([self])

  def try_acquire(self) -> bool:
    """Takes the lock unless another program holds it; returns whether it did.

    A lock that its holder no longer renews is taken by a call a lease after the first.
    """
    if self.holder() is not None:
      return False
    self._released = False
    try:
      self.renew()
    except LostLock:
      return False
    return True

  def holder(self) -> str | None:
    """The other program that holds the lock, or None.

    A lock has expired if this object has not seen it renewed for a lease.
    """
    found = self._folder.read(self._name)
    self.generation = 0 if found is None else found.generation
    if found is None or (holder := _holder(found)) is None:
      return None
    if self._seen[0] != found.generation:
      self._seen = found.generation, time.monotonic()
    return holder if time.monotonic() < self._seen[1] + LEASE else None

  def renew(self, patience: float | None = None) -> None:
    """Makes sure that this program holds the lock; raises LostLock if it does not."""
    folder = self._folder
    folder = folder if patience is None else folder.with_patience(patience)
    with self._one_at_a_time:
      if self._released:
        return
      self._renewals += 1
      self._replace(folder, self._me)

  def release(self) -> None:
    """Releases the lock, so that another program can take it at once."""
    with self._one_at_a_time:
      self._released = True
      self._replace(self._folder.with_patience(0.0), None)

  def _replace(self, folder: Folder, holder: str | None) -> None:
    text = json.dumps({'holder': holder, 'by': self._me, 'renewals': self._renewals})
    content = text.encode()
    try:
      try:
        self.generation = folder.write(self._name, content, self.generation)
      except Conflict:
        # An earlier renewal may have been carried out although its answer was lost.
        found = folder.read(self._name)
        if found is None or _value(found).get('by') != self._me:
          raise
        self.generation = folder.write(self._name, content, found.generation)
    except Conflict:
      raise LostLock(
        f'another program has taken over {folder.url}, since this one could not renew '
        f'its lock for {LEASE:g} s; this one ends, and the other goes on'
      ) from None

  def in_use(self, holder: str) -> InUseError:
    """The error for a lock that another program keeps renewing."""
    return InUseError(
      f'{self._folder} is in use: another process is training in it ({holder}); wait '
      'for it, or give another folder'
    )


def wait_for_end(locks: Iterable[Lock]) -> None:
  """Waits until nobody holds these locks; raises InUseError if one is renewed."""
  held = {lock: holder for lock in locks if (holder := lock.holder()) is not None}
  for holder in held.values():
    logging.info('the folder was locked by %s; waiting for the lock to expire', holder)
  seen = {lock: lock.generation for lock in held}
  while held:
    time.sleep(LEASE / 30)
    for lock in [*held]:
      holder = lock.holder()
      if holder is None:
        del held[lock]
      elif lock.generation != seen[lock]:
        raise lock.in_use(holder)


def lock_of_part(folder: Folder, part: str) -> Lock:
  """The lock of a part of a folder, which several programs share."""
  return Lock(folder, f'{_PARTS}{part}')


def locks_of_parts(folder: Folder) -> dict[str, Lock]:
  """All locks of parts that programs have made in a folder, by name."""
  return {name: Lock(folder, name) for name in folder.list(_PARTS)}


def is_lock(name: str) -> bool:
  """Whether an object of a folder is a lock."""
  return name == LOCK or name.startswith(_PARTS)


def _holder(content: Content) -> str | None:
  """Who holds a lock, if anyone; a damaged lock counts as held."""
  holder = _value(content).get('holder', 'an unknown process')
  return None if holder is None else str(holder)


def _value(content: Content) -> dict[str, Any]:
  """What is written in a lock; nothing if it is damaged."""
  try:
    value = parse_json(content.data, LOCK)
  except UnreadableFile:
    return {}
  return value if isinstance(value, dict) else {}
