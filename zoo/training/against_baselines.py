"""The comparison of a trained model with the baselines of its task.

It is not a part of training. It is added to the summary of a run that has ended. A
launch that is killed before leaves it to the next one.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import cast

import jax
from absl import logging
from flax import nnx
from jaxtyping import PyTree

from zoo.config.run import Run
from zoo.core.errors import UserError, in_one_line, is_exhausted
from zoo.host import processes
from zoo.host.files import read_json
from zoo.measure.comparison import MODEL, Comparison, compare_all
from zoo.sharding import on_mesh, where_compared
from zoo.storage.workdir import CONFIG, change_config
from zoo.training.experiment import Experiment
from zoo.training.hooks import Event
from zoo.training.summary import Summary, write_summary


def compare_with_baselines(experiment: Experiment, event: Event) -> Event:
  """Compares the model of a run that has ended with the baselines of its task.

  The caller has locked the folder of the run.

  The section `eval` sets the number of prompts and their seed. There is no comparison
  with fewer than two prompts, for a task that is too large, if the memory is not
  enough, or if the checkpoint of the last step was deleted. A summary that has a
  comparison keeps it, unless the config asks for another number of prompts than the
  launch that made it. If there are several processes, each must make the same call.

  Args:
    experiment: The experiment of the run.
    event: The last event of the run. Its model is on the devices that trained it, or is
      loaded from the newest checkpoint if the run ended in an earlier launch.

  Returns:
    The event. Its summary has the comparison, which is also in `summary.json`.
  """
  config, workdir, summary = event.config, event.workdir, event.summary
  if summary is None:
    return event
  is_done = functools.partial(has_comparison, config, workdir, summary)
  if processes.run_on_main(is_done):
    return event
  with on_mesh(experiment.mesh, config):
    try:
      state = nnx.state(event.model)
    except UserError as error:
      logging.warning(
        'there is no comparison with the baselines of the task on %d prompts: %s',
        num_compared(config),
        error,
      )
      return event
    (comparison,) = compare_models([experiment], state, is_stacked=False)
  if comparison is None:
    return event
  summary = cast(Summary, {**summary, 'comparison': comparison})
  write_summary(workdir, summary)
  # The next launch reads there which number of prompts this one has asked for.
  asked = config.eval.num_compared
  processes.run_on_main(lambda: change_config(workdir, 'eval.num_compared', asked))
  return dataclasses.replace(event, summary=summary)


def has_comparison(config: Run, workdir: pathlib.Path, summary: Summary) -> bool:
  """Returns whether a summary has the comparison that a config asks for, if any.

  A large task is compared on fewer prompts than a config asks for. So the comparison
  also counts if the config in the folder asks for the same number as this one.
  """
  if num_compared(config) < 2:
    return True
  if (comparison := summary['comparison']) is None:
    return False
  if comparison[MODEL]['num_prompts'] == num_compared(config):
    return True
  saved = read_json(workdir / CONFIG, dict)
  return saved['eval']['num_compared'] == config.eval.num_compared


def compare_models(
  experiments: Sequence[Experiment], state: PyTree, is_stacked: bool
) -> list[Comparison | None]:
  """Returns the comparison of each model of a program with the baselines of its task.

  Models of one task are compared on the same prompts, whatever their seeds.

  Args:
    experiments: The experiment of each model, all on one mesh. The section `eval` of
      the first one sets the number of prompts and their seed for all models.
    state: The arrays of one model, or of many models along a first axis.
    is_stacked: Whether there is such an axis.

  Returns:
    A comparison for each model. It is None with fewer than two prompts, for a task that
    is too large, or if the memory is not enough.
  """
  first = experiments[0]
  number, seed = num_compared(first.config), first.config.eval.seed
  comparisons: list[Comparison | None] = [None] * len(experiments)
  if number < 2:
    return comparisons
  groups: dict[str, list[int]] = {}
  for i, experiment in enumerate(experiments):
    groups.setdefault(experiment.config.task.text(), []).append(i)

  def measure(arrays: PyTree) -> list[Comparison | None]:
    for members in groups.values():
      states = [arrays]
      if is_stacked:
        states = [jax.tree.map(lambda leaf, i=i: leaf[i], arrays) for i in members]
      models = [nnx.merge(first.graphs['model'], each) for each in states]
      task = experiments[members[0]].task
      with if_memory_allows():
        # Each launch of a run checks its model. A sweep that goes on does not.
        found = compare_all(models, task, number, seed, is_checked=not is_stacked)
        for i, comparison in zip(members, found or (), strict=False):
          comparisons[i] = comparison
    return comparisons

  found = comparisons
  with if_memory_allows(), where_compared(first.mesh, state) as arrays:
    found = processes.run_on_main(functools.partial(measure, arrays))
  return found


@contextlib.contextmanager
def if_memory_allows() -> Iterator[None]:
  """Ends the block with a warning if the memory is not enough for a comparison.

  A run that has taken its last step must not lose its result for want of a comparison.
  """
  try:
    yield
  except Exception as error:
    if not is_exhausted(error):
      raise
    logging.warning(
      'there is no comparison with the baselines of the task, for which the memory is '
      'not enough: %s',
      in_one_line(error, 200),
    )


def num_compared(config: Run) -> int:
  """Returns the number of prompts to compare on; 0 if no losses are to be sampled."""
  return config.eval.num_compared if config.eval.num_batches else 0
