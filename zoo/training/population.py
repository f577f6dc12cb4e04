"""Many models of one architecture in one program, each with its own seed and numbers.

The models differ in their weights at step 0, their prompts and their learning rates.
Each is trained as it would be alone, except that sums are added in another order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from zoo import theory
from zoo.config.mesh import make_mesh, replicate
from zoo.config.validation import Config, build_task
from zoo.core.protocols import Task
from zoo.measure.comparison import Comparison
from zoo.training.comparison import compare_trained
from zoo.training.evaluation import (
  Evaluation,
  exact_rule,
  model_sharding,
  sample_errors,
)
from zoo.training.layout import Layout
from zoo.training.objective import make_objective, stacked_moments
from zoo.training.parts import num_lanes
from zoo.training.program import Program, on_mesh
from zoo.training.stacking import init_stacked, stack_abstract
from zoo.training.step import (
  EVAL_STREAM,
  TRAIN_STREAM,
  Numbers,
  abstract_state,
  make_step,
  make_train_steps,
  stream_key,
  stream_keys,
)

# The fields in which the models of one program may differ.
POPULATION = 'seed', 'optimizer.learning_rate', 'model.init_scale'


def make_population(configs: Sequence[Config]) -> Program:
  """The program that trains a model for each config; they differ in POPULATION."""
  config = configs[0]
  mesh = make_mesh(config)
  with on_mesh(mesh, config):
    task = build_task(config)
    graphs, abstract = abstract_state(config, mesh)
    abstract = stack_abstract(abstract, len(configs), None)
    layout = Layout(abstract)
    lanes = num_lanes(config, mesh, abstract['model'])
    objective = make_objective(config, task, False, lanes)
    step = make_step(config, graphs, layout, objective)
    rates = np.array([config.optimizer.learning_rate for config in configs], 'f')
    moments = None
    if theory.covers(task):
      moments = stacked_moments([task] * len(configs))
    keys, axis = stream_key(config, TRAIN_STREAM), None
    if len({config.seed for config in configs}) > 1:  # otherwise all share the prompts
      keys, axis = stream_keys(configs, TRAIN_STREAM), 0
    return Program(
      configs=configs,
      mesh=mesh,
      layout=layout,
      train_steps=make_train_steps(jax.vmap(step, (0, axis, 0)), layout, mesh),
      key=replicate(keys, mesh),
      numbers=replicate(Numbers(moments, rates), mesh),
      evaluation=_make_evaluation(configs, task, graphs['model'], layout, mesh),
      init=functools.partial(init_stacked, configs, abstract),
      comparisons=functools.partial(
        _compare_all, configs, task, graphs['model'], mesh=mesh
      ),
    )


def _compare_all(
  configs: Sequence[Config], task: Task, graph: nnx.GraphDef, models: PyTree, mesh: Mesh
) -> list[Comparison | None]:
  """The comparison of each model; models with the same seed get the same prompts."""
  found: dict[int, Comparison | None] = {}
  for seed in {config.seed: None for config in configs}:
    same = [i for i, config in enumerate(configs) if config.seed == seed]
    members = [jax.tree.map(lambda leaf, i=i: leaf[i], models) for i in same]
    compared = compare_trained(configs[same[0]], task, graph, members, mesh)
    found.update(zip(same, compared, strict=True))
  return [found[i] for i in range(len(configs))]


def _make_evaluation(
  configs: Sequence[Config], task: Task, graph: nnx.GraphDef, layout: Layout, mesh: Mesh
) -> Evaluation:
  config = configs[0]
  return Evaluation(
    jax.vmap(functools.partial(exact_rule, graph, task)),
    jax.vmap(functools.partial(sample_errors, graph, task, config, False)),
    [task] * len(configs),
    stream_keys(configs, EVAL_STREAM),
    config.eval.num_batches * config.train.batch_size,
    model_sharding(layout),
    mesh,
  )
