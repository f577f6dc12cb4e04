"""Folders of Google Cloud Storage as paths, with patience; needs the extra `gcs`.

A bucket holds objects, each written whole or not at all, and no folders. epath and
Orbax reach it through gcsfs, which is registered here with more patience.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import aiohttp
import fsspec
import google.auth.exceptions
from etils.epath import gpath
from fsspec.config import conf
from gcsfs.core import GCSFileSystem
from gcsfs.retry import is_retriable

from zoo.core.errors import RunError, UserError, in_one_line

_PAUSE = 1.0  # seconds, after gcsfs has given up and before it tries again
# Errors that pass, beside those that gcsfs takes for such.
_ALSO_PASS = TimeoutError, google.auth.exceptions.TransportError
_THREADS = 16  # copy at the same time


class BucketPath(gpath.PosixGPath, pathlib.Path):  # pyright: ignore[reportIncompatibleMethodOverride]
  """An epath of a bucket, for all code that takes a `pathlib.Path`.

  Its methods raise OSError.
  """


class Unreachable(OSError):
  """The bucket could not be reached for as long as the caller would wait."""


class PatientFileSystem(GCSFileSystem):
  """Tries a call again for `patience` seconds; what it raises is an OSError.

  gcsfs itself gives up after half a minute, and raises errors of its own.
  """

  patience = 600.0

  async def _request(self, *arguments: Any, **named: Any) -> Any:
    reason = ''
    try:
      async with asyncio.timeout(self.patience):
        while True:
          try:
            return await super()._request(*arguments, **named)
          except (FileNotFoundError, FileExistsError):
            raise
          except Exception as error:
            if not (is_retriable(error) or isinstance(error, _ALSO_PASS)):
              said = f'the bucket refused a call: {in_one_line(error)}'
              raise OSError(said) from error
            reason = f': {in_one_line(error) or type(error).__name__}'
          await asyncio.sleep(_PAUSE)
    except TimeoutError as error:
      raise Unreachable(
        f'the bucket could not be reached for {self.patience:g} s{reason}'
      ) from error


def prepare() -> None:
  """Lets epath, and with it Orbax, and TensorStore use this file system."""
  os.environ['EPATH_USE_TF'] = 'false'  # else epath prefers TensorFlow, where it is
  if emulator := os.environ.get('STORAGE_EMULATOR_HOST'):
    os.environ.setdefault('TENSORSTORE_GCS_HTTP_URL', emulator)
  for name in PatientFileSystem.protocol:
    fsspec.register_implementation(name, PatientFileSystem, clobber=True)
    conf[name] = {
      # A cached listing does not show what another process has written since.
      'use_listings_cache': False,
      # For a bucket that does not answer.
      'requests_timeout': aiohttp.ClientTimeout(sock_connect=10, sock_read=60),
    }
  logging.getLogger('gcsfs').setLevel(logging.CRITICAL)  # errors are raised, too


def file_system() -> PatientFileSystem:
  """The file system that epath uses, too."""
  return fsspec.filesystem('gcs', finalize_on_close=True)


@contextlib.contextmanager
def patient(seconds: float) -> Iterator[None]:
  """Calls in the block are tried again for so many seconds."""
  before, PatientFileSystem.patience = PatientFileSystem.patience, seconds
  try:
    yield
  finally:
    PatientFileSystem.patience = before


def bucket_path(url: str) -> BucketPath:
  """The folder of a URL.

  Raises UserError for a malformed URL, for credentials that are refused and for a
  bucket that does not exist; RunError for one that cannot be reached.
  """
  parts = re.fullmatch(r'gs:/+([a-z0-9][\w.-]*[a-z0-9])((?:/[^/]+)+)/?', url, re.A)
  if not parts or '/../' in f'{parts[2]}/' or '/./' in f'{parts[2]}/':
    raise UserError(f'{url!r} is no folder; it must be like gs://bucket/folder')
  prepare()
  name, path = parts[1], BucketPath(f'gs://{parts[1]}{parts[2]}')
  try:
    with patient(60.0):
      file_system().call('GET', 'b/{}/o', name, maxResults=1)
  except FileNotFoundError as error:
    raise UserError(
      f'{path}: there is no bucket {name!r}; create it with '
      f'`gcloud storage buckets create gs://{name}`'
    ) from error
  except Unreachable as error:
    raise RunError(f'{path}: {error}') from error
  except OSError as error:
    raise UserError(
      f'{path} cannot be used; are the credentials those of `gcloud auth '
      f'application-default login`? The reason: {in_one_line(error)}'
    ) from error
  return path


def names_below(folder: pathlib.Path) -> list[str]:
  """The names of all objects in a folder, relative to it and sorted."""
  prefix = len(str(folder).removeprefix('gs://')) + 1
  found = file_system().find(str(folder))
  # The console represents an empty folder by an object whose name ends in a slash.
  return sorted(name[prefix:] for name in found if not name.endswith('/'))


def move(folder: pathlib.Path, target: pathlib.Path) -> None:
  """Gives all objects of a folder the name of another, which has none."""
  file_system().mv(str(folder), str(target), recursive=True)


def upload(folder: pathlib.Path, target: pathlib.Path, last: str = '') -> None:
  """Copies a local folder into one of a bucket, the file called `last` at the end."""
  files = [path for path in folder.rglob('*') if path.is_file() and path.name != last]
  for some in files, [folder / last] if last else []:
    names = [str(target / path.relative_to(folder)) for path in some]
    file_system().put([*map(str, some)], names)


def download(folder: pathlib.Path, names: list[str], target: pathlib.Path) -> None:
  """Copies objects of a folder into a local folder; raises OSError."""

  def copy(name: str) -> None:
    if any(part in ('', '.', '..') for part in name.split('/')) or '\\' in name:
      raise OSError(f'{folder}/{name} has a name that no file can have')
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('wb') as file, (folder / name).open('rb') as opened:
      while part := opened.read(2**24):
        file.write(part)

  with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
    list(threads.map(copy, names))
