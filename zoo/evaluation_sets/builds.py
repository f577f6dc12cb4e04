"""Opens data sets that TFDS has built, and checks them before they are read."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from absl import logging

from zoo.core.errors import UserError
from zoo.host.files import MIB, read_json, user_path

try:
  import tensorflow_datasets as tfds
  from array_record.python.array_record_module import ArrayRecordReader
  from tensorflow_datasets.core import writer as writer
  from tensorflow_datasets.core.constants import DATA_DIR
  from tensorflow_datasets.proto import tf_example_pb2 as tf_example_pb2
except ModuleNotFoundError as error:
  # TFDS 4.9.10 needs importlib_resources, but does not declare it.
  extra = 'tensorflow_datasets', 'array_record', 'importlib_resources'
  if error.name is None or error.name.partition('.')[0] not in extra:
    raise
  raise UserError(
    f"{error.name} is not installed; evaluation sets need pip install 'icl-zoo[data]'"
  ) from None

Example = Mapping[str, bytes | float | np.ndarray | np.generic]
_Builder = TypeVar('_Builder', bound=tfds.core.GeneratorBasedBuilder)


def open_builder(
  builder_class: type[_Builder],
  data_dir: str | os.PathLike[str] | None,
  config: str | None = None,
) -> tuple[_Builder, bool]:
  """The builder of a data set in `data_dir`, and whether the set is built there.

  `data_dir` None means TFDS's own folder. Raises UnreadableFile for metadata that are
  too large or not JSON, and any error of TFDS for other damage.
  """
  root = user_path(DATA_DIR if data_dir is None else data_dir)
  for path in (root / builder_class.name).rglob('*.json'):
    read_json(path, MIB)
  with quiet():
    builder = builder_class(
      data_dir=None if data_dir is None else os.fspath(data_dir),
      config=config,
      file_format='array_record',
    )
    return builder, builder.is_prepared()


def read_split(builder: tfds.core.DatasetBuilder, split: str) -> Sequence[Example]:
  """All examples of a split; raises ValueError if the metadata's count is another.

  Raises any error of TFDS and ArrayRecord for damaged files.
  """
  info = builder.info.splits[split]
  if info.num_shards != 1:
    raise ValueError(f'the split {split!r} has {info.num_shards} files; it must have 1')
  reader = ArrayRecordReader(os.fspath(info.filepaths[0]))
  try:
    count = reader.num_records()
  finally:
    reader.close()
  if info.num_examples != count:
    raise ValueError(
      f'the split {split!r} has {count} examples, by its metadata {info.num_examples}'
    )
  source = builder.as_data_source(split=split)  # pyright: ignore[reportCallIssue]
  return source.__getitems__(range(count))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Hides TFDS's messages about downloads and about a folder that does not exist."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  nowhere = io.StringIO()
  try:
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
      yield
  finally:
    logging.set_verbosity(before)
