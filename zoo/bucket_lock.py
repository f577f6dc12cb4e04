"""Locks on folders in a bucket, which their holders renew as long as they live."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time

from absl import logging

from zoo.buckets import Conflict, Content, Folder
from zoo.errors import RunError, UserError

LEASE = 30.0  # seconds without renewal after which a lock expires
LOCK = 'lock'  # the name of its object


class LostLock(RunError):
  """Another program holds the lock that this one held."""


class Lock:
  """A lock on a folder, which its holder renews as long as it lives.

  An object in the folder names the holder. A program takes or renews the lock by
  replacing the generation of the object that it last saw, so that only one of several
  programs succeeds, and a program that was suspended learns that it has lost the lock.
  """

  def __init__(self, folder: Folder):
    self._folder = folder
    self._me = f'{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}'
    self._renewals = 0
    self._generation = 0
    self._released = False
    self._one_at_a_time = threading.Lock()

  def acquire(self) -> None:
    """Takes the lock if it is free, or once its holder has stopped renewing it.

    Raises UserError if another program holds it.
    """
    found = self._folder.read(LOCK)
    if found is not None and (holder := _holder(found)) is not None:
      found = self._wait_for_end(found, holder)
    self._generation = 0 if found is None else found.generation
    try:
      self.renew()
    except LostLock:
      raise self._in_use('another process') from None

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
    content = json.dumps({'holder': holder, 'by': self._me, 'renewals': self._renewals})
    try:
      self._generation = folder.write(LOCK, content.encode(), self._generation)
    except Conflict:
      raise LostLock(
        f'another program has taken over {folder.url}, since this one could not renew '
        f'its lock for {LEASE:g} s; this one ends, and the other goes on'
      ) from None

  def _wait_for_end(self, found: Content, holder: str) -> Content | None:
    """Waits until the lock expires; raises UserError if it is renewed meanwhile."""
    logging.info(
      '%s was locked by %s; waiting for the lock to expire', self._folder, holder
    )
    # The time of the last renewal is of no use, since the clocks of machines differ.
    end = time.monotonic() + LEASE
    while time.monotonic() < end:
      time.sleep(LEASE / 30)
      now = self._folder.read(LOCK)
      if now is None or _holder(now) is None:
        return now
      if now.generation != found.generation:
        raise self._in_use(holder)
    return found

  def _in_use(self, holder: str) -> UserError:
    return UserError(
      f'{self._folder} is in use: another process is training in it ({holder}); wait '
      'for it, or give another folder'
    )


def _holder(content: Content) -> str | None:
  """Who holds a lock, if anyone; a damaged lock counts as held."""
  try:
    return json.loads(content.data)['holder']
  except (ValueError, TypeError, KeyError):
    return 'an unknown process'
