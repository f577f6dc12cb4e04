"""Steps in a bucket: their names, and checks against their checksums.

A step is a folder `checkpoints/<step>-<a random number>` with an object `MD5SUMS`, or,
if it was copied from a local workdir, a folder as there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from zoo.storage.buckets import Folder, Stored
from zoo.storage.steps import sums_in

MANIFEST = 'MD5SUMS'
DAMAGED = 'DAMAGED'  # marks a step that is not to be used, and says why
RECORDS = 'metrics.jsonl'  # the records up to the step

# The names of a step that was saved into the bucket, or copied from a local folder.
SAVE = re.compile('([0-9]{1,18})-[0-9a-f]{16}')
COPY = re.compile('[0-9]{1,18}')

Objects = Mapping[str, Stored]  # by name within the folder of a step


def objects_by_step(
  folder: Folder, names: re.Pattern[str] = SAVE
) -> dict[str, dict[str, Stored]]:
  """The objects of each step whose name matches `names`, complete or not."""
  saves: dict[str, dict[str, Stored]] = {}
  for path, stored in folder.list('checkpoints/').items():
    _, name, *rest = path.split('/', 2)
    if names.fullmatch(name) and rest:
      saves.setdefault(name, {})[rest[0]] = stored
  return saves


def step_of(name: str) -> int:
  """The number of the step in the name of a save."""
  return int(name.partition('-')[0])


def is_complete(objects: Objects) -> bool:
  """Whether a save was completed, and is not known to be damaged."""
  return MANIFEST in objects and DAMAGED not in objects


def manifest_of(objects: Objects) -> bytes:
  """The checksums of all objects of a save, in the format of md5sum."""
  lines = [
    f'{stored.md5}  {name}\n' for name, stored in objects.items() if name != MANIFEST
  ]
  return ''.join(sorted(lines)).encode()


def find_corruption(folder: Folder, below: str, objects: Objects) -> str | None:
  """What is wrong with the objects of a complete step, or None if all are as written.

  Their names in the folder begin with `below`. Only the manifest is read, since the
  listing has the checksums of the other objects.
  """
  manifest = folder.read(f'{below}{MANIFEST}')
  if manifest is None:
    return f'{MANIFEST} is missing'
  listed = sums_in(manifest.data.decode(errors='replace'))
  if not listed:
    return f'{MANIFEST} is empty'
  if missing := sorted(listed.keys() - objects.keys()):
    return f'{missing[0] or MANIFEST} is missing'
  for path, written in listed.items():
    found = str(objects[path].md5)
    # An object that is composed of others has no MD5, as gcloud uploads large files.
    if found != written and 'None' not in (found, written):
      return f'{path} is not as it was written (its checksum differs)'
  if extra := sorted(path for path in objects.keys() - listed.keys() if '/' in path):
    return f'{extra[0]} is not in {MANIFEST}'
  return None
