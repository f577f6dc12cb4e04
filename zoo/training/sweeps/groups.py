"""Groups of points of a sweep: one compiled program trains the points of a group.

A part of a sweep, such as 1/4, has some points of each group that has at least as many
points as there are parts.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from zoo import theory
from zoo.config.read import to_content
from zoo.core.protocols import FollowsRule, HasExactForm
from zoo.host.parts import Part
from zoo.storage.together import saved_programs, saved_steps
from zoo.training.experiment import Experiment
from zoo.training.sweeps.many import Member


def points_of(part: Part, experiments: Sequence[Experiment]) -> list[int]:
  """Returns the indices of the points of one part of a sweep.

  The indices depend on the experiments alone. The points of each group are cut into
  as many runs of consecutive points as there are parts, or into single points if there
  are fewer of them. The runs of all groups are dealt to the parts in turn.

  Args:
    part: The part.
    experiments: The experiments of all points of the sweep.

  Returns:
    Indices in `experiments`, sorted.
  """
  pieces = [
    piece.tolist()
    for group in side_by_side(experiments, range(len(experiments)))
    for piece in np.array_split(group, min(part.number, len(group)))
  ]
  return sorted(i for piece in part.of(pieces) for i in piece)


def groups_to_train(
  missing: Sequence[int], members: Sequence[Member], workdir: pathlib.Path
) -> list[list[int]]:
  """Returns the groups in which the `missing` points are trained, as their indices.

  A group that was stopped goes on with all its points, and a point that has saved a
  step of its own goes on alone. The others are trained side by side where that is
  possible.
  """
  experiments = [experiment for experiment, _ in members]
  folders = [folder for _, folder in members]
  indices = {folder.name: i for i, folder in enumerate(folders)}
  groups, rest = [], [*missing]
  for names in saved_programs(workdir):
    stopped = [indices[name] for name in names if name in indices]
    has_all = len(stopped) == len(names)
    has_missing = not {*rest}.isdisjoint(stopped)
    if has_all and has_missing and len(side_by_side(experiments, stopped)) == 1:
      groups.append(stopped)
      rest = sorted({*rest} - {*stopped})
  alone = {i for i in rest if saved_steps(folders[i])}
  if len(alone) > 1:
    logging.info(
      '%d points have saved steps of their own, and go on one after the other',
      len(alone),
    )
  groups += [[i] for i in sorted(alone)]
  return groups + side_by_side(experiments, [i for i in rest if i not in alone])


def side_by_side(
  experiments: Sequence[Experiment], points: Sequence[int]
) -> list[list[int]]:
  """Divides points into groups, each of which one program can train.

  The points of a group share all fields but the seed, the learning rate and those of
  task and model; the structure of the task; and what the models compute from their
  arrays.

  Args:
    experiments: The experiments of all points of a sweep.
    points: The indices of the points to divide.

  Returns:
    The indices of the points of each group.
  """
  alike: dict[object, list[int]] = {}
  for i in points:
    experiment = experiments[i]
    # The state of a point that is split with fsdp is not stacked with others.
    key = (i,) if experiment.config.mesh.fsdp else _shared(experiment)
    alike.setdefault(key, []).append(i)
  groups: list[list[int]] = []
  for members in alike.values():
    groups += _with_same_body(experiments, members)
  return groups


def _with_same_body(
  experiments: Sequence[Experiment], points: Sequence[int]
) -> list[list[int]]:
  """Divides points by the bodies of their models, which cannot be hashed."""
  bodies: list[object] = []
  groups: list[list[int]] = []
  for i in points:
    body = _body(experiments[i])
    for other_body, group in zip(bodies, groups, strict=True):
      if _is_same(body, other_body):
        group.append(i)
        break
    else:
      bodies.append(body)
      groups.append([i])
  return groups


def _shared(experiment: Experiment) -> tuple[Any, ...]:
  """Returns what the points of a group share besides their bodies; it can be hashed."""
  task, model = experiment.task, experiment.model
  fields = to_content(experiment.config)
  name, task_fields = fields.pop('model')['name'], fields.pop('task')
  del fields['seed'], fields['optimizer']['learning_rate']
  is_compiled_in = (  # These get the task with its numbers.
    experiment.objective.gets_task_and_key
    or experiment.config.eval.metrics
    or isinstance(model, HasExactForm)
  )
  if is_compiled_in:
    return json.dumps([fields, name, task_fields]), None
  exact = not experiment.objective.draws_prompts and isinstance(model, FollowsRule)
  if exact and theory.covers(task):  # The exact risk needs only moments of the task.
    return json.dumps([fields, name]), task.num_features
  shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(task))
  return json.dumps([fields, name]), (jax.tree.structure(task), shapes)


def _body(experiment: Experiment) -> object:
  """Returns the graph of a model, and the shapes of its arrays."""
  leaves = jax.tree.leaves(experiment.asked['model'])
  return experiment.graphs['model'], [(leaf.shape, leaf.dtype) for leaf in leaves]


def _is_same(body: object, other_body: object) -> bool:
  try:
    return bool(body == other_body)
  except ValueError:  # A comparison of static arrays has no truth value.
    return False
