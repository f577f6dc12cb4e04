"""Models on the Hugging Face hub, one in a repository; needs the extra `hub`."""

import pathlib
import re

import huggingface_hub
from huggingface_hub import errors, utils

from zoo.core.errors import RunError, UserError, in_one_line

FILE = 'model.safetensors'
_PATIENCE = 3  # seconds, for the first answer


def download(url: str) -> pathlib.Path:
  """The file of a model in the cache of the hub's library, downloaded if it is newer.

  Where the hub is out of reach, or HF_HUB_OFFLINE is 1, the cache alone is asked.
  Raises UserError for a repository without such a file, RunError if none is at hand.
  """
  name = _repository(url)
  try:
    # Out of reach, the download alone would be tried again for 23 seconds.
    cached = not _answers(name)
    file = huggingface_hub.hf_hub_download(name, FILE, local_files_only=cached)
    return pathlib.Path(file)
  except errors.LocalEntryNotFoundError as error:
    raise RunError(
      f'{url} has no {FILE} in the cache of this machine, and the hub is out of reach, '
      'or turned off by HF_HUB_OFFLINE'
    ) from error
  except errors.EntryNotFoundError as error:
    raise UserError(f'{url} is no model of ICL Zoo: it has no {FILE}') from error
  except errors.RepositoryNotFoundError as error:
    raise UserError(
      f'{url} does not exist, or is private; `hf auth login` says who you are'
    ) from error
  except Exception as error:  # of the network, or an answer of the hub
    raise RunError(f'{url} cannot be read: {in_one_line(error)}') from error


def _answers(name: str) -> bool:
  """Whether the hub answers a question about a repository, even by an error."""
  try:
    address = huggingface_hub.hf_hub_url(name, FILE)
    huggingface_hub.get_hf_file_metadata(address, timeout=_PATIENCE)
  except errors.HfHubHTTPError:
    return True
  except Exception:  # of the network
    return False
  return True


def upload(file: pathlib.Path, url: str) -> None:
  """Commits a file as the model of a repository, which is created if there is none.

  Raises RunError for whatever the library raises.
  """
  name, api = _repository(url), huggingface_hub.HfApi()
  try:
    api.create_repo(name, exist_ok=True)
    api.upload_file(path_or_fileobj=file, path_in_repo=FILE, repo_id=name)
  except Exception as error:
    raise RunError(
      f'{url} cannot be written: {in_one_line(error)}; `hf auth login` says who you are'
    ) from error


def _repository(url: str) -> str:
  """The name of a repository; raises UserError for a malformed one."""
  found = re.fullmatch('hf:/+([^/]+/[^/]+)/?', url)
  try:
    name = found[1] if found else url
    utils.validate_repo_id(name)
  except errors.HFValidationError as error:
    raise UserError(f'{url!r} is no model; it must be like hf://owner/name') from error
  return name
