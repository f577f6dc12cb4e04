"""What a user reads who lacks the packages of the extra `llm`."""

import contextlib
from collections.abc import Iterator

from zoo.core.errors import UserError

_PACKAGES = 'accelerate', 'gguf', 'safetensors', 'tokenizers', 'torch', 'transformers'


@contextlib.contextmanager
def needs_extra() -> Iterator[None]:
  """Raises UserError if an import lacks a package of the extra `llm`."""
  try:
    yield
  except ModuleNotFoundError as error:
    if error.name not in _PACKAGES:
      raise
    raise UserError(
      f"{error.name} is not installed; language models need pip install 'icl-zoo[llm]'"
    ) from None
