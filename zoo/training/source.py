"""The source of a run: the saved model from whose weights it starts.

Its full path, its step and a digest of its weights are part of the config of the run. A
run from other weights is another run, even if they are at the same path.
"""

import pathlib
from typing import Any

from zoo.config.run import Run
from zoo.core.errors import RunError, UserError
from zoo.host.files import UnreadableFile, checkpoint_path, is_url, read_json
from zoo.storage.loading import identity_of

_FIELDS = 'init_from', 'init_from_step', 'init_from_digest'


def source_of(config: Run, workdir: pathlib.Path) -> dict[str, Any]:
  """Returns the fields of the config that identify the source; {} without one.

  A run that goes on reads nothing from its source, which may be gone. The step and the
  digest are then those in the config of the workdir, if it names the same source.

  Args:
    config: The valid config of the run.
    workdir: The folder of the run, which may not exist yet.

  Raises:
    UserError: If the path cannot be that of a saved model.
  """
  path, step = config.train.init_from, config.train.init_from_step
  digest = config.train.init_from_digest
  if path is None:
    return {}
  if not is_url(path):
    path = str(checkpoint_path(path))
  if digest is None:
    try:
      step, digest = identity_of(path, step)
    except (UserError, RunError):  # A new run raises it when it reads the weights.
      saved = _saved_source(workdir)
      if saved.get('init_from') == path and step in (None, saved['init_from_step']):
        step, digest = saved['init_from_step'], saved['init_from_digest']
  return {
    'train.init_from': path,
    'train.init_from_step': step,
    'train.init_from_digest': digest,
  }


def _saved_source(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns the fields of the source in the config of a workdir; {} if it has none."""
  try:
    train = read_json(workdir / 'config.json', dict)['train']
    return {field: train[field] for field in _FIELDS}
  except (UnreadableFile, KeyError, TypeError):
    return {}
