"""Measures the baselines of every task and compares them with known values.

  python -m benchmarks.baselines
  python -m benchmarks.baselines --task=sparse_regression --num_prompts=16384
  python -m benchmarks.baselines --num_prompts=2048 --out=docs/results/baselines.csv

The known values come from formulas and from other code. docs/baselines has them with
their sources. In the printed table ± is half of a 95 % interval; the file has standard
errors.
"""

from absl import flags
from tqdm import tqdm

from launch import cli
from zoo.core.errors import RunError, check_count, check_name
from zoo.core.tables import to_csv
from zoo.host.files import user_path, write_atomically

flags.adopt_module_key_flags(cli)
_TASKS = flags.DEFINE_multi_string(
  'task', [], 'Only this task; repeat for more. Default: all.'
)
_NUM_PROMPTS = flags.DEFINE_integer(
  'num_prompts', 8192, 'Prompts for each baseline, at most 600 for scikit-learn.'
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the prompts.')
_VALUES = flags.DEFINE_string(
  'values', 'docs/baselines', 'Folder of CSV files with the known values.'
)
_OUT = flags.DEFINE(cli.File(), 'out', None, 'CSV file to write the table into.')

_LIMIT = 4  # This is in standard errors.


def main() -> None:
  num_prompts = check_count('--num_prompts', _NUM_PROMPTS.value, minimum=2)
  seed = check_count('--seed', _SEED.value, minimum=0)
  out = _OUT.value
  # Imported here so that a mistyped flag is reported at once.
  from benchmarks import reference_values
  from zoo.reports import Table

  references = reference_values.read_references(user_path(_VALUES.value))
  known = sorted({reference.task for reference in references})
  for name in _TASKS.value:
    check_name('task with known values', name, known)
  wanted = _TASKS.value or known
  references = [reference for reference in references if reference.task in wanted]
  measured = reference_values.measure(references, num_prompts, seed)
  rows = list(tqdm(measured, 'baselines', len(references), unit='value', disable=None))
  header = ['task', 'baseline', 'k', 'quantity', 'known', 'measured', 'deviation']
  print(Table([row.cells() for row in rows], header).text())
  if out is not None:
    records = [row.record() for row in rows]
    write_atomically(out, to_csv(records[0], records))
  # A deviation is expected where the source says why the values differ.
  expected = [row for row in rows if row.reference.source.startswith('differs')]
  beyond = [row for row in rows if abs(row.deviation) > _LIMIT and row not in expected]
  print(f'{len(rows)} values, {len(beyond)} beyond {_LIMIT} standard errors')
  if beyond:
    raise RunError(f'{len(beyond)} values differ from the known ones')


if __name__ == '__main__':
  cli.run(main)
