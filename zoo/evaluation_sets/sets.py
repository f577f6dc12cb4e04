"""The evaluation sets: what they are, and reading them with a check of every bit.

Sets are drawn from a fixed seed on the machine that first asks for them, and stay in
TFDS's data_dir. Prompts are drawn in float64 and rounded to float32 at the end. A
processor that rounds the last bits of a double otherwise, as one with fused
multiply-add does, then changes about one number in a hundred million: those very near
the middle of two floats. So the bits are the same nearly everywhere, but not by
guarantee. What is read is compared with the checksum that is recorded here; if it
differs, with what the seed gives on this machine, and that with a sketch that holds on
any.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from zoo.errors import RunError, UserError, unknown_name
from zoo.files import user_path
from zoo.prompt import Prompt
from zoo.tasks import LinearRegression

VERSION = '1.0.0'  # raised whenever the content of a set changes
_SEED = 251204268
_FIELDS = 'x', 'y', 'x_query', 'y_query'


@dataclasses.dataclass(kw_only=True)
class Setting:
  """One set: its task, its size, and what its content must be."""

  name: str
  description: str
  num_features: int = 10
  context_length: int = 10
  prior_mean: float = 2.0
  noise_std: float = 0.0
  feature_variances: tuple[float, ...] | None = None  # None: 1 each
  num_prompts: int = 8192
  sha256: str  # of x, y, x_query and y_query, one behind the other, as float32
  sketch: tuple[float, ...]  # a weighted sum of each of the four

  @property
  def task(self) -> LinearRegression:
    """The task that the prompts are of."""
    variances = self.feature_variances
    return LinearRegression(
      num_features=self.num_features,
      context_length=self.context_length,
      prior_mean=self.prior_mean,
      noise_std=self.noise_std,
      feature_covariance=None if variances is None else np.diag(variances).tolist(),
    )

  @property
  def shapes(self) -> dict[str, tuple[int, ...]]:
    """The shape of each field of a prompt."""
    d, c = self.num_features, self.context_length
    return {'x': (c, d), 'y': (c,), 'x_query': (d,), 'y_query': ()}


SETTINGS = [
  Setting(
    name='table_1',
    description='Table 1 of arXiv 2512.04268: d = C = 10, w* = 2, no noise.',
    sha256='e8cc4ba0fbe83252e4b7afebde115103d0792ba31ca2c1e58e75b99ebbcbc246',
    sketch=(-114.568873, -155.784289, -31.287706, 130.178862),
  ),
  Setting(
    name='zero_mean',
    description='As table_1, with the prior mean w* = 0.',
    prior_mean=0.0,
    sha256='c11b94c22ed7633a12ddbc244718662b61771c919aa6736fee7e72b46e52b2e1',
    sketch=(-114.568873, 293.660994, -31.287706, 69.164201),
  ),
  Setting(
    name='noisy',
    description='As table_1, with label noise of σ = 0.5.',
    noise_std=0.5,
    sha256='96a85b16bbd8f6ef0340cb2567a3b5e703708a7748f4834bfa60e8d941468efb',
    sketch=(-114.568873, -135.357142, -31.287706, 130.178862),
  ),
  Setting(
    name='anisotropic',
    description='As table_1, with feature variances 4, 2, 1, 1/2, 1/4, each twice.',
    feature_variances=(4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25),
    sha256='95c0f57822215a13194126338a2cb5a51a40b0822edfd3e0d642452bc9b1fcef',
    sketch=(-257.244197, -568.409050, -48.570761, 249.639535),
  ),
  Setting(
    name='long_context',
    description='As table_1, with C = 100 examples in a context.',
    context_length=100,
    num_prompts=2048,
    sha256='f7e4af06019c43378294a2dd5069e9a4b8a85d8a6df2706673e50fdd4c706c51',
    sketch=(-392.549701, -133.353738, 12.938633, -68.548680),
  ),
]


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
  """A set that was read, and compared with what it must be."""

  name: str
  version: str
  task: LinearRegression
  prompt: Prompt  # all prompts, float32
  sha256: str  # of what was read
  same_bits: bool  # as recorded; else equal but for the last bit of some numbers


def setting_of(name: str) -> Setting:
  """The set of a name; raises UserError for an unknown one."""
  for setting in SETTINGS:
    if setting.name == name:
      return setting
  raise unknown_name('evaluation set', name, [setting.name for setting in SETTINGS])


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> EvaluationSet:
  """Reads a set from TFDS's `data_dir`, where it is built first if it is not there.

  Where numbers are rounded otherwise than in the recorded set there is a warning.
  Raises UserError for an unknown name, and where the extra `data` is not installed;
  RunError when the folder cannot be written, or the content is not that of the set.
  """
  setting = setting_of(name)
  # Imported here as only reading and building need TFDS.
  from zoo.evaluation_sets.builder import IclLinearRegression
  from zoo.evaluation_sets.builds import open_builder, quiet, read_split

  folder = f'{data_dir or "the data folder of TFDS"}, {IclLinearRegression.name}/{name}'
  try:
    builder, is_built = open_builder(IclLinearRegression, data_dir, name)
    folder = str(builder.data_path)
    if not is_built:
      logging.info('drawing the evaluation set %s into %s', name, folder)
      with quiet():
        builder.download_and_prepare()
    examples = read_split(builder, 'test')
    content = {
      field: np.stack([example[field] for example in examples]).astype(np.float32)
      for field in _FIELDS
    }
  except OSError as error:
    raise RunError(f'{folder} cannot be written: {error.strerror or error}') from error
  except Exception as error:  # whatever TFDS and ArrayRecord make of damaged files
    raise _damaged(folder, f'{type(error).__name__}: {error}') from error
  same_bits = _verify(setting, content, folder)
  return EvaluationSet(
    name=name,
    version=VERSION,
    task=setting.task,
    prompt=Prompt(**{field: jnp.asarray(array) for field, array in content.items()}),
    sha256=checksum(content),
    same_bits=same_bits,
  )


def export(
  name: str,
  path: str | os.PathLike[str],
  data_dir: str | os.PathLike[str] | None = None,
) -> EvaluationSet:
  """Writes a set into an .npz file, which NumPy alone can read, and returns it.

  It has `x [n, C, d]`, `y [n, C]`, `x_query [n, d]` and `y_query [n]`, float32, and the
  texts `name`, `version` and `sha256`. Raises UserError for a file that cannot be
  written or does not end in .npz, and as `load` does.
  """
  path = user_path(path)
  if path.suffix != '.npz':
    raise UserError(f'the file is {str(path)!r}; it must end in .npz')
  if not path.parent.is_dir():
    raise UserError(f'the file is {str(path)!r}; its folder does not exist')
  found = load(name, data_dir)
  content: dict[str, Any] = {
    **{field: np.asarray(getattr(found.prompt, field)) for field in _FIELDS},
    **{'name': name, 'version': VERSION, 'sha256': found.sha256},
  }
  try:
    np.savez(path, **content)
  except OSError as error:
    raise UserError(f'{path} cannot be written: {error.strerror or error}') from error
  return found


def sample_prompts(setting: Setting) -> dict[str, np.ndarray]:
  """The prompts of a set, from its seed: float32 arrays by field, prompts first."""
  with jax.enable_x64(True):
    # The generator is named, since a user may have chosen another one for JAX.
    key = jax.random.key(_SEED, impl='threefry2x32')
    prompt = setting.task.sample(key, setting.num_prompts)
    arrays = {field: np.asarray(getattr(prompt, field)) for field in _FIELDS}
  return {field: array.astype(np.float32) for field, array in arrays.items()}


def checksum(content: Mapping[str, np.ndarray]) -> str:
  """The SHA-256 of the four arrays, one behind the other, little-endian."""
  total = hashlib.sha256()
  for field in _FIELDS:
    total.update(np.ascontiguousarray(content[field], '<f4').tobytes())
  return total.hexdigest()


def sketch(content: Mapping[str, np.ndarray]) -> list[tuple[float, float]]:
  """A weighted sum of each array, and by how much its rounding can change it.

  The weights depend on the position, so that prompts in another order are found out. A
  number that is rounded to its other neighbour moves by one ulp, 2⁻²³ of it at most.
  """
  sums = []
  for field in _FIELDS:
    array = content[field].astype(np.float64).ravel()
    position = np.arange(array.size, dtype=np.uint64)
    # Knuth's multiplicative hash, as numbers in [−1/2, 1/2).
    weights = (position * np.uint64(2654435761) % np.uint64(2**32)) / 2.0**32 - 0.5
    terms = weights * array
    sums.append((float(terms.sum()), float(2.0**-23 * np.abs(terms).sum())))
  return sums


def _verify(setting: Setting, content: Mapping[str, np.ndarray], folder: str) -> bool:
  """Whether the content has the recorded bits; RunError if it is another set."""
  shapes = {field: array.shape for field, array in content.items()}
  wanted = {
    field: (setting.num_prompts, *shape) for field, shape in setting.shapes.items()
  }
  if shapes != wanted:
    raise _damaged(folder, f'its arrays are {shapes}, not {wanted}')
  if checksum(content) == setting.sha256:
    return True
  drawn = sample_prompts(setting)
  for field, (total, tolerance), recorded in zip(
    _FIELDS, sketch(drawn), setting.sketch, strict=True
  ):
    if not abs(total - recorded) <= tolerance:
      raise RunError(
        f'the evaluation set {setting.name} cannot be drawn with this version of JAX: '
        f'{field} has the weighted sum {total:.9g}, and {recorded:.9g} was recorded'
      )
    one, other = content[field], drawn[field]
    if not np.all(np.abs(one - other) <= 2.0**-23 * np.abs(other)):
      raise _damaged(folder, f'its {field} is not what the seed gives')
  logging.warning(
    'the evaluation set %s in %s does not have the recorded checksum: some numbers '
    'are rounded otherwise; each is within one float32 ulp of what the seed gives '
    'here, and weighted sums are as recorded',
    setting.name,
    folder,
  )
  return False


def _damaged(folder: str, reason: str) -> RunError:
  return RunError(
    f'the evaluation set in {folder} is not as it was recorded: '
    f'{" ".join(reason.split())[:300]}; delete the folder and it is drawn again'
  )
