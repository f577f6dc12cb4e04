"""Lists the models, tasks, configs, trained checkpoints and evaluation sets.

python -m launch.catalog
python -m launch.catalog --export=table_1 --out=table_1.npz   # for NumPy, PyTorch
python -m launch.catalog --fields=docs/fields.md   # the page of all fields
python -m launch.catalog --train   # retrains the shipped checkpoints: one minute
"""

import sys
from typing import Any

from absl import flags

import configs
import zoo
import zoo.core.registry
from launch import cli
from launch.fields import page
from zoo.core.errors import UserError
from zoo.core.tables import format_table
from zoo.host.files import shipped_checkpoints, user_path

flags.adopt_module_key_flags(cli)
_CHECKPOINTS = flags.DEFINE_string(
  'checkpoints',
  None,
  'Folder of checkpoints with cards. Default: the shipped ones; with --train, the '
  'folder checkpoints.',
)
_TRAIN = flags.DEFINE_bool(
  'train',
  False,
  'Retrain all shipped checkpoints; write their cards and the index.',
)
_EXPORT = flags.DEFINE_string(
  'export', None, 'Instead of listing, write this frozen evaluation set to a file.'
)
_FIELDS = flags.DEFINE_string(
  'fields', None, 'Instead of listing, write the page of all fields to this file.'
)
_OUT = flags.DEFINE_string(
  'out', None, 'File for --export. Default: the name of the set with .npz.'
)

# The config of each checkpoint, and the fields changed in it.
SHIPPED = {
  'lsa': ('lsa', {}),
  **{
    f'multi_head_lsa_{heads}': ('multi_head_lsa', {'model.num_heads': heads})
    for heads in (2, 5, 10, 11)
  },
  'yq_lsa': ('yq_lsa', {}),
  'ltb': ('ltb', {}),
}


def main() -> None:
  shipped = 'checkpoints' if _TRAIN.value else shipped_checkpoints()
  folder = cli.folder_of(_CHECKPOINTS, shipped)
  if folder.exists() and not folder.is_dir():
    raise UserError(f'--checkpoints is {_CHECKPOINTS.value!r}, which is not a folder')
  if _CHECKPOINTS.value is not None and not (folder.exists() or _TRAIN.value):
    raise UserError(f'the folder of --checkpoints, {folder}, does not exist')
  if _EXPORT.value is not None and _TRAIN.value:
    raise UserError('--export and --train are both given; give only one of them')
  if _OUT.value is not None and _EXPORT.value is None:
    raise UserError('--out is the file of --export, which is missing')
  if (file := cli.file_of(_FIELDS)) is not None:
    file.write_text(page(), encoding='utf-8')
    return
  # Imported here so that a mistyped flag is reported at once.
  from zoo.studies import cards

  if _EXPORT.value is not None:
    out = user_path(_OUT.value or f'{_EXPORT.value}.npz')
    found = zoo.evaluation_sets.export(_EXPORT.value, out)
    print(f'{out}: {len(found.prompt.y_query)} prompts, sha256 {found.sha256}')
    return
  if _TRAIN.value and cards.write_checkpoints(_recipes(), folder) is None:
    print('stopped before the end; nothing is written')
    sys.exit(cli.STOPPED)
  print(f'models       {", ".join(zoo.list_models())}')
  print(f'mixers       {", ".join(zoo.list_mixers())}')
  print('tasks (--config=FILE:task=NAME)')
  for name in zoo.list_tasks():
    summary = (zoo.core.registry.tasks.get(name).__doc__ or '\n').splitlines()[0]
    print(f'  {name}'.ljust(38), summary)
  print('configs')
  for name in configs.names():
    summary = configs.about(name).splitlines()[0]
    print(f'  configs/{name}.py'.ljust(38), summary)
  print(f'checkpoints in {folder}')
  print(_table(cards.read_cards(folder)))
  print('evaluation sets')
  for spec in zoo.evaluation_sets.SPECS:
    print(f'  {spec.name:<16} {spec.num_prompts} prompts. {spec.description}')


def _recipes() -> dict[str, tuple[Any, str]]:
  """The config of each shipped checkpoint, and the command that trains it."""
  from zoo.studies import cards
  from zoo.training import sweeps

  recipes = {}
  for name, (config_name, fields) in SHIPPED.items():
    fields = {**fields, 'objective.name': 'exact'}
    config = configs.get_config(config_name)
    command = cards.training_command(f'configs/{config_name}.py', fields)
    recipes[name] = sweeps.at_point(config, fields), command
  return recipes


def _table(found: list[dict]) -> str:
  from zoo.studies import cards

  if not found:
    return '  none; the repository ships some, and --train creates them'
  return format_table(list(map(cards.row, found)), ('', *cards.FIGURES), indent=2)


if __name__ == '__main__':
  cli.run(main)
