"""Rows of a study: one file, which outlives kills, and belongs to its parameters."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

import studies
import zoo
from studies import cell_table as rows_of_studies
from tests.compare import refuses
from tests.launch.processes import ROOT
from tests.studies.cheap import CELLS, NUMBERS, row_of, table_of
from zoo.core.errors import InUseError
from zoo.host.interruption import Interruption
from zoo.host.parts import Part
from zoo.storage import rows as rows_file
from zoo.storage.rows import read_rows
from zoo.storage.workdir import locked

ROWS = {f'number={number}': row_of(number) for number in NUMBERS}


def fill(out, *arguments, **options):
  """The rows, and the numbers of the cells that were computed by this call."""
  computed = []
  rows = studies.fill(table_of(0, computed), out, *arguments, **options)
  return rows, computed


def lines_of(folder):
  return (folder / 'rows.jsonl').read_text().splitlines()


def test_each_cell_has_a_row_with_its_digest_and_the_versions(tmp_path):
  rows, computed = fill(tmp_path)
  assert rows == ROWS  # with all bits
  assert computed == [*NUMBERS]
  lines = [json.loads(line) for line in lines_of(tmp_path)]
  assert [line['cell'] for line in lines] == [*CELLS]
  assert len({line['digest'] for line in lines}) == len(CELLS)
  assert {'python', 'icl-zoo', 'jax', 'numpy'} <= lines[0]['versions'].keys()
  before = lines_of(tmp_path)
  assert fill(tmp_path) == (ROWS, [])
  assert lines_of(tmp_path) == before


def test_a_file_that_is_cut_anywhere_gives_the_same_rows(tmp_path):
  """As a process leaves it that is killed while it writes: ten times at random."""
  fill(tmp_path / 'whole')
  file = tmp_path / 'cut' / 'rows.jsonl'
  fill(tmp_path / 'cut')
  draws, whole = random.Random(0), lines_of(tmp_path / 'whole')
  for _ in range(10):
    content = file.read_bytes()
    kept = draws.randrange(len(content))
    file.write_bytes(content[:kept])
    rows, computed = fill(tmp_path / 'cut')
    assert rows == ROWS
    assert len(computed) == len(CELLS) - content[:kept].count(b'\n')
    assert lines_of(tmp_path / 'cut') == whole


def _start(out, seconds, *part):
  command = [sys.executable, '-m', 'tests.studies.cheap', str(out), str(seconds)]
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
  return subprocess.Popen(
    [*command, *part], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
  )


@pytest.mark.slow
def test_a_process_that_is_killed_at_any_time_gives_the_same_rows(tmp_path, full):
  draws, seen = random.Random(1), [0]
  for _ in range(10 if full else 3):
    with _start(tmp_path, 0.1) as process:
      assert process.stdout is not None
      process.stdout.readline()  # until it computes, or ends if nothing is missing
      time.sleep(draws.uniform(0, 0.3))
      process.send_signal(signal.SIGKILL)
    seen.append(len(read_rows(tmp_path)) if tmp_path.is_dir() else 0)
  assert seen == sorted(seen)  # no row is lost
  assert {*seen} & {*range(1, len(CELLS))}  # some kills were in the middle
  rows, _ = fill(tmp_path)
  assert rows == ROWS
  assert sorted(json.loads(line)['cell'] for line in lines_of(tmp_path)) == [*CELLS]


def test_two_parts_at_once_compute_no_row_twice(tmp_path):
  """The second part is filled while the first computes its first cell."""
  order: list[Any] = []

  def compute(parameters, folder):
    if not order:
      order.append('first')
      order.extend(fill(tmp_path, Part(2, 2))[1])
    order.append(parameters['number'])
    return row_of(parameters['number'])

  studies.fill(studies.CellTable(CELLS, compute), tmp_path, Part(1, 2))
  assert order == ['first', 1, 3, 5, 0, 2, 4]
  names = [json.loads(line)['cell'] for line in lines_of(tmp_path)]
  assert sorted(names) == [*CELLS]
  assert fill(tmp_path) == (ROWS, [])


@pytest.mark.slow
@pytest.mark.full
def test_two_processes_with_two_parts_compute_no_row_twice(tmp_path):
  with _start(tmp_path, 0.02, '1/2') as first, _start(tmp_path, 0.02, '2/2') as second:
    computed = [process.communicate()[0].split() for process in (first, second)]
  assert computed == [['0', '2', '4'], ['1', '3', '5']]
  names = [json.loads(line)['cell'] for line in lines_of(tmp_path)]
  assert sorted(names) == [*CELLS]
  assert fill(tmp_path) == (ROWS, [])


def test_a_part_that_is_taken_and_parts_of_another_number_wait(tmp_path):
  with locked(tmp_path, Part(1, 2)):
    for part in Part(1, 2), Part(1, 3), None:
      with pytest.raises(InUseError):
        fill(tmp_path, part)
    _, computed = fill(tmp_path, Part(2, 2))
    assert computed == [1, 3, 5]
  _, computed = fill(tmp_path, Part(1, 3))  # the folder is free again
  assert computed == [0]


def test_only_the_named_cells_are_computed(tmp_path):
  rows, computed = fill(tmp_path, only=['number=3', 'number=1'])
  assert computed == [1, 3]
  assert rows == {name: ROWS[name] for name in ('number=1', 'number=3')}
  _, computed = fill(tmp_path, Part(2, 2), only=['number=4', 'number=5'])
  assert computed == [5]
  with refuses("unknown cell 'number=7'", "did you mean 'number="):
    fill(tmp_path, only=['number=7'])


def test_a_stale_row_is_named_and_computed_again_on_request(
  tmp_path, monkeypatch, caplog
):
  cells = {name: dict(parameters) for name, parameters in CELLS.items()}
  computed = []

  def compute(parameters, folder):
    computed.append(parameters['number'])
    return row_of(parameters['number'])

  table = studies.CellTable(cells, compute)
  studies.fill(table, tmp_path)
  computed.clear()
  cells['number=2']['number'] = 7
  rows = studies.fill(table, tmp_path)
  assert computed == []
  assert rows == {name: row for name, row in ROWS.items() if name != 'number=2'}
  (said,) = [record.message for record in caplog.records if 'stale' in record.message]
  assert said.endswith('computes them again: number=2')
  before = lines_of(tmp_path)
  rows = studies.fill(table, tmp_path, again=True)
  assert computed == [7]
  assert rows == {**ROWS, 'number=2': row_of(7)}
  assert len({*before} - {*lines_of(tmp_path)}) == 1
  assert len(lines_of(tmp_path)) == len(CELLS)  # in place of the old row
  with monkeypatch.context() as patch:
    patch.setattr(rows_file.metadata, 'version', lambda name: '9.9')
    assert studies.fill(table, tmp_path) == {}
    computed.clear()
    studies.fill(table, tmp_path, only=['number=0'], again=True)
    assert computed == [0]


def test_a_cell_without_parameters_is_computed_by_each_call_and_never_stale(
  tmp_path, monkeypatch, caplog
):
  computed = []

  def complete():
    def compute(name):
      computed.append(name)
      return None if name == 'b' else {'number': len(computed)}

    return rows_of_studies.complete(
      {'a': None, 'b': None}, ['a', 'b'], compute, tmp_path, Interruption()
    )

  assert complete() == {'a': {'number': 1}}  # b cannot have a row now
  monkeypatch.setattr(rows_file.metadata, 'version', lambda name: '9.9')
  assert complete() == {'a': {'number': 3}}
  assert computed == ['a', 'b', 'a', 'b']
  assert len(lines_of(tmp_path)) == 1
  assert 'stale' not in caplog.text


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
  (tmp_path / '.rows.lock').mkdir()
  with pytest.raises(zoo.RunError, match=r'\.rows\.lock cannot be written'):
    fill(tmp_path)


def test_rows_are_drawn_by_the_whole_alone(tmp_path):
  drawn = []
  table = studies.CellTable(
    CELLS, lambda parameters, folder: {'n': 1}, lambda *given: drawn.append(given)
  )
  studies.fill(table, tmp_path, Part(1, 2))
  assert drawn == []
  rows = studies.fill(table, tmp_path)
  assert drawn == [(rows, tmp_path)]


def test_a_cell_has_a_folder_of_its_own_in_which_it_goes_on(tmp_path):
  def compute(parameters, folder):
    note = folder / 'note'
    if not note.exists():
      note.write_text('half')
      raise OSError('of the study')
    return {'note': note.read_text()}

  table = studies.CellTable({'a/b': {}}, compute)
  with pytest.raises(OSError, match='of the study'):
    studies.fill(table, tmp_path)
  assert studies.fill(table, tmp_path) == {'a/b': {'note': 'half'}}
  assert (tmp_path / 'cells' / 'a' / 'b' / 'note').exists()


def test_a_row_of_a_training_that_is_stopped_is_missing(tmp_path):
  answers: list[Any] = [{'n': 1}, None, {'n': 2}]
  table = studies.CellTable(
    {'a': {}, 'b': {}}, lambda parameters, folder: answers.pop(0), lambda *given: None
  )
  assert studies.fill(table, tmp_path) is None
  assert [*read_rows(tmp_path)] == ['a']
  assert studies.fill(table, tmp_path) == {'a': {'n': 1}, 'b': {'n': 2}}


def test_a_change_of_the_working_directory_moves_nothing(tmp_path, monkeypatch):
  def compute(parameters, folder):
    monkeypatch.chdir(tmp_path / 'second')
    return {'root': parameters['number'] ** 0.5}

  for name in 'first', 'second':
    (tmp_path / name).mkdir()
  monkeypatch.chdir(tmp_path / 'first')
  assert studies.fill(studies.CellTable(CELLS, compute), 'study') is not None
  assert read_rows(tmp_path / 'first' / 'study').keys() == CELLS.keys()
  assert not list((tmp_path / 'second').iterdir())


@pytest.mark.usefixtures('unchecked')
def test_mistakes_are_one_line(tmp_path):
  def table(cells, row: Any = None):
    return studies.CellTable(cells, lambda parameters, folder: row)

  with refuses('has no cells'):
    table({})
  with refuses("a cell has the name '../a'"):
    table({'../a': {}})
  with refuses("the cell 'a' has the parameters 3", 'dictionary'):
    table({'a': 3})
  with refuses("the cell 'a' has parameters that JSON cannot hold"):
    table({'a': {'array': np.zeros(2)}})
  with refuses("the row of 'a' has the type float", 'dictionary of numbers'):
    studies.fill(table({'a': {}}, 0.5), tmp_path)
  with refuses("the row of 'a' cannot be kept as JSON", 'float32'):
    studies.fill(table({'a': {}}, {'risk': np.float32(1)}), tmp_path)
  fill(tmp_path / 'damaged')
  file = tmp_path / 'damaged' / 'rows.jsonl'
  file.write_text(file.read_text().replace('"digest"', '"digger"', 1))
  with refuses('rows.jsonl, line 1 is damaged; delete the line'):
    fill(tmp_path / 'damaged')


@pytest.mark.slow
def test_parts_share_a_folder_in_a_bucket(bucket):
  _, computed = fill(bucket, Part(1, 2))
  assert computed == [0, 2, 4]
  assert fill(bucket) == (ROWS, [1, 3, 5])
  assert fill(bucket) == (ROWS, [])


def test_rows_in_a_bucket_have_a_file_each(tmp_path, monkeypatch):
  """Nothing can be appended there. A folder stands for the bucket."""
  monkeypatch.setattr(rows_file, 'is_url', lambda path: True)
  _, computed = fill(tmp_path, Part(1, 2))
  assert computed == [0, 2, 4]
  assert fill(tmp_path) == (ROWS, [1, 3, 5])
  assert len([*(tmp_path / 'rows').iterdir()]) == len(CELLS)
  assert not (tmp_path / 'rows.jsonl').exists()
