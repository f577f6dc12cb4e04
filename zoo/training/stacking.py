"""Many models in one program, with their states stacked along a first axis.

Models that differ only in numbers, such as the prior mean, the noise or a fixed guess,
are trained by one computation over a first axis. Models with fewer heads are padded
with heads of zeros, which stay zero: if all matrices of a head are zero, so is its
gradient.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zoo import theory
from zoo.config.mesh import make_mesh, replicate
from zoo.config.validation import (
  Config,
  abstract_model,
  build_task,
  compute_dtype,
  mesh_shape,
  num_heads,
  num_parts,
  positions,
  to_json,
)
from zoo.core import registry
from zoo.core.protocols import Task
from zoo.models import LinearAttention
from zoo.training.evaluation import (
  Evaluation,
  SampledMoments,
  exact_rule,
  model_sharding,
  sample_errors,
)
from zoo.training.layout import Layout, State
from zoo.training.objective import make_objective, stacked_moments
from zoo.training.program import Program, log_long_contexts, on_mesh
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
  stream_keys,
)

# The fields in which the models of one program may differ.
STACKED = (
  'task.prior_mean',
  'task.noise_std',
  'model.initial_guess',
  'model.initial_bias',
  'model.num_heads',
)
# Training on the exact risk samples no prompts, so fields that only affect the shapes
# and bits of prompts may differ as well.
STACKED_IF_EXACT = (
  *STACKED,
  'seed',
  'task.context_length',
  'task.prior_covariance',
  'task.feature_covariance',
)


_PLAIN = 'query', 1, 'float32'


def can_be_stacked(config: Config) -> bool:
  """Whether models of a config are linear attention on a task that theory covers."""
  if (positions(config), num_parts(config), compute_dtype(config)) != _PLAIN:
    return False
  model = registry.models.get(config.model.name)
  return issubclass(model, LinearAttention) and theory.covers(build_task(config))


def alike(configs: Sequence[Config], points: Sequence[int]) -> list[list[int]]:
  """Divides points of one program by what their models compute from their arrays.

  A field such as `model.init_scale` mostly changes the arrays at step 0 alone, but a
  model may also use it whenever it is called.
  """
  heads = max((num_heads(configs[i]) for i in points), default=1)
  bodies: dict[str, object] = {}
  found: list[tuple[object, list[int]]] = []
  for i in points:
    # All else that the constructor gets is the same for points of one program.
    text = f'{to_json(configs[i].model)} {configs[i].task.get("context_length")}'
    if text not in bodies:
      bodies[text] = _body(configs[i], heads)
    for body, members in found:
      if _is_same(body, bodies[text]):
        members.append(i)
        break
    else:
      found.append((bodies[text], [i]))
  return [members for _, members in found]


def _body(config: Config, heads: int) -> object:
  """The graph of a model and the shapes of its arrays, for equal numbers of heads."""
  if can_be_stacked(config):
    if registry.models.get(config.model.name).__module__.startswith('zoo.'):
      return None  # for these the fields are the same arrays of other values
    if num_heads(config) < heads:
      config = copy.deepcopy(config)
      config['model'].num_heads = heads
  model: Any = abstract_model(config)
  for _, module in nnx.iter_modules(model):
    registry.forget_arguments(module)
  graph, state = nnx.split(model)
  return graph, [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]


def _is_same(one: object, other: object) -> bool:
  try:
    return one is other or bool(one == other)
  except ValueError:  # a static array, for which == is no truth value
    return False


def make_stacked_program(configs: Sequence[Config]) -> Program:
  """The program that trains a model for each config; they differ in STACKED.

  With the exact objective they may also differ in STACKED_IF_EXACT. All models are
  trained on prompts with the same random numbers.
  """
  config = max(configs, key=num_heads)
  mesh = make_mesh(config)
  with on_mesh(mesh, config):
    tasks = [build_task(config) for config in configs]
    log_long_contexts(config, tasks)
    graphs, abstract = abstract_state(config, mesh)
    abstract = stack_abstract(abstract, len(configs), _mesh_axis(config, len(configs)))
    layout = Layout(abstract)
    objective = make_objective(config, tasks[0], statistics=True)
    step = make_step(config, graphs, layout, objective)
    # All models share one key, so that prompts are sampled once.
    step = jax.vmap(step, (0, None, 0))
    return Program(
      configs=configs,
      mesh=mesh,
      layout=layout,
      train_steps=make_train_steps(step, layout, mesh),
      key=replicate(stream_key(config, TRAIN_STREAM), mesh),
      numbers=replicate(Numbers(stacked_moments(tasks)), mesh),
      evaluation=_make_evaluation(configs, tasks, graphs['model'], layout, mesh),
      init=functools.partial(init_stacked, configs, abstract),
    )


def unstack(configs: Sequence[Config], stacked: State) -> Iterator[State]:
  """The states one by one, each on the mesh of its config, without padded heads.

  The stacked state must be on the host.
  """
  abstract: dict[int, State] = {}
  for i, config in enumerate(configs):
    heads = num_heads(config)
    if heads not in abstract:
      abstract[heads] = abstract_state(config, make_mesh(config))[1]
    yield jax.tree.map(functools.partial(_cut, i), abstract[heads], stacked)


def _cut(i: int, leaf: jax.ShapeDtypeStruct, stacked: np.ndarray) -> jax.Array:
  return jax.device_put(stacked[(i, *map(slice, leaf.shape))], leaf.sharding)


def _mesh_axis(config: Config, num_models: int) -> str | None:
  """The mesh axis that models are split over; None if `data` is needed for prompts."""
  data, _ = mesh_shape(config)
  exact = config.objective.name == 'exact'
  return 'data' if exact and num_models % data == 0 else None


def stack_abstract(abstract: State, num_models: int, axis: str | None) -> State:
  """The abstract state of many models, split over a mesh axis or not at all."""

  def stack(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(leaf.sharding.mesh, P(axis, *leaf.sharding.spec))
    return jax.ShapeDtypeStruct(
      (num_models, *leaf.shape), leaf.dtype, sharding=sharding
    )

  return jax.tree.map(stack, abstract)


def init_stacked(configs: Sequence[Config], abstract: State) -> State:
  """The stacked states at step 0, with zeros for the heads that a model lacks.

  A model gets the first heads of the model that has the most heads and the same key.
  Sampling each number of heads separately would compile as many programs.
  """
  most = max(map(num_heads, configs))
  shapes: dict[int, State] = {}
  all_states = []
  for config in configs:  # one by one, since compiling them together takes seconds
    heads = num_heads(config)
    if heads not in shapes:
      key = jax.random.key(0)
      shapes[heads] = states(nnx.eval_shape(lambda c=config, k=key: create(c, k)))
    if heads < most:
      config = copy.deepcopy(config)
      config['model'].num_heads = most
    whole = states(create(config, stream_key(config, INIT_STREAM)))
    all_states.append(jax.tree.map(_first_entries, whole, shapes[heads]))
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
  stack = jax.tree.map(lambda *leaves: np.stack(leaves), *all_states)
  return jax.device_put(stack, shardings)


def _first_entries(whole: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
  """The entries of `whole` within a smaller shape, and zeros elsewhere."""
  padded = np.zeros(whole.shape, whole.dtype)
  first = tuple(map(slice, shape.shape))
  padded[first] = np.asarray(whole)[first]
  return padded


def _make_evaluation(
  configs: Sequence[Config],
  tasks: Sequence[Task],
  graph: nnx.GraphDef,
  layout: Layout,
  mesh: Mesh,
) -> Evaluation:
  return Evaluation(
    jax.vmap(functools.partial(exact_rule, graph, tasks[0])),
    functools.partial(_sample_stacked, graph, configs, tasks),
    tasks,
    stream_keys(configs, EVAL_STREAM),
    configs[0].eval.num_batches * configs[0].train.batch_size,
    model_sharding(layout),
    mesh,
  )


def _sample_stacked(
  graph: nnx.GraphDef,
  configs: Sequence[Config],
  tasks: Sequence[Any],
  states: Any,
  keys: Any,
  known: Any,
) -> SampledMoments:
  """Like `sample_errors`, for each model; models with the same prompts share them."""
  groups: dict[Any, list[int]] = {}
  for i, task in enumerate(tasks):
    groups.setdefault(task.statistics_key, []).append(i)
  found = []
  for members in groups.values():
    at = np.array(members)
    models = jax.tree.map(lambda leaf, at=at: leaf[at], (states, keys, known))
    one = functools.partial(sample_errors, graph, tasks[at[0]], configs[0], True)
    if len({configs[i].seed for i in members}) == 1:
      states_, keys_, known_ = models
      found.append(jax.vmap(one, (0, None, 0))(states_, keys_[0], known_))
    else:
      found.append(jax.lax.map(lambda model, one=one: one(*model), models))
  back = np.argsort(np.concatenate([*groups.values()]))
  return jax.tree.map(lambda *parts: jnp.concatenate(parts)[back], *found)
