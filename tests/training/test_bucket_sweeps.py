"""Sweeps in a bucket are those in a local folder, bit for bit."""

import json
import pathlib
import signal

import jax
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.training.runs import assert_same_bits, saved_arrays, small_config
from tests.training.test_bucket_runs import lines_in
from zoo.storage.buckets import open_folder
from zoo.storage.mirror import mirrored
from zoo.training import sweeps, trainer

pytestmark = pytest.mark.slow

# Three in one program and one in another.
_POINTS = [{'task.prior_mean': mean, 'seed': 0} for mean in (0.0, 1.0, 2.0)]
_POINTS += [{'task.context_length': 6}]


def _sweep(workdir, points=_POINTS):
  return sweeps.sweep(small_config('multi_head_lsa'), points, workdir)


def _assert_same(bucket, local):
  """Fails unless a copy of the sweep in the bucket has what the local one has."""
  with mirrored(bucket) as copy:
    names = {path.name for path in copy.iterdir()}
    # Local locks are not copied.
    made = {path.name for path in local.iterdir() if path.name[0] != '.'}
    assert names == made
    for there, here in zip(
      sorted(copy.glob('points/*')), sorted(local.glob('points/*')), strict=True
    ):
      assert there.name == here.name
      assert_same_bits(saved_arrays(there, 12), saved_arrays(here, 12))
      texts = [(folder / 'metrics.jsonl').read_text() for folder in (there, here)]
      assert lines_in(texts[0]) == lines_in(texts[1])


@pytest.fixture(scope='module')
def local(tmp_path_factory):
  """The workdir of a local sweep that nothing has interrupted."""
  workdir = tmp_path_factory.mktemp('sweep')
  with jax.numpy_dtype_promotion('standard'):
    assert _sweep(workdir) is not None
  return workdir


def test_interrupted_and_resumed_it_ends_as_a_local_one(bucket, local, monkeypatch):
  next_stop = trainer._next_stop

  def interrupt(step, config):
    if step == 4:
      signal.raise_signal(signal.SIGTERM)
    return next_stop(step, config)

  with monkeypatch.context() as patch:
    patch.setattr(trainer, '_next_stop', interrupt)
    assert _sweep(bucket) is None
  names = open_folder(bucket).list()
  assert any('unfinished' in name for name in names), names
  assert 'table.csv' not in names
  rows = _sweep(bucket)
  assert rows is not None
  _assert_same(bucket, local)
  assert rows[1]['workdir'] == f'{bucket}/points/task.prior_mean=1.0,seed=0'
  for row, folder in zip(rows, _folders(local), strict=True):
    saved, here = zoo.load(row['workdir']), zoo.load(folder)
    assert saved.config == here.config
    there, local_bias = (one.model.bias[...] for one in (saved, here))
    np.testing.assert_array_equal(there, local_bias)


def _folders(workdir: pathlib.Path):
  rows = json.loads((workdir / 'table.json').read_text())
  return [workdir / row['workdir'] for row in rows]


@pytest.mark.full
def test_lost_points_are_named_and_the_rows_of_others_are_in_the_bucket(
  bucket,
):
  points = [{'task.prior_mean': value} for value in (1.0, 1e25)]
  with pytest.raises(sweeps.LostPointsError, match=r'1 of 2 points .*1e\+25') as info:
    _sweep(bucket, points)
  (row,) = info.value.rows
  assert row['workdir'] == f'{bucket}/points/task.prior_mean=1.0'
  assert zoo.load(row['workdir']).step == 12


def test_a_mistake_is_refused_and_nothing_written(bucket):
  with refuses('task.prior_men'):
    _sweep(bucket, [{'task.prior_men': 1.0}])
  assert not open_folder(bucket).list()
