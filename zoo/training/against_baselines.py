"""The comparison of a trained model with the baselines of its task.

It is no part of training: `launch.main` adds it to the summary of a run that has ended,
and a launch that is killed in between leaves it to the next.
"""

import copy
import functools
import pathlib
from collections.abc import Callable
from typing import TypeVar

from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from zoo.config.building import Config, build_task
from zoo.config.sharding import make_mesh, on_mesh, split_over_data, where_compared
from zoo.config.validation import validate
from zoo.core.errors import UserError, in_one_line, is_exhausted
from zoo.core.protocols import Task
from zoo.host import processes
from zoo.host.files import workdir_path
from zoo.measure.comparison import Comparison, compare_all
from zoo.storage.checkpoints import Checkpoints, kept_steps, run_metadata
from zoo.storage.workdir import occupied
from zoo.training.step import abstract_state
from zoo.training.summary import Summary, finished_summary, write_summary

_Compared = TypeVar('_Compared')


def compare_with_baselines(config: Config, workdir: str | pathlib.Path) -> Summary:
  """Compares the model of a finished run with the baselines of its task.

  The section `eval` sets the number of prompts and their seed. With fewer than two
  prompts, for a task that is too large, if the memory is not enough, or if the
  checkpoint of the last step was deleted, there is no comparison. A summary that has
  one stays as it is. If there are several processes, each must make the same call.

  Args:
    config: The config of the run.
    workdir: The folder of the run. It may be in a bucket.

  Returns:
    The summary with the comparison, which is also in `summary.json`.

  Raises:
    UserError: If the config is invalid, or the folder has no summary of this run.
    RunError: If the checkpoint is damaged, or the summary cannot be written.

  Example:
    >>> zoo.train(config, 'runs/a')
    >>> summary = zoo.training.compare_with_baselines(config, 'runs/a')
    >>> print(zoo.training.table(summary))
  """
  config, workdir = copy.deepcopy(validate(config)), workdir_path(workdir)
  summary = processes.run_on_main(lambda: finished_summary(workdir, config))
  if summary is None:
    raise UserError(f'{workdir} has no summary of this run; train it first')
  if summary['comparison'] is not None or num_compared(config) < 2:
    return summary
  mesh, task, step = make_mesh(config), build_task(config), summary['step']
  graphs, abstract = abstract_state(config, mesh)
  if config.mesh.fsdp:
    abstract = split_over_data(abstract)
  with (
    occupied(workdir, config),
    Checkpoints(
      workdir, config.checkpoint.keep, run_metadata(config), kept_steps(config)
    ) as checkpoints,
    on_mesh(mesh, config),
  ):
    if processes.run_on_main(lambda: checkpoints.latest) != step:
      logging.warning(
        'there is no comparison with the baselines of the task: %s has no checkpoint '
        'of step %d',
        *(workdir, step),
      )
      return summary
    state = checkpoints.load(step, {'model': abstract['model']})['model']
    summary['comparison'] = compare_model(config, task, graphs['model'], mesh, state)
  write_summary(workdir, summary)
  return summary


def compare_model(
  config: Config, task: Task, graph: nnx.GraphDef, mesh: Mesh, state: PyTree
) -> Comparison | None:
  """The comparison of a model on a mesh with the baselines of its task.

  The config's section `eval` sets the number of prompts and their seed; with fewer than
  two prompts, or for a task that is too large, there is none. Neither is there one if
  the memory is not enough, as `where_compared` needs it.
  """
  number = num_compared(config)
  if number < 2:
    return None

  def measure() -> list[Comparison] | None:
    with where_compared(mesh, state) as arrays:
      models, seed = [nnx.merge(graph, arrays)], config.eval.seed
      compare = functools.partial(
        compare_all, models, task, number, seed, is_checked=True
      )
      return processes.run_on_main(functools.partial(if_memory_allows, compare))

  comparisons = if_memory_allows(measure)
  return None if comparisons is None else comparisons[0]


def if_memory_allows(measure: Callable[[], _Compared]) -> _Compared | None:
  """What a comparison gives; None, with a warning, if the memory is not enough for it.

  A run that has taken its last step must not lose its result for want of a comparison.
  """
  try:
    return measure()
  except Exception as error:
    if not is_exhausted(error):
      raise
    logging.warning(
      'there is no comparison with the baselines of the task, for which the memory is '
      'not enough: %s',
      in_one_line(error, 200),
    )
    return None


def num_compared(config: Config) -> int:
  """The prompts to compare on: as many as wanted, but no more than are held out."""
  wanted = config.eval.num_compared
  number = min(wanted, config.eval.num_batches * config.train.batch_size)
  if wanted > number:
    logging.info(
      'config.eval.num_compared is %d; the comparison with the baselines has at most '
      'as many prompts as are held out, eval.num_batches times train.batch_size: %d',
      wanted,
      number,
    )
  return number
