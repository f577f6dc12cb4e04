"""Drops fields of a shipped checkpoint's config that no config has any more.

  python -m benchmarks.drop_old_fields checkpoints/transformer

The arrays stay as they are; the checksums and the card follow. Fields of the model and
the task are not touched, since the model is made from them.
"""

import hashlib
import json
import pathlib
import sys

from configs import common
from zoo.storage.checkpoints import METADATA_FILE
from zoo.storage.steps import SUMS


def main(folder: pathlib.Path) -> None:
  path, known = folder / METADATA_FILE, common.get_config().to_dict()
  before = hashlib.sha256(path.read_bytes()).hexdigest()
  metadata = json.loads(path.read_text())
  for section, fields in metadata['config'].items():
    if isinstance(fields, dict) and section not in ('model', 'task'):
      for name in fields.keys() - known[section].keys():
        del fields[name]
  path.write_text(json.dumps(metadata))
  after = hashlib.sha256(path.read_bytes()).hexdigest()
  sums = (folder / SUMS).read_text().replace(before, after)
  (folder / SUMS).write_text(sums)
  card = json.loads((folder / 'card.json').read_text())
  card['config'] = metadata['config']
  card['sha256'] = hashlib.sha256(sums.encode()).hexdigest()
  (folder / 'card.json').write_text(json.dumps(card, indent=2) + '\n')


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
