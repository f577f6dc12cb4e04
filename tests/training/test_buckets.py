"""Folders in a bucket hold what local ones hold, bit for bit; against an emulator."""

import json
import time

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.checkpoints.states import flip
from tests.compare import refuses
from tests.settings import config_for
from tests.training.runs import (
  assert_same_bits,
  bucket_arrays,
  lines_of,
  of_each_launch,
  saved_arrays,
  signal_at_step_4,
  small_config,
)
from zoo.core.errors import RunError
from zoo.host.files import (
  delete_folder,
  gcs,
  names_below,
  workdir_path,
  write_atomically,
)
from zoo.host.parts import Part
from zoo.storage import lease
from zoo.storage.checkpointer import Checkpoints
from zoo.storage.lease import Lease, LostLease, leased
from zoo.storage.workdir import open_workdir
from zoo.training import run, sweeps, train

pytestmark = pytest.mark.slow

CONFIG_OF_YQ_LSA = config_for('yq_lsa')


@pytest.fixture
def folder(bucket):
  """The path of a folder in a bucket that this test alone has."""
  return workdir_path(bucket)


@pytest.fixture
def short_lease(monkeypatch):
  monkeypatch.setattr(lease, 'SECONDS', 1.5)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The workdir of a local run that nothing has interrupted."""
  workdir = tmp_path_factory.mktemp('local') / 'whole'
  with jax.numpy_dtype_promotion('standard'):  # as in the tests
    train(small_config(), workdir)
  return workdir


def assert_is_whole(folder, whole):
  """Fails unless the run in the bucket has ended as the local one has."""
  assert_same_bits(bucket_arrays(folder, 12), saved_arrays(whole, 12))
  lines, summaries = [], []
  for one in folder, whole:
    lines.append([*map(of_each_launch, lines_of(one))])
    summary = json.loads((one / 'summary.json').read_text())
    summaries.append(of_each_launch(summary))
  assert lines[0] == lines[1]
  assert summaries[0] == summaries[1]
  assert (folder / '.lock').read_text() == 'nobody'


def manifests(folder):
  return sorted(folder.glob('checkpoints/*/SHA256SUMS'))


# Paths.


def test_a_url_without_a_folder_and_an_absent_bucket_are_refused(emulator):
  for url in 'gs://', 'gs://bucket', 'gs://bucket/', 'gs://bucket/a//b', 'gs://b/../c':
    with refuses(repr(url), 'gs://bucket/folder'):
      workdir_path(url)
  with refuses("there is no bucket 'absent'", 'gcloud storage buckets create'):
    workdir_path('gs://absent/run')


def test_credentials_that_are_refused_are_named(bucket, faults):
  faults(1.0, 401)
  with refuses(bucket, 'cannot be used', 'gcloud auth'):
    workdir_path(bucket)


def test_what_passes_is_tried_again_and_patience_has_an_end(folder, faults):
  faults(0.3)
  for name in 'abc':
    write_atomically(folder / name, name)
  assert [(folder / name).read_text() for name in 'abc'] == ['a', 'b', 'c']
  for status in 503, 429, 408:
    faults(1.0, status)
    start = time.monotonic()
    with (
      gcs().patient(1.0),
      pytest.raises(OSError, match='not be reached for 1 s') as info,
    ):
      names_below(folder)
    assert 1 <= time.monotonic() - start < 10
    assert '\n' not in str(info.value)


def test_what_will_not_succeed_later_is_one_line_at_once(folder, faults):
  for status in 401, 403, 409, 410:
    faults(1.0, status)
    with pytest.raises(OSError, match='the bucket refused a call') as info:
      write_atomically(folder / 'a', '')
    assert '\n' not in str(info.value)


@pytest.mark.parametrize('name', ['model/../../a', '/etc/a', 'model//a', '..\\a'])
def test_an_object_is_not_written_outside_of_the_copy(folder, tmp_path, name):
  with pytest.raises(OSError, match='has a name that no file'):
    gcs().download(folder, [name], tmp_path / 'copy')
  assert list(tmp_path.iterdir()) == []


# Leases.


def test_a_lease_is_held_by_one_program(folder, short_lease):
  with leased(folder, 1.0):
    with refuses(str(folder), 'is in use: another process'), leased(folder, 1.0):
      pytest.fail('it was taken')
    lease.make_sure(folder / 'checkpoints')
  start = time.monotonic()
  with leased(folder, 1.0):
    assert time.monotonic() - start < 1  # at once


def test_a_lease_that_is_not_renewed_is_taken_and_its_holder_told(folder, short_lease):
  first, second = Lease(folder), Lease(folder)
  first.acquire()
  start = time.monotonic()
  second.acquire()
  assert time.monotonic() - start >= 1
  second.release()
  with pytest.raises(LostLease, match='another program has taken over'):
    first.renew()


def test_a_renewal_whose_answer_was_lost_does_not_lose_the_lease(folder):
  held = Lease(folder)
  held.acquire()
  before = held._generation
  held.renew()
  held._generation = before
  held.renew()


def test_a_damaged_lock_is_waited_for_and_taken(folder, short_lease):
  (folder / '.lock').write_bytes(b'?')
  held = Lease(folder)
  held.acquire()
  held.renew()


# Runs.


def test_interrupted_killed_and_resumed_it_ends_as_a_local_run(
  folder, whole, stop_at, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  stop_at(8)
  assert train(small_config(), str(folder)) is None
  # What a kill leaves: a save without its manifest, records newer than the last step
  # and half a line.
  for name in 'model/manifest.ocdbt', 'model/d/1':
    write_atomically(folder / f'checkpoints/9-{"0" * 16}' / name, '?')
  lines = (folder / 'metrics.jsonl').read_text()
  more = '{"step": 9, "loss": 1.0, "wall_time": 1.0}\n{"step": 10, "lo'
  write_atomically(folder / 'metrics.jsonl', lines + more)
  stop_at(None)
  summary = train(small_config(), f'{folder}/')
  assert_is_whole(folder, whole)
  assert list(tmp_path.iterdir()) == []
  names = names_below(folder)
  assert {name.split('/')[0] for name in names} == {
    *(path.name for path in whole.iterdir()),
  }
  assert any(name.startswith('tensorboard/events.') for name in names)
  steps = [one.parent.name.split('-')[0] for one in manifests(folder)]
  assert sorted(steps) == ['12', '4', '8']
  # A finished run is left as it is, and only shown.
  assert train(small_config(), str(folder)) == summary
  assert names_below(folder) == names


def test_no_damage_to_any_object_is_restored(folder, whole, stop_at, caplog, full):
  stop_at(8)
  train(small_config(), folder)
  (newest,) = (one.parent for one in manifests(folder) if one.parent.name[:2] == '8-')
  objects = {name: (newest / name).read_bytes() for name in names_below(newest)}
  assert len(objects) > 15
  for name in [*objects] if full else ['model/_METADATA', 'SHA256SUMS']:
    flip(newest / name)
    caplog.clear()
    checkpoints = Checkpoints(folder, 3, {})
    assert checkpoints.latest == 4, name
    assert 'checkpoint step 8 is damaged' in caplog.text
    assert checkpoints.set_aside
    assert names_below(folder / 'damaged')
    assert not names_below(newest)
    delete_folder(folder / 'damaged')
    for path, content in objects.items():
      write_atomically(newest / path, content)
  assert Checkpoints(folder, 3, {}).latest == 8
  flip(newest / 'optimizer/_METADATA')
  stop_at(None)
  train(small_config(), folder)
  assert_is_whole(folder, whole)


def test_a_second_run_is_refused_and_a_suspended_one_ends_in_one_line(
  folder, whole, monkeypatch, short_lease
):
  used = folder / 'used'
  write_atomically(used / 'mine', '')
  with refuses('is not empty and holds no run (it has mine)'):
    open_workdir(used, small_config())
  delete_folder(used)
  open_workdir(used, small_config())
  with leased(used, 1.0), refuses('/used', 'is in use'):
    train(small_config(), used)
  delete_folder(used)

  class Suspended(Checkpoints):
    """After its first save the run is suspended, and another one takes over."""

    def save(self, step, state, before_commit=lambda: None):
      if step == 8:
        self.wait()
        (held,) = lease._held
        held._end.set()  # its thread ends
        time.sleep(0.7)
        held._end.clear()
        monkeypatch.setattr(run, 'Checkpoints', Checkpoints)
        lease._held.clear()
        train(small_config(), folder)
        lease._held.append(held)
      super().save(step, state, before_commit)

  monkeypatch.setattr(run, 'Checkpoints', Suspended)
  with pytest.raises(RunError, match='another program has taken over') as info:
    train(small_config(), folder)
  assert '\n' not in str(info.value)
  assert_is_whole(folder, whole)


def test_a_local_run_that_was_copied_into_a_bucket_goes_on(
  folder, whole, stop_at, tmp_path
):
  stop_at(8)
  train(small_config(), tmp_path / 'run')
  gcs().upload(tmp_path / 'run', folder)
  assert zoo.load(folder).step == 8
  stop_at(None)
  train(small_config(), folder)
  assert_is_whole(folder, whole)


# Sweeps: three points in one program and one in another.

POINTS = [{'task.prior_mean': mean, 'seed': 0} for mean in (0.0, 1.0, 2.0)]
POINTS += [{'task.context_length': 6}]


def sweep(workdir, points=POINTS):
  return sweeps.sweep(small_config('multi_head_lsa'), points, workdir)


def test_a_file_arrives_whole_whatever_its_last_byte(folder, tmp_path):
  contents = {f'{byte:03}': b'\r\n' + bytes([byte]) for byte in range(16)}
  for name, content in contents.items():
    (tmp_path / name).write_bytes(content)
  gcs().upload(tmp_path, folder)
  assert {name: (folder / name).read_bytes() for name in contents} == contents


def test_a_sweep_that_was_interrupted_ends_as_a_local_one(
  folder, tmp_path, monkeypatch
):
  with monkeypatch.context() as patch:
    signal_at_step_4(patch)
    assert sweep(folder) is None
  names = names_below(folder)
  assert any(name.startswith('unfinished/') for name in names)
  assert 'table.csv' not in names
  rows, expected = sweep(folder), sweep(tmp_path)
  assert rows is not None
  assert expected is not None
  for row, other in zip(rows, expected, strict=True):
    workdir, here = row.pop('workdir'), other.pop('workdir')
    assert str(workdir.relative_to(folder)) == str(here.relative_to(tmp_path))
    assert_same_bits(bucket_arrays(workdir, 12), saved_arrays(here, 12))
    logged = [[*map(of_each_launch, lines_of(one))] for one in (workdir, here)]
    assert logged[0] == logged[1]
    assert of_each_launch(row) == of_each_launch(other)
    assert zoo.load(workdir).config == zoo.load(here).config
  made = {path.name for path in tmp_path.iterdir()}
  assert {path.name for path in folder.iterdir()} == made


def test_parts_are_held_apart_and_a_sweep_is_the_same_in_parts(
  folder, tmp_path, short_lease
):
  with leased(folder, 1.0, '1-of-2'), leased(folder, 1.0, '2-of-2'):
    with refuses('is in use'), leased(folder, 1.0, '1-of-2'):
      pytest.fail('it was taken')
    with refuses('is in use'), leased(folder, 1.0):
      pytest.fail('it was taken')
  with leased(folder, 1.0), refuses('is in use'), leased(folder, 1.0, '1-of-2'):
    pytest.fail('it was taken')
  delete_folder(folder)
  config = small_config('multi_head_lsa')
  tables = []
  for workdir in folder, tmp_path:
    for part in Part(2, 2), Part(1, 2):
      assert sweeps.sweep(config, POINTS, workdir, part)
      assert not (workdir / 'table.json').exists()
    assert sweeps.sweep(config, POINTS, workdir)
    rows = json.loads((workdir / 'table.json').read_text())
    tables.append([*map(of_each_launch, rows)])
  assert tables[0] == tables[1]


# Saved models.


def test_a_saved_model_is_loaded_and_damage_is_refused(folder, monkeypatch):
  model = zoo.models.YqLSA(3, rngs=nnx.Rngs(0))
  zoo.save(model, folder, CONFIG_OF_YQ_LSA, step=7)
  saved = zoo.load(str(folder))
  assert saved.step == 7
  pairs = zip(
    jax.tree.leaves(nnx.state(model)),
    jax.tree.leaves(nnx.state(saved.model)),
    strict=True,
  )
  for one, copy in pairs:
    np.testing.assert_array_equal(one, copy)
  with refuses(str(folder), 'has no step 5; it has [7]'):
    zoo.load(folder, 5)
  with refuses(str(folder), 'exists already'):
    zoo.save(model, folder, CONFIG_OF_YQ_LSA)
  flip(folder / 'model/manifest.ocdbt')
  with pytest.raises(RunError, match=f'{folder} is damaged: model/manifest.ocdbt'):
    zoo.load(folder)
  (folder / 'SHA256SUMS').unlink()
  with pytest.raises(RunError, match=f'{folder} is damaged: it has no SHA256SUMS'):
    zoo.load(folder)
  delete_folder(folder)
  with refuses(str(folder), 'does not exist'):
    zoo.load(folder)


def test_after_a_failed_save_nothing_is_left(folder, monkeypatch):
  def fail(local, target, last):
    write_atomically(target / 'model/d/1', (local / last).read_bytes())
    raise OSError('the bucket is away')

  monkeypatch.setattr(gcs(), 'upload', fail)
  with pytest.raises(RunError, match='cannot be written: the bucket is away'):
    zoo.save(zoo.models.YqLSA(3, rngs=nnx.Rngs(0)), folder, CONFIG_OF_YQ_LSA)
  assert names_below(folder) == []
