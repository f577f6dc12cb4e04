"""Trains the model of a config, or resumes the run in the workdir.

  python -m launch.main --config=configs/yq_lsa.py
  python -m launch.main --config=configs/yq_lsa.py:smoke --workdir=runs/demo
  python -m launch.main --config=configs/yq_lsa.py --config.train.num_steps=200 \\
      --workdir=runs/short

After an interruption, rerun the same command to resume.

For several processes of one run use --distributed on a TPU pod, SLURM, Open MPI 4 or
GKE; elsewhere --coordinator, --num_processes and --process_id. See docs/scaling.md.
"""

from __future__ import annotations

import faulthandler
import pathlib
from typing import TYPE_CHECKING

from absl import flags, logging

import zoo
from launch import cli, config_flag
from zoo.core.errors import UserError
from zoo.host import processes

if TYPE_CHECKING:  # slow to import
  from zoo.config.building import Config

flags.adopt_module_key_flags(cli)
_CONFIG = config_flag.define(
  'Config file, with an optional variant: configs/yq_lsa.py:paper.'
)
_WORKDIR = cli.define(
  cli.workdir,
  'workdir',
  None,
  'Folder of the run, or gs://bucket/folder. Default: checkpoints/runs/FILE-VARIANT; '
  'a config that other flags change needs another folder.',
)
_INIT_FROM = flags.DEFINE_string(
  'init_from',
  None,
  'Run, checkpoint or saved model from whose weights training starts; it may be of '
  'another task or optimizer. The same as --config.train.init_from.',
)
_DISTRIBUTED = flags.DEFINE_bool(
  'distributed',
  None,
  'Join the processes that a TPU pod, SLURM, Open MPI 4 or GKE has started.',
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'Join several processes: HOST:PORT of process 0, any free port.'
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'The number of processes.', lower_bound=1
)
_PROCESS_ID = flags.DEFINE_integer(
  'process_id', None, 'The id of this process, from 0.', lower_bound=0
)


def main() -> None:
  from zoo.config.validation import check_fields  # slow to import

  config = config_flag.get(_CONFIG)
  check_fields(config)
  if _INIT_FROM.value is not None:
    config.train.init_from = _INIT_FROM.value
  default = pathlib.Path('checkpoints/runs', config_flag.run_name(_CONFIG))
  workdir = _WORKDIR.value or default
  _join(config)
  _check_same('--workdir', str(workdir), 'the same folder')
  summary = zoo.train(config, workdir)
  cli.print_results(summary, zoo.training.table, f'all files are in {workdir}', workdir)


def _join(config: Config) -> None:
  """Joins the other processes if the flags ask for it; raises UserError."""
  address = _address()
  if address is None and not _DISTRIBUTED.value:
    return
  if address is not None and _DISTRIBUTED.value is False:
    raise UserError('--nodistributed contradicts --coordinator; give one of the two')
  coordinator, number, this = address or (None, None, None)
  # JAX aborts a process that loses the others, and says why; a trace adds nothing.
  faulthandler.disable()
  processes.join(
    config.mesh.heartbeat_timeout,
    config.mesh.start_timeout,
    coordinator,
    number,
    this,
  )
  if processes.index() != 0:
    logging.set_verbosity(logging.WARNING)


def _address() -> tuple[str, int, int] | None:
  """The coordinator, the number of processes and the id of this one, if given."""
  number, this = _NUM_PROCESSES.value, _PROCESS_ID.value
  if _COORDINATOR.value is number is this is None:
    return None
  if _COORDINATOR.value is None or number is None or this is None:
    raise UserError(
      '--coordinator, --num_processes and --process_id belong together; give all '
      'three, or use --distributed'
    )
  if this >= number:
    raise UserError(
      f'--process_id is {this}; it must be below --num_processes, which is {number}'
    )
  return processes.check_address('--coordinator', _COORDINATOR.value), number, this


def _check_same(flag: str, value: str | None, same: str) -> None:
  """Raises UserError, before anything is written, if process 0 has another value."""
  first = processes.run_on_main(lambda: value)
  with processes.propagate_errors():
    if value != first:
      raise UserError(
        f'{flag} is {value}, but {first} on process 0; it must be {same} for all '
        'processes'
      )


if __name__ == '__main__':
  cli.run(main)
