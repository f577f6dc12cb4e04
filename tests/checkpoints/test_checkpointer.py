"""Checkpoints survive what disks and kills do to them, and say so."""

import hashlib
import pathlib
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zoo.checkpoints.checkpointer import Checkpoints
from zoo.checkpoints.steps import MANIFEST, fault
from zoo.errors import RunError

ORIGIN = {'config': {'seed': 0}, 'versions': {'jax': jax.__version__}}


def state_at(step: int) -> dict:
  return {
    'model': {'w': jnp.arange(100.0) * step},
    'optimizer': {'count': jnp.asarray(step), 'mu': jnp.full(100, step / 3)},
  }


ABSTRACT = jax.eval_shape(lambda: state_at(1))
ABSTRACT = jax.tree.map(
  lambda leaf: jax.ShapeDtypeStruct(
    leaf.shape,
    leaf.dtype,
    sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]),
  ),
  ABSTRACT,
)


def save(workdir: pathlib.Path, *steps: int, keep: int = 5) -> None:
  workdir.mkdir(exist_ok=True)
  with Checkpoints(workdir, keep, ORIGIN) as checkpoints:
    for step in steps:
      checkpoints.save(step, state_at(step))


def load_latest(workdir: pathlib.Path) -> int | None:
  """Opens as a run does; checks what is loaded, and tells its step."""
  with Checkpoints(workdir, 5, ORIGIN) as checkpoints:
    step = checkpoints.latest
    if step is not None:
      loaded = checkpoints.load(step, ABSTRACT)
      jax.tree.map(np.testing.assert_array_equal, loaded, state_at(step))
  return step


def files_of(step_folder: pathlib.Path) -> list[str]:
  lines = (step_folder / MANIFEST).read_text().splitlines()
  return [line.split('  ')[1] for line in lines]


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
  with Checkpoints(tmp_path, 5, ORIGIN) as checkpoints:
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
  covered = set(files_of(folder))
  there = {
    str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()
  }
  # The first two are written behind the manifest and hold no state.
  assert there - covered == {'_CHECKPOINT_METADATA', 'commit_success.txt', MANIFEST}
  assert {name.split('/')[0] for name in covered} == {'model', 'optimizer', 'origin'}


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
    pytest.param(truncate, marks=pytest.mark.slow),
    pytest.param(pathlib.Path.unlink, marks=pytest.mark.slow),
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


def test_with_no_good_step_the_run_begins_anew_and_says_so(tmp_path, caplog):
  save(tmp_path, 1)
  (tmp_path / 'checkpoints' / '1' / MANIFEST).unlink()
  assert load_latest(tmp_path) is None
  assert 'step 1 is damaged' in caplog.text


def test_left_over_temporary_folders_are_cleared(tmp_path):
  save(tmp_path, 1)
  left_over = tmp_path / 'checkpoints' / '2.orbax-checkpoint-tmp'
  (left_over / 'model.orbax-checkpoint-tmp').mkdir(parents=True)
  assert load_latest(tmp_path) == 1
  assert not left_over.exists()


def test_a_step_that_is_damaged_twice_is_set_aside_twice(tmp_path):
  for _ in range(2):
    save(tmp_path, 2)
    truncate(tmp_path / 'checkpoints' / '2' / MANIFEST)
    assert load_latest(tmp_path) is None
  assert sorted(path.name for path in (tmp_path / 'damaged').iterdir()) == ['2', '2.2']


def test_a_manifest_that_is_none_or_lists_too_little_is_a_fault(tmp_path):
  save(tmp_path, 1)
  folder = tmp_path / 'checkpoints' / '1'
  manifest = (folder / MANIFEST).read_text()
  (folder / MANIFEST).write_bytes(b'\xff\xfe nonsense')
  assert fault(folder) is not None
  lines = manifest.splitlines(keepends=True)
  for length in range(len(lines)):
    (folder / MANIFEST).write_text(''.join(lines[:length]))
    assert 'is not in' in str(fault(folder))


@pytest.fixture
def small_disk(tmp_path):
  """A file system of 1 MiB."""
  folder = tmp_path / 'disk'
  folder.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', str(folder)]
  made = subprocess.run(mount, capture_output=True, text=True, check=False)
  if made.returncode:
    pytest.skip(f'no tmpfs can be mounted here: {made.stderr.strip()}')
  yield folder
  subprocess.run(['umount', '--lazy', str(folder)], check=True)


def test_a_full_disk_is_a_clear_error_and_earlier_steps_stay_good(small_disk):
  large = {'model': {'w': jax.random.normal(jax.random.key(0), (60_000,))}}  # 240 kB
  saved = []

  def fill_the_disk():
    with Checkpoints(small_disk, 100, ORIGIN) as checkpoints:
      for step in range(1, 20):
        checkpoints.save(step, {**large, 'optimizer': {'count': jnp.ones(1)}})
        checkpoints.wait()
        saved.append(step)

  with pytest.raises(RunError, match=r'could not be written.*good ones at steps') as e:
    fill_the_disk()
  assert '\n' not in str(e.value)
  assert str(saved) in str(e.value)
  assert len(saved) >= 2
  assert 'No space left' in str(e.value) or 'RESOURCE_EXHAUSTED' in str(e.value)
  for step in saved:
    assert fault(small_disk / 'checkpoints' / str(step)) is None
