"""The TFDS builder of the evaluation sets; importing this module registers it.

Files are ArrayRecord, written and read without TensorFlow.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from zoo.evaluation_sets.builds import tf_example_pb2, tfds, writer
from zoo.evaluation_sets.sets import (
  SPECS,
  VERSION,
  SetSpec,
  find_spec,
  sample_prompts,
)


class IclLinearRegression(tfds.core.GeneratorBasedBuilder):
  """Prompts of linear regression, each with its own weight vector."""

  RELEASE_NOTES = {VERSION: 'The first sets.'}  # noqa: RUF012
  VERSION = tfds.core.Version(VERSION)
  BUILDER_CONFIGS = [  # noqa: RUF012
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

  def _example_writer(self) -> writer.ExampleWriter:
    assert self.info.file_format is not None
    return _SortedWriter(self.info.file_format)


class _SortedWriter(writer.ExampleWriter):
  """Writes the fields of an example in a fixed order, unlike protobuf."""

  def write(
    self,
    path: str | os.PathLike,
    examples: Iterable[writer.type_utils.KeySerializedExample],
  ) -> list | None:
    return super().write(path, ((key, _sorted(example)) for key, example in examples))


def _sorted(example: bytes) -> bytes:
  parsed = tf_example_pb2.Example.FromString(example)  # pyright: ignore[reportAttributeAccessIssue]
  return parsed.SerializeToString(deterministic=True)
