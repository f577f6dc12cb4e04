"""The comparison of trained models with the baselines of their task."""

from collections.abc import Sequence

import jax
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from configs import common
from zoo.config.validation import Config, to_json
from zoo.core.protocols import Task
from zoo.host import processes
from zoo.measure.comparison import Comparison, compare_all


def compare_members(
  configs: Sequence[Config],
  tasks: Sequence[Task],
  graph: nnx.GraphDef,
  mesh: Mesh,
  models: PyTree,
) -> list[Comparison | None]:
  """Like `zoo.measure.comparison.compare_all`, for each model of a program on a mesh.

  Several are stacked along a first axis; those of one task are compared on the same
  prompts, whatever their seeds. The configs, of which all have one section `eval`, set
  the number of prompts and their seed; with fewer than two prompts each comparison is
  None. Process 0 measures, on one of its devices.
  """
  wanted, number = configs[0].eval.num_compared, num_prompts(configs[0])
  # The default is no number that anybody asked for; the table says how many there are.
  if wanted > number and wanted != common.get_config().eval.num_compared:
    logging.info(
      'config.eval.num_compared is %d; the comparison with the baselines has at most '
      'as many prompts as are held out, eval.num_batches times train.batch_size: %d',
      wanted,
      number,
    )
  found: list[Comparison | None] = [None] * len(configs)
  if number < 2:
    return found
  groups: dict[str, list[int]] = {}
  for i, config in enumerate(configs):
    groups.setdefault(to_json(config.task), []).append(i)
  replicated = NamedSharding(mesh, P())
  whole = jax.jit(lambda states: states, out_shardings=replicated)(models)

  def measure() -> list[Comparison | None]:
    device = np.array(jax.local_devices()[:1]).reshape(1, 1)
    alone = Mesh(device, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(alone):
      here = jax.tree.map(lambda array: array.addressable_data(0), whole)
      for members in groups.values():
        each = [here]
        if len(configs) > 1:
          each = [jax.tree.map(lambda leaf, i=i: leaf[i], here) for i in members]
        compared = compare_all(
          [nnx.merge(graph, state) for state in each],
          tasks[members[0]],
          number,
          configs[0].eval.seed,
        )
        if compared is None:  # the task is too large
          continue
        for i, one in zip(members, compared, strict=True):
          found[i] = one
    return found

  return processes.run_on_main(measure)


def num_prompts(config: Config) -> int:
  """The prompts to compare on: as many as wanted, but no more than are held out."""
  return min(
    config.eval.num_compared, config.eval.num_batches * config.train.batch_size
  )
