"""Trains the models of a headline in its folder, and measures them."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

import zoo
from zoo.config.validation import Config
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.curves import Static, merge, one_pass, sample_batches, split
from zoo.training import sweeps
from zoo.training.records import read_lines

# The config of a file name in configs/ and a variant.
GetConfig = Callable[[str, str], Config]

# Fields of a training that takes about a minute on two cores.
SHORT = {
  'model.num_layers': 2,
  'train.num_steps': 4000,
  'train.batch_size': 64,
  'optimizer.learning_rate': 1e-3,
  'optimizer.warmup_steps': 200,
  'eval.num_batches': 16,
  'eval.num_compared': 0,
}

_BATCH_SIZE = 512  # prompts at a time


class Stopped(Exception):
  """SIGTERM during training: everything is saved, and the same call resumes."""


class Trainer:
  """Trains sweeps in one folder; runs that are finished there are not trained again."""

  def __init__(self, folder: pathlib.Path, get_config: GetConfig):
    self._folder, self._get_config = folder, get_config

  def __call__(
    self,
    name: str,
    config: str,
    fields: Mapping[str, object],
    points: Sequence[sweeps.Point] = ({'seed': 0},),
  ) -> list[sweeps.Row]:
    """The rows of a sweep: each has the fields of its point, a summary and a `workdir`.

    `config` is the name of a file in configs/, with a variant after a colon; `fields`,
    such as `task.noise_std`, are set in the config for all points. `name` is the folder
    of this sweep alone. Several seeds, learning rates or initial scales are trained in
    one program; a single point saves checkpoints during training. Raises Stopped after
    SIGTERM, and otherwise the errors of `zoo.training.sweep`.
    """
    file, _, variant = config.partition(':')
    whole = sweeps.at_point(self._get_config(file, variant), fields)
    rows = sweeps.sweep(whole, points, self._folder / name)
    if rows is None:
      raise Stopped
    return rows


def best(rows: Sequence[sweeps.Row]) -> sweeps.Row:
  """The row with the least loss on held-out prompts."""
  known = [row for row in rows if row['eval_risk'] is not None]
  return min(known or rows, key=lambda row: row['eval_risk'] or 0.0)


def history(row: sweeps.Row, field: str = 'eval_risk') -> tuple[list[int], list[float]]:
  """The logged steps of a run that have a field, and its values there."""
  lines = read_lines(row['workdir'] / 'metrics.jsonl')
  found = [(line['step'], line[field]) for line in lines if line[field] is not None]
  return [step for step, _ in found], [value for _, value in found]


def load(row: sweeps.Row, step: int | None = None) -> Any:
  """The trained model of a run; `step` None is the last one."""
  return zoo.load(row['workdir'], step).model


def predictions(
  predictors: Mapping[str, Predictor], task: Task, num_prompts: int, seed: int = 1
) -> dict[str, Float[np.ndarray, 'p t *k']]:
  """The predictions of every example of the same prompts, and their `target`.

  Every predictor must predict all examples in one pass.
  """

  names = [*predictors]
  statics, arrays = zip(*map(split, predictors.values()), strict=True)
  parts = [
    jax.device_get(_predict(statics, arrays, prompt))
    for prompt in sample_batches(task, seed, num_prompts, _BATCH_SIZE)
  ]
  return {
    name: np.concatenate(values)
    for name, *values in zip(['target', *names], *parts, strict=True)
  }


@functools.partial(jax.jit, static_argnums=0)
def _predict(
  statics: tuple[Static, ...], arrays: tuple[PyTree, ...], prompt: Prompt
) -> list[Array]:
  """The targets, and the predictions of each predictor, given in parts by `split`."""
  found = [prompt.targets]
  for static, array in zip(statics, arrays, strict=True):
    predict = one_pass(merge(static, array))
    assert predict is not None, 'it has no predictions'
    found.append(predict(prompt))
  return found
