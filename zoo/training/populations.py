"""Many models of one architecture in one program, each with its own seed and numbers.

They differ in their weights at step 0, their prompts and their learning rates. Each is
trained as it would be alone; only sums are added in another order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from zoo.config import Config, build_task
from zoo.mesh import make_mesh, replicate
from zoo.protocols import Task
from zoo.training.comparison import compare_trained
from zoo.training.evaluation import (
  Evaluation,
  learning_rule,
  model_sharding,
  sample_errors,
)
from zoo.training.layout import Layout, State
from zoo.training.objective import make_objective
from zoo.training.program import Program, on_mesh
from zoo.training.stacking import stack_abstract
from zoo.training.step import (
  EVAL_STREAM,
  INIT_STREAM,
  TRAIN_STREAM,
  Numbers,
  abstract_state,
  create,
  make_step,
  make_train_steps,
  states,
  stream_key,
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
    layout = Layout(stack_abstract(abstract, len(configs), None))
    objective = make_objective(config, task, statistics=False)
    step = make_step(config, graphs, layout, objective)
    rates = np.array([config.optimizer.learning_rate for config in configs], 'f')
    keys, axis = stream_key(config, TRAIN_STREAM), None
    if len({config.seed for config in configs}) > 1:  # else all share the prompts
      keys, axis = _keys(configs, TRAIN_STREAM), 0
    return Program(
      configs=configs,
      mesh=mesh,
      layout=layout,
      train_steps=make_train_steps(jax.vmap(step, (0, axis, 0)), layout, mesh),
      key=replicate(keys, mesh),
      numbers=replicate(Numbers(None, rates), mesh),
      evaluation=_make_evaluation(configs, task, graphs['model'], layout, mesh),
      init=functools.partial(_init, configs, layout),
      comparisons=lambda models: [
        compare_trained(
          *(config, task, graphs['model']),
          jax.tree.map(lambda leaf, i=i: leaf[i], models),
          mesh,
        )
        for i, config in enumerate(configs)
      ],
    )


def members(configs: Sequence[Config], stacked: State) -> Iterator[State]:
  """The states one by one, each on the mesh; the stacked state must be on the host."""
  abstract = abstract_state(configs[0], make_mesh(configs[0]))[1]
  for i in range(len(configs)):
    yield jax.tree.map(
      lambda leaf, all_of, i=i: jax.device_put(all_of[i], leaf.sharding),
      *(abstract, stacked),
    )


def _keys(configs: Sequence[Config], stream: int) -> Key[Array, ' n']:
  return jnp.stack([stream_key(config, stream) for config in configs])


def _init(configs: Sequence[Config], layout: Layout) -> State:
  """The stacked states at step 0, sampled as those of each config alone."""
  each = [
    jax.device_get(states(create(config, stream_key(config, INIT_STREAM))))
    for config in configs
  ]
  stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
  return jax.device_put(stacked, layout.shardings)


def _make_evaluation(
  configs: Sequence[Config], task: Task, graph: Any, layout: Layout, mesh: Mesh
) -> Evaluation:
  config = configs[0]
  return Evaluation(
    jax.vmap(functools.partial(learning_rule, graph)),
    jax.vmap(functools.partial(sample_errors, graph, task, config, False)),
    [task] * len(configs),
    _keys(configs, EVAL_STREAM),
    config.eval.num_batches * config.train.batch_size,
    model_sharding(layout),
    mesh,
  )
