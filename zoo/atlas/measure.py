"""The losses of models and baselines on the same prompts of a task.

Losses are measured after several numbers of examples, up to twice those in training.
"""

from __future__ import annotations

import copy
import pathlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from zoo.checkpoints.saved_models import load
from zoo.config import AnyConfig, Config, Section, build_task, to_json
from zoo.curves import sample_losses
from zoo.errors import UserError
from zoo.estimators.baseline import HostBaseline
from zoo.files import temporary_name
from zoo.protocols import Predictor, Task
from zoo.tasks.base import baselines_of

NUM_PROMPTS = 4096
# Fractions of the context length; the model is compiled for each.
_PARTS = 0, 0.25, 0.5, 1, 1.5, 2


def lengths_of(context_length: int) -> tuple[int, ...]:
  """The numbers of examples to measure after, from 0 to twice the context length."""
  return tuple(sorted({int(part * context_length) for part in _PARTS}))


def model_losses(
  config: Config, folders: Sequence[pathlib.Path]
) -> Float[np.ndarray, 's p n']:
  """The losses of the models of some runs on p prompts, at n lengths.

  A loss is NaN where a model cannot take so many examples.
  """
  task, lengths = _with_longer_contexts(config), lengths_of(config.task.context_length)
  return np.stack([_losses(load(folder).model, task, lengths) for folder in folders])


def baseline_losses(config: Config) -> dict[str, Float[np.ndarray, 'p n']]:
  """The losses of the baselines of a config's task, on the prompts of `model_losses`.

  The baselines are those for the context length of training. Baselines of other
  libraries, which cannot be compiled, are left out.
  """
  task, lengths = _with_longer_contexts(config), lengths_of(config.task.context_length)
  return {
    name: _losses(baseline, task, lengths)
    for name, baseline in baselines_of(build_task(config)).items()
    if not isinstance(baseline, HostBaseline)
  }


def kept(
  path: pathlib.Path,
  config: AnyConfig | Section,
  measure: Callable[[], Mapping[str, Float[np.ndarray, '*n']]],
) -> dict[str, Float[np.ndarray, '*n']]:
  """The result of `measure`, read from a file of the same config if there is one."""
  text = f'{to_json(config)}, {NUM_PROMPTS} prompts, lengths {_PARTS}'
  try:
    # Opened here, since NumPy does not close a damaged file.
    with path.open('rb') as opened, np.load(opened, allow_pickle=False) as file:
      if str(file['config']) == text:
        return {name: file[name] for name in file.files if name != 'config'}
  except (OSError, KeyError, ValueError, zipfile.BadZipFile):
    pass  # missing or damaged, so it is measured again
  measured = dict(measure())
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(temporary_name(path))
  with temporary.open('wb') as file:
    arrays: Any = {'config': text, **measured}
    np.savez(file, **arrays)
  temporary.replace(path)
  return measured


def _with_longer_contexts(config: Config) -> Task:
  config = copy.deepcopy(config)
  config['task']['context_length'] = lengths_of(config.task.context_length)[-1]
  return build_task(config)


def _losses(
  predictor: Predictor, task: Task, lengths: Sequence[int]
) -> Float[np.ndarray, 'p n']:
  try:
    return sample_losses({'': predictor}, task, NUM_PROMPTS, lengths=lengths)['']
  except UserError:  # a model for a fixed number of examples
    short = [length for length in lengths if length <= lengths[-1] // 2]
    found = np.full((NUM_PROMPTS, len(lengths)), np.nan)
    losses = sample_losses({'': predictor}, task, NUM_PROMPTS, lengths=short)['']
    found[:, : len(short)] = losses
    return found
