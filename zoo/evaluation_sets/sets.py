"""The evaluation sets: their specifications, and loading with a check of every bit.

Sets are sampled from a fixed seed when a machine first loads them, and stay in TFDS's
data_dir. Prompts are sampled in float64 and rounded to float32 at the end. A processor
that rounds the last bits of a double differently, for example with fused multiply-add,
then changes about one number in a hundred million: those very near the middle of two
floats. So the bits are nearly always the same, but this is not guaranteed. The content
is compared with the checksum recorded here. If the checksums differ, the content is
compared with the sample that the seed gives on this machine, and the means of that
sample with recorded ones.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from zoo.core.errors import RunError, UserError, check_name, in_one_line
from zoo.core.prompt import Prompt
from zoo.core.protocols import Task
from zoo.host.files import user_path
from zoo.tasks import LinearRegression

VERSION = '1.0.0'  # increased whenever the content of a set changes
_SEED = 251204268
_FIELDS = 'x', 'y', 'x_query', 'y_query'
_ROUNDING = 1e-6  # of a mean; that of other prompts differs by 1e-4 or more


@dataclasses.dataclass(kw_only=True)
class SetSpec:
  """The specification of a set: its task, its size, and what its content must be."""

  name: str
  description: str
  num_features: int = 10
  context_length: int = 10
  prior_mean: float = 2.0
  noise_std: float = 0.0
  feature_variances: tuple[float, ...] | None = None  # None: 1 each
  num_prompts: int = 8192
  sha256: str  # of x, y, x_query and y_query, concatenated, as float32
  means: tuple[float, ...]  # of each of the four

  @property
  def task(self) -> LinearRegression:
    """The task that the prompts are sampled from."""
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


# The frozen sets, by which TFDS builds them.
SPECS = [
  SetSpec(
    name='table_1',
    description='Table 1 of arXiv 2512.04268: d = C = 10, w* = 2, no noise.',
    sha256='e8cc4ba0fbe83252e4b7afebde115103d0792ba31ca2c1e58e75b99ebbcbc246',
    means=(0.000308846, 0.021982792, -0.002688564, -0.046959465),
  ),
  SetSpec(
    name='zero_mean',
    description='As table_1, with the prior mean w* = 0.',
    prior_mean=0.0,
    sha256='c11b94c22ed7633a12ddbc244718662b61771c919aa6736fee7e72b46e52b2e1',
    means=(0.000308846, 0.015805870, -0.002688564, 0.006811824),
  ),
  SetSpec(
    name='noisy',
    description='As table_1, with label noise of σ = 0.5.',
    noise_std=0.5,
    sha256='96a85b16bbd8f6ef0340cb2567a3b5e703708a7748f4834bfa60e8d941468efb',
    means=(0.000308846, 0.020667497, -0.002688564, -0.046959465),
  ),
  SetSpec(
    name='anisotropic',
    description='As table_1, with feature variances 4, 2, 1, 1/2, 1/4, each twice.',
    feature_variances=(4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25),
    sha256='95c0f57822215a13194126338a2cb5a51a40b0822edfd3e0d642452bc9b1fcef',
    means=(0.000877247, 0.030835366, -0.003219233, -0.051835081),
  ),
  SetSpec(
    name='long_context',
    description='As table_1, with C = 100 examples in a context.',
    context_length=100,
    num_prompts=2048,
    sha256='f7e4af06019c43378294a2dd5069e9a4b8a85d8a6df2706673e50fdd4c706c51',
    means=(-0.000797977, -0.020018258, 0.011360541, 0.194813212),
  ),
]


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
  """A set that was loaded and verified."""

  name: str
  version: str
  task: Task
  prompt: Prompt  # all prompts, float32
  sha256: str  # of the loaded content
  same_bits: bool  # as recorded; else equal except for the last bit of some numbers


def find_spec(name: str) -> SetSpec:
  """The specification of a set; raises UserError for an unknown name."""
  by_name = {spec.name: spec for spec in SPECS}
  return by_name[check_name('evaluation set', name, by_name)]


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> EvaluationSet:
  """Loads a set from TFDS's `data_dir`, after building it there if it is missing.

  Logs a warning if some numbers are rounded differently from the recorded set. Raises
  UserError for an unknown name, and if the extra `data` is not installed; RunError if
  the folder cannot be written, or the content is not that of the set.
  """
  spec = find_spec(name)
  # Imported here since only loading and building need TFDS.
  from zoo.evaluation_sets.builder import open_builder, quiet, read_prompts

  data_dir = None if data_dir is None else user_path(data_dir)
  folder = f'the set {name} in {data_dir or "the data folder of TFDS"}'
  try:
    builder = open_builder(name, data_dir)
    folder = str(builder.data_path)
    if not builder.is_prepared():
      logging.info('sampling the evaluation set %s into %s', name, folder)
      with quiet():
        builder.download_and_prepare()
    content = read_prompts(builder, spec.num_prompts)
  except OSError as error:
    raise RunError(f'{folder} cannot be written: {error.strerror or error}') from error
  except Exception as error:  # TFDS and ArrayRecord raise many kinds for damaged files
    raise _damaged(folder, f'{type(error).__name__}: {error}') from error
  same_bits = _verify(spec, content, folder)
  return EvaluationSet(
    name=name,
    version=VERSION,
    task=spec.task,
    prompt=Prompt(**{field: jnp.asarray(array) for field, array in content.items()}),
    sha256=checksum(content),
    same_bits=same_bits,
  )


def export(
  name: str,
  path: str | os.PathLike[str],
  data_dir: str | os.PathLike[str] | None = None,
) -> EvaluationSet:
  """Writes a set into an .npz file, which needs only NumPy to read, and returns it.

  The file has `x [n, C, d]`, `y [n, C]`, `x_query [n, d]` and `y_query [n]`, float32,
  and the strings `name`, `version` and `sha256`. Raises UserError for a file that
  cannot be written or does not end in .npz, and as `load` does.
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


def sample_prompts(spec: SetSpec) -> dict[str, np.ndarray]:
  """Samples the prompts of a set, as float32 arrays by field."""
  with jax.enable_x64(True):
    # The generator is explicit, since a user may have changed JAX's default.
    key = jax.random.key(_SEED, impl='threefry2x32')
    prompt = spec.task.sample(key, spec.num_prompts)
    arrays = {field: np.asarray(getattr(prompt, field)) for field in _FIELDS}
  return {field: array.astype(np.float32) for field, array in arrays.items()}


def checksum(content: Mapping[str, np.ndarray]) -> str:
  """The SHA-256 of the four arrays, concatenated, little-endian."""
  total = hashlib.sha256()
  for field in _FIELDS:
    total.update(np.ascontiguousarray(content[field], '<f4').tobytes())
  return total.hexdigest()


def _verify(spec: SetSpec, content: Mapping[str, np.ndarray], folder: str) -> bool:
  """Whether the content has the recorded bits; raises RunError for other content."""
  if checksum(content) == spec.sha256:
    return True
  drawn = sample_prompts(spec)
  for field, recorded in zip(_FIELDS, spec.means, strict=True):
    mean = float(drawn[field].mean(dtype=np.float64))
    if not abs(mean - recorded) <= _ROUNDING:
      raise RunError(
        f'this version of JAX does not reproduce the evaluation set {spec.name}: '
        f'{field} has the mean {mean:.9g}, and {recorded:.9g} was recorded'
      )
    one, other = content[field], drawn[field]
    if not np.all(np.abs(one - other) <= 2.0**-23 * np.abs(other)):
      raise _damaged(folder, f'its {field} is not what the seed gives')
  logging.warning(
    'the evaluation set %s in %s does not have the recorded checksum: some numbers '
    'are rounded differently; each is within one float32 ulp of what the seed gives '
    'here, and means are as recorded',
    spec.name,
    folder,
  )
  return False


def _damaged(folder: str, reason: str) -> RunError:
  return RunError(
    f'the evaluation set in {folder} is not as it was recorded: '
    f'{in_one_line(reason)}; delete the folder to sample it again'
  )
