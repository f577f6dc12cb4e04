"""The comparison of trained models with the baselines of their task."""

from collections.abc import Sequence

import jax
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

from zoo.config.validation import Config, to_json
from zoo.core.protocols import Task
from zoo.host import processes
from zoo.measure.comparison import Comparison, compare_all


def compare_trained(
  config: Config,
  task: Task,
  graph: nnx.GraphDef,
  members: Sequence[PyTree],
  mesh: Mesh,
) -> list[Comparison | None]:
  """Like `zoo.measure.comparison.compare_all`, for models on a mesh.

  `members` are the arrays of each model. The config sets the number of prompts and the
  seed; with fewer than two prompts each comparison is None. Process 0 measures, on one
  of its devices.
  """
  none: list[Comparison | None] = [None] * len(members)
  wanted = num_prompts(config)
  if wanted < 2:
    return none
  replicated = NamedSharding(mesh, P())
  whole = jax.jit(lambda states: states, out_shardings=replicated)([*members])

  def measure() -> list[Comparison] | None:
    device = np.array(jax.local_devices()[:1]).reshape(1, 1)
    alone = Mesh(device, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(alone):
      here = jax.tree.map(lambda array: array.addressable_data(0), whole)
      models = [nnx.merge(graph, state) for state in here]
      return compare_all(models, task, wanted, config.seed)

  return [*(processes.run_on_main(measure) or none)]


def compare_members(
  configs: Sequence[Config],
  tasks: Sequence[Task],
  graph: nnx.GraphDef,
  mesh: Mesh,
  models: PyTree,
) -> list[Comparison | None]:
  """The comparison of each model of a program, several stacked along a first axis.

  Models of one task with the same seed are compared on the same prompts.
  """
  if (wanted := configs[0].eval.num_compared) > num_prompts(configs[0]):
    logging.info(
      'config.eval.num_compared is %d; the comparison with the baselines has at most '
      'as many prompts as are held out, eval.num_batches times train.batch_size: %d',
      *(wanted, num_prompts(configs[0])),
    )
  groups: dict[tuple[int, str], list[int]] = {}
  for i, config in enumerate(configs):
    groups.setdefault((config.seed, to_json(config.task)), []).append(i)
  found: dict[int, Comparison | None] = {}
  for first, *others in groups.values():
    each = [models]
    if len(configs) > 1:
      each = [jax.tree.map(lambda leaf, i=i: leaf[i], models) for i in (first, *others)]
    compared = compare_trained(configs[first], tasks[first], graph, each, mesh)
    found.update(zip((first, *others), compared, strict=True))
  return [found[i] for i in range(len(configs))]


def num_prompts(config: Config) -> int:
  """The prompts to compare on: as many as wanted, but no more than are held out."""
  return min(
    config.eval.num_compared, config.eval.num_batches * config.train.batch_size
  )
