"""Trains the model that a config names, or goes on with what the workdir holds.

  python -m launch.main --config=configs/yq_lsa.py
  python -m launch.main --config=configs/yq_lsa.py:smoke --workdir=runs/demo
  python -m launch.main --config=configs/yq_lsa.py --config.train.num_steps=200

Run the same command again to go on after an interruption.

Many processes of one run: --distributed on a TPU pod, SLURM, Open MPI 4 or GKE;
elsewhere --coordinator, --num_processes and --process_id. docs/scaling.md tells more.
"""

import faulthandler
import pathlib
from typing import Any

from absl import flags, logging
from ml_collections import config_flags

from launch import cli
from zoo import processes
from zoo.errors import UserError, check_count

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
_DISTRIBUTED = flags.DEFINE_bool(
  'distributed',
  None,
  'Be one process of many, as the TPU pod, SLURM, Open MPI 4 or GKE says.',
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'Be one process of many: HOST:PORT of process 0, any free port.'
)
_NUM_PROCESSES = flags.DEFINE_integer('num_processes', None, 'How many there are.')
_PROCESS_ID = flags.DEFINE_integer('process_id', None, 'Which one this is, from 0.')


def main() -> None:
  config = cli.config_of(_CONFIG)
  _join(config)
  default = pathlib.Path('checkpoints/runs', cli.run_name(_CONFIG))
  workdir = cli.folder_of(_WORKDIR, default)
  # Imported here so that a mistyped flag is answered at once.
  from zoo.training import table, train

  summary = train(config, workdir)
  if processes.index() != 0:
    return
  if summary is None:
    print(f'stopped; the same command goes on from what is saved in {workdir}')
  else:
    print(f'\n{table(summary)}\n\nall of it is in {workdir}')


def _join(config: Any) -> None:
  """Joins the other processes, if the flags tell of any; raises UserError."""
  place = _place()
  if place is None and not _DISTRIBUTED.value:
    return
  if place is not None and _DISTRIBUTED.value is False:
    raise UserError('--nodistributed contradicts --coordinator; give one of the two')
  from zoo.config import validate_fields

  # What can be known without the others.
  validate_fields(config, several_processes=True)
  coordinator, number, this = place or (None, None, None)
  timeouts = config.mesh.heartbeat_timeout, config.mesh.start_timeout
  processes.join(*timeouts, coordinator, number, this)
  # JAX aborts when another process is lost, and says why: our stack would hide that.
  faulthandler.disable()
  if processes.index() != 0:
    logging.set_verbosity(logging.WARNING)


def _place() -> tuple[str, int, int] | None:
  """The coordinator, the number of processes and which this is, if flags tell them."""
  all_flags = _COORDINATOR, _NUM_PROCESSES, _PROCESS_ID
  given = [f'--{flag.name}' for flag in all_flags if flag.value is not None]
  missing = [f'--{flag.name}' for flag in all_flags if flag.value is None]
  if not given:
    return None
  if missing:
    raise UserError(
      f'{given[0]} is given without {" and ".join(missing)}; the three go together, or '
      '--distributed finds them out'
    )
  coordinator = str(_COORDINATOR.value)
  host, _, port = coordinator.rpartition(':')
  if not (host and port.isdecimal() and 0 < int(port) < 2**16):
    raise UserError(f'--coordinator is {coordinator!r}; it must be HOST:PORT')
  number = check_count('--num_processes', _NUM_PROCESSES.value)
  this = check_count('--process_id', _PROCESS_ID.value, minimum=0)
  if this >= number:
    raise UserError(
      f'--process_id is {this}; it must be below --num_processes, which is {number}'
    )
  return coordinator, number, this


if __name__ == '__main__':
  cli.run(main)
