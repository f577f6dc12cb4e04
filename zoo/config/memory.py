"""Running out of memory, said in one line with the fields that save some."""

import contextlib
from collections.abc import Iterator

from zoo.config.building import Config
from zoo.core.errors import RunError, in_one_line, is_exhausted


@contextlib.contextmanager
def in_config(config: Config) -> Iterator[None]:
  """Turns running out of memory in the block into a RunError that names the fields."""
  try:
    yield
  except Exception as error:
    if not is_exhausted(error):
      raise
    length = config.task.get('context_length')
    of_task = '' if length is None else f', config.task.context_length ({length:,})'
    raise RunError(
      f'the memory is not enough: {in_one_line(error, 200)}; reduce '
      f'config.train.batch_size ({config.train.batch_size:,}){of_task} or '
      f'config.model, or raise config.train.num_parts ({config.train.num_parts:,})'
    ) from error
