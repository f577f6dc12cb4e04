"""Folders in a bucket hold what local ones hold, bit for bit; against an emulator."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.checkpoints.states import flip
from tests.compare import refuses
from tests.marks import FULL
from tests.settings import config_for
from tests.training.runs import (
  assert_same_bits,
  lines_of,
  of_each_launch,
  saved_arrays,
  share_programs,
  signal_at_step_4,
  small_config,
)
from zoo.config.read import to_content
from zoo.core.errors import RunError
from zoo.host.files import (
  delete_folder,
  names_below,
  workdir_path,
  write_atomically,
)
from zoo.host.parts import Part
from zoo.storage import saving
from zoo.storage.checkpoints import Checkpoints
from zoo.storage.steps import SUMS, steps_in
from zoo.storage.workdir import make_workdir
from zoo.training import sweeps, train

# Programs are those of local runs, and what is read and written is compared.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('shared_programs')]

CONFIG_OF_YQ_LSA = config_for('yq_lsa')


@pytest.fixture
def folder(bucket):
  """The path of a folder in a bucket that this test alone has."""
  return workdir_path(bucket)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The workdir of a local run that nothing has interrupted."""
  workdir = tmp_path_factory.mktemp('local') / 'whole'
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion('standard'):
    share_programs(patch)
    train(small_config(), workdir)
  return workdir


def assert_is_whole(folder, whole):
  """Fails unless the run in the bucket has ended as the local one has."""
  assert_same_bits(saved_arrays(folder, 12), saved_arrays(whole, 12))
  lines, summaries = [], []
  for workdir in folder, whole:
    lines.append([*map(of_each_launch, lines_of(workdir))])
    summary = json.loads((workdir / 'summary.json').read_text())
    summaries.append(of_each_launch(summary))
  assert lines[0] == lines[1]
  assert summaries[0] == summaries[1]


def upload(local, folder):
  for path in local.rglob('*'):
    if path.is_file():
      (folder / path.relative_to(local)).write_bytes(path.read_bytes())


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


def test_what_passes_is_tried_again(folder, faults):
  faults(0.3)
  write_atomically(folder / 'a', 'a')
  assert (folder / 'a').read_text() == 'a'


@pytest.mark.parametrize('status', [401, pytest.param(503, marks=FULL)])
def test_a_bucket_that_fails_in_a_run_is_one_line(folder, faults, status):
  events = zoo.training_run(small_config(), folder)
  next(events)
  faults(1.0, status)
  with pytest.raises(RunError, match='could not be written') as info:
    list(events)
  assert '\n' not in str(info.value)


# Runs.


def test_interrupted_killed_and_resumed_it_ends_as_a_local_run(
  folder, whole, stop_at, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  stop_at(8)
  assert train(small_config(), str(folder)) is None
  # What a kill leaves: a save without its checksums, records newer than the last step
  # and half a line.
  for name in 'model/manifest.ocdbt', 'model/d/1':
    write_atomically(folder / 'checkpoints/9' / name, '?')
  lines = (folder / 'metrics.jsonl').read_text()
  more = '{"step": 9, "loss": 1.0, "wall_time": 1.0}\n{"step": 10, "lo'
  write_atomically(folder / 'metrics.jsonl', lines + more)
  stop_at(None)
  summary = train(small_config(), f'{folder}/')
  assert_is_whole(folder, whole)
  assert list(tmp_path.iterdir()) == []
  names = names_below(folder)
  assert {name.split('/')[0] for name in names} == {
    *(path.name for path in whole.iterdir() if not path.name.startswith('.lock')),
  }
  assert any(name.startswith('tensorboard/events.') for name in names)
  assert steps_in(folder / 'checkpoints') == [4, 8, 12]
  # A finished run is left as it is, and only shown.
  assert train(small_config(), str(folder)) == summary
  assert names_below(folder) == names


@pytest.mark.full
def test_a_finished_run_is_kept_until_a_longer_launch_has_saved_a_step(folder, whole):
  upload(whole, folder)
  before = {name: (folder / name).read_bytes() for name in names_below(folder)}
  longer = small_config(train__num_steps=16)

  class Stop(zoo.Hook):
    def on_chunk(self, event):
      raise ZeroDivisionError

  with pytest.raises(ZeroDivisionError):
    train(longer, folder, [Stop()])
  assert before == {name: (folder / name).read_bytes() for name in names_below(folder)}
  summary = train(longer, folder)
  assert summary is not None
  assert [launch['to_step'] for launch in summary['history']] == [12, 16]
  assert [line['step'] for line in lines_of(folder)] == [4, 6, 8, 12, 16]
  config = json.loads((folder / 'config.json').read_text())
  assert config['train']['num_steps'] == 16
  boards = [name for name in names_below(folder) if name.startswith('tensorboard/')]
  assert len(boards) == 2


@pytest.mark.full
def test_no_damage_to_any_object_is_restored(folder, whole, stop_at, full):
  stop_at(8)
  train(small_config(), folder)
  newest = folder / 'checkpoints' / '8'
  objects = {name: (newest / name).read_bytes() for name in names_below(newest)}
  assert len(objects) > 15
  listed = [name for name in objects if '/' in name or name == SUMS]
  for name in listed if full else ['model/_METADATA', SUMS]:
    flip(newest / name)
    with pytest.raises(RunError, match=r'8 is damaged: .*; step 4 is good: delete'):
      Checkpoints(folder, 3, to_content(small_config()))
    write_atomically(newest / name, objects[name])
  assert Checkpoints(folder, 3, to_content(small_config())).latest == 8
  flip(newest / 'optimizer/_METADATA')
  delete_folder(newest)
  stop_at(None)
  train(small_config(), folder)
  assert_is_whole(folder, whole)


def test_a_folder_with_something_else_in_it_is_refused(folder):
  write_atomically(folder / 'mine', '')
  with refuses('is not empty and holds no run (it has mine)'):
    make_workdir(folder, small_config())


@pytest.mark.full
def test_a_local_run_that_was_copied_into_a_bucket_goes_on(
  folder, whole, stop_at, tmp_path
):
  stop_at(8)
  train(small_config(), tmp_path / 'run')
  upload(tmp_path / 'run', folder)
  assert zoo.load(folder).step == 8
  stop_at(None)
  train(small_config(), folder)
  assert_is_whole(folder, whole)


# Sweeps: two points in one program and one in another.

POINTS = [{'task.prior_mean': mean, 'seed': 0} for mean in (0.0, 1.0)]
POINTS += [{'checkpoint.every': 6}]


def sweep(workdir, points=POINTS):
  return sweeps.sweep(small_config(checkpoint__every=12), points, workdir)


@pytest.mark.full
def test_a_sweep_that_was_interrupted_ends_as_a_local_one(
  folder, tmp_path, monkeypatch
):
  with monkeypatch.context() as patch:
    signal_at_step_4(patch)
    assert sweep(folder) is None
  names = names_below(folder)
  assert any(name.startswith('programs/') for name in names)
  assert 'table.csv' not in names
  rows, expected = sweep(folder), sweep(tmp_path)
  assert rows is not None
  assert expected is not None
  for row, other in zip(rows, expected, strict=True):
    workdir, here = row.pop('workdir'), other.pop('workdir')
    assert str(workdir.relative_to(folder)) == str(here.relative_to(tmp_path))
    assert_same_bits(saved_arrays(workdir, 12), saved_arrays(here, 12))
    logged = [
      [*map(of_each_launch, lines_of(run_folder))] for run_folder in (workdir, here)
    ]
    assert logged[0] == logged[1]
    assert of_each_launch(row) == of_each_launch(other)
    assert zoo.load(workdir).config == zoo.load(here).config
  made = {path.name for path in tmp_path.iterdir() if '.lock' not in path.name}
  assert {path.name for path in folder.iterdir()} == made


@pytest.mark.full
def test_a_sweep_is_the_same_in_parts(folder, tmp_path):
  config = small_config()
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
  for array, copy in pairs:
    np.testing.assert_array_equal(array, copy)
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
  def fail(folder):
    raise OSError('the bucket is away')

  monkeypatch.setattr(saving, 'write_sums', fail)
  with pytest.raises(RunError, match=r'cannot be written: .*the bucket is away'):
    zoo.save(zoo.models.YqLSA(3, rngs=nnx.Rngs(0)), folder, CONFIG_OF_YQ_LSA)
  assert names_below(folder) == []
