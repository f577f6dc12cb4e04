"""Trains the model that a config names, or goes on with what the workdir holds.

  python -m launch.main --config=configs/yq_lsa.py
  python -m launch.main --config=configs/yq_lsa.py:smoke --workdir=runs/demo
  python -m launch.main --config=configs/yq_lsa.py --config.train.num_steps=200

Run the same command again to go on after an interruption.
"""

import pathlib

from absl import flags
from ml_collections import config_flags

from launch import cli

flags.adopt_module_key_flags(cli)
_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string='Config file, with an optional variant: configs/yq_lsa.py:paper. A field '
  'of it is set with --config.section.field=value.',
)
_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  'Folder of the run. Default: checkpoints/runs/ and the name of the config.',
)


def main() -> None:
  config = cli.config_of(_CONFIG)
  default = pathlib.Path('checkpoints/runs', cli.run_name(_CONFIG))
  workdir = cli.folder_of(_WORKDIR, default)
  # Imported here so that a mistyped flag is answered at once.
  from zoo.training import table, train

  summary = train(config, workdir)
  if summary is None:
    print(f'stopped; the same command goes on from what is saved in {workdir}')
  else:
    print(f'\n{table(summary)}\n\nall of it is in {workdir}')


if __name__ == '__main__':
  cli.run(main)
