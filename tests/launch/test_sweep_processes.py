"""Sweeps and atlases of several processes; some are killed and gone on with."""

import json

import pytest

from tests.launch.processes import command, wait_until
from tests.marks import FULL
from tests.training.runs import assert_same_bits, saved_arrays
from zoo.host.files import workdir_path

pytestmark = [*FULL]

_STEPS = 200
_NUM_POINTS = 64


@pytest.fixture
def start_sweep(start):
  """Starts a sweep, or one of four parts of it."""

  def start_sweep(workdir, part=None):
    part = [] if part is None else [f'--part={part}/4']
    flags = (
      '--config=configs/multi_head_lsa.py:smoke',
      f'--config.train.num_steps={_STEPS}',
      '--config.checkpoint.every=20',
      '--config.checkpoint.keep=1',
      '--config.train.log_every=20',
      f'--sweep=task.prior_mean={",".join(str(i / 16) for i in range(_NUM_POINTS))}',
      f'--workdir={workdir}',
    )
    return start(*command('sweep', *flags, *part))

  return start_sweep


def _finish(*processes):
  for process in processes:
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said


def _table(workdir):
  rows = json.loads((workdir / 'table.json').read_text())
  assert len(rows) == _NUM_POINTS
  return {row['task.prior_mean']: row for row in rows}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize('place', ['folder', 'bucket'])
def test_four_parts_of_which_two_are_killed_and_run_again(
  tmp_path, start_sweep, place, request
):
  whole, killed, single = tmp_path / 'whole', tmp_path / 'killed', tmp_path / 'one'
  if place == 'bucket':
    killed = workdir_path(request.getfixturevalue('bucket'))
  _finish(*(start_sweep(whole, part) for part in (1, 2, 3, 4)))
  processes = [start_sweep(killed, part) for part in (1, 2, 3, 4)]
  saved = '*/checkpoints/*/SHA256SUMS'
  programs = f'programs/{saved}'
  wait_until(lambda: len([*killed.glob(programs)]) >= 2, processes, 600)
  for process in processes[:2]:
    process.kill()
    process.communicate()
  _finish(*processes[2:])
  assert len([*killed.glob(f'points/{saved}')]) < _NUM_POINTS, 'killed too late'
  _finish(*(start_sweep(killed, part) for part in (1, 2)))
  _finish(*(start_sweep(folder) for folder in (whole, killed, single)))
  expected, resumed, alone = map(_table, (whole, killed, single))
  for value, row in expected.items():
    assert resumed[value]['exact_risk'] == row['exact_risk']
    assert resumed[value]['eval_risk'] == row['eval_risk']
    arrays = saved_arrays(whole / row['workdir'], _STEPS)
    assert_same_bits(saved_arrays(killed / row['workdir'], _STEPS), arrays)
    # In a program of 64 points sums are added in another order.
    assert alone[value]['exact_risk'] == pytest.approx(row['exact_risk'], rel=1e-3)
