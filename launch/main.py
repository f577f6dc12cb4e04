"""Trains the model of a config, or resumes the run in the workdir.

  python -m launch.main --config=configs/yq_lsa.py
  python -m launch.main --config=configs/yq_lsa.py:smoke --workdir=runs/demo
  python -m launch.main --config=configs/yq_lsa.py --config.train.num_steps=200 \\
      --workdir=runs/short

After an interruption, rerun the same command to resume.

Several processes can train one run: use --distributed on a TPU pod, SLURM, Open MPI 4
or GKE, and --coordinator, --num_processes and --process_id elsewhere. docs/scaling.md
explains both.
"""

from __future__ import annotations

import faulthandler

from absl import flags, logging

import zoo
from launch import cli, config_flag
from zoo.config.read import read, with_fields
from zoo.config.run import Run
from zoo.core.errors import UserError
from zoo.host import processes
from zoo.host.files import user_path

flags.adopt_module_key_flags(cli)
_CONFIG = config_flag.define(
  'Config file, with variants of it after a colon: `configs/yq_lsa.py:smoke`. The '
  'folder `configs` of the repository is found from any folder.'
)
_WORKDIR = flags.DEFINE(
  cli.Workdir(),
  'workdir',
  None,
  'Folder of the run, or `gs://bucket/folder`. If you change fields of the config by '
  'flags, give another folder. Default: `checkpoints/runs/FILE-VARIANT`.',
)
_INIT_FROM = flags.DEFINE_string(
  'init_from',
  None,
  'Run, checkpoint or saved model from whose weights training starts. It may have been '
  'trained on another task or with another optimizer. The field '
  '`--config.train.init_from` is the same. Default: new weights, drawn by the seed.',
)
_WANDB = flags.DEFINE_string(
  'wandb',
  None,
  'Name of a project at Weights & Biases, to which the run is logged as well. This '
  'needs the extra `wandb`. Default: no project.',
)
_DISTRIBUTED = flags.DEFINE_bool(
  'distributed',
  None,
  'Train one run with all processes that a TPU pod, SLURM, Open MPI 4 or GKE has '
  'started.',
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator',
  None,
  'Address of process 0, with a free port: `HOST:PORT`. With `--num_processes` and '
  '`--process_id` it joins processes that you have started yourself.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'Number of processes that train the run.', lower_bound=1
)
_PROCESS_ID = flags.DEFINE_integer(
  'process_id', None, 'Index of this process, counted from 0.', lower_bound=0
)


def main() -> None:
  config = read(config_flag.get(_CONFIG))
  if _INIT_FROM.value is not None:
    config = with_fields(config, {'train.init_from': _INIT_FROM.value})
  workdir = _WORKDIR.value
  if workdir is None:
    workdir = user_path(f'checkpoints/runs/{config_flag.run_name(_CONFIG)}')
  hooks = [] if _WANDB.value is None else [zoo.WandbWriter(_WANDB.value)]
  address = _COORDINATOR, _NUM_PROCESSES, _PROCESS_ID
  if _DISTRIBUTED.value or any(flag.value is not None for flag in address):
    _join(config, str(workdir))
  summary = zoo.train(config, workdir, hooks, compare=True)
  cli.print_results(summary, zoo.training.table, f'all files are in {workdir}', workdir)


def _join(config: Run, workdir: str) -> None:
  """Joins the other processes as the flags say, before anything is written.

  Raises:
    UserError: If the flags contradict one another, or if process 0 has another workdir.
  """
  coordinator = _COORDINATOR.value
  number, this = _NUM_PROCESSES.value, _PROCESS_ID.value
  if coordinator is not None and number is not None and this is not None:
    if this >= number:
      raise UserError(
        f'--process_id is {this}; it must be below --num_processes, which is {number}'
      )
    processes.check_address('--coordinator', coordinator)
    if _DISTRIBUTED.value is False:
      raise UserError('--nodistributed contradicts --coordinator; give one of the two')
  elif {coordinator, number, this} != {None}:
    raise UserError(
      '--coordinator, --num_processes and --process_id belong together; give all '
      'three, or use --distributed'
    )
  # JAX aborts a process that loses the others, and prints why. A trace of all threads
  # would add nothing.
  faulthandler.disable()
  processes.join(
    config.mesh.heartbeat_timeout,
    config.mesh.start_timeout,
    coordinator=coordinator,
    num_processes=number,
    process_id=this,
  )
  if processes.index() != 0:
    logging.set_verbosity(logging.WARNING)
  first = processes.run_on_main(lambda: workdir)
  with processes.propagate_errors():
    if workdir != first:
      raise UserError(
        f'--workdir is {workdir}, but {first} on process 0; it must be the same folder '
        'for all processes'
      )


if __name__ == '__main__':
  cli.run(main)
