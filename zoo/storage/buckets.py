"""Folders in Google Cloud Storage, such as gs://bucket/runs/a.

A bucket holds named objects, and no folders. Each object is written whole or not at
all, as a new generation, and a listing has its MD5. Calls that may succeed later (no
connection, an overloaded service, expired credentials) are retried with growing pauses;
any other answer of the service raises RunError at once.
The packages of the extra `gcs` are imported when a folder is opened.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import importlib
import logging
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from absl import logging as absl_logging

from zoo.core.errors import RunError, UserError, in_one_line
from zoo.host.files import MIB, UnreadableFile

_Result = TypeVar('_Result')

_TIMEOUT = (10, 60)  # seconds to connect, and between the parts of an answer
_MAX_PAUSE = 15.0  # seconds between two tries
THREADS = 8  # copy at the same time


class Conflict(Exception):
  """The object to be replaced has another generation than expected."""


class Changed(RunError):
  """An object that is not what the listing of its folder says."""


class Unreachable(RunError):
  """The bucket could not be reached for as long as the caller would wait."""


class Stored(NamedTuple):
  """What a listing says about an object."""

  size: int
  md5: str | None  # hexadecimal; None for an object composed of others


class Content(NamedTuple):
  """The content of an object, and its generation."""

  data: bytes
  generation: int


def is_url(path: str | os.PathLike[str]) -> bool:
  """Whether a path names a folder in a bucket."""
  return os.fspath(path).startswith('gs:/')  # a Path drops the other slash


def open_folder(path: str | os.PathLike[str], patience: float = 60.0) -> Folder:
  """The folder of a URL; calls that fail are retried for `patience` seconds.

  Raises UserError for a malformed URL, if the extra `gcs` or credentials are missing,
  or for a bucket that does not exist or may not be read; RunError if there is no
  connection.
  """
  parts = re.fullmatch(
    r'gs:/+([a-z0-9][\w.-]*[a-z0-9])((?:/[^/]+)+)/?', str(path), re.A
  )
  if not parts or '/../' in f'{parts[2]}/' or '/./' in f'{parts[2]}/':
    raise UserError(f'{str(path)!r} is no folder; it must be like gs://bucket/folder')
  _prepare()
  storage, auth = _import('google.cloud.storage'), _import('google.auth.exceptions')
  try:
    # Objects need no project, and the credentials may name none.
    bucket = storage.Client(project='none').bucket(parts[1])
  except (auth.GoogleAuthError, OSError) as error:
    raise UserError(
      f'{path}: no credentials of Google Cloud were found; run `gcloud auth '
      f'application-default login`; the reason: {in_one_line(error)}'
    ) from error
  folder = Folder(f'gs://{parts[1]}{parts[2]}', bucket, parts[2][1:], patience)
  folder.check()
  return folder


@contextlib.contextmanager
def copied_files(url: str, names: Iterable[str]) -> Iterator[pathlib.Path]:
  """Copies the named objects that exist into a local folder of the same name.

  Errors in the block name the URL. Raises the errors of `open_folder`.
  """
  folder = open_folder(url)
  with local_stand_in(folder.url) as local:
    objects = folder.list()
    folder.fetch({name: objects[name] for name in names if name in objects}, local)
    yield local


@contextlib.contextmanager
def local_stand_in(url: str) -> Iterator[pathlib.Path]:
  """An empty local folder of the same name; errors in the block name the URL."""
  with tempfile.TemporaryDirectory(prefix='icl_zoo_') as temporary:
    local = pathlib.Path(temporary, url.rpartition('/')[2])
    local.mkdir()
    try:
      yield local
    except (UserError, RunError) as error:
      error.args = (str(error).replace(str(local), url),)
      raise


def _import(name: str) -> Any:
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    raise UserError(
      f"{error.name} is not installed; gs:// needs pip install 'icl-zoo[gcs]'"
    ) from error


def _prepare() -> None:
  """Configures gcsfs and TensorStore, with which Orbax reads and writes."""
  # Otherwise gcsfs asks for the kind of the bucket before each call.
  os.environ.setdefault('GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT', 'false')
  if emulator := os.environ.get('STORAGE_EMULATOR_HOST'):
    os.environ.setdefault('TENSORSTORE_GCS_HTTP_URL', emulator)
  _import('gcsfs')
  # gcsfs logs an error with its traceback before it raises it.
  logging.getLogger('gcsfs').setLevel(logging.CRITICAL)
  # A cached listing does not show what another process has written since.
  _import('fsspec.config').conf.setdefault('gcs', {})['use_listings_cache'] = False


@dataclasses.dataclass(frozen=True)
class Folder:
  """The objects of a bucket whose names begin with that of the folder.

  Every method raises RunError if the bucket cannot be reached for `patience` seconds,
  or refuses the call.
  """

  url: str
  _bucket: Any
  _name: str
  patience: float  # seconds

  def __str__(self) -> str:
    return self.url

  def with_patience(self, seconds: float) -> Folder:
    """The same folder with another patience."""
    return dataclasses.replace(self, patience=seconds)

  def check(self) -> None:
    """Raises UserError unless the bucket exists and may be read."""
    exceptions = _import('google.api_core.exceptions')
    auth = _import('google.auth.exceptions')
    refused = exceptions.Unauthorized, exceptions.Forbidden, auth.GoogleAuthError

    def look() -> None:
      try:
        next(iter(self._listed('', max_results=1)), None)
      except exceptions.NotFound as error:
        raise UserError(
          f'{self.url}: there is no bucket {self._bucket.name!r}; create it with '
          f'`gcloud storage buckets create gs://{self._bucket.name}`'
        ) from error
      except auth.TransportError:
        raise
      except refused as error:
        raise UserError(
          f'{self.url}: the credentials are refused; run `gcloud auth '
          f'application-default login`; the reason: {in_one_line(error)}'
        ) from error

    self._persist(look)

  def list(self, below: str = '') -> dict[str, Stored]:
    """The objects whose names in this folder begin with `below`, by name."""
    prefix = len(self._name) + 1

    def stored(blob: Any) -> Stored:
      md5 = blob.md5_hash and base64.b64decode(blob.md5_hash).hex()
      return Stored(int(blob.size), md5)

    return self._persist(
      lambda: {
        blob.name[prefix:]: stored(blob)
        for blob in self._listed(below)
        if not blob.name.endswith('/')  # how the console represents an empty folder
      }
    )

  def read(self, name: str, max_bytes: int = 64 * MIB) -> Content | None:
    """An object, or None if there is none; raises UnreadableFile if it is too large."""
    exceptions = _import('google.api_core.exceptions')

    def read() -> Content | None:
      try:
        blob = self._blob(name)
        blob.reload(retry=None, timeout=_TIMEOUT)
        if blob.size > max_bytes:
          raise UnreadableFile(
            f'{self.url}/{name} has {blob.size} bytes; it may have at most {max_bytes}'
          )
        blob = self._blob(name)
        data = blob.download_as_bytes(retry=None, timeout=_TIMEOUT)
        return Content(data, int(blob.generation))
      except exceptions.NotFound:
        return None

    return self._persist(read)

  def write(self, name: str, data: bytes, generation: int | None = None) -> int:
    """Writes a whole object; returns its generation.

    Raises Conflict, and writes nothing, if a `generation` is given and the object now
    has another one; generation 0 is that of an object that does not exist.
    """
    exceptions = _import('google.api_core.exceptions')

    def write() -> int:
      blob = self._blob(name)
      try:
        blob.upload_from_string(
          data, if_generation_match=generation, retry=None, timeout=_TIMEOUT
        )
        return int(blob.generation)
      except exceptions.PreconditionFailed as error:
        # An earlier try may have been carried out although its answer was lost.
        found = self.read(name)
        if found is not None and found.data == data:
          return found.generation
        raise Conflict(f'{self.url}/{name}') from error

    return self._persist(write)

  def download(self, name: str, path: pathlib.Path) -> None:
    """Copies an object into a new file; raises UnreadableFile if there is none."""
    exceptions = _import('google.api_core.exceptions')

    def download() -> None:
      try:
        self._blob(name).download_to_filename(path, retry=None, timeout=_TIMEOUT)
      except exceptions.NotFound as error:
        raise UnreadableFile(f'{self.url}/{name} does not exist') from error

    self._persist(download)

  def fetch(
    self, objects: Mapping[str, Stored], local: pathlib.Path, below: str = ''
  ) -> None:
    """Copies objects into a local folder, unless it has them already.

    `below` comes before their names in this folder. Raises Changed if one is not as it
    was listed, and UnreadableFile if it does not exist any more.
    """

    def fetch(name: str) -> None:
      place = f'{self.url}/{below}{name}'
      if any(part in ('', '.', '..') for part in name.split('/')) or '\\' in name:
        raise RunError(f'{place} has a name that no file can have')
      path, size, md5 = local / name, *objects[name]
      if md5 is not None and path.exists() and _md5(path) == md5:
        return
      path.parent.mkdir(parents=True, exist_ok=True)
      self.download(f'{below}{name}', path)
      if path.stat().st_size != size:
        raise Changed(f'{place} does not have the size that the bucket lists')
      if md5 is not None and _md5(path) != md5:
        raise Changed(f'{place} does not have the checksum that the bucket lists')

    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
      list(threads.map(fetch, objects))

  def delete(self, names: Iterable[str]) -> None:
    """Deletes objects, as far as they exist."""
    exceptions = _import('google.api_core.exceptions')

    def delete(name: str) -> None:
      with contextlib.suppress(exceptions.NotFound):
        self._blob(name).delete(retry=None, timeout=_TIMEOUT)

    for name in names:
      self._persist(lambda name=name: delete(name))

  def _blob(self, name: str) -> Any:
    return self._bucket.blob(f'{self._name}/{name}')

  def _listed(self, below: str, max_results: int | None = None) -> Iterable[Any]:
    return self._bucket.list_blobs(
      prefix=f'{self._name}/{below}',
      max_results=max_results,
      retry=None,
      timeout=_TIMEOUT,
    )

  def _persist(self, action: Callable[[], _Result]) -> _Result:
    """Calls `action` until it succeeds.

    Raises RunError once patience has run out, and for errors that will not pass.
    """
    answers = _import('google.api_core.exceptions').GoogleAPICallError
    passing = answers, *_passing_errors()
    start, tries = time.monotonic(), 0
    while True:
      try:
        return action()
      except passing as error:
        reason = in_one_line(error)
        if isinstance(error, answers) and not _passes(error):
          raise RunError(f'{self.url}: the bucket refused a call: {reason}') from error
        left = start + self.patience - time.monotonic()
        if left <= 0:
          raise Unreachable(
            f'{self.url} could not be reached for {self.patience:g} s: {reason}'
          ) from error
        tries += 1
        if tries == 3:  # single requests fail now and then
          absl_logging.warning(
            '%s cannot be reached: %s; trying again for %.0f s', self.url, reason, left
          )
        time.sleep(min(2.0**tries / 4, left, _MAX_PAUSE))


def _md5(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'md5').hexdigest()


def _passing_errors() -> tuple[type[Exception], ...]:
  """The errors but for answers of the service after which a call may succeed later."""
  return (
    _import('google.auth.exceptions').GoogleAuthError,
    _import('google.cloud.storage.exceptions').DataCorruption,  # on its way
    _import('requests').RequestException,
  )


def _passes(answer: Any) -> bool:
  """Whether the same call may succeed after this error of the service."""
  code = answer.code or 0
  return code in (401, 403, 408, 429) or code >= 500
