"""The digits of scikit-learn as a small data set of TensorFlow, without TensorFlow."""

import functools
import io
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
  """1797 images of 8 × 8 pixels from 0 to 240, and their labels."""
  datasets = pytest.importorskip(
    'sklearn.datasets', reason="needs the extra 'baselines'"
  )
  data = datasets.load_digits()
  return (15 * data.images).astype(np.uint8), data.target


def write_digits(
  folder: pathlib.Path,
  splits: Mapping[str, slice] | None = None,
  *,
  label: str = 'label',
  file_format: str = 'array_record',
) -> str:
  """Writes the data set `digits` 1.0.0 by the writer of TFDS; returns the folder.

  As those of Omniglot, files have one channel, and the features say three.
  """
  tfds: Any = pytest.importorskip(
    'tensorflow_datasets', reason="needs the extra 'data'"
  )
  images, labels = digits()
  parts = splits or {'train': slice(1000), 'test': slice(1000, None)}

  class Digits(  # pyright: ignore
    tfds.core.GeneratorBasedBuilder,
    skip_registration=True,  # pyright: ignore
  ):
    name = 'digits'
    VERSION = tfds.core.Version('1.0.0')

    def _info(self):
      kinds = {
        'image': tfds.features.Image(shape=(8, 8, 3), encoding_format='png'),
        label: tfds.features.ClassLabel(num_classes=10),
      }
      features = tfds.features.FeaturesDict(kinds)
      return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(part) for split, part in parts.items()}

    def _generate_examples(self, part):
      for i, (image, of_image) in enumerate(
        zip(images[part], labels[part], strict=True)
      ):
        yield i, {'image': _png(image), label: int(of_image)}

  Digits(data_dir=str(folder), file_format=file_format).download_and_prepare()
  return str(folder)


def _png(image: np.ndarray) -> io.BytesIO:
  file = io.BytesIO()
  Image.fromarray(image).save(file, 'png')
  file.seek(0)
  return file
