"""The program of a run: compiled steps, evaluation, and the layout of the state."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Key

from zoo import theory
from zoo.config import memory
from zoo.config.mesh import make_mesh, replicate
from zoo.config.validation import (
  Config,
  build_task,
  compute_dtype,
  num_parts,
  positions,
  to_json,
)
from zoo.core import registry
from zoo.core.protocols import Task
from zoo.host import processes
from zoo.measure.comparison import Comparison
from zoo.storage.bucket_checkpoints import AnyCheckpoints
from zoo.training.comparison import compare_trained
from zoo.training.evaluation import Evaluation, Measured, make_evaluation
from zoo.training.layout import Layout, State
from zoo.training.objective import make_objective, moments_of, uses_statistics
from zoo.training.parts import num_lanes
from zoo.training.step import (
  TRAIN_STREAM,
  Numbers,
  abstract_state,
  make_init,
  make_step,
  make_train_steps,
  stream_key,
)
from zoo.training.utilisation import product_flops


class Plan(NamedTuple):
  """The plan for training a config on a mesh, before anything is compiled or made."""

  task: Task
  graphs: State  # of model and optimizer
  layout: Layout
  statistics: bool  # whether the model takes sufficient statistics of prompts
  train_steps: jax.stages.Wrapped  # as `make_train_steps` compiles it


def make_plan(config: Config, mesh: Mesh) -> Plan:
  """Plans the training of one model."""
  task = build_task(config)
  graphs, abstract = abstract_state(config, mesh)
  layout = Layout(abstract, config.mesh.fsdp)
  model = nnx.merge(graphs['model'], abstract['model'])
  # Statistics can be computed neither in parts nor in another type.
  plain = num_parts(config) == 1 and compute_dtype(config) == 'float32'
  at_query = positions(config) == 'query'
  statistics = plain and at_query and uses_statistics(model, task)
  lanes = 1 if statistics else num_lanes(config, mesh, abstract['model'])
  objective = make_objective(config, task, statistics, lanes)
  step = make_step(config, graphs, layout, objective)
  train_steps = make_train_steps(step, layout, mesh)
  return Plan(task, graphs, layout, statistics, train_steps)


@dataclasses.dataclass
class Program:
  """A plan with its data on the devices, for one model or for many side by side."""

  configs: Sequence[Config]  # one per model; they share all fields read here
  mesh: Mesh
  layout: Layout
  train_steps: jax.stages.Wrapped
  key: Key[Array, '*n']  # of the training prompts, for all models or for each
  numbers: Numbers  # of one model, or of each along a first axis
  evaluation: Evaluation
  init: Callable[[], State]  # makes the state at step 0
  # Compares each model with the baselines of its task; None: no comparison.
  comparisons: Callable[[State], list[Comparison | None]] | None = None
  # The compiled steps, and the floating-point operations in their products of matrices.
  compiled: Callable[..., tuple[State, dict[str, Array]]] | None = None
  flops_per_step: int = 0

  def compile(self) -> None:
    """Compiles everything, unless it is compiled.

    Raises UserError if training needs more memory than there is.
    """
    if self.compiled is not None:
      return
    with concurrent.futures.ThreadPoolExecutor(1) as other_core:
      compiling = other_core.submit(self._compile_evaluation)
      if processes.count() > 1:
        compiling.result()  # all processes must compile programs in the same order
      with on_mesh(self.mesh, self.configs[0]):
        traced = self.train_steps.trace(*self._arguments(self.layout.kept, 0, 0))
        self.flops_per_step = product_flops(traced.jaxpr.jaxpr)
        task = build_task(self.configs[0])
        self.compiled = memory.compile_step(
          traced.lower(), self.mesh, self.configs, task
        )
      compiling.result()

  def prepare(self, step: int, checkpoints: AnyCheckpoints) -> tuple[State, np.ndarray]:
    """The state at a step, saved or initial, with everything compiled.

    Also returns which models are finite, `[n]`.
    """
    self.compile()
    if step:
      logging.info('resuming at step %d of %d', step, self.configs[0].train.num_steps)
      state = self.layout.opened(checkpoints.load(step, self.layout.saved))
    else:
      state = self.init()
    state, metrics = self.advance(state, step, step)
    return state, np.atleast_1d(jax.device_get(metrics['finite']))

  def advance(
    self, state: State, start: int, stop: int
  ) -> tuple[State, dict[str, Array]]:
    """Starts the steps after `start`, up to `stop`; donates the given state."""
    self.compile()
    assert self.compiled is not None
    return self.compiled(*self._arguments(state, start, stop))

  def evaluate(self, state: State, sampled: bool) -> Measured:
    """Starts the evaluation of a state, on held-out prompts if `sampled`."""
    model = self.layout.saveable({'model': state['model']})['model']
    return self.evaluation.start(model, sampled)

  def compare(self, state: State) -> list[Comparison | None]:
    """The comparison of each model with the baselines of its task; None if not done."""
    if self.comparisons is None:
      return [None] * len(self.configs)
    return self.comparisons(self.layout.saveable({'model': state['model']})['model'])

  def _arguments(self, state: State, start: int, stop: int) -> tuple:
    limits = (replicate(np.int32(step), self.mesh) for step in (start, stop))
    return state, self.key, *limits, self.numbers

  def _compile_evaluation(self) -> None:
    with on_mesh(self.mesh, self.configs[0]):
      self.evaluation.compile(self.layout.saved['model'])


# The programs that were used last, by what they depend on. The compiled programs of one
# take some megabytes.
_KEPT: dict[tuple, Program] = {}
_NUM_KEPT = 8


def program_of(config: Config) -> Program:
  """The program that trains one model, kept for the next run of the same config.

  A kept program compiles nothing again. Use it within `on_mesh`.
  """
  # A class that is registered anew under its name is another one.
  registries = registry.models, registry.tasks, registry.mixers
  classes = tuple(
    entries.get(name) for entries in registries for name in entries.names()
  )
  key = (to_json(config), classes, *jax.devices(), jax.config.values['jax_enable_x64'])
  program = _KEPT.pop(key, None) or make_program(copy.deepcopy(config))
  _KEPT[key] = program  # as the newest
  while len(_KEPT) > _NUM_KEPT:
    del _KEPT[next(iter(_KEPT))]
  return program


def make_program(config: Config) -> Program:
  """The program that trains one model; use it within `on_mesh`."""
  mesh = make_mesh(config)
  with on_mesh(mesh, config):
    plan = make_plan(config, mesh)
    task, layout = plan.task, plan.layout
    log_unused_axis(config, layout)
    if plan.statistics:
      log_long_contexts(config, [task])
    return Program(
      configs=[config],
      mesh=mesh,
      layout=layout,
      train_steps=plan.train_steps,
      key=replicate(stream_key(config, TRAIN_STREAM), mesh),
      numbers=replicate(Numbers(moments_of(task)), mesh),
      evaluation=make_evaluation(
        config, task, plan.graphs['model'], plan.statistics, layout, mesh
      ),
      init=make_init(config, layout),
      comparisons=lambda model: compare_trained(
        config, task, plan.graphs['model'], [model], mesh
      ),
    )


@contextlib.contextmanager
def on_mesh(mesh: Mesh, config: Config) -> Iterator[None]:
  """Computes on a mesh, in the precision that the config asks for."""
  with jax.set_mesh(mesh), jax.default_matmul_precision(config.train.matmul_precision):
    yield


def log_unused_axis(config: Config, layout: Layout) -> None:
  """Warns if no weight is split over the mesh axis `model`."""
  specs = (leaf.sharding.spec for leaf in jax.tree.leaves(layout.used['model']))
  if config.mesh.model > 1 and not any('model' in spec for spec in specs):
    logging.warning(
      'config.mesh.model is %d, but no weight of %r is split over this axis: its '
      'devices repeat the same work; use config.mesh.data',
      *(config.mesh.model, config.model.name),
    )


def log_long_contexts(config: Config, tasks: Sequence[Task]) -> None:
  """Logs the context lengths for which second moments are sampled, not prompts."""
  if config.objective.name == 'sampled' or config.eval.num_batches:
    covered = [task for task in tasks if theory.covers(task)]
    for c in sorted({task.context_length for task in covered if task.has_long_context}):
      logging.info(
        'the second moment of each context of %d examples is sampled directly, which '
        'has the same distribution and costs less (Bartlett)',
        c,
      )
