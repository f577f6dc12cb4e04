"""Trains a config at many points and writes a table of the results.

  python -m launch.sweep --config=configs/multi_head_lsa.py \\
      --sweep=task.prior_mean=0,0.5,1 --sweep=seed=0..4

Every combination of the values is a point; fields whose values go together are given
in one flag: --sweep=model.mixer,model.hidden_features=softmax:137,delta:128.

Points of linear attention that differ only in prior mean, noise, initial guess or bias,
or number of heads share one program and its prompts. Points of other models that differ
only in seed, learning rate or initial scale share one program, unless the model uses
the scale for more than its first weights. Rerun the same command to resume after an
interruption, or with more values to add points.

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
from typing import Any

from absl import flags

from launch import cli, config_flag
from zoo.core.errors import UserError

# One field, or several whose values go together.
Fields = str | tuple[str, ...]

flags.adopt_module_key_flags(cli)
_CONFIG = config_flag.define(
  'Config file, with an optional variant, as for launch.main.'
)
_SWEEP = flags.DEFINE_multi_string(
  'sweep',
  [],
  'A field and its values: task.prior_mean=0,0.5,1 or seed=0..4 (both ends included); '
  'repeat for more fields, which are crossed. Fields whose values go together: '
  'model.mixer,model.hidden_features=softmax:137,delta:128.',
)
_WORKDIR = flags.DEFINE(
  cli.Workdir(),
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
  axes: dict[Fields, Sequence[object]] = {}
  names: list[str] = []
  for text in _SWEEP.value:
    fields, values = parse(text)
    axes[fields] = values
    names += [fields] if isinstance(fields, str) else fields
  for name in names:
    if names.count(name) > 1:
      raise UserError(f'--sweep gives {name} twice')
  _check_number(math.prod(map(len, axes.values())))
  default = pathlib.Path('checkpoints/runs', f'sweep-{config_flag.run_name(_CONFIG)}')
  workdir, part = _WORKDIR.value or default, _PART.value
  # Imported here so that a mistyped flag is reported at once.
  from zoo.training import sweeps

  table = functools.partial(sweeps.format_table, fields=names)
  where = f'the table is in {workdir}/table.csv'
  try:
    rows = sweeps.sweep(config, sweeps.grid(axes), workdir, part)
  except sweeps.LostPointsError as error:
    if part is None:
      cli.print_results(error.table, table, where, workdir)
    raise
  cli.print_results(rows, table, where, workdir, part)


def parse(text: str) -> tuple[Fields, Sequence[Any]]:
  """The field and the values of a --sweep; raises UserError.

  Several fields, which go together, have a tuple of values for each point. Values are
  JSON (numbers, lists, true, null), True, False, None, or else words.
  """
  field, equals, values = text.partition('=')
  if not (field and equals and values):
    raise UserError(f'--sweep is {text!r}; it must be field=value,value,...')
  if ',' in field:
    return _parse_together(text, field.split(','), values)
  if between := re.fullmatch(r'(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})', values):
    first, last = map(int, between.groups())
    if last < first:
      raise UserError(f'--sweep={text} is empty: {last} is less than {first}')
    _check_number(last - first + 1)
    return field, list(range(first, last + 1))
  try:
    return field, json.loads(f'[{values}]')
  except ValueError:
    return field, [_number_or_word(value) for value in values.split(',')]
  except RecursionError:
    raise UserError(f'the values of --sweep={field} are nested too deeply') from None


def _parse_together(
  text: str, fields: list[str], values: str
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
  """Fields whose values go together, and a tuple of values for each point."""
  points = [_split(point, ':') for point in _split(values, ',')]
  for point in points:
    if len(point) != len(fields) or '' in (*point, *fields):
      raise UserError(
        f'--sweep is {text!r}; {":".join(point)!r} must have {len(fields)} values with '
        f'colons between them, one for each of {", ".join(fields)}'
      )
  return tuple(fields), [tuple(map(_number_or_word, point)) for point in points]


def _split(text: str, separator: str) -> list[str]:
  """The parts of a text between separators that stand outside of lists and quotes."""
  parts, depth, is_quoted = [''], 0, False
  for letter in text:
    is_quoted ^= letter == '"'
    depth += (letter == '[') - (letter == ']')
    if letter == separator and not depth and not is_quoted:
      parts.append('')
    else:
      parts[-1] += letter
  return parts


# What Python writes for values that JSON has, too.
_PYTHON = {'None': None, 'True': True, 'False': False}


def _number_or_word(text: str) -> object:
  try:
    return _PYTHON[text] if text in _PYTHON else json.loads(text)
  except ValueError:
    return text
  except RecursionError:
    raise UserError('a value of --sweep is nested too deeply') from None


def _check_number(number: int) -> None:
  if number > _MAX_POINTS:
    raise UserError(f'--sweep gives {number} points; the limit is {_MAX_POINTS}')


if __name__ == '__main__':
  cli.run(main)
