"""Checkpoints survive what disks and kills do to them, and say so."""

import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoints.states import METADATA, files_of, flip, load_latest, save
from tests.marks import FULL
from zoo.host.files import names_below
from zoo.storage.checkpointer import Checkpoints
from zoo.storage.steps import MANIFEST, find_corruption


def test_what_is_saved_is_loaded_and_only_the_newest_are_kept(tmp_path):
  save(tmp_path, 1, 2, 10, keep=2)
  assert load_latest(tmp_path) == 10
  names = {path.name for path in (tmp_path / 'checkpoints').iterdir()}
  assert names == {'2', '10'}


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
  words = ['sha256sum', '--check', '--strict', '--quiet', MANIFEST]
  subprocess.run(words, cwd=folder, check=True)
  names = [line.split('  ')[1] for line in (folder / MANIFEST).read_text().splitlines()]
  assert {*names, MANIFEST} == {*names_below(folder)}
  folders = {name.split('/')[0] for name in names if '/' in name}
  assert folders == {'model', 'optimizer', 'origin'}


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
  save(tmp_path, 1, 2)
  folder, aside = tmp_path / 'checkpoints' / '2', tmp_path / 'damaged' / '2'
  names = files_of(folder)
  assert len(names) > 10
  for name in [*names, MANIFEST]:
    content = (folder / name).read_bytes()
    damage(folder / name)
    caplog.clear()
    checkpoints = Checkpoints(tmp_path, 5, METADATA)
    assert (checkpoints.latest, checkpoints.set_aside) == (1, True)
    (record,) = caplog.records
    message = record.getMessage()
    assert 'checkpoint step 2 is damaged' in message
    assert name == MANIFEST or name in message
    aside.rename(folder)  # not deleted
    (folder / name).write_bytes(content)
  assert load_latest(tmp_path) == 2
  damage(folder / MANIFEST)
  assert load_latest(tmp_path) == 1
  save(tmp_path, 2)  # the run reaches the step again
  assert load_latest(tmp_path) == 2


def test_without_a_manifest_steps_are_set_aside_until_a_good_one_or_none_is_left(
  tmp_path, caplog
):
  save(tmp_path, 1, 2, 3)
  (tmp_path / 'checkpoints' / '9').mkdir()
  for step in ('2', '3'):
    (tmp_path / 'checkpoints' / step / MANIFEST).unlink()
  assert load_latest(tmp_path) == 1
  for step in (2, 3, 9):
    assert f'step {step} is damaged: it has no {MANIFEST}' in caplog.text
  (tmp_path / 'checkpoints' / '1' / MANIFEST).unlink()
  assert load_latest(tmp_path) is None  # the run begins anew
  assert 'step 1 is damaged' in caplog.text
  save(tmp_path, 1)  # which may be damaged again
  (tmp_path / 'checkpoints' / '1' / MANIFEST).unlink()
  assert load_latest(tmp_path) is None
  names = {path.name for path in (tmp_path / 'damaged').iterdir()}
  assert names == {'1', '1.2', '2', '3', '9'}


def test_a_file_that_cannot_be_read_falls_back_and_says_so(tmp_path, caplog):
  save(tmp_path, 1, 2)
  path = tmp_path / 'checkpoints' / '2' / 'origin' / 'data.json'
  path.unlink()
  path.symlink_to(path)
  assert load_latest(tmp_path) == 1
  assert 'step 2 is damaged: data.json cannot be read: Too many levels' in caplog.text


def test_left_over_temporary_folders_are_cleared(tmp_path):
  save(tmp_path, 1)
  for name in '.saving.2', '.saving.2.orbax-checkpoint-tmp', '.saving.1.deleting':
    (tmp_path / 'checkpoints' / name / 'model').mkdir(parents=True)
  assert load_latest(tmp_path) == 1
  assert [path.name for path in (tmp_path / 'checkpoints').iterdir()] == ['1']


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
