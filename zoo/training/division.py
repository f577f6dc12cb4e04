"""Divides the points of a sweep into programs, and the work among processes.

The processes share nothing but the workdir of the sweep. `parts.json` has the points of
each part, and a process locks the part that it trains. The lock ends when the process
ends, however it ends, so that another process can go on with the part.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

from flax.traverse_util import flatten_dict

from zoo.config.validation import Config, to_json
from zoo.host.files import UnreadableFile, read_json, workdir_path, write_atomically
from zoo.host.interruption import Interruption
from zoo.storage.workdir import PARTS, Hold, read_parts, try_lock
from zoo.training.populations import POPULATION
from zoo.training.stacking import STACKED, STACKED_IF_EXACT, alike, can_be_stacked
from zoo.training.summary import SUMMARY, finished_summary
from zoo.training.unfinished import saved_steps, unfinished_programs

_MAKING = '.parts.lock'
_PAUSE = 1.0  # seconds before trying again the items that other processes hold

_Item = TypeVar('_Item')


class Workers(NamedTuple):
  """How many processes share a folder, and how one locks a part of it for itself."""

  number: int
  hold: Hold


@contextlib.contextmanager
def shared_folder(
  path: str | os.PathLike[str], num_processes: int
) -> Iterator[tuple[pathlib.Path, Workers]]:
  """The folder at a path or URL gs://bucket/folder, and its workers.

  Raises UserError for a bucket that cannot be used.
  """
  hold = try_lock if num_processes > 1 else _alone
  yield workdir_path(path), Workers(num_processes, hold)


def _alone(path: pathlib.Path, wait: bool) -> contextlib.AbstractContextManager[bool]:
  """Holds a part of a folder that no other process uses."""
  return nullcontext(True)


def divide(
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
  num_processes: int,
) -> dict[int, list[int]]:
  """The parts by number, each the indices of points that one program can train.

  A program that was stopped stays one part. Points that have no part and no summary yet
  are divided, program by program, into a part for each process. Several processes read
  these parts from the workdir.
  """
  known = read_parts(workdir)
  indices = {folder.name: i for i, folder in enumerate(folders)}
  missing = {
    folder.name
    for config, folder in zip(configs, folders, strict=True)
    if finished_summary(folder / SUMMARY, config) is None
  }
  names = [*known]
  for program in unfinished_programs(workdir):
    others = indices.keys() - {name for part in names for name in part}
    if others >= {*program.names} and missing & {*program.names}:
      names.append(program.names)
  listed = {name for part in names for name in part}
  programs: dict[str, list[int]] = {}
  for i, folder in enumerate(folders):
    if folder.name in missing - listed:
      programs.setdefault(_shared_part(configs[i]), []).append(i)
  new = [part for program in programs.values() for part in _cut(program, num_processes)]
  names += [[folders[i].name for i in part] for part in new]
  if num_processes > 1 and len(names) > len(known):
    write_atomically(workdir / PARTS, json.dumps(names, indent=2) + '\n')
  return {
    number: [indices[name] for name in part if name in indices]
    for number, part in enumerate(names)
  }


def programs_of(
  points: Sequence[int],
  missing: Sequence[int],
  configs: Sequence[Config],
  folders: Sequence[pathlib.Path],
  workdir: pathlib.Path,
) -> list[list[int]]:
  """The programs that train the `missing` points of a part, whose points are `points`.

  A program that was stopped goes on with all its points, and a point that has saved a
  step goes on alone. The others are trained side by side if their models are alike.
  """
  indices = {folders[i].name: i for i in points}
  programs, rest = [], [*missing]
  for _, _, names in unfinished_programs(workdir):
    stopped = [indices[name] for name in names if name in indices]
    whole = len(stopped) == len(names) and not {*rest}.isdisjoint(stopped)
    if whole and len(alike(configs, stopped)) == 1:
      programs.append(stopped)
      rest = sorted({*rest} - {*stopped})
  alone = {i for i in rest if saved_steps(folders[i])}
  programs += [[i] for i in sorted(alone)]
  return programs + alike(configs, [i for i in rest if i not in alone])


@contextlib.contextmanager
def one_at_a_time(workdir: pathlib.Path, workers: Workers) -> Iterator[None]:
  """Lets only one worker run the block at a time."""
  with workers.hold(workdir / _MAKING, True):
    yield


def in_turn(
  items: Iterable[_Item],
  lock_of: Callable[[_Item], pathlib.Path],
  workers: Workers,
  interruption: Interruption | None = None,
) -> Iterator[_Item]:
  """Yields each item, while this process holds the item's lock.

  Items that other workers hold come later. The iteration ends early if a signal asks
  to stop while it waits for them; `interruption` is that of the caller, if any.
  """
  waiting = [*items]
  while waiting:
    held = []
    for item in waiting:
      with workers.hold(lock_of(item), False) as mine:
        if mine:
          yield item
        else:
          held.append(item)
    if len(held) == len(waiting):
      with nullcontext(interruption) if interruption else Interruption() as watching:
        time.sleep(_PAUSE)
      if watching.due():
        watching.raise_if_ctrl_c()
        return
    waiting = held


def note_lost(workdir: pathlib.Path, number: int, lost: Sequence[pathlib.Path]) -> None:
  """Tells the other processes which points of a part stopped being finite."""
  note = {'time': time.time(), 'lost': [folder.name for folder in lost]}
  write_atomically(_note(workdir, number), json.dumps(note))


def read_lost(workdir: pathlib.Path, number: int) -> dict[str, Any] | None:
  """The newest note of points of a part that were lost; None if there is none.

  A process compares notes with those that it found at its start: the clocks of machines
  differ, so that no time would tell which ones are new.
  """
  path = _note(workdir, number)
  try:
    return read_json(path) if path.exists() else None
  except UnreadableFile:
    return None


def lost_in(note: dict[str, Any] | None) -> list[str]:
  """The points that a note names."""
  try:
    return note['lost'] if note else []
  except (KeyError, TypeError):
    return []  # these points are then trained once more


def _note(workdir: pathlib.Path, number: int) -> pathlib.Path:
  return workdir / f'part_{number}.json'


def _cut(points: Sequence[int], number: int) -> list[list[int]]:
  """At most `number` parts of consecutive points, whose sizes differ by one at most."""
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


def _shared_part(config: Config) -> str:
  """What configs must share to be trained side by side, as text."""
  fields: dict[str, Any] = flatten_dict(json.loads(to_json(config)), sep='.')
  free = _free_fields(config)
  common = {name: value for name, value in fields.items() if name not in free}
  if free == STACKED:  # whether noise is sampled depends only on this
    common['noisy'] = fields.get('task.noise_std', 0) > 0
  return json.dumps(common)
