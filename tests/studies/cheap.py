"""A study of cheap cells, as a process that tests kill.

python -m tests.studies.cheap FOLDER SECONDS [I/N]
"""

import pathlib
import sys
import time

import studies
from zoo.host.parts import parse_part

NUMBERS = range(6)
CELLS = {f'number={number}': {'number': number} for number in NUMBERS}


def row_of(number):
  """Numbers whose bits a text of few digits would lose."""
  return {'root': (number + 0.1) ** 0.5, 'list': [number / 3, None], 'text': 'µ\n'}


def table_of(seconds, computed):
  """A table that notes in a list which of its cells were computed."""

  def compute(parameters, folder):
    if seconds:
      print(parameters['number'], flush=True)
      time.sleep(seconds)
    computed.append(parameters['number'])
    return row_of(parameters['number'])

  return studies.CellTable(CELLS, compute)


if __name__ == '__main__':
  out, seconds, *part = sys.argv[1:]
  table = table_of(float(seconds), [])
  studies.fill(table, pathlib.Path(out), parse_part(part[0]) if part else None)
