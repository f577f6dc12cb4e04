"""Lists the models, tasks, configs, trained checkpoints and evaluation sets.

python -m launch.catalog
python -m launch.catalog --export=table_1 --out=table_1.npz   # for NumPy, PyTorch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

import configs
import zoo
import zoo.core.registry
from launch import cli
from zoo.core.errors import UserError
from zoo.core.tables import format_table
from zoo.host.files import shipped_checkpoints, user_path

if TYPE_CHECKING:
  from zoo.studies.cards import Card

flags.adopt_module_key_flags(cli)
_EXPORT = flags.DEFINE_string(
  'export', None, 'Instead of listing, write this frozen evaluation set to a file.'
)
_OUT = flags.DEFINE_string(
  'out', None, 'File for --export. Default: the name of the set with .npz.'
)


def main() -> None:
  if _OUT.value is not None and _EXPORT.value is None:
    raise UserError('--out is the file of --export, which is missing')
  # Imported here so that a mistyped flag is reported at once.
  from zoo.studies import cards

  if _EXPORT.value is not None:
    out = user_path(_OUT.value or f'{_EXPORT.value}.npz')
    found = zoo.evaluation_sets.export(_EXPORT.value, out)
    print(f'{out}: {len(found.prompt.y_query)} prompts, sha256 {found.sha256}')
    return
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
  print('evaluation sets')
  for spec in zoo.evaluation_sets.SPECS:
    print(f'  {spec.name:<16} {spec.num_prompts} prompts. {spec.description}')


def _table(found: list[Card]) -> str:
  from zoo.studies import cards

  if not found:
    return '  none; the repository ships some'
  return format_table(list(map(cards.row, found)), ('', *cards.FIGURES), indent=2)


if __name__ == '__main__':
  cli.run(main)
