"""Models are saved into a bucket and loaded from it as from a local folder."""

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.training.runs import small_config
from zoo.storage.buckets import Folder, Stored, Unreachable, open_folder
from zoo.tasks import LinearRegression
from zoo.training import train

pytestmark = pytest.mark.slow

TASK = LinearRegression(3, 4)


@pytest.fixture(scope='module')
def model():
  return zoo.models.YqLSA(3, rngs=nnx.Rngs(0))


def assert_same(model, other):
  pairs = zip(*(jax.tree.leaves(nnx.state(one)) for one in (model, other)), strict=True)
  for one, copy in pairs:
    np.testing.assert_array_equal(one, copy)


def test_a_saved_model_is_loaded(bucket, model):
  zoo.save(model, bucket, TASK, step=7)
  saved = zoo.load(bucket)
  assert saved.step == 7
  assert_same(saved.model, model)
  with refuses(bucket, 'has no step 5; it has [7]'):
    zoo.load(bucket, 5)
  with refuses(bucket, 'exists already'):
    zoo.save(model, bucket, TASK)


def test_every_step_of_a_run_is_loaded_and_damage_is_refused(bucket, tmp_path):
  train(small_config(), tmp_path / 'run')
  train(small_config(), bucket)
  folder = open_folder(bucket)
  (newest,) = [name for name in folder.list('checkpoints/12-') if 'MD5' in name]
  newest = newest.rpartition('/')[0]
  urls = [(bucket, 4), (bucket, None), (f'{bucket}/checkpoints/', 8)]
  for url, step in [*urls, (f'{bucket}/{newest}', None)]:
    here, there = zoo.load(url, step), zoo.load(tmp_path / 'run', step)
    assert here.step == there.step
    assert here.config.to_dict() == there.config.to_dict()
    assert_same(here.model, there.model)
  with refuses(bucket, 'has no step 5; it has [4, 8, 12]'):
    zoo.load(bucket, 5)
  folder.write(f'{newest}/model/manifest.ocdbt', b'?')
  for url in bucket, f'{bucket}/{newest}':
    with pytest.raises(zoo.RunError, match=f'{newest}.* is damaged: model/manifest'):
      zoo.load(url)
  folder.write(f'{newest}/DAMAGED', b'')
  assert zoo.load(bucket).step == 8


def test_a_copy_that_gcloud_has_made_is_loaded(bucket, model, tmp_path, monkeypatch):
  """It uploads large files in parts, and objects composed of them have no MD5."""
  saved, run = tmp_path / 'saved', small_config()
  zoo.save(model, saved, TASK)
  train(run, tmp_path / 'run')
  train(run, f'{bucket}/there')
  for name in 'saved', 'run':
    folder = open_folder(f'{bucket}/{name}')
    for path in (tmp_path / name).rglob('*'):
      if path.is_file():
        folder.write(path.relative_to(tmp_path / name).as_posix(), path.read_bytes())
  listed = Folder.list

  def list_composed(folder, below=''):
    return {
      name: Stored(stored.size, None) for name, stored in listed(folder, below).items()
    }

  monkeypatch.setattr(Folder, 'list', list_composed)
  assert_same(zoo.load(f'{bucket}/saved').model, model)
  expected = zoo.load(tmp_path / 'run', 8).model
  for name in 'run', 'there':
    assert_same(zoo.load(f'{bucket}/{name}', 8).model, expected)
  # A run in a bucket that was composed goes on from its checkpoints, too.
  assert train(run, f'{bucket}/there') is not None
  # A copied one would begin anew, and replace what is there.
  before = open_folder(f'{bucket}/run').list()
  with refuses(
    f'{bucket}/run was copied from a local folder', 'cannot go on from them'
  ):
    train(run, f'{bucket}/run')
  assert open_folder(f'{bucket}/run').list() == before
  open_folder(f'{bucket}/run').write('checkpoints/8/model/manifest.ocdbt', b'?')
  with pytest.raises(zoo.RunError, match='checkpoints/8 is damaged: model/manifest'):
    zoo.load(f'{bucket}/run', 8)


def test_what_is_no_checkpoint_is_named(bucket, model):
  with refuses(bucket, 'holds no checkpoint'):
    zoo.load(bucket)
  zoo.save(model, bucket, TASK)
  folder = open_folder(bucket)
  folder.delete(['SHA256SUMS'])
  with pytest.raises(zoo.RunError, match=f'{bucket} is damaged: it has no SHA256SUMS'):
    zoo.load(bucket)


@pytest.mark.parametrize('name', ['model/../../a', '/etc/a', 'model//a', '..\\a'])
def test_an_object_is_not_written_outside_of_the_copy(bucket, tmp_path, name):
  with pytest.raises(zoo.RunError, match='has a name that no file'):
    open_folder(bucket).fetch({name: Stored(1, None)}, tmp_path)
  assert list(tmp_path.iterdir()) == []


def test_after_a_failed_save_nothing_is_left(bucket, model, monkeypatch):
  write, left = Folder.write, iter(range(3))

  def fail(folder, name, *arguments):
    if next(left, None) is None:
      raise Unreachable('the bucket is away')
    return write(folder, name, *arguments)

  monkeypatch.setattr(Folder, 'write', fail)
  with pytest.raises(zoo.RunError, match='the bucket is away'):
    zoo.save(model, bucket, TASK)
  assert open_folder(bucket).list() == {}
