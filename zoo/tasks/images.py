"""The images of a TensorFlow data set, sorted by their classes and read once."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import struct
from jaxtyping import Array, Float, Int, Key

from zoo.core.errors import UserError, check_count, in_one_line, not_installed
from zoo.core.trees import Tree

# Other splits, such as small1 of Omniglot, may repeat the images of these splits.
_SPLITS = 'train', 'validation', 'test'


@struct.dataclass(eq=False, repr=False)
class Images(Tree):
  """The images of all classes, one class after the other.

  Attributes:
    pixels: Images `[n, image_size²]`, grey, with the mean 0 and the variance 1 over all
      pixels.
    starts: Place of the first image of each class `[m]`.
    counts: Number of images of each class `[m]`, ≥ 1.
    origin: The name of the data set with its version, its folder, and the size of the
      images.
  """

  pixels: Any
  starts: Any
  counts: Any
  origin: tuple = struct.field(pytree_node=False)

  @property
  def num_classes(self) -> int:
    """Number of classes that have images, m."""
    return len(self.starts)

  def sample(
    self, key: Key[Array, ''], classes: Int[Array, ' t']
  ) -> Float[Array, 't d']:
    """Draws an image of each of the given classes, independently.

    Args:
      key: Random key.
      classes: Numbers of classes `[t]`.

    Returns:
      Pixels `[t, image_size²]`.
    """
    starts = jnp.asarray(self.starts)[classes]
    counts = jnp.asarray(self.counts)[classes]
    of_class = jax.random.randint(key, classes.shape, 0, counts, starts.dtype)
    return jnp.asarray(self.pixels)[starts + of_class].astype(float)

  def shares(self, x: Float[Array, ' d']) -> Float[Array, ' m']:
    """Returns, for each class, the share of its images that have these pixels."""
    same = jnp.all(jnp.asarray(self.pixels).astype(float) == x[None], axis=1)
    starts, counts = jnp.asarray(self.starts), jnp.asarray(self.counts)
    classes = jnp.searchsorted(starts, jnp.arange(len(same)), side='right') - 1
    found = jnp.zeros(len(starts), x.dtype).at[classes].add(same.astype(x.dtype))
    return found / counts


def read_images(dataset: object, data_dir: object, image_size: int) -> Images:
  """Reads the images of those of the splits train, validation and test that exist.

  Nothing is downloaded or built.

  Args:
    dataset: A name of TFDS, `name[/config][:version]`, whose examples have an `image`
      and an integer `label`.
    data_dir: Folder of the data sets; None is that of TFDS.
    image_size: Number of pixels of a side, ≥ 1, to which each image is scaled.

  Returns:
    The images of all classes.

  Raises:
    UserError: If a package of the extra `data` is not installed, the data set is not in
      the folder, or it cannot be read.
  """  # noqa: DOC501
  check_count('image_size', image_size)
  if not isinstance(dataset, str) or not dataset:
    raise UserError(
      f"dataset is {dataset!r}; it must be a data set of TensorFlow, such as 'omniglot'"
    )
  if data_dir is not None and not isinstance(data_dir, str):
    raise UserError(f'data_dir is {data_dir!r}; it must be a folder')
  folder = epath.Path(_default_folder() if data_dir is None else data_dir)
  folder = os.fspath(folder.expanduser().resolve())
  # By default TFDS writes tfrecord, which only TensorFlow reads.
  command = f'tfds build {dataset} --data_dir={folder} --file_format=array_record'
  builder = _find(dataset, folder)
  if builder is None:
    raise UserError(f'the data set {dataset} is not in {folder}; {command}')
  name, _, version = builder.info.full_name.rpartition('/')
  try:
    origin = f'{name}:{version}', folder, image_size
    return _read_once(os.fspath(builder.data_dir), origin)
  except NotImplementedError:
    raise UserError(
      f'the data set {dataset} in {folder} is in files that only TensorFlow reads; '
      f'{command} --overwrite'
    ) from None
  except (OSError, RuntimeError, ValueError) as error:
    raise _unusable(dataset, folder, error) from None


def _default_folder() -> str:
  """Returns the folder of TFDS; raises UserError without the extra `data`."""
  with _extra():
    from tensorflow_datasets.core import constants

  return constants.DATA_DIR


def _find(dataset: str, folder: str) -> Any:
  """Returns the builder of a data set in a folder, or None if it is not there.

  Raises:
    UserError: If the extra `data` is not installed, or if the data set is damaged.
  """  # noqa: DOC501
  with _extra():
    import array_record  # noqa: F401, since TFDS imports it when it reads
    from google.protobuf import json_format
    from tensorflow_datasets.core import read_only_builder

  try:
    return read_only_builder.builder_from_files(dataset, data_dir=folder)
  except (ValueError, OSError):  # There is no such name, or no such folder.
    return None
  except json_format.Error as error:
    raise _unusable(dataset, folder, error) from None


def _unusable(dataset: str, folder: str, error: Exception) -> UserError:
  return UserError(
    f'the data set {dataset} in {folder} cannot be used: {in_one_line(error, 200)}'
  )


@contextlib.contextmanager
def _extra() -> Iterator[None]:
  """Raises an error that names the extra `data` if one of its packages is missing."""
  try:
    yield
  except ModuleNotFoundError as error:
    package = str(error.name).partition('.')[0]
    # TFDS 4.9.10 needs importlib_resources, but does not declare it.
    extra = 'tensorflow_datasets', 'array_record', 'importlib_resources'
    if package not in extra:
      raise
    raise not_installed(package, 'images need', 'data') from None


@functools.lru_cache(maxsize=2)
def _read_once(builder_dir: str, origin: tuple[str, str, int]) -> Images:
  """Reads the images of a data set that is built; raises ValueError if it has none."""
  import tensorflow_datasets as tfds

  builder: Any = tfds.builder_from_directory(builder_dir)
  features = builder.info.features or {}
  if not {'image', 'label'} <= {*features}:
    raise ValueError(
      f'its features are {", ".join(sorted(features))}, not image and label'
    )
  splits = [split for split in _SPLITS if split in builder.info.splits]
  # TFDS would decode images with TensorFlow or OpenCV.
  as_bytes = {'image': tfds.decode.SkipDecoding()}
  examples = [
    example
    for split in splits
    for example in builder.as_data_source(split, decoders=as_bytes)
  ]
  if not examples:
    raise ValueError(f'it has no images in the splits {", ".join(_SPLITS)}')
  labels = np.asarray([example['label'] for example in examples])
  pixels = np.stack([_grey(example['image'], origin[2]) for example in examples])
  pixels = (pixels - pixels.mean(dtype=float)) / max(pixels.std(dtype=float), 1e-6)
  order = np.argsort(labels, kind='stable')
  _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
  return Images(
    pixels=pixels[order].astype(np.float32),
    starts=starts.astype(np.int32),
    counts=counts.astype(np.int32),
    origin=origin,
  )


def _grey(content: bytes, size: int) -> np.ndarray:
  """Returns the grey pixels of an image file, scaled by averaging."""
  from PIL import Image

  with Image.open(io.BytesIO(content)) as image:
    scaled = image.convert('L').resize((size, size), Image.Resampling.BOX)
  return np.asarray(scaled, np.float32).ravel()
