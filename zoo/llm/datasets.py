"""Published benchmarks as TensorFlow Datasets, built from files of the user.

Importing this module registers the builders `stsb`, `sick` and `trec_qa`, and needs the
extra `data`. TFDS's own `glue/stsb` lacks labels for the test split, its own `sick`
must download, and building either needs TensorFlow. Here files are ArrayRecord, written
and read without TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from zoo.core.errors import RunError, UserError, in_one_line
from zoo.evaluation_sets.builds import open_builder, quiet, read_split, tfds
from zoo.host.files import user_path
from zoo.llm.benchmarks import SPLITS, Benchmark, digest
from zoo.llm.published import PUBLISHED, SOURCES, Row, Source


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """The rows of a source, in the order of its files."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'The published files.'}  # noqa: RUF012
  SOURCE: ClassVar[Source]

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description=f'The published files of {self.SOURCE.title}.',
      homepage=self.SOURCE.origin,
      features=tfds.features.FeaturesDict(
        {
          name: tfds.features.Text()
          if kind is str
          else tfds.features.Scalar(dtype=np.float32)
          for name, kind in self.SOURCE.features.items()
        }
      ),
      metadata=tfds.core.MetadataDict(),
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, Row]]]:
    files = self.SOURCE.paths(pathlib.Path(dl_manager.manual_dir))
    metadata = self.info.metadata
    assert isinstance(metadata, dict)
    metadata['sha256'] = digest(list(files.values()))
    return {split: self._generate_examples(path) for split, path in files.items()}

  def _generate_examples(self, path: pathlib.Path) -> Iterator[tuple[int, Row]]:
    yield from enumerate(self.SOURCE.rows(path))


class Stsb(_Builder):
  """Pairs of English sentences, with human similarity scores from 0 to 5."""

  SOURCE = SOURCES['stsb']
  MANUAL_DOWNLOAD_INSTRUCTIONS = 'Put the stsb-en-*.csv into manual_dir.'


class Sick(_Builder):
  """Pairs of English sentences, with relatedness from 1 to 5 and entailment."""

  SOURCE = SOURCES['sick']
  MANUAL_DOWNLOAD_INSTRUCTIONS = 'Put the SICK_*.txt into manual_dir.'


class TrecQa(_Builder):
  """Questions and sentences, and whether the sentence answers the question."""

  SOURCE = SOURCES['trec_qa']
  MANUAL_DOWNLOAD_INSTRUCTIONS = 'Put train.csv, dev.csv, test.csv into manual_dir.'


_BUILDERS: dict[str, type[_Builder]] = {'stsb': Stsb, 'sick': Sick, 'trec_qa': TrecQa}


def load(
  name: str,
  folder: str | os.PathLike[str] | None = None,
  data_dir: str | os.PathLike[str] | None = None,
) -> Benchmark:
  """Loads a published benchmark from TFDS's `data_dir`, and builds it if missing.

  `folder` has the published files. Raises UserError if there is neither a build nor
  such a folder, if a file in it is not as published, or if the build is of other files;
  RunError if `data_dir` cannot be written or is damaged.
  """
  published = PUBLISHED[name]
  source = SOURCES[published.source]
  files = {}
  if folder is not None:
    folder = user_path(folder)
    files = source.paths(folder)
  with _as_damaged(published.source):
    builder, is_built = open_builder(_BUILDERS[published.source], data_dir)
  if not is_built:
    if folder is None:
      raise UserError(
        f'there is no {source.title} in {builder.data_path}; --data must name a folder '
        f'with {", ".join(source.files.values())} ({source.origin})'
      )
    # TFDS starts writing before it has read everything, so everything is read here
    # first.
    published.benchmark({split: [*source.rows(files[split])] for split in files}, '')
    _build(builder, folder)
  with _as_damaged(published.source):
    rows = {split: _read(builder, split) for split in SPLITS}
    sha256 = builder.info.metadata['sha256']  # pyright: ignore[reportOptionalSubscript]
    if not isinstance(sha256, str):
      raise TypeError(f'its checksum is {sha256!r}')
    benchmark = published.benchmark(rows, sha256)
  if files and digest(list(files.values())) != sha256:
    raise UserError(
      f'{builder.data_path} was built from other files than those in {folder}; delete '
      'that folder, or set TFDS_DATA_DIR to another one'
    )
  return benchmark


def _build(builder: _Builder, folder: pathlib.Path) -> None:
  config = tfds.download.DownloadConfig(manual_dir=os.fspath(folder))
  try:
    with quiet():
      builder.download_and_prepare(download_config=config)
  except OSError as error:
    raise RunError(f'{builder.SOURCE.title} cannot be built: {error}') from error


@contextlib.contextmanager
def _as_damaged(source: str) -> Iterator[None]:
  """Turns any error of TFDS and ArrayRecord about damaged files into a RunError."""
  try:
    yield
  except Exception as error:
    reason = in_one_line(error)
    raise RunError(
      f'the built {SOURCES[source].title} is damaged ({type(error).__name__}: '
      f'{reason}); delete its folder, {source} in the data folder of TFDS, to build it '
      'again'
    ) from error


def _read(builder: _Builder, split: str) -> list[Row]:
  features = builder.SOURCE.features
  return [
    {name: _value(row[name], kind) for name, kind in features.items()}
    for row in read_split(builder, split)
  ]


def _value(value: object, kind: type) -> str | float:
  if kind is float:
    # Scores have at most three decimals; float32 would add more digits.
    return round(float(value), 3)  # pyright: ignore[reportArgumentType]
  if not isinstance(value, bytes):
    raise TypeError(f'a text is {value!r}')
  return value.decode()
