"""Lists the models, mixers, tasks, configs and trained checkpoints.

python -m launch.catalog
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

import configs
import zoo
import zoo.core.registry
from launch import cli
from zoo.core.tables import format_table
from zoo.host.files import shipped_checkpoints

if TYPE_CHECKING:
  from benchmarks.cards import Card

flags.adopt_module_key_flags(cli)


def main() -> None:
  # Imported here so that a mistyped flag is reported at once.
  from benchmarks import cards

  print(f'models       {", ".join(zoo.list_models())}')
  print(f'mixers       {", ".join(zoo.list_mixers())}')
  print('tasks (--config=FILE:task=NAME)')
  for name in zoo.list_tasks():
    summary = (zoo.core.registry.TASKS[name].__doc__ or '\n').splitlines()[0]
    print(f'  {name}'.ljust(38), summary)
  print('configs')
  for name in configs.names():
    summary = configs.about(name).splitlines()[0]
    print(f'  configs/{name}.py'.ljust(38), summary)
  folder = shipped_checkpoints()
  print(f'checkpoints in {folder}')
  print(_table(cards.read_cards(folder)))


def _table(listed: list[Card]) -> str:
  from benchmarks import cards

  if not listed:
    return '  none; the repository ships some'
  return format_table(list(map(cards.card_row, listed)), ('', *cards.COLUMNS), indent=2)


if __name__ == '__main__':
  cli.run(main)
