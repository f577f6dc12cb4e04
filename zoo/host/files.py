"""Files on disks or in buckets, which are written whole or not at all.

A path is a `pathlib.Path`. That of a folder in a bucket is epath's, which reads and
writes objects by the same methods. `is_url` is asked only where a bucket differs from a
disk: it has no locks, nothing can be appended to an object, an object is written whole,
and a failure may be one of the network.
"""

import contextlib
import math
import os
import pathlib
import re
import socket
from typing import Any, TypeVar

import msgspec
from absl import logging
from etils import epath

from zoo.core.errors import RunError, UserError, in_one_line, not_installed

_Kind = TypeVar('_Kind')

_MOST_BYTES_OF_NAME = 255  # Linux, macOS and Windows have this limit.
_LETTERS_OF_TEMPORARY = 30  # They have up to 120 bytes, and a host's name up to 64.
# Commands write into these folders of `checkpoints` by default.
_FOLDERS_OF_COMMANDS = {'runs', 'probes'}


class UnreadableFile(UserError):
  """The error of a file that cannot be read, or does not hold what it should."""


def is_url(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path names a folder in a bucket: gs://bucket/folder."""
  return os.fspath(path).split('/')[0] == 'gs:'  # A Path drops slashes.


def workdir_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the full path of a folder, which may be in a bucket; `~` is expanded.

  Raises:
    UserError: If the path is not valid, if the bucket cannot be used, or if the extra
      `gcs` is missing.
    RunError: If the bucket cannot be reached.
  """
  if path == '':  # It would be the current folder.
    raise UserError("the path is ''; it must be the name of a folder or a file")
  if isinstance(path, str | os.PathLike) and is_url(path):
    return gcs().bucket_path(os.fspath(path))
  return user_path(path)


def gcs() -> Any:
  """Returns the module zoo.host.gcs of buckets.

  Raises:
    UserError: If the extra `gcs` is missing.
  """  # noqa: DOC501
  try:
    from zoo.host import gcs
  except ModuleNotFoundError as error:
    name = str(error.name).partition('.')[0]
    raise not_installed(name, 'gs:// needs', 'gcs') from error
  return gcs


def user_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the full path of a local file or folder; `~` is expanded.

  Every path of a user passes through this function once, where it enters. A later
  change of the working directory then changes no place.

  Raises:
    UserError: If `typed_path` refuses the path.
  """
  return typed_path(path).absolute()


def typed_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns a path as it was typed, with `~` or `~user` expanded.

  Raises:
    UserError: If the path is no text, if the user is unknown, if a name has a zero byte
      or is too long for any disk, or if the path is a URL such as s3://bucket/run.
  """
  if not isinstance(path, str | os.PathLike):
    raise UserError(f'the path is {path!r}; it must be the name of a folder or a file')
  # A Path has dropped one of the slashes. A drive of Windows has one letter.
  if scheme := re.match('([A-Za-z][A-Za-z0-9+.-]+):/', os.fspath(path)):
    raise UserError(
      f'{str(path)!r} begins with {scheme[1]}:, which cannot be read or written here; '
      'give a local folder or file'
    )
  if '\0' in os.fspath(path):
    raise UserError(f'{os.fspath(path)!r} is no path: it has a zero byte')
  for name in pathlib.Path(path).parts:
    if (length := len(os.fsencode(name))) > _MOST_BYTES_OF_NAME:
      raise UserError(
        f'the name {name[:40]}… has {length} bytes; a file or a folder may have at '
        f'most {_MOST_BYTES_OF_NAME}'
      )
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError as error:
    raise UserError(f'{str(path)!r} is the home folder of an unknown user') from error


def checkpoint_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the full path of a saved model; `checkpoints/NAME` may be a shipped one.

  A path `checkpoints/NAME` means this folder of the working directory. If it does not
  exist, the path means the checkpoint of this name that ICL Zoo ships, and a warning
  says which folder is opened. A folder `checkpoints` with other models shows that a
  model of the user's own was meant, so that this is an error.

  Raises:
    UserError: If the path is not valid, if the bucket cannot be used, if the extra
      `gcs` is missing, or if a model of the user's own is missing.
    RunError: If the bucket cannot be reached.
  """
  full = workdir_path(path)
  if pathlib.PurePath(path).parts[:-1] != ('checkpoints',) or full.exists():
    return full
  shipped = shipped_checkpoints() / full.name
  if not (shipped / 'card.json').is_file():
    return full
  if {own.name for own in full.parent.glob('*/')} - _FOLDERS_OF_COMMANDS:
    raise UserError(
      f'{full} does not exist, and {full.parent} has other models; to open the model '
      f'that ICL Zoo ships, give {shipped}'
    )
  logging.warning('%s does not exist; %s is opened instead', full, shipped)
  return shipped


def shipped_checkpoints() -> pathlib.Path:
  """Returns the folder of the shipped checkpoints, in the package or the repository."""
  package = pathlib.Path(__file__).parents[1]
  installed = package / 'shipped'
  return installed if installed.is_dir() else package.parent / 'checkpoints'


def read_bytes(path: pathlib.Path) -> bytes:
  """Returns the content of a file.

  Raises:
    UnreadableFile: If the file cannot be read.
    RunError: If it is in a bucket that cannot be reached.
  """
  try:
    return path.read_bytes()
  except failures(path) as error:
    is_missing = isinstance(error, FileNotFoundError | IsADirectoryError)
    kind = RunError if is_url(path) and not is_missing else UnreadableFile
    raise kind(f'{path} cannot be read: {said(error)}') from error


def read_text(path: pathlib.Path) -> str:
  """Returns the text of a UTF-8 file.

  Raises:
    UnreadableFile: If the file cannot be read or is not UTF-8.
    RunError: If it is in a bucket that cannot be reached.
  """
  try:
    return read_bytes(path).decode()
  except UnicodeDecodeError as error:
    raise UnreadableFile(f'{path} is not UTF-8 text: {error.reason}') from error


def read_json(path: pathlib.Path, kind: type[_Kind]) -> _Kind:
  """Returns the value in a JSON file, as a type.

  The type may be a TypedDict, a NamedTuple, a dataclass or a container of these.

  Raises:
    UnreadableFile: If the file cannot be read, or does not fit the type.
    RunError: If it is in a bucket that cannot be reached.
  """
  return parse_json(read_bytes(path), kind, str(path))


def parse_json(text: str | bytes, kind: type[_Kind], source: str) -> _Kind:
  """Returns the value in a JSON text, as a type.

  Args:
    text: The text.
    kind: The type, as for `read_json`.
    source: The name of the text in messages.

  Raises:
    UnreadableFile: If the text is not JSON, or does not fit the type.
  """
  try:
    return msgspec.json.decode(text, type=kind)
  except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
    raise UnreadableFile(f'{source} cannot be read as JSON: {error}') from error


def finite_or_null(content: Any) -> Any:
  """Returns content for strict JSON, where floats that are not finite are None."""
  if isinstance(content, dict):
    return {name: finite_or_null(value) for name, value in content.items()}
  if isinstance(content, list | tuple):
    return [finite_or_null(value) for value in content]
  if isinstance(content, float) and not math.isfinite(content):
    return None
  return content


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a whole file, or leaves the old one as it was.

  The file is on the disk when this function returns, so that it survives a power cut.
  If the path is a symbolic link, the file that it leads to is replaced.

  Raises:
    OSError: If the file cannot be written.
  """
  data = content.encode() if isinstance(content, str) else content
  if is_url(path):  # An object is written whole or not at all.
    path.write_bytes(data)
    return
  path = pathlib.Path(os.path.realpath(path))  # A link stays, and its file is replaced.
  # The name is cut, since that of the file may have as many bytes as a disk allows.
  me = f'{socket.gethostname()}-{os.getpid()}'
  temporary = path.with_name(f'.{path.name[:_LETTERS_OF_TEMPORARY]}.{me}.tmp')
  # A process of the same number may have been killed while it wrote.
  temporary.unlink(missing_ok=True)
  try:
    with temporary.open('xb') as file:  # This mode does not follow a symbolic link.
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    temporary.replace(path)
  except OSError:
    temporary.unlink(missing_ok=True)
    raise
  with contextlib.suppress(OSError):  # Some systems cannot sync a folder.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
      os.fsync(folder)  # The name is then on the disk, too.
    finally:
      os.close(folder)


def names_in(folder: pathlib.Path) -> set[str]:
  """Returns the names in a folder, none if it does not exist; raises OSError."""
  try:
    return {path.name for path in folder.iterdir()}
  except FileNotFoundError:
    return set()


def names_below(folder: pathlib.Path) -> list[str]:
  """Returns all files below a folder, relative to it and sorted; raises OSError."""
  import fsspec  # It is slow to import.

  system, root = fsspec.core.url_to_fs(os.fspath(folder))
  names = [name[len(root) + 1 :] for name in system.find(root)]
  # The console of a bucket makes an empty folder as an object with a final slash.
  return sorted(name for name in names if not name.endswith('/'))


def delete_folder(folder: pathlib.Path) -> None:
  """Deletes a folder, if it exists, and everything in it; raises OSError."""
  epath.Path(folder).rmtree(missing_ok=True)


def failures(path: pathlib.Path) -> tuple[type[BaseException], ...]:
  """Returns the errors of reading or writing a path; gcsfs has errors of its own."""
  return gcs().ERRORS if is_url(path) else (OSError,)


def said(error: BaseException) -> str:
  """Returns what one of these errors says, in one line."""
  return getattr(error, 'strerror', None) or in_one_line(error)
