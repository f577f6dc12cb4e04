"""Sweeps of several processes, killed and gone on with by another number."""

import json
import subprocess
import time

import pytest

from tests.launch.processes import ROOT, command, environment
from tests.training.runs import assert_same_bits, saved_arrays

_STEPS = 200
_NUM_POINTS = 64


def _start(workdir, number, cache):
  arguments = (
    '--config=configs/multi_head_lsa.py:smoke',
    f'--config.train.num_steps={_STEPS}',
    '--config.checkpoint.every=20',
    '--config.checkpoint.keep=1',
    '--config.train.log_every=20',
    f'--sweep=task.prior_mean={",".join(str(i / 16) for i in range(_NUM_POINTS))}',
    f'--workdir={workdir}',
    f'--num_processes={number}',
  )
  return subprocess.Popen(
    command(*arguments, module='launch.sweep'),
    cwd=ROOT,
    env=environment(cache),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def _finish(processes):
  for process in processes:
    _, stderr = process.communicate(timeout=280)
    assert process.returncode == 0, stderr


def _table(workdir):
  rows = json.loads((workdir / 'table.json').read_text())
  assert len(rows) == _NUM_POINTS
  return {row['task.prior_mean']: row for row in rows}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_processes_killed_and_gone_on_with_by_two(tmp_path, cache):
  whole, killed, one = tmp_path / 'whole', tmp_path / 'killed', tmp_path / 'one'
  _finish([_start(whole, 4, cache) for _ in range(4)])
  processes = [_start(killed, 4, cache) for _ in range(4)]
  end = time.monotonic() + 200
  while time.monotonic() < end:  # all have saved, so that they resume in the middle
    steps = {path.parts[-3] for path in killed.glob('unfinished/*/checkpoints/[0-9]*')}
    if len(steps) == 4 or (killed / 'table.json').exists():
      break
    time.sleep(0.05)
  for process in processes:
    process.kill()
    process.communicate()
  assert not (killed / 'table.json').exists(), 'it was killed too late'
  _finish([_start(killed, 2, cache) for _ in range(2)])
  _finish([_start(one, 1, cache)])
  expected, found, alone = map(_table, (whole, killed, one))
  for value, row in expected.items():
    assert found[value]['exact_risk'] == row['exact_risk']
    arrays = saved_arrays(whole / row['workdir'], _STEPS)
    assert_same_bits(saved_arrays(killed / row['workdir'], _STEPS), arrays)
    # In a program of 64 points sums are added in another order.
    assert alone[value]['exact_risk'] == pytest.approx(row['exact_risk'], rel=1e-3)
