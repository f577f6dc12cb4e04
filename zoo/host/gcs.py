"""Folders of Google Cloud Storage as paths; needs the extra `gcs`.

A bucket holds objects, each written whole or not at all, and no folders. epath and
Orbax reach it through gcsfs, which tries a call again for half a minute.
"""

import logging
import os
import pathlib
import re

import aiohttp
import fsspec
import google.auth.exceptions
from etils.epath import gpath
from fsspec.config import conf
from gcsfs.retry import HttpError, is_retriable

from zoo.core.errors import RunError, UserError, in_one_line

# gcsfs raises these errors.
ERRORS = (
  OSError,
  HttpError,
  aiohttp.ClientError,
  google.auth.exceptions.GoogleAuthError,
)

# Without this, epath uses TensorFlow if it is installed.
os.environ['EPATH_USE_TF'] = 'false'
if emulator := os.environ.get('STORAGE_EMULATOR_HOST'):
  os.environ.setdefault('TENSORSTORE_GCS_HTTP_URL', emulator)
# A cached listing does not show what another process has written since.
conf['gcs'] = conf['gs'] = {'use_listings_cache': False}
logging.getLogger('gcsfs').setLevel(logging.CRITICAL)  # It raises its errors, too.


class BucketPath(gpath.PosixGPath, pathlib.Path):  # pyright: ignore[reportIncompatibleMethodOverride]
  """A path in a bucket, for all code that takes a `pathlib.Path`."""


def bucket_path(url: str) -> BucketPath:
  """Returns the folder of a URL as a path.

  Raises:
    UserError: If the URL is malformed, if credentials are refused, or if the bucket
      does not exist.
    RunError: If the bucket cannot be reached.
  """
  parts = re.fullmatch(r'gs:/+([a-z0-9][\w.-]*[a-z0-9])((?:/[^/]+)+)/?', url, re.A)
  if not parts or '/../' in f'{parts[2]}/' or '/./' in f'{parts[2]}/':
    raise UserError(f'{url!r} is no folder; it must be like gs://bucket/folder')
  name, path = parts[1], BucketPath(f'gs://{parts[1]}{parts[2]}')
  try:
    fsspec.filesystem('gcs').call('GET', 'b/{}/o', name, maxResults=1)
  except FileNotFoundError as error:
    raise UserError(
      f'{path}: there is no bucket {name!r}; create it with '
      f'`gcloud storage buckets create gs://{name}`'
    ) from error
  except ERRORS as error:
    if is_retriable(error):
      raise RunError(f'{path} could not be reached: {in_one_line(error)}') from error
    raise UserError(
      f'{path} cannot be used; are the credentials those of `gcloud auth '
      f'application-default login`? The reason: {in_one_line(error)}'
    ) from error
  return path
