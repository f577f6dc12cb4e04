"""STS-Benchmark as a TensorFlow Dataset, from the CSV files of stsb_multi_mt.

Importing this module registers the builder `stsb`, and needs the extra `data`. TFDS's
own `glue/stsb` has no labels for its test split, and needs TensorFlow to build. Here
files are ArrayRecord, written and read without TensorFlow. The sentences do not ship,
since their sources have mixed licences: the user provides the folder of the CSV files.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from zoo.errors import RunError, UserError, in_one_line
from zoo.evaluation_sets.builds import open_builder, quiet, read_split, tfds
from zoo.files import user_path
from zoo.llm.benchmarks import (
  SPLITS,
  Benchmark,
  Example,
  digest,
  stsb_examples,
  stsb_files,
)

_FROM = 'https://github.com/PhilipMay/stsb-multi-mt'


class Stsb(tfds.core.GeneratorBasedBuilder):
  """Pairs of English sentences, with human similarity scores from 0 to 5."""

  VERSION = tfds.core.Version('1.0.0')
  RELEASE_NOTES = {'1.0.0': 'The CSV files of stsb_multi_mt.'}  # noqa: RUF012
  MANUAL_DOWNLOAD_INSTRUCTIONS = f'Put the stsb-en-*.csv of {_FROM} into manual_dir.'

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description='The English part of stsb_multi_mt.',
      homepage=_FROM,
      features=tfds.features.FeaturesDict(
        {
          'sentence1': tfds.features.Text(),
          'sentence2': tfds.features.Text(),
          'score': tfds.features.Scalar(dtype=np.float32),
        }
      ),
      metadata=tfds.core.MetadataDict(),
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, dict[str, str | float]]]]:
    files = stsb_files(pathlib.Path(dl_manager.manual_dir))
    metadata = self.info.metadata
    assert isinstance(metadata, dict)
    metadata['sha256'] = digest(list(files.values()))
    return {split: self._generate_examples(path) for split, path in files.items()}

  def _generate_examples(
    self, path: pathlib.Path
  ) -> Iterator[tuple[int, dict[str, str | float]]]:
    for i, (one, other, score) in enumerate(stsb_examples(path)):
      yield i, {'sentence1': one, 'sentence2': other, 'score': score}


def load(
  csv_dir: str | os.PathLike[str] | None = None,
  data_dir: str | os.PathLike[str] | None = None,
) -> Benchmark:
  """Loads STS-B from TFDS's `data_dir`, and builds it there from `csv_dir` if missing.

  Raises UserError if there is neither a build nor a folder with the three CSV files,
  and if the build is of other files than those of `csv_dir`; RunError if `data_dir`
  cannot be written or is damaged.
  """
  files = {}
  if csv_dir is not None:
    csv_dir = user_path(csv_dir)
    files = stsb_files(csv_dir)
    for path in files.values():
      if next(stsb_examples(path), None) is None:
        raise UserError(f'{path} has no examples')
  with _as_damaged():
    builder, is_built = open_builder(Stsb, data_dir)
  folder = builder.data_path
  if not is_built:
    if csv_dir is None:
      raise UserError(
        f'there is no STS-B in {folder}; --data must name a folder with the '
        f'stsb-en-*.csv of {_FROM}'
      )
    config = tfds.download.DownloadConfig(manual_dir=os.fspath(csv_dir))
    try:
      with quiet():
        builder.download_and_prepare(download_config=config)
    except OSError as error:
      raise RunError(f'STS-B cannot be built: {error}') from error
  with _as_damaged():
    splits = {split: _read(builder, split) for split in SPLITS}
    sha256 = builder.info.metadata['sha256']  # pyright: ignore[reportOptionalSubscript]
    if not isinstance(sha256, str):
      raise TypeError(f'its checksum is {sha256!r}')
  if files and digest(list(files.values())) != sha256:
    raise UserError(
      f'{folder} was built from other files than those in {csv_dir}; delete '
      'that folder, or set TFDS_DATA_DIR to another one'
    )
  return Benchmark(splits, (), sha256)


@contextlib.contextmanager
def _as_damaged() -> Iterator[None]:
  """Turns whatever TFDS and ArrayRecord raise for damaged files into a RunError."""
  try:
    yield
  except Exception as error:
    reason = in_one_line(error)
    raise RunError(
      f'the built STS-B is damaged ({type(error).__name__}: {reason}); delete its '
      'folder, stsb in the data folder of TFDS, to build it again'
    ) from error


def _read(builder: Stsb, split: str) -> list[Example]:
  return [
    Example(
      (_text(row['sentence1']), _text(row['sentence2'])),
      # A score has two decimals; float32 would add more digits.
      round(float(row['score']), 3),
    )
    for row in read_split(builder, split)
  ]


def _text(value: object) -> str:
  if not isinstance(value, bytes):
    raise TypeError(f'a text is {value!r}')
  return value.decode()
