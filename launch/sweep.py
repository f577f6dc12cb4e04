"""Trains a config with many values of some fields, and writes a table of the results.

  python -m launch.sweep --config=configs/multi_head_lsa.py \\
      --sweep=task.prior_mean=0,0.5,1 --sweep=seed=0..4

Every combination of the values is a point of the sweep. Fields whose values go together
are given in one flag: --sweep=model.mixer,model.hidden_features=softmax:137,delta:128.

Points that differ only in the seed, the learning rate or the scale of the initial
weights are trained side by side in one compiled program, which is faster. The scale is
an exception in a model that uses it for more than its initial weights. In most models
numbers of the task, such as the prior mean and the noise, may also differ.

Rerun the same command to resume after an interruption. Rerun it with more values to add
points.

N processes divide the points if each is started with --part=I/N, I = 1, …, N; they
share only the folder. Afterwards the command without --part writes the table:

  sbatch --array=1-4 --requeue --wrap \\
      'python -m launch.sweep --config=… --sweep=… --part=$SLURM_ARRAY_TASK_ID/4'
"""

import functools

from absl import flags

from launch import cli, config_flag
from launch.axes import parse_all
from zoo.host.files import user_path
from zoo.training import sweeps

flags.adopt_module_key_flags(cli)
_CONFIG = config_flag.define(
  'Config file, with variants of it after a colon, as for `launch.main`.'
)
_SWEEP = flags.DEFINE_multi_string(
  'sweep',
  [],
  'Field of the config and its values: `task.prior_mean=0,0.5,1`, or `seed=0..4` with '
  'both ends included. If the flag is repeated, all combinations of the values are '
  'trained. Fields whose values go together stand in one flag: '
  '`model.mixer,model.hidden_features=softmax:137,delta:128`.',
)
_WORKDIR = flags.DEFINE(
  cli.Workdir(),
  'workdir',
  None,
  'Folder of the sweep, or `gs://bucket/folder`. Default: `checkpoints/runs/sweep-` '
  'and the name of the config.',
)
_PART = cli.define_part('points')


def main() -> None:
  config = config_flag.get(_CONFIG)
  axes, names = parse_all(_SWEEP.value)
  default = f'checkpoints/runs/sweep-{config_flag.run_name(_CONFIG)}'
  workdir, part = _WORKDIR.value or user_path(default), _PART.value
  table = functools.partial(sweeps.format_table, fields=names)
  where = f'the table is in {workdir}/table.csv'
  try:
    rows = sweeps.sweep(config, sweeps.grid(axes), workdir, part)
  except sweeps.LostPointsError as error:
    if part is None:
      cli.print_results(error.table, table, where, workdir)
    raise
  cli.print_results(rows, table, where, workdir, part)


if __name__ == '__main__':
  cli.run(main)
