"""Ways of running that must end at the same bits: whole, killed, stopped, in parts.

Programs are compiled and models are checked at each launch, as for users. What is
compared is of one machine, since bits depend on it.
"""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.launch.processes import ROOT, bound, environment
from tests.training.runs import (
  assert_close_arrays,
  assert_same_bits,
  lines_of,
  of_each_launch,
  saved_arrays,
  signal_at_step_4,
  small_config,
)
from zoo.host.files import workdir_path
from zoo.host.parts import Part
from zoo.training import sweeps
from zoo.training.sweeps.points import name_of

# A fixture starts three processes, one after the other.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_RATE = 'optimizer.learning_rate'
CONFIGS = {
  'fsdp': lambda: small_config(
    *('multi_head_lsa',),
    **{'model__num_heads': 16, 'mesh__data': 4, 'mesh__model': 2, 'mesh__fsdp': True},
    optimizer__ema_decay=0.8,
  ),
  'bucket': lambda: small_config(
    optimizer__name='schedule_free', optimizer__schedule='constant'
  ),
}

# A launch that is killed at its last step, once a step before it has been saved.
KILLED = """
import os, signal, sys, time
import zoo
from tests.training.test_golden import CONFIGS
from zoo.storage.steps import steps_in

class Mortal(zoo.Hook):
  def on_chunk(self, event):
    while event.step == 12:
      if steps_in(event.workdir / 'checkpoints'):
        os.kill(os.getpid(), signal.SIGKILL)
      time.sleep(0.05)

case, workdir = sys.argv[1:]
zoo.train(CONFIGS[case](), workdir, [Mortal()])
"""
# A process that lets all killed runs go on, and trains each from start to end, too.
OTHERS = """
import json, sys
import zoo
from tests.training.test_golden import CONFIGS
from zoo.host.files import workdir_path

for case, (killed, whole) in json.loads(sys.argv[1]).items():
  assert not (workdir_path(killed) / 'summary.json').exists(), case
  assert zoo.load(killed).step in (4, 8), case
  for workdir in killed, whole:
    assert zoo.train(CONFIGS[case](), workdir)['step'] == 12, case
"""


@pytest.fixture(scope='module')
def killed_and_whole(tmp_path_factory, cache, emulator):
  """By case, the workdir of a run that was killed and went on, and of one that was not.

  All are trained by processes of their own, which compile as users do.
  """
  folder = tmp_path_factory.mktemp('golden')
  workdirs = {case: [f'{folder}/{case}', f'{folder}/{case}_whole'] for case in CONFIGS}
  workdirs['bucket'][0] = 'gs://bucket/golden'

  def start(program, *arguments):
    return subprocess.Popen(
      bound([sys.executable, '-c', program, *arguments]),
      cwd=ROOT,
      env=environment(cache) | {'JAX_NUM_CPU_DEVICES': '8'},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  for case, (killed, _) in workdirs.items():
    process = start(KILLED, case, killed)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == -9, said
  process = start(OTHERS, json.dumps(workdirs))
  said, _ = process.communicate(timeout=240)
  assert process.returncode == 0, said
  return workdirs


@pytest.mark.parametrize('case', CONFIGS)
def test_a_run_that_was_killed_ends_at_the_bits_of_one_that_was_not(
  killed_and_whole, case
):
  killed, whole = map(workdir_path, killed_and_whole[case])
  for step in 8, 12:
    arrays = saved_arrays(whole, step)
    assert any('optimizer' in path for path in arrays)
    assert_same_bits(saved_arrays(killed, step), arrays)
  lines = [[*map(of_each_launch, lines_of(workdir))] for workdir in (killed, whole)]
  assert lines[0] == lines[1]
  assert [line['step'] for line in lines[0]] == [4, 6, 8, 12]
  summaries = [
    json.loads((folder / 'summary.json').read_text()) for folder in (killed, whole)
  ]
  assert of_each_launch(summaries[0]) == of_each_launch(summaries[1])


def _config(**changes):
  return small_config('multi_head_lsa', task__noise_std=0.3, **changes)


def _sweep(config, points, workdir, part=None):
  rows = sweeps.sweep(config, points, workdir, part)
  assert rows is not None, 'it was told to stop'
  return rows


_POINTS = [{'seed': i % 2, 'task.prior_mean': 1 + i / 2} for i in range(4)]


def _folder(workdir, point):
  return workdir / 'points' / name_of(point)


def _content(workdir):
  """All files of a folder but those that processes lock."""
  return {
    path.relative_to(workdir): path.read_bytes()
    for path in workdir.rglob('*')
    if path.is_file() and not path.name.startswith('.lock')
  }


@pytest.mark.full
def test_parts_end_at_the_bits_of_sweeps_of_their_points(tmp_path):
  """And the whole sweep after them changes none."""
  divided, config = tmp_path / 'divided', _config()
  for i in 1, 2:
    _sweep(config, _POINTS, divided, Part(i, 2))
  before = _content(divided / 'points')
  rows = _sweep(config, _POINTS, divided)
  assert [row['workdir'] for row in rows] == [_folder(divided, p) for p in _POINTS]
  assert _content(divided / 'points') == before
  for i, points in enumerate((_POINTS[:2], _POINTS[2:])):
    alone = tmp_path / f'alone_{i}'
    for row, other in zip(_sweep(config, points, alone), rows[2 * i :], strict=False):
      arrays = [saved_arrays(r['workdir'], 12) for r in (row, other)]
      assert_same_bits(*arrays)
      lines = [[*map(of_each_launch, lines_of(r['workdir']))] for r in (row, other)]
      assert lines[0] == lines[1]
  # A program of all four points adds up in another order.
  for row, other in zip(_sweep(config, _POINTS, tmp_path / 'one'), rows, strict=True):
    assert_close_arrays(*(saved_arrays(r['workdir'], 12) for r in (row, other)))


# Three points of one program, of which one overflows, with steps that are kept.
_DIVERGING = [{_RATE: 1e-3}, {_RATE: 1e30}, {_RATE: 2e-3}]
_FINITE = [_DIVERGING[0], _DIVERGING[2]]


@pytest.fixture(scope='module')
def diverging(tmp_path_factory):
  """The workdirs of a sweep that was stopped at a step, and of one that was not.

  And the error with which each has ended.
  """
  folder, errors = tmp_path_factory.mktemp('diverging'), []
  config = _config(checkpoint__steps=(2, 7), checkpoint__every=12, eval__num_batches=0)
  with jax.numpy_dtype_promotion('standard'):
    with pytest.MonkeyPatch.context() as patch:
      signal_at_step_4(patch)
      assert sweeps.sweep(config, _DIVERGING, folder / 'stopped') is None
    for name in 'stopped', 'whole':
      with pytest.raises(sweeps.LostPointsError, match='1 of 3 points') as info:
        sweeps.sweep(config, _DIVERGING, folder / name)
      errors.append(info.value)
  return config, folder / 'stopped', folder / 'whole', errors


def test_a_diverging_sweep_that_was_stopped_ends_as_one_that_was_not(diverging):
  _, stopped, whole, errors = diverging
  tables = [
    [*map(of_each_launch, json.loads((workdir / 'table.json').read_text()))]
    for workdir in (stopped, whole)
  ]
  assert tables[0] == tables[1]
  assert [row['step'] for row in tables[0]] == [12, None, 12]
  assert str(errors[0]) == str(errors[1])
  records = [
    (_folder(workdir, _DIVERGING[1]) / 'diverged.json').read_bytes()
    for workdir in (stopped, whole)
  ]
  assert records[0] == records[1]
  for point in _FINITE:
    folders = [_folder(workdir, point) for workdir in (stopped, whole)]
    assert_same_bits(*(saved_arrays(folder, 12) for folder in folders))
    lines = [[*map(of_each_launch, lines_of(folder))] for folder in folders]
    assert lines[0] == lines[1]


def test_a_diverging_sweep_that_is_launched_again_changes_no_file(diverging):
  config, _, whole, errors = diverging
  before = _content(whole)
  with pytest.raises(sweeps.LostPointsError) as again:
    sweeps.sweep(config, _DIVERGING, whole)
  assert str(again.value) == str(errors[1])
  assert _content(whole) == before


def test_kept_steps_of_points_have_the_same_bits_after_a_stop(diverging):
  """As the program saves them for all points, and as a point's folder opens them."""
  _, stopped, whole, _ = diverging
  (program,) = (path.name for path in whole.glob('programs/*'))
  for step in 2, 7:
    programs = [workdir / 'programs' / program for workdir in (stopped, whole)]
    assert_same_bits(*(saved_arrays(folder, step) for folder in programs))
    for point in _FINITE:
      assert_same_bits(*(_weights(_folder(w, point), step) for w in (stopped, whole)))


def _weights(workdir, step):
  state = nnx.to_flat_state(nnx.state(zoo.load(workdir, step).model))
  return {str(path): np.asarray(leaf[...]) for path, leaf in state}
