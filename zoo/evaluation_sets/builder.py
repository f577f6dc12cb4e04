"""The TFDS builder of the evaluation sets; importing this module registers it.

Files are ArrayRecord, written and read without TensorFlow.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping

import numpy as np
from absl import logging

from zoo.core.errors import not_installed
from zoo.evaluation_sets.sets import (
  SPECS,
  VERSION,
  SetSpec,
  find_spec,
  sample_prompts,
)

try:
  import array_record as array_record
  import tensorflow_datasets as tfds
except ModuleNotFoundError as error:
  # TFDS 4.9.10 needs importlib_resources, but does not declare it.
  extra = 'tensorflow_datasets', 'array_record', 'importlib_resources'
  if error.name is None or error.name.partition('.')[0] not in extra:
    raise
  raise not_installed(error.name, 'evaluation sets need', 'data') from None


class IclLinearRegression(tfds.core.GeneratorBasedBuilder):
  """Prompts of linear regression, each with its own weight vector."""

  RELEASE_NOTES = {VERSION: 'The first sets.'}
  VERSION = tfds.core.Version(VERSION)
  BUILDER_CONFIGS = [
    tfds.core.BuilderConfig(name=spec.name, description=spec.description)
    for spec in SPECS
  ]

  @property
  def _spec(self) -> SetSpec:
    assert self.builder_config is not None  # without a name TFDS takes the first
    return find_spec(self.builder_config.name)

  def _info(self) -> tfds.core.DatasetInfo:
    features = {
      name: tfds.features.Tensor(shape=shape, dtype=np.float32)
      for name, shape in self._spec.shapes.items()
    }
    return tfds.core.DatasetInfo(
      builder=self,
      description='y_i = ŵ·x_i + σ n_i with a fresh ŵ ~ N(w*, Λ) in each prompt, '
      'features and query ~ N(0, Σ); y_query is ŵ·x_query, without noise.',
      features=tfds.features.FeaturesDict(features),
      disable_shuffling=True,
    )

  def _split_generators(
    self, dl_manager: tfds.download.DownloadManager
  ) -> dict[str, Iterator[tuple[int, Mapping[str, np.ndarray]]]]:
    return {'test': self._generate_examples()}

  def _generate_examples(self) -> Iterator[tuple[int, Mapping[str, np.ndarray]]]:
    prompts = sample_prompts(self._spec)
    for i in range(self._spec.num_prompts):
      yield i, {name: array[i] for name, array in prompts.items()}


def open_builder(
  name: str, data_dir: str | os.PathLike[str] | None
) -> IclLinearRegression:
  """The builder of a set in `data_dir`; None means TFDS's own folder.

  Raises any error of TFDS for files that are damaged.
  """
  with quiet():
    return IclLinearRegression(
      data_dir=None if data_dir is None else os.fspath(data_dir),
      config=name,
      file_format='array_record',
    )


def read_prompts(builder: IclLinearRegression, number: int) -> dict[str, np.ndarray]:
  """All prompts of a set that is built, by field; raises ValueError for another number.

  Raises any error of TFDS and ArrayRecord for damaged files.
  """
  source = builder.as_data_source(split='test')  # pyright: ignore[reportCallIssue]
  if len(source) != number:
    raise ValueError(f'it has {len(source)} prompts, not {number}')
  examples = source.__getitems__(range(number))
  return {name: np.stack([one[name] for one in examples]) for name in examples[0]}


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
