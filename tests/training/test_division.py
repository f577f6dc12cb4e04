"""Sweeps of several processes, which share a folder and nothing else."""

import concurrent.futures
import json
import os
import signal
import threading
import time

import numpy as np
import pytest

from tests.compare import refuses
from tests.training.runs import assert_same_bits, saved_arrays, small_config
from zoo.core.errors import RunError
from zoo.storage.workdir import (
  PARTS,
  lock_of_part,
  locked,
  open_workdir,
  read_parts,
  shared,
  try_lock,
)
from zoo.training import division, sweeps
from zoo.training.division import (
  Workers,
  divide,
  in_turn,
  note_lost,
  shared_folder,
)

pytestmark = [
  pytest.mark.slow,
  pytest.mark.usefixtures('promotion_that_optax_needs', 'impatient'),
]

_POINTS = [{'model.num_heads': 1 + i % 3, 'task.prior_mean': i / 4} for i in range(6)]
_POINTS += [{'train.batch_size': 8, 'task.prior_mean': float(i)} for i in range(2)]


def _config():
  return small_config('multi_head_lsa')


def _sweep(*given):
  rows = sweeps.sweep(*given)
  assert rows is not None, 'it was told to stop'
  return rows


def _sweep_in(folder, number):
  """The rows of as many calls at the same time; threads stand for processes."""
  with concurrent.futures.ThreadPoolExecutor(number) as threads:
    calls = [
      threads.submit(_sweep, _config(), _POINTS, folder, number) for _ in range(number)
    ]
    return [call.result() for call in calls]


def _done(workdir):
  return {path.parent.name for path in workdir.glob('points/*/summary.json')}


def _folders(tmp_path, points=_POINTS):
  return [tmp_path / 'points' / sweeps._name(point) for point in points]


def _divided(tmp_path, number, points=_POINTS):
  open_workdir(tmp_path, _config(), 'sweep')
  configs = [sweeps.at_point(_config(), point) for point in points]
  return divide(configs, _folders(tmp_path, points), tmp_path, number)


def test_each_program_is_cut_into_parts_of_neighbours(tmp_path):
  # Six points of one program and two of another, in three parts each.
  parts = _divided(tmp_path, 3)
  assert parts == {0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6], 4: [7]}
  names = [folder.name for folder in _folders(tmp_path)]
  assert read_parts(tmp_path) == [[names[i] for i in part] for part in parts.values()]
  # They stay as they are for another number of processes, or for fewer points.
  assert _divided(tmp_path, 2) == parts
  assert _divided(tmp_path, 1) == parts
  assert _divided(tmp_path, 4, _POINTS[1:4]) == {0: [0], 1: [1, 2], 2: [], 3: [], 4: []}
  more = [*_POINTS, {'task.prior_mean': 7.0}]
  assert _divided(tmp_path, 2, more) == {**parts, 5: [8]}


def test_one_process_writes_no_parts(tmp_path):
  assert _divided(tmp_path, 1) == {0: [0, 1, 2, 3, 4, 5], 1: [6, 7]}
  assert not (tmp_path / PARTS).exists()


def test_a_damaged_file_of_parts_is_refused(tmp_path, unchecked):
  for text in '{', '[1]', '{"a": 1}':
    (tmp_path / PARTS).write_text(text)
    with refuses(PARTS, 'is damaged'):
      read_parts(tmp_path)


@pytest.mark.full
def test_three_processes_train_what_one_does(tmp_path):
  folder = tmp_path / 'alone'
  rows = _sweep(_config(), _POINTS, folder)
  for found in _sweep_in(tmp_path / 'sweep', 3):
    for one, other in zip(found, rows, strict=True):
      assert one['exact_risk'] == pytest.approx(other['exact_risk'], rel=1e-5)
  tables = [
    json.loads((where / 'table.json').read_text())
    for where in (folder, tmp_path / 'sweep')
  ]
  assert [row['workdir'] for row in tables[0]] == [row['workdir'] for row in tables[1]]
  for point in _folders(folder):
    trained = saved_arrays(tmp_path / 'sweep' / 'points' / point.name, 12)
    for path, array in saved_arrays(point, 12).items():
      # In a smaller program sums are added in another order (test_sweeps.py).
      np.testing.assert_allclose(trained[path], array, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_a_part_of_a_lost_process_is_trained_by_another_to_the_same_bits(tmp_path):
  _sweep_in(tmp_path / 'whole', 3)
  _divided(tmp_path / 'lost', 3)  # by three processes, all lost before they trained
  (rows,) = _sweep_in(tmp_path / 'lost', 1)
  assert len(rows) == len(_POINTS)
  for folder in _folders(tmp_path / 'whole'):
    other = tmp_path / 'lost' / 'points' / folder.name
    assert_same_bits(saved_arrays(other, 12), saved_arrays(folder, 12))


@pytest.mark.full
def test_what_another_process_trains_is_left_to_it(tmp_path):
  _divided(tmp_path, 2)
  with concurrent.futures.ThreadPoolExecutor(1) as threads:
    with shared(tmp_path), try_lock(lock_of_part(tmp_path, 0)) as mine:
      assert mine
      call = threads.submit(_sweep, _config(), _POINTS, tmp_path, 2)
      names = read_parts(tmp_path)
      others = {name for part in names[1:] for name in part}
      end = time.monotonic() + 200
      while (done := _done(tmp_path)) < others and time.monotonic() < end:
        time.sleep(0.2)
      assert done == others
      assert not call.done()
      # Neither a point of the part nor the whole sweep can be trained meanwhile.
      point = tmp_path / 'points' / names[0][0]
      with refuses('is in use'), locked(point):
        pass
      with refuses('is in use'):
        sweeps.sweep(_config(), _POINTS, tmp_path)
    assert len(call.result(timeout=120)) == len(_POINTS)


@pytest.mark.full
def test_points_that_another_process_has_lost_are_not_trained_again(
  tmp_path, monkeypatch
):
  parts = _divided(tmp_path, 2)
  trained = []

  def train(group, workdir, label, interruption):
    trained.append([folder.name for _, folder in group])
    for other in parts:  # as if another process had trained all others meanwhile
      lost = [_folders(tmp_path)[i] for i in parts[other]]
      note_lost(tmp_path, other, lost)
    return [folder for _, folder in group]

  monkeypatch.setattr(sweeps, '_train_group', train)
  with pytest.raises(RunError, match='8 of 8 points stopped being finite'):
    sweeps.sweep(_config(), _POINTS, tmp_path, 2)
  assert len(trained) == 1


@pytest.mark.parametrize('number', [0, -1])
def test_a_bad_number_of_processes_is_refused(tmp_path, number, unchecked):
  with refuses('num_processes is', str(number)):
    sweeps.sweep(_config(), _POINTS, tmp_path / 'sweep', number)
  assert not (tmp_path / 'sweep').exists()


def test_what_another_process_holds_comes_last(tmp_path, monkeypatch):
  monkeypatch.setattr(division, '_PAUSE', 0.01)
  with concurrent.futures.ThreadPoolExecutor() as threads:
    with try_lock(tmp_path / 'b') as mine:
      assert mine
      found = in_turn('abc', lambda item: tmp_path / item, Workers(2, try_lock))
      assert [next(found), next(found)] == ['a', 'c']
      rest = threads.submit(list, found)
      time.sleep(0.1)
      assert not rest.done()
    assert rest.result() == ['b']
  with shared_folder(tmp_path, 1) as (folder, workers):
    assert list(in_turn('abc', lambda item: folder / item, workers)) == [*'abc']


def test_who_waits_for_another_process_can_be_stopped(tmp_path):
  stop = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
  with try_lock(tmp_path / 'b'):
    stop.start()
    found = list(in_turn('abc', lambda item: tmp_path / item, Workers(2, try_lock)))
  assert found == ['a', 'c']
