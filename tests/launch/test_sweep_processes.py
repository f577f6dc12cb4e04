"""Sweeps and atlases of several processes; some are killed and gone on with."""

import csv
import json
import subprocess
import time

import pytest

from tests.launch.processes import ROOT, command, environment
from tests.marks import FULL
from tests.training.runs import assert_same_bits, saved_arrays
from zoo.storage.buckets import open_folder
from zoo.storage.mirror import mirrored

pytestmark = [*FULL]

_STEPS = 200
_NUM_POINTS = 64


def _start(workdir, number, cache, num_steps=_STEPS, module='launch.sweep'):
  return _launch(module, cache, *_arguments(workdir, number, num_steps))


def _arguments(workdir, number, num_steps):
  return (
    '--config=configs/multi_head_lsa.py:smoke',
    f'--config.train.num_steps={num_steps}',
    '--config.checkpoint.every=20',
    '--config.checkpoint.keep=1',
    '--config.train.log_every=20',
    f'--sweep=task.prior_mean={",".join(str(i / 16) for i in range(_NUM_POINTS))}',
    f'--workdir={workdir}',
    f'--num_processes={number}',
  )


def _launch(module, cache, *arguments):
  return subprocess.Popen(
    command(*arguments, module=module),
    cwd=ROOT,
    env=environment(cache),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def _finish(*processes):
  for process in processes:
    _, stderr = process.communicate(timeout=900)
    assert process.returncode == 0, stderr


def _table(workdir):
  rows = json.loads((workdir / 'table.json').read_text())
  assert len(rows) == _NUM_POINTS
  return {row['task.prior_mean']: row for row in rows}


@pytest.mark.timeout(1800)
def test_four_processes_killed_and_gone_on_with_by_two(tmp_path, cache):
  whole, killed, one = tmp_path / 'whole', tmp_path / 'killed', tmp_path / 'one'
  _finish(*(_start(whole, 4, cache) for _ in range(4)))
  processes = [_start(killed, 4, cache) for _ in range(4)]
  end = time.monotonic() + 600
  # One has saved, so that it resumes in the middle; the others may still start.
  while not any(killed.glob('unfinished/*/checkpoints/[0-9]*')):
    assert time.monotonic() < end
    time.sleep(0.05)
  for process in processes:
    process.kill()
    process.communicate()
  assert not (killed / 'table.json').exists(), 'it was killed too late'
  _finish(*(_start(killed, 2, cache) for _ in range(2)))
  _finish(_start(one, 1, cache))
  expected, found, alone = map(_table, (whole, killed, one))
  for value, row in expected.items():
    assert found[value]['exact_risk'] == row['exact_risk']
    arrays = saved_arrays(whole / row['workdir'], _STEPS)
    assert_same_bits(saved_arrays(killed / row['workdir'], _STEPS), arrays)
    # In a program of 64 points sums are added in another order.
    assert alone[value]['exact_risk'] == pytest.approx(row['exact_risk'], rel=1e-3)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(('number', 'then'), [(2, 1), (1, 1), (4, 2)])
def test_killed_in_a_bucket_it_ends_as_a_local_one(
  tmp_path, bucket, cache, number, then
):
  folder, whole, num_steps = open_folder(bucket), tmp_path / 'whole', 1000

  def start(number):
    return _start(bucket, number, cache, num_steps, 'tests.launch.short_lease_sweep')

  processes = [start(number) for _ in range(number)]
  end = time.monotonic() + 600
  while not any(name.startswith('unfinished/') for name in folder.list()):
    assert all(process.poll() is None for process in processes)
    assert time.monotonic() < end
    time.sleep(0.05)
  for process in processes:
    process.kill()
    process.communicate()
  assert 'table.json' not in folder.list(), 'it was killed too late'
  _finish(*(start(then) for _ in range(then)))
  _finish(*(_start(whole, number, cache, num_steps) for _ in range(number)))
  with mirrored(bucket) as copy:
    expected, found = _table(whole), _table(copy)
    for value, row in expected.items():
      assert found[value]['exact_risk'] == row['exact_risk']
      arrays = saved_arrays(whole / row['workdir'], num_steps)
      assert_same_bits(saved_arrays(copy / row['workdir'], num_steps), arrays)


_ATLAS = '--models=mlp,gru,deep_set', '--tasks=linear', '--seeds=1', '--steps=20'
_ATLAS += ('--learning_rates=0.001,0.01',)


@pytest.mark.timeout(1200)
def test_processes_divide_the_cells_of_an_atlas(tmp_path, cache):
  one, two = tmp_path / 'one', tmp_path / 'two'
  _finish(_launch('launch.atlas', cache, *_ATLAS, f'--out={one}'))
  arguments = *_ATLAS, f'--out={two}', '--num_processes=2'
  _finish(*(_launch('launch.atlas', cache, *arguments) for _ in range(2)))
  tables = []
  for folder in one, two:
    with (folder / 'atlas.csv').open() as file:
      tables.append([{**row, 'seconds': None} for row in csv.DictReader(file)])
  assert len(tables[0]) == 3
  assert tables[0] == tables[1]  # a cell is trained by one process, as before
  assert (two / 'report.html').stat().st_size > 10_000
  workers = {path.read_text().split()[1] for path in two.glob('cells/*/.lock')}
  assert len(workers) == 2, 'one process has trained all'
