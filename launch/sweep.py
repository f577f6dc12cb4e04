"""Trains a config at many points and writes a table of the results.

  python -m launch.sweep --config=configs/multi_head_lsa.py \\
      --sweep=task.prior_mean=0,0.5,1 --sweep=seed=0..4

Every combination of the values is a point. Points of linear attention that differ only
in prior mean, noise, initial guess or bias, or number of heads share one program and
its prompts. Points of other models that differ only in seed, learning rate or initial
scale share one program, unless the model uses the scale for more than its first
weights. Rerun the same command to resume after an interruption, or with more values to
add points.

N processes divide the points if each is started with --part=I/N, I = 1, …, N; they
share only the folder. Afterwards the command without --part writes the table:

  sbatch --array=1-4 --requeue --wrap \\
      'python -m launch.sweep --config=… --sweep=… --part=$SLURM_ARRAY_TASK_ID/4'
"""

import functools
import json
import math
import pathlib
import re
from collections.abc import Sequence

from absl import flags

from launch import cli, config_flag
from zoo.core.errors import UserError

flags.adopt_module_key_flags(cli)
_CONFIG = config_flag.define(
  'Config file, with an optional variant, as for launch.main.'
)
_SWEEP = flags.DEFINE_multi_string(
  'sweep',
  [],
  'A field and its values: task.prior_mean=0,0.5,1 or seed=0..4 (both ends included); '
  'repeat for more fields.',
)
_WORKDIR = cli.define(
  cli.workdir,
  'workdir',
  None,
  'Folder of the sweep. Default: checkpoints/runs/sweep- and the name of the config.',
)
_PART = cli.define_part('points')
_MAX_POINTS = 100_000  # each has its own folder


def main() -> None:
  config = config_flag.get(_CONFIG)
  if not _SWEEP.value:
    raise UserError('--sweep is missing; try --sweep=task.prior_mean=0,0.5,1')
  axes: dict[str, Sequence[object]] = {}
  for text in _SWEEP.value:
    field, values = parse(text)
    if field in axes:
      raise UserError(f'--sweep gives {field} twice')
    axes[field] = values
  _check_number(math.prod(map(len, axes.values())))
  default = pathlib.Path('checkpoints/runs', f'sweep-{config_flag.run_name(_CONFIG)}')
  workdir, part = _WORKDIR.value or default, _PART.value
  # Imported here so that a mistyped flag is reported at once.
  from zoo.training import sweeps

  rows = sweeps.sweep(config, sweeps.grid(axes), workdir, part)
  table = functools.partial(sweeps.format_table, fields=list(axes))
  where = f'the table is in {workdir}/table.csv'
  cli.print_results(rows, table, where, workdir, part)


def parse(text: str) -> tuple[str, Sequence[object]]:
  """The field and the values of a --sweep; raises UserError.

  Values are JSON (numbers, lists, true, null), None, or else words.
  """
  field, equals, values = text.partition('=')
  if not (field and equals and values):
    raise UserError(f'--sweep is {text!r}; it must be field=value,value,...')
  if between := re.fullmatch(r'(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})', values):
    first, last = map(int, between.groups())
    if last < first:
      raise UserError(f'--sweep={text} is empty: {last} is less than {first}')
    _check_number(last - first + 1)
    return field, list(range(first, last + 1))
  try:
    return field, json.loads(f'[{values}]')
  except ValueError:
    return field, [_number_or_word(one) for one in values.split(',')]
  except RecursionError:
    raise UserError(f'the values of --sweep={field} are nested too deeply') from None


def _number_or_word(text: str) -> object:
  try:
    return None if text == 'None' else json.loads(text)
  except ValueError:
    return text


def _check_number(number: int) -> None:
  if number > _MAX_POINTS:
    raise UserError(f'--sweep gives {number} points; the limit is {_MAX_POINTS}')


if __name__ == '__main__':
  cli.run(main)
