"""Which points of a sweep one program trains, and which part of them a process has."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from flax.traverse_util import flatten_dict

from zoo.config.validation import Config, to_json
from zoo.host.parts import Part
from zoo.training.populations import POPULATION
from zoo.training.stacking import STACKED, STACKED_IF_EXACT, alike, can_be_stacked
from zoo.training.unfinished import saved_steps, unfinished_programs


def points_of(part: Part, configs: Sequence[Config]) -> list[int]:
  """The indices of a part's points, which depend on nothing but the configs.

  The points of each program are cut into as many runs of neighbours as there are parts,
  and these are dealt to the parts in turn.
  """
  cut = [
    few
    for program in _by_program(configs, range(len(configs)))
    for few in _cut(program, part.number)
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
  step goes on alone. The others are trained side by side if their models are alike.
  """
  indices = {folder.name: i for i, folder in enumerate(folders)}
  programs, rest = [], [*missing]
  for _, _, names in unfinished_programs(workdir):
    stopped = [indices[name] for name in names if name in indices]
    whole = len(stopped) == len(names) and not {*rest}.isdisjoint(stopped)
    if whole and len(alike(configs, stopped)) == 1:
      programs.append(stopped)
      rest = sorted({*rest} - {*stopped})
  alone = {i for i in rest if saved_steps(folders[i])}
  programs += [[i] for i in sorted(alone)]
  for program in _by_program(configs, [i for i in rest if i not in alone]):
    programs += alike(configs, program)
  return programs


def _by_program(configs: Sequence[Config], points: Sequence[int]) -> list[list[int]]:
  """Points grouped by the fields that those of one program share."""
  programs: dict[str, list[int]] = {}
  for i in points:
    programs.setdefault(_shared_fields(configs[i]), []).append(i)
  return [*programs.values()]


def _cut(points: Sequence[int], number: int) -> list[list[int]]:
  """At most `number` runs of neighbours, whose sizes differ by one at most."""
  number = min(number, len(points))
  ends = [len(points) * k // number for k in range(number + 1)]
  return [[*points[a:b]] for a, b in itertools.pairwise(ends)]


def _free_fields(config: Config) -> tuple[str, ...]:
  """The fields in which points that are trained side by side may differ."""
  if config.mesh.fsdp:  # a single model fills the devices
    return ()
  if can_be_stacked(config):
    return STACKED_IF_EXACT if config.objective.name == 'exact' else STACKED
  return POPULATION


def _shared_fields(config: Config) -> str:
  """What configs must share to be trained side by side, as text."""
  fields: dict[str, Any] = flatten_dict(json.loads(to_json(config)), sep='.')
  free = _free_fields(config)
  common = {name: value for name, value in fields.items() if name not in free}
  if free == STACKED:  # whether noise is sampled depends only on this
    common['noisy'] = fields.get('task.noise_std', 0) > 0
  return json.dumps(common)
