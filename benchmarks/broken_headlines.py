"""Measures the negative control of each headline: a model that is broken on purpose.

  python -m benchmarks.broken_headlines --out=docs/results/broken_headlines.csv
  python -m benchmarks.broken_headlines one_step recall

studies/headlines/broken.py says what is broken in which headline. One seed is measured.
The command prints which ranges of each headline the control misses. All headlines take
about a quarter of an hour on two cores.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Sequence

from absl import flags
from tqdm import tqdm

from launch import cli
from zoo.core.errors import check_name
from zoo.core.tables import to_csv
from zoo.host.files import write_atomically

flags.adopt_module_key_flags(cli)
_OUT = flags.DEFINE(cli.File(), 'out', None, 'CSV file to write all numbers into.')


def main(names: Sequence[str]) -> None:
  # Imported here so that a mistyped flag is reported at once.
  from studies.headlines import HEADLINES, broken

  for name in names:
    check_name('headline', name, HEADLINES)
  rows: list[list[str]] = []
  for name in tqdm(names or [*HEADLINES], 'headlines', disable=None):
    with tempfile.TemporaryDirectory() as folder:
      measured = broken.measure(name, pathlib.Path(folder))
    rows += broken.rows_of(name, measured.numbers)
  print(broken.table_of(rows).markdown())
  if _OUT.value is not None:
    records = [dict(zip(broken.HEADER, row, strict=True)) for row in rows]
    write_atomically(_OUT.value, to_csv(broken.HEADER, records))


if __name__ == '__main__':
  cli.run(main, takes_names=True)
