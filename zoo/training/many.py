"""Many models in one program: which ones, and their arrays side by side.

The models of a program share one computation over a first axis of their arrays and
their numbers. They may have other seeds, learning rates and initial weights, and tasks
that differ in numbers. Linear attention with fewer heads is padded with heads of zeros,
which stay zero: if all matrices of a head are zero, so is its gradient. Each model is
trained as it would be alone, except that sums are added in another order.
"""

import copy
import functools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zoo import theory
from zoo.config.mesh import make_mesh
from zoo.config.validation import (
  Config,
  abstract_model,
  build_task,
  mesh_shape,
  num_heads,
  to_json,
)
from zoo.core import registry
from zoo.core.draws import INIT_STREAM, stream_of
from zoo.core.protocols import FollowsRule, HasExactForm
from zoo.host.parts import Part
from zoo.models import LinearAttention
from zoo.training.layout import State
from zoo.training.step import abstract_state, create, initial_weights, states
from zoo.training.unfinished import saved_steps, unfinished_programs


def points_of(part: Part, configs: Sequence[Config]) -> list[int]:
  """The indices of a part's points, which depend on nothing but the configs.

  The points of each program are cut into as many runs of neighbours as there are parts,
  and these are dealt to the parts in turn.
  """
  cut = [
    few.tolist()
    for program in side_by_side(configs, range(len(configs)))
    for few in np.array_split(program, min(part.number, len(program)))
  ]
  return sorted(i for few in part.of(cut) for i in few)


def programs_of(
  missing: Sequence[int],
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
) -> list[list[int]]:
  """The programs that train the `missing` points, each the indices of its points.

  A program that was stopped goes on with all its points, and a point that has saved a
  step goes on alone. The others are trained side by side where that is possible.
  """
  indices = {folder.name: i for i, folder in enumerate(folders)}
  programs, rest = [], [*missing]
  for names in unfinished_programs(workdir):
    stopped = [indices[name] for name in names if name in indices]
    whole = len(stopped) == len(names) and not {*rest}.isdisjoint(stopped)
    if whole and len(side_by_side(configs, stopped)) == 1:
      programs.append(stopped)
      rest = sorted({*rest} - {*stopped})
  alone = {i for i in rest if saved_steps(folders[i])}
  programs += [[i] for i in sorted(alone)]
  return programs + side_by_side(configs, [i for i in rest if i not in alone])


def side_by_side(configs: Sequence[Config], points: Sequence[int]) -> list[list[int]]:
  """Divides points into those that one program can train.

  They share all fields but the seed, the learning rate and those of task and model;
  the structure of the task; and what the models compute from their arrays.
  """
  alike: dict[object, list[int]] = {}
  models: dict[str, Any] = {}  # each is traced once for all points that have it
  for i in points:
    alone = configs[i].mesh.fsdp or configs[i].checkpoint.keep_best
    key = (i,) if alone else _shared(configs[i], models)
    alike.setdefault(key, []).append(i)
  programs = []
  for members in alike.values():
    most = max(num_heads(configs[i]) for i in members)
    bodies: list[tuple[object, list[int]]] = []
    for i in members:
      body = _body(configs[i], most, models)
      for other, same in bodies:
        if _is_same(body, other):
          same.append(i)
          break
      else:
        bodies.append((body, [i]))
    programs += [same for _, same in bodies]
  return programs


def _model_of(config: Config, models: dict[str, Any]) -> Any:
  """The abstract model of a config, from the `models` that were traced before."""
  key = to_json(config.model) + to_json(config.task)
  if key not in models:
    models[key] = nnx.split(abstract_model(config))
  return nnx.merge(*models[key])


def _shared(config: Config, models: dict[str, Any]) -> tuple:
  """What models of one program share besides their bodies; it can be hashed."""
  fields = json.loads(to_json(config))
  name = fields.pop('model')['name']
  del fields['seed'], fields['optimizer']['learning_rate']
  task, given = build_task(config), fields.pop('task')
  model = _model_of(config, models)
  if isinstance(model, HasExactForm):  # whose constants are compiled in
    return json.dumps([fields, name, given]), None
  exact = config.objective.name == 'exact' and isinstance(model, FollowsRule)
  if exact and theory.covers(task):  # which needs the moments of the task alone
    return json.dumps([fields, name]), task.num_features
  shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(task))
  return json.dumps([fields, name]), (jax.tree.structure(task), shapes)


def _body(config: Config, heads: int, models: dict[str, Any]) -> object:
  """The graph of a model and the shapes of its arrays, padded to a number of heads."""
  model = _model_of(_with_heads(config, heads), models)
  for _, module in nnx.iter_modules(model):
    registry.forget_arguments(module)
  graph, state = nnx.split(model)
  return graph, [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]


def _with_heads(config: Config, heads: int) -> Config:
  """A config of linear attention with more heads; any other config as it is."""
  of_heads = issubclass(registry.models.get(config.model.name), LinearAttention)
  if not of_heads or num_heads(config) >= heads or 'num_heads' not in config.model:
    return config
  config = copy.deepcopy(config)
  config.model.num_heads = heads
  return config


def _is_same(one: object, other: object) -> bool:
  try:
    return bool(one == other)
  except ValueError:  # a static array, for which == is no truth value
    return False


def unstack(configs: Sequence[Config], stacked: State) -> Iterator[State]:
  """The states one by one, each on the mesh of its config, without padded heads.

  The stacked state must be on the host.
  """
  abstract = _abstract_states(configs)
  for i, config in enumerate(configs):
    own = abstract[num_heads(config)]
    yield jax.tree.map(functools.partial(_cut, i), own, stacked)


def _abstract_states(configs: Sequence[Config]) -> dict[int, State]:
  """The state of a model with each number of heads, as shapes with shardings."""
  models = {num_heads(config): config for config in configs}
  return {
    heads: abstract_state(config, make_mesh(config))[1]
    for heads, config in models.items()
  }


def _cut(i: int, leaf: jax.ShapeDtypeStruct, stacked: np.ndarray) -> jax.Array:
  return jax.device_put(stacked[(i, *map(slice, leaf.shape))], leaf.sharding)


def mesh_axis(config: Config, num_models: int) -> str | None:
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


def init_side_by_side(configs: Sequence[Config], abstract: State) -> State:
  """The stacked states at step 0, with zeros for the heads that a model lacks.

  A model gets the first heads of the model that has the most heads and the same key.
  Sampling each number of heads separately would compile as many programs.
  """
  most, shapes = max(map(num_heads, configs)), _abstract_states(configs)
  all_states = []
  for config in configs:  # one by one, since compiling them together takes seconds
    padded = _with_heads(config, most)
    key, weights = stream_of(config.seed, INIT_STREAM), initial_weights(padded)
    whole = states(create(padded, key, weights))
    all_states.append(jax.tree.map(_first_entries, whole, shapes[num_heads(config)]))
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
  stack = jax.tree.map(lambda *leaves: np.stack(leaves), *all_states)
  return jax.device_put(stack, shardings)


def _first_entries(whole: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
  """The entries of `whole` within a smaller shape, and zeros elsewhere."""
  padded = np.zeros(whole.shape, whole.dtype)
  first = tuple(map(slice, shape.shape))
  padded[first] = np.asarray(whole)[first]
  return padded
