"""Compares in-context learning with methods of scikit-learn on a table.

python -m launch.tabular --dataset=diabetes --rows=50
python -m launch.tabular --data=houses.csv --target=price
python -m launch.tabular --data=survey.csv --target=answer --task=classification
python -m launch.tabular --dataset=iris --model=runs/a --splits=20 --workdir=runs/iris

The rows of the table are split at random several times. In each split some rows are the
context of the model, whose weights do not change, and all other rows are queries. The
other methods are fitted to the same rows of the context: ridge or logistic regression,
a Gaussian process (only for numbers), a random forest, gradient boosting and nearest
neighbours. studies/tabular/methods.py has their settings, which are the defaults of
scikit-learn unless it says otherwise.

A CSV file has a header, and cells between commas, semicolons or tabs. Features are
numbers, or true and false; text must be encoded first. A cell that is empty, NA, NaN,
null or ? is missing: checkpoints/tabular reads missing cells as such, and the other
methods get the mean of the column.

A target with texts, with true and false, or with two different integers is classes. A
target with fractions or with more than 20 different integers is numbers. For any other
target give --task.

The folder gets results.csv, report.html, a picture of the calibration with a CSV of its
numbers, and rows.jsonl. Rerun the same command to resume after an interruption.
"""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING

from absl import flags

from launch import cli
from launch.drawing import Drawing
from zoo.core.errors import UserError
from zoo.host.files import typed_path, user_path, write_atomically

if TYPE_CHECKING:
  from studies.tabular.scores import Comparison, Trial
  from studies.tabular.tables import Table


class _Rows(flags.ArgumentParser[int | float]):
  """A parser of a number of rows, or of a share of them."""

  syntactic_help = 'an integer ≥ 2, or a share between 0 and 1, such as 0.5'

  def parse(self, argument: str | int | float) -> int | float:
    text = str(argument)
    if re.fullmatch(r'[0-9]{1,9}', text) and int(text) > 1:
      return int(text)
    if re.fullmatch(r'0?\.[0-9]+', text) and float(text) > 0:
      return float(text)
    raise ValueError(
      'it must be a number of rows ≥ 2, or a share of them between 0 and 1, such as 50 '
      'or 0.5'
    )


flags.adopt_module_key_flags(cli)
_DATA = flags.DEFINE_string('data', None, 'CSV file with a header.')
_TARGET = flags.DEFINE_string('target', None, 'Column of `--data` to predict.')
_DATASET = flags.DEFINE_string(
  'dataset',
  None,
  'In place of `--data`: a table that comes with scikit-learn.',
)
_TASK = flags.DEFINE_enum(
  'task',
  None,
  ['classification', 'regression'],
  'Whether the target of `--data` is classes or numbers. Default: the values of the '
  'target decide.',
)
_MODEL = flags.DEFINE_string(
  'model',
  'checkpoints/tabular',
  'Model to compare: the workdir of a run, its folder `checkpoints`, or what '
  '`zoo.save` or `zoo.export` wrote.',
)
_SPLITS = flags.DEFINE_integer(
  'splits', 10, 'Number of random splits, with the seeds 0, 1, …', lower_bound=2
)
_ROWS = flags.DEFINE(
  _Rows(), 'rows', 0.5, 'Number of rows of the context, or their share of all rows.'
)
_WORKDIR = flags.DEFINE(
  cli.Folder(),
  'workdir',
  None,
  'Folder for the results. Default: `checkpoints/runs/tabular-` and a name made of the '
  'table, the target and the rows.',
)
_DRAWING = Drawing(has_formats=True)
_PICTURE = 'calibration.png'


def main() -> None:
  if (_DATA.value is None) == (_DATASET.value is None):
    raise UserError(
      'give either --data=FILE.csv with --target=COLUMN, or --dataset=diabetes'
    )
  for flag in (_TARGET, _TASK) if _DATASET.present else ():
    if flag.value is not None:
      raise UserError(f'--{flag.name} belongs to --data')
  _DRAWING.check()
  out = cli.folder_of(_WORKDIR)
  # Imported here so that a mistyped flag is reported at once, and so that a missing
  # scikit-learn is reported in one line.
  import zoo.sklearn  # noqa: F401
  from studies.tabular.scores import Trial, compare

  table = _table()
  trial = Trial(table, _MODEL.value, _SPLITS.value, _ROWS.value)
  if out is None:
    words = [table.name, *([] if _DATASET.present else [table.target])]
    name = '-'.join(['tabular', *words, f'rows={_ROWS.value}'])
    name = re.sub(r'[^\w.=-]+', '_', name)
    out = user_path(f'checkpoints/runs/{name}')
  comparison = compare(trial, out)
  if comparison is not None:
    _write(trial, comparison, out)
  where = (
    f'the report is {out / "report.html"}, the numbers are in {out / "results.csv"}'
  )
  cli.print_results(comparison, str, where, out)


def _table() -> Table:
  """Returns the table that the flags name; raises UserError if it cannot be read."""
  from studies.tabular import tables

  if _DATA.value is None:
    return tables.shipped(_DATASET.value or '')
  path = typed_path(_DATA.value)
  if _TARGET.value is None:
    names = ', '.join(tables.header_of(path))
    raise UserError(f'--target is missing; the columns of {path} are {names}')
  return tables.read_table(path, _TARGET.value, _TASK.value)


def _write(trial: Trial, comparison: Comparison, out: pathlib.Path) -> None:
  """Writes the table, the picture and the page; raises UserError if a file fails."""
  from studies.tabular.report import calibration_picture, page

  figure = None
  with cli.writing(out):
    comparison.to_csv(out / 'results.csv')
    if comparison.calibration is not None:
      with _DRAWING.wishes():
        figure = calibration_picture(trial, comparison.calibration)
      _DRAWING.save(figure, out / _PICTURE)
    whole = page(trial, comparison, figure, _DRAWING.formats)
    write_atomically(out / 'report.html', whole)


if __name__ == '__main__':
  cli.run(main)
