"""Checkpoints survive what disks and kills do to them, and say so."""

import hashlib
import os
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoints.states import (
  METADATA,
  files_of,
  let_others_in,
  load_latest,
  not_root,
  save,
)
from tests.marks import FULL
from zoo.host.files import temporary_name
from zoo.storage.checkpointer import Checkpoints
from zoo.storage.steps import MANIFEST, find_corruption


def test_what_is_saved_is_loaded(tmp_path):
  save(tmp_path, 1, 2, 3)
  assert load_latest(tmp_path) == 3


def test_only_the_newest_are_kept(tmp_path):
  save(tmp_path, 1, 2, 3, 4, keep=2)
  steps = [p.name for p in (tmp_path / 'checkpoints').iterdir() if p.name.isdecimal()]
  assert sorted(steps) == ['3', '4']


def test_a_save_does_not_see_what_is_done_to_the_state_after_it(tmp_path):
  overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
  state = {'model': {'w': jnp.ones(100_000)}, 'optimizer': {'count': jnp.ones(1)}}
  with Checkpoints(tmp_path, 5, METADATA) as checkpoints:
    checkpoints.save(1, state)
    state['model']['w'] = overwrite(state['model']['w'])
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.ShapeDtypeStruct((100_000,), jnp.float32, sharding=sharding)
    checkpoints.wait()
    loaded = checkpoints.load(1, {'model': {'w': abstract}})
  assert (np.asarray(loaded['model']['w']) == 1).all()


def test_the_manifest_is_what_sha256sum_reads_and_covers_every_item(tmp_path):
  save(tmp_path, 7)
  folder = tmp_path / 'checkpoints' / '7'
  for line in (folder / MANIFEST).read_text().splitlines():
    checksum, name = line.split('  ')
    assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum
  lines = (folder / MANIFEST).read_text().splitlines()
  there = {
    str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()
  }
  assert there - {line.split('  ')[1] for line in lines} == {MANIFEST}
  folders = {name.split('/')[0] for name in there if '/' in name}
  assert folders == {'model', 'optimizer', 'origin'}


def flip(path: pathlib.Path) -> None:
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 0x10
  path.write_bytes(bytes(content))


def truncate(path: pathlib.Path) -> None:
  content = path.read_bytes()
  path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
  'damage',
  [
    flip,
    pytest.param(truncate, marks=FULL),
    pytest.param(pathlib.Path.unlink, marks=FULL),
  ],
)
def test_damage_to_any_file_falls_back_and_says_so(tmp_path, caplog, damage):
  save(tmp_path / 'good', 1, 2)
  names = files_of(tmp_path / 'good' / 'checkpoints' / '2')
  assert len(names) > 10
  for count, name in enumerate([*names, MANIFEST]):
    workdir = tmp_path / str(count)
    shutil.copytree(tmp_path / 'good', workdir)
    damage(workdir / 'checkpoints' / '2' / name)
    caplog.clear()
    assert load_latest(workdir) == 1
    (record,) = caplog.records
    message = record.getMessage()
    assert 'checkpoint step 2 is damaged' in message
    assert name == MANIFEST or name in message
    assert (workdir / 'damaged' / '2').is_dir()  # set aside, not deleted
    save(workdir, 2)  # the run reaches the step again
    assert load_latest(workdir) == 2


def test_an_older_step_is_deleted_when_the_new_one_is_on_the_disk(
  tmp_path, monkeypatch
):
  """A power cut must not undo the new step and keep the deletion of the old one."""
  calls, sync, rename = [], os.fsync, pathlib.Path.rename

  def note(number):
    calls.append(os.readlink(f'/proc/self/fd/{number}'))
    sync(number)

  def renamed(path, target):
    calls.append((path.name, target.name))
    return rename(path, target)

  save(tmp_path, 1, keep=1)
  monkeypatch.setattr(os, 'fsync', note)
  monkeypatch.setattr(pathlib.Path, 'rename', renamed)
  save(tmp_path, 2, keep=1)
  folder = (tmp_path / 'checkpoints').resolve()
  named, deleted = calls.index(('.saving.2', '2')), calls.index(('1', '.deleting.1'))
  assert str(folder) in calls[named:deleted]
  # All files of the step, and its manifest, before it gets its name.
  before = {path for path in calls[:named] if isinstance(path, str)}
  names = [temporary_name(folder / MANIFEST), *files_of(folder / '2')]
  assert {f'{folder}/.saving.2/{name}' for name in names} <= before


@pytest.mark.parametrize('make', [pathlib.Path.touch, 'link'])
def test_a_file_in_the_place_of_a_temporary_folder_is_deleted(tmp_path, make):
  save(tmp_path, 1)
  left, target = tmp_path / 'checkpoints' / '.saving.2', tmp_path / 'target'
  target.mkdir()
  left.symlink_to(target) if make == 'link' else make(left)
  save(tmp_path, 2)
  assert load_latest(tmp_path) == 2
  assert target.is_dir()


def test_an_empty_newest_folder_falls_back_and_says_so(tmp_path, caplog):
  save(tmp_path, 1)
  (tmp_path / 'checkpoints' / '9').mkdir()
  assert load_latest(tmp_path) == 1
  assert f'step 9 is damaged: it has no {MANIFEST}' in caplog.text


def test_several_damaged_steps_fall_back_to_the_newest_good_one(tmp_path, caplog):
  save(tmp_path, 1, 2, 3)
  for step in ('2', '3'):
    (tmp_path / 'checkpoints' / step / MANIFEST).unlink()
  assert load_latest(tmp_path) == 1
  assert 'step 3 is damaged' in caplog.text
  assert 'step 2 is damaged' in caplog.text


def test_a_file_that_may_not_be_read_falls_back_and_says_so(tmp_path, caplog):
  save(tmp_path, 1, 2)
  let_others_in(tmp_path)
  for path in (tmp_path, *tmp_path.rglob('*')):
    path.chmod(0o777)
  (tmp_path / 'checkpoints' / '2' / 'origin' / 'data.json').chmod(0o000)
  with not_root():
    assert load_latest(tmp_path) == 1
  assert 'step 2 is damaged: data.json cannot be read: Permission denied' in caplog.text


def test_with_no_good_step_the_run_begins_anew_and_says_so(tmp_path, caplog):
  save(tmp_path, 1)
  (tmp_path / 'checkpoints' / '1' / MANIFEST).unlink()
  assert load_latest(tmp_path) is None
  assert 'step 1 is damaged' in caplog.text


def test_left_over_temporary_folders_are_cleared(tmp_path):
  save(tmp_path, 1)
  names = '.saving.2', '.saving.2.orbax-checkpoint-tmp', '.deleting.1'
  for name in (*names, '2.orbax-checkpoint-tmp'):
    (tmp_path / 'checkpoints' / name / 'model').mkdir(parents=True)
  assert load_latest(tmp_path) == 1
  assert [path.name for path in (tmp_path / 'checkpoints').iterdir()] == ['1']


def test_a_step_that_is_damaged_twice_is_set_aside_twice(tmp_path):
  for _ in range(2):
    save(tmp_path, 2)
    truncate(tmp_path / 'checkpoints' / '2' / MANIFEST)
    assert load_latest(tmp_path) is None
  assert sorted(path.name for path in (tmp_path / 'damaged').iterdir()) == ['2', '2.2']


def test_a_manifest_that_is_none_or_lists_too_little_is_damaged(tmp_path):
  save(tmp_path, 1)
  folder = tmp_path / 'checkpoints' / '1'
  manifest = (folder / MANIFEST).read_text()
  (folder / MANIFEST).write_bytes(b'\xff\xfe nonsense')
  assert find_corruption(folder) is not None
  lines = manifest.splitlines(keepends=True)
  (folder / MANIFEST).write_text('')
  assert find_corruption(folder) == f'{MANIFEST} is empty'
  for length in range(1, len(lines)):
    (folder / MANIFEST).write_text(''.join(lines[:length]))
    assert 'is not in' in str(find_corruption(folder))


def test_a_step_whose_manifest_has_md5_as_earlier_ones_in_buckets_opens(tmp_path):
  save(tmp_path, 1, 2)
  folder = tmp_path / 'checkpoints' / '2'
  names = [line.split('  ')[1] for line in (folder / MANIFEST).read_text().splitlines()]
  sums = [hashlib.md5((folder / name).read_bytes()).hexdigest() for name in names]
  lines = [f'{one}  {name}\n' for one, name in zip(sums, names, strict=True)]
  (folder / 'MD5SUMS').write_text(''.join(lines))
  (folder / MANIFEST).unlink()
  assert find_corruption(folder) is None
  assert load_latest(tmp_path) == 2
  flip(folder / 'origin' / 'data.json')
  assert 'data.json is not as it was written' in str(find_corruption(folder))


def test_several_processes_each_compare_a_share_of_the_files(tmp_path):
  save(tmp_path, 1)
  folder = tmp_path / 'checkpoints' / '1'
  damaged = files_of(folder)[3]
  flip(folder / damaged)
  found = [find_corruption(folder, share, 3) for share in range(3)]
  assert found.count(None) == 2
  assert any(damaged in reason for reason in found if reason)
