"""Which points of a sweep train side by side, in one program."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from zoo import theory
from zoo.config.own import OBJECTIVES
from zoo.config.validation import Config, abstract_parts, build_task, to_json
from zoo.core.protocols import FollowsRule, HasExactForm
from zoo.host.parts import Part
from zoo.storage.programs import saved_programs, saved_steps


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
  for names in saved_programs(workdir):
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
    key = (i,) if configs[i].mesh.fsdp else _shared(configs[i], models)
    alike.setdefault(key, []).append(i)
  programs = []
  for members in alike.values():
    bodies: list[tuple[object, list[int]]] = []
    for i in members:
      body = _body(configs[i], models)
      for other, same in bodies:
        if _is_same(body, other):
          same.append(i)
          break
      else:
        bodies.append((body, [i]))
    programs += [same for _, same in bodies]
  return programs


def _shared(config: Config, models: dict[str, Any]) -> tuple:
  """What models of one program share besides their bodies; it can be hashed."""
  fields = json.loads(to_json(config))
  name = fields.pop('model')['name']
  del fields['seed'], fields['optimizer']['learning_rate']
  task, task_fields = build_task(config), fields.pop('task')
  model = nnx.merge(*_parts_of(config, models))
  has_own = config.objective.name in OBJECTIVES or bool(config.eval.metrics)
  if has_own or isinstance(model, HasExactForm):  # the task's numbers are compiled in
    return json.dumps([fields, name, task_fields]), None
  exact = config.objective.name == 'exact' and isinstance(model, FollowsRule)
  if exact and theory.covers(task):  # which needs the moments of the task alone
    return json.dumps([fields, name]), task.num_features
  shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(task))
  return json.dumps([fields, name]), (jax.tree.structure(task), shapes)


def _body(config: Config, models: dict[str, Any]) -> object:
  """The graph of a model, and the shapes of its arrays."""
  graph, state = _parts_of(config, models)
  return graph, [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]


def _parts_of(config: Config, models: dict[str, Any]) -> tuple[Any, Any]:
  """Graph and abstract state of a model, from the `models` that were traced before."""
  key = to_json(config.model) + to_json(config.task)
  if key not in models:
    models[key] = abstract_parts(config)
  return models[key]


def _is_same(body: object, other_body: object) -> bool:
  try:
    return bool(body == other_body)
  except ValueError:  # a static array, for which == is no truth value
    return False
