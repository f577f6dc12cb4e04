"""The comparison of trained models with the baselines of their task."""

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from zoo.config.validation import Config
from zoo.core.protocols import Task
from zoo.host import processes
from zoo.measure.comparison import Comparison, compare_all

Result = TypeVar('Result')


def compare_model(
  config: Config, task: Task, graph: nnx.GraphDef, mesh: Mesh, state: PyTree
) -> Comparison | None:
  """The comparison of a model on a mesh with the baselines of its task.

  The config's section `eval` sets the number of prompts and their seed; with fewer than
  two prompts, or for a task that is too large, there is none.
  """
  number = num_prompts(config)
  if number < 2:
    return None

  def measure(here: PyTree) -> Comparison | None:
    model = nnx.merge(graph, here)
    compared = compare_all([model], task, number, config.eval.seed)
    return None if compared is None else compared[0]

  return on_one_device(mesh, state, measure)


def on_one_device(
  mesh: Mesh, state: PyTree, measure: Callable[[PyTree], Result]
) -> Result:
  """What process 0 measures of arrays on a mesh, on one of its devices."""
  replicated = NamedSharding(mesh, P())
  whole = jax.jit(lambda state: state, out_shardings=replicated)(state)

  def on_main() -> Result:
    device = np.array(jax.local_devices()[:1]).reshape(1, 1)
    alone = Mesh(device, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(alone):
      return measure(jax.tree.map(lambda array: array.addressable_data(0), whole))

  return processes.run_on_main(on_main)


def num_prompts(config: Config) -> int:
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
