"""Runs whose workdir is in a bucket are those in a local folder, bit for bit."""

import hashlib
import json
import time

import jax
import pytest

from tests.compare import refuses
from tests.marks import FULL
from tests.training.runs import (
  assert_same_bits,
  bucket_arrays,
  saved_arrays,
  small_config,
)
from zoo.config.validation import to_json
from zoo.core.errors import RunError
from zoo.storage import bucket_lock
from zoo.storage.buckets import Folder, Unreachable, open_folder
from zoo.training import train, trainer

pytestmark = pytest.mark.slow

WITHOUT_TIME = 'steps_per_second', 'wall_time', 'cpu_ms_per_step', 'flops_per_second'


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The workdir of a local run that nothing has interrupted."""
  workdir = tmp_path_factory.mktemp('local') / 'whole'
  with jax.numpy_dtype_promotion('standard'):  # as in the tests
    train(small_config(), workdir)
  return workdir


def lines_in(text):
  lines = [json.loads(line) for line in text.splitlines()]
  return [
    {name: value for name, value in line.items() if name not in WITHOUT_TIME}
    for line in lines
  ]


def data_of(folder, name):
  found = folder.read(name)
  assert found is not None
  return found.data


def names_of(folder):
  return {name.split('/')[0] for name in folder.list()}


def saves_of(folder):
  """What the bucket has of each save, by its name."""
  saves = {}
  for path in folder.list('checkpoints/'):
    _, name, rest = path.split('/', 2)
    saves.setdefault(name, []).append(rest)
  return saves


def assert_is_whole(bucket, whole):
  """Fails unless the run in the bucket has ended as the local one has."""
  folder = open_folder(bucket)
  assert_same_bits(bucket_arrays(bucket, 12), saved_arrays(whole, 12))
  local = lines_in((whole / 'metrics.jsonl').read_text())
  assert lines_in(data_of(folder, 'metrics.jsonl')) == local
  saved, here = (
    json.loads(text)
    for text in ((whole / 'summary.json').read_text(), data_of(folder, 'summary.json'))
  )
  for name in WITHOUT_TIME:
    saved.pop(name, None)
    here.pop(name, None)
  assert here == saved
  assert json.loads(data_of(folder, 'lock'))['holder'] is None


@pytest.mark.full
def test_a_run_leaves_what_a_local_one_leaves(bucket, whole, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  summary = train(small_config(), f'{bucket}/')
  assert_is_whole(bucket, whole)
  assert list(tmp_path.iterdir()) == []
  folder = open_folder(bucket)
  local = {path.name for path in whole.iterdir()} - {'.lock'}
  assert names_of(folder) == {*local, 'lock'}
  assert any(name.startswith('tensorboard/events.') for name in folder.list())
  for name, files in saves_of(folder).items():
    below = f'checkpoints/{name}'
    lines = data_of(folder, f'{below}/MD5SUMS').decode().splitlines()
    listed = {line[34:]: line[:32] for line in lines}
    assert {*listed, 'MD5SUMS'} == set(files)
    for file, md5 in listed.items():
      data = data_of(folder, f'{below}/{file}')
      assert hashlib.md5(data).hexdigest() == md5
  assert sorted(saves_of(folder)) == sorted(
    name for step in (4, 8, 12) for name in saves_of(folder) if name[:-17] == str(step)
  )
  # A finished run is left as it is, and only shown.
  before = folder.list()
  assert train(small_config(), bucket) == summary
  after = folder.list()
  assert before.pop('lock') != after.pop('lock')
  assert after == before


@pytest.mark.full
def test_only_the_newest_steps_are_kept(bucket):
  train(small_config(checkpoint__keep=1), bucket)
  (name,) = saves_of(open_folder(bucket))
  assert name.startswith('12-')


def test_interrupted_and_resumed_it_ends_at_the_same_bits(bucket, whole, stop_at):
  for step in (5, 8):
    stop_at(step)
    assert train(small_config(), bucket) is None
    lines = lines_in(data_of(open_folder(bucket), 'metrics.jsonl'))
    assert lines[-1]['step'] == step
  stop_at(None)
  assert train(small_config(), bucket) is not None
  # A launch that stops between two evaluations logs that step, too, as a local one.
  folder = open_folder(bucket)
  lines = lines_in(data_of(folder, 'metrics.jsonl'))
  local = lines_in((whole / 'metrics.jsonl').read_text())
  assert [line for line in lines if line['step'] != 5] == local
  assert_same_bits(bucket_arrays(bucket, 12), saved_arrays(whole, 12))


@pytest.mark.full
def test_what_a_kill_leaves_is_cleaned_and_no_line_is_lost_or_doubled(
  bucket, whole, stop_at
):
  stop_at(8)
  train(small_config(), bucket)
  folder = open_folder(bucket)
  # A save without its manifest, records newer than the last step and half a line.
  for name in ('model/manifest.ocdbt', 'model/d/1', 'metrics.jsonl'):
    folder.write(f'checkpoints/9-{"0" * 16}/{name}', b'?')
  lines = data_of(folder, 'metrics.jsonl')
  folder.write('metrics.jsonl', lines + b'{"step": 9, "loss": 1.0}\n{"step": 10, "lo')
  stop_at(None)
  train(small_config(), bucket)
  assert_is_whole(bucket, whole)
  assert not folder.list('checkpoints/9-')


def flip(folder, name):
  data = bytearray(data_of(folder, name))
  if data:
    data[len(data) // 2] ^= 0x10
  folder.write(name, bytes(data) or b'?')


def truncate(folder, name):
  data = data_of(folder, name)
  folder.write(name, data[: len(data) // 2] if data else b'?')


def delete(folder, name):
  folder.delete([name])


@pytest.mark.full
@pytest.mark.parametrize(
  'damage',
  [
    flip,
    pytest.param(truncate, marks=FULL),
    pytest.param(delete, marks=FULL),
  ],
)
def test_no_damage_to_any_object_is_restored(bucket, whole, stop_at, caplog, damage):
  stop_at(8)
  train(small_config(), bucket)
  folder = open_folder(bucket)
  newest = {name: data_of(folder, name) for name in folder.list('checkpoints/8-')}
  assert len(newest) > 15
  with trainer.bucket_workdir(bucket, small_config(), 60.0) as workdir:
    for name in newest:
      damage(folder, name)
      caplog.clear()
      checkpoints = trainer.BucketCheckpoints(workdir, 3, {})
      assert checkpoints.latest == 4, name
      lines = (workdir.stage / 'metrics.jsonl').read_text().splitlines()
      assert [json.loads(line)['step'] for line in lines] == [4]
      # Without its manifest it is no step, but what a kill has left.
      is_step = damage is not delete or not name.endswith('MD5SUMS')
      assert ('checkpoint step 8 is damaged' in caplog.text) == is_step
      assert checkpoints.set_aside == is_step
      markers = [path for path in folder.list() if path.endswith('/DAMAGED')]
      assert bool(markers) == bool(folder.list('checkpoints/8-')) == is_step
      folder.delete(markers)
      for path in [name] if is_step else newest:
        folder.write(path, newest[path])
    assert trainer.BucketCheckpoints(workdir, 3, {}).latest == 8
    damage(folder, min(newest))
  stop_at(None)
  train(small_config(), bucket)
  assert_is_whole(bucket, whole)


@pytest.mark.full
def test_another_config_another_content_and_a_damaged_config_are_refused(bucket):
  folder = open_folder(bucket)
  folder.write('mine', b'')
  with refuses(bucket, 'is not empty and holds no run (it has mine)'):
    train(small_config(), bucket)
  folder.delete(['mine'])
  folder.write('config.json', b'{')
  with refuses(f'{bucket}/config.json is damaged'):
    train(small_config(), bucket)
  folder.delete(['config.json'])
  workdir = trainer.bucket_workdir(bucket, small_config(), 60.0)
  with workdir:
    pass
  before = folder.list()
  with refuses(bucket, 'belongs to another config', 'seed (0 there, 3 here)'):
    train(small_config(seed=3), bucket)
  assert folder.list() == before


@pytest.mark.full
def test_a_step_of_another_config_is_refused(bucket):
  train(small_config(), bucket)
  other = small_config(seed=1)
  open_folder(bucket).write('config.json', to_json(other).encode())
  with refuses(
    '/checkpoints/12-', 'saved by a run of another config', 'differs in seed'
  ):
    train(other, bucket)


@pytest.mark.full
def test_a_second_run_is_refused_and_a_suspended_one_ends_in_one_line(
  bucket, whole, monkeypatch
):
  monkeypatch.setattr(bucket_lock, 'LEASE', 1.0)
  renewing = trainer.bucket_workdir(bucket, small_config(), 60.0)
  with renewing, refuses(bucket, 'is in use'):
    train(small_config(), bucket)

  class Suspended(trainer.BucketCheckpoints):
    """After its first save the run is suspended, and another one takes over."""

    def save(self, step, state):
      if step == 8:
        self.wait()
        self._mirror._stop.set()
        time.sleep(0.5)
        monkeypatch.setattr(trainer, 'BucketCheckpoints', first)
        train(small_config(), bucket)
      super().save(step, state)

  first = trainer.BucketCheckpoints
  monkeypatch.setattr(trainer, 'BucketCheckpoints', Suspended)
  with pytest.raises(RunError, match='another program has taken over'):
    train(small_config(), bucket)
  assert_is_whole(bucket, whole)


@pytest.mark.full
def test_an_outage_shorter_than_the_patience_changes_nothing(
  bucket, whole, monkeypatch, caplog
):
  write, failures = Folder.write, iter(range(3))

  def fail_at_first(folder, name, *arguments, **named):
    if name.endswith('MD5SUMS') and next(failures, None) is not None:
      raise Unreachable('the bucket is away')
    return write(folder, name, *arguments, **named)

  monkeypatch.setattr(Folder, 'write', fail_at_first)
  monkeypatch.setattr(
    'zoo.storage.bucket_checkpoints._MAX_PAUSE', 0.1
  )  # the first two saves, and the last one once
  train(small_config(), bucket)
  assert caplog.text.count('could not be saved: Unreachable: the bucket is away') == 3
  assert_is_whole(bucket, whole)
  assert [name[:3] for name in saves_of(open_folder(bucket))].count('12-') == 2


@pytest.mark.full
def test_an_outage_longer_than_the_patience_names_the_last_good_step(
  bucket, whole, monkeypatch
):
  write = Folder.write

  def fail(folder, name, *arguments, **named):
    if name.startswith('checkpoints/12-') and name.endswith('MD5SUMS'):
      raise Unreachable('the bucket is away')
    return write(folder, name, *arguments, **named)

  with monkeypatch.context() as patch:
    patch.setattr(Folder, 'write', fail)
    patch.setattr('zoo.storage.bucket_checkpoints._MAX_PAUSE', 0.1)
    with pytest.raises(RunError, match=r'good ones at steps \[4, 8\].*is away'):
      train(small_config(checkpoint__patience=0.01), bucket)
  train(small_config(), bucket)
  assert_is_whole(bucket, whole)
