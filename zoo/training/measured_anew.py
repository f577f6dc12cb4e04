"""What a config asks of a run that has ended: metrics that were not measured yet.

Such a run is not trained again. It keeps its config, except for what is measured anew:
the metrics here, and the comparison in against_baselines.py.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import cast

import jax
from absl import logging
from flax import nnx

from zoo.config.read import to_content
from zoo.config.run import Run
from zoo.config.saved import changed_fields
from zoo.core.draws import EVAL_STREAM, stream_of
from zoo.core.errors import UserError
from zoo.host import processes
from zoo.host.files import finite_or_null, read_json
from zoo.sharding import on_mesh, replicated
from zoo.storage.workdir import CONFIG, change_config
from zoo.training.experiment import Experiment
from zoo.training.hooks import Event
from zoo.training.metrics import own_metrics
from zoo.training.summary import Summary, write_summary

# A run that has ended is measured again if one of these fields changes.
_MEASURED = 'eval.metrics', 'eval.num_compared'


def fields_without_effect(config: Run, workdir: pathlib.Path) -> list[str]:
  """Returns the fields in which a config differs from that of a run that has ended.

  Fields that are measured anew are left out.
  """
  changed = changed_fields(read_json(workdir / CONFIG, dict), to_content(config))
  return [
    f'{name} ({there!r} there, {here!r} here)'
    for name, (there, here) in changed.items()
    if name not in _MEASURED
  ]


def missing_metrics(config: Run, summary: Summary) -> list[str]:
  """Returns the metrics that a config names and a summary lacks."""
  measured = {name.partition('/')[0] for name in summary.get('metrics', ())}
  return [name for name in config.eval.metrics if name not in measured]


def with_missing_metrics(experiment: Experiment, event: Event) -> Event:
  """Measures the metrics that the summary of a run that has ended lacks.

  The caller has locked the folder of the run. If there are several processes, each must
  make the same call.

  Args:
    experiment: The experiment of the run.
    event: The last event of the run, whose model is loaded from its checkpoint.

  Returns:
    The event. Its summary has the metrics, and so has `summary.json`. If the checkpoint
    was deleted, a warning names them.
  """
  config, workdir = event.config, event.workdir
  summary = cast(Summary, event.summary)
  if not (missing := missing_metrics(config, summary)):
    return event
  with on_mesh(experiment.mesh, config):
    try:
      graph, state = nnx.split(event.model)
    except UserError as error:
      logging.warning('there is no metric %s: %s', ', '.join(missing), error)
      return event
    task = experiment.task.held_out()
    key = stream_of(config.eval.seed, EVAL_STREAM)
    measure = functools.partial(own_metrics, graph, missing, task, key)
    arrays = jax.jit(measure, out_shardings=replicated(experiment.mesh))(state)
    numbers = {name: float(array) for name, array in arrays.items()}
  metrics = {**summary.get('metrics', {}), **finite_or_null(numbers)}
  summary = cast(Summary, {**summary, 'metrics': metrics})
  write_summary(workdir, summary)
  names = dict.fromkeys(name.partition('/')[0] for name in metrics)
  processes.run_on_main(lambda: change_config(workdir, 'eval.metrics', [*names]))
  return dataclasses.replace(event, summary=summary)
