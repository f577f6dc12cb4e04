"""STS-Benchmark as a TensorFlow Dataset, from the CSV files of stsb_multi_mt.

Importing this module registers the builder `stsb`. TFDS's own `glue/stsb` has no labels
for its test split, and needs TensorFlow to build. Here files are ArrayRecord, written
and read without it. The sentences carry the mixed licences of their sources, so that
they do not ship: the user names the folder of the CSV files.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from zoo.errors import RunError, UserError
from zoo.evaluation_sets import quiet
from zoo.llm.benchmarks import Benchmark, Example, digest, stsb_examples, stsb_files

_FROM = 'https://github.com/PhilipMay/stsb-multi-mt'


class Stsb(tfds.core.GeneratorBasedBuilder):
  """Pairs of English sentences, and how similar people found them, from 0 to 5."""

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

  def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
    files = stsb_files(pathlib.Path(dl_manager.manual_dir))
    metadata: Any = self.info.metadata
    metadata['sha256'] = digest(list(files.values()))
    return {split: self._generate_examples(path) for split, path in files.items()}

  def _generate_examples(
    self, path: pathlib.Path
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    for i, (one, other, score) in enumerate(stsb_examples(path)):
      yield i, {'sentence1': one, 'sentence2': other, 'score': score}


def load(
  csv_dir: str | os.PathLike[str] | None = None,
  data_dir: str | os.PathLike[str] | None = None,
) -> Benchmark:
  """Reads STS-B from TFDS's `data_dir`, where it is built from `csv_dir` if need be.

  Raises UserError where there is neither a build nor a folder with the three CSV files,
  and where the build is of other files than those of `csv_dir`; RunError where
  `data_dir` cannot be written or is damaged.
  """
  files = None
  folder = None if csv_dir is None else pathlib.Path(csv_dir).expanduser()
  if folder is not None:
    files = stsb_files(folder)
    for path in files.values():
      if next(stsb_examples(path), None) is None:
        raise UserError(f'{path} has no examples')
  where = None if data_dir is None else os.fspath(data_dir)
  try:
    with quiet():
      builder = Stsb(data_dir=where, file_format='array_record')
      prepared = builder.is_prepared()
    place = str(builder.data_path)
    if not prepared:
      if folder is None:
        raise UserError(
          f'there is no STS-B in {place}; --data must name a folder with the '
          f'stsb-en-*.csv of {_FROM}'
        )
      with quiet():
        builder.download_and_prepare(
          download_config=tfds.download.DownloadConfig(manual_dir=os.fspath(folder))
        )
    metadata: Any = builder.info.metadata
    splits = {split: _read(builder, split) for split in ('train', 'dev', 'test')}
  except UserError:
    raise
  except OSError as error:
    raise RunError(f'STS-B cannot be built: {error}') from error
  except Exception as error:  # whatever TFDS and ArrayRecord make of damaged files
    reason = ' '.join(str(error).split())[:300]
    raise RunError(
      f'the STS-B that was built is damaged ({type(error).__name__}: {reason}); delete '
      'its folder, stsb in the data folder of TFDS, and it is built again'
    ) from error
  if files is not None and digest(list(files.values())) != metadata['sha256']:
    raise UserError(
      f'{place} was built from other files than those in {folder}; delete '
      'that folder, or set TFDS_DATA_DIR to another one'
    )
  return Benchmark(splits, (), metadata['sha256'])


def _read(builder: Stsb, split: str) -> list[Example]:
  source: Any = builder.as_data_source(split=split)  # pyright: ignore[reportCallIssue]
  return [
    Example(
      (row['sentence1'].decode(), row['sentence2'].decode()),
      # Two decimals are all that a score has; float32 would add more.
      round(float(row['score']), 3),
    )
    for row in source.__getitems__(range(len(source)))
  ]
