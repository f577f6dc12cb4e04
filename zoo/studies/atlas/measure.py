"""The losses of models and baselines on the same prompts of a task.

Losses are measured after several numbers of examples, up to twice those in training.
"""

from __future__ import annotations

import copy
import io
import math
import pathlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from zoo import estimators, theory
from zoo.config.validation import (
  AnyConfig,
  Config,
  Section,
  build_task,
  num_heads,
  to_json,
)
from zoo.core.errors import UserError
from zoo.core.protocols import Predictor, Task
from zoo.host.files import write_atomically
from zoo.measure.curves import sample_losses
from zoo.storage.saved_models import load
from zoo.tasks.baselines import HostBaseline, Zero
from zoo.tasks.linear_regression import covers
from zoo.theory.exact import known_risk

NUM_PROMPTS = 4096  # many, so that only the seeds make an interval wide
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
  baselines = dict(build_task(config).baselines())
  baselines.setdefault('zero', Zero())  # which a task of one's own may lack
  return {
    name: _losses(baseline, task, lengths)
    for name, baseline in baselines.items()
    if not isinstance(baseline, HostBaseline)
  }


def exact_model_losses(
  config: Config, folders: Sequence[pathlib.Path]
) -> Float[np.ndarray, 's n']:
  """The exact risks of the models of some runs at n lengths.

  A risk is NaN where theory does not cover the model or the task, and at length 0.
  """
  models = [load(folder).model for folder in folders]
  tasks = [_at_length(config, n) for n in lengths_of(config.task.context_length)]
  return np.array([[_exact_risk(model, task) for task in tasks] for model in models])


def exact_baseline_losses(config: Config) -> dict[str, Float[np.ndarray, ' n']]:
  """The risks of baselines that have a closed form at each of n lengths.

  These are the prediction 0, Bayes, and gradient descent with the best step, on tasks
  that theory covers; a risk is NaN where it is known less well than to 1e-3.
  """
  lengths = lengths_of(config.task.context_length)
  if not covers(build_task(config)):
    return {}
  found = {
    name: [_exact_baseline(name, config, n) for n in lengths]
    for name in ('zero', 'bayes', 'gd', 'gd_beta')
  }
  return {name: np.array(risks) for name, risks in found.items()}


def _exact_baseline(name: str, config: Config, length: int) -> float:
  task = _at_length(config, max(length, 1))
  mean, prior, features = (
    task.prior_mean,
    task.prior_covariance,
    task.feature_covariance,
  )
  features = np.eye(mean.size) if features is None else features
  without = float(np.trace(features if prior is None else prior @ features))
  if name == 'zero':
    return float(mean @ features @ mean) + without
  if not length:
    return without  # all predict the prior mean
  if name == 'gd':
    return _exact_risk(estimators.gradient_descent(task), task)
  if name == 'gd_beta':
    return _exact_risk(estimators.gd_beta(task), task)
  try:
    lower, upper = theory.bayes_risk(task)
  except UserError:
    return math.nan
  known = lower == upper or upper - lower < 1e-3 * upper
  return (lower + upper) / 2 if known else math.nan


def _exact_risk(subject: Predictor, task: Task | None) -> float:
  risk = None if task is None else known_risk(subject, task)
  return math.nan if risk is None else risk


def lowest_known(config: Config) -> float | None:
  """The lowest known exact risk of the linear attention of a config.

  It is the infimum on isotropic tasks, with a learned guess, and with d heads or more
  if labels have no noise; else it comes from a search (`theory.head_limited_risk`). A
  learned guess is taken to be the prior mean. That is the best guess wherever the
  result is the optimum of the linear family, as for the priors of the shipped models.
  None if theory does not cover the task.
  """
  task = build_task(config)
  if not covers(task):
    return None
  guess = config.model.get('initial_guess', task.prior_mean)
  bias = config.model.get('initial_bias', 0.0)
  return theory.head_limited_risk(task, num_heads(config), guess, bias).lowest_found


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
  content = io.BytesIO()
  arrays: Any = {'config': text, **measured}
  np.savez(content, **arrays)
  write_atomically(path, content.getvalue())
  return measured


def _with_longer_contexts(config: Config) -> Task:
  return _at_length(config, lengths_of(config.task.context_length)[-1])


def _at_length(config: Config, length: int) -> Any:
  """The task with a number of examples; None without examples."""
  if not length:
    return None
  config = copy.deepcopy(config)
  config['task']['context_length'] = length
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
