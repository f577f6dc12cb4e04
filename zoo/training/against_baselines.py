"""The comparison of a trained model with the baselines of its task.

It is not a part of training. It is added to the summary of a run that has ended. A
launch that is killed before leaves it to the next one.
"""

import functools
from collections.abc import Callable
from typing import TypeVar, cast

from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from zoo.config.building import Config, build_task
from zoo.config.sharding import make_mesh, on_mesh, where_compared
from zoo.core.errors import UserError, in_one_line, is_exhausted
from zoo.core.protocols import Task
from zoo.host import processes
from zoo.measure.comparison import Comparison, compare_all
from zoo.storage.workdir import occupied
from zoo.training.hooks import Event
from zoo.training.summary import Summary, write_summary

_Compared = TypeVar('_Compared')


def compare_with_baselines(event: Event) -> Summary | None:
  """Compares the model of a run that has ended with the baselines of its task.

  The section `eval` sets the number of prompts and their seed. There is no comparison
  with fewer than two prompts, for a task that is too large, if the memory is not
  enough, or if the checkpoint of the last step was deleted. A summary with a comparison
  stays as it is. If there are several processes, each must make the same call.

  Args:
    event: The last event of the run. Its model is on the devices that trained it, or is
      loaded from the newest checkpoint if the run ended in an earlier launch.

  Returns:
    The summary with the comparison, which is also in `summary.json`; None if the event
    has no summary.
  """
  config, summary = event.config, event.summary
  if summary is None or summary['comparison'] is not None or num_compared(config) < 2:
    return summary
  mesh, task = make_mesh(config), build_task(config)
  with occupied(event.workdir, config), on_mesh(mesh, config):
    try:
      graph, state = nnx.split(event.model)
    except UserError as error:
      logging.warning(
        'there is no comparison with the baselines of the task: %s', error
      )
      return summary
    comparison = compare_model(config, task, graph, mesh, state)
    summary = cast(Summary, {**summary, 'comparison': comparison})
    write_summary(event.workdir, summary)
  return summary


def compare_model(
  config: Config, task: Task, graph: nnx.GraphDef, mesh: Mesh, state: PyTree
) -> Comparison | None:
  """Returns the comparison of a model on a mesh with the baselines of its task.

  The section `eval` of the config sets the number of prompts and their seed. The result
  is None with fewer than two prompts, for a task that is too large, or if the memory is
  not enough.
  """
  number = num_compared(config)
  say_if_fewer(config)
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
  """Returns what a comparison gives; None, with a warning, if memory is not enough.

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
  """Returns the number of prompts to compare on: at most those that are held out."""
  held_out = config.eval.num_batches * config.train.batch_size
  return min(config.eval.num_compared, held_out)


def say_if_fewer(config: Config) -> None:
  """Logs that a comparison has fewer prompts than the config asks for."""
  if config.eval.num_compared > num_compared(config) > 0:
    logging.info(
      'config.eval.num_compared is %d; the comparison with the baselines has at most '
      'as many prompts as are held out, eval.num_batches times train.batch_size: %d',
      config.eval.num_compared,
      num_compared(config),
    )
