"""Checkpoints survive what disks and kills do to them, and say so."""

import contextlib
import logging
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

from tests.checkpoints.states import (
  ABSTRACT,
  CONTENT,
  files_of,
  flip,
  load_latest,
  save,
  state_at,
)
from tests.compare import refuses
from tests.marks import FULL
from zoo.core.errors import RunError
from zoo.host.files import names_below
from zoo.storage.checkpoints import Checkpoints
from zoo.storage.loading import load
from zoo.storage.steps import SUMS, chosen_step, damage_of, steps_in


def test_what_is_saved_is_loaded_and_only_the_newest_are_kept(tmp_path):
  save(tmp_path, 1, 2, 10, keep=2)
  assert load_latest(tmp_path) == 10
  names = {path.name for path in (tmp_path / 'checkpoints').iterdir()}
  assert names == {'2', '10'}


def test_the_newest_step_is_that_of_the_largest_number(tmp_path):
  for step in 90, 100:
    (tmp_path / str(step)).mkdir()
    (tmp_path / str(step) / SUMS).write_text('')
  assert steps_in(tmp_path) == [90, 100]
  assert chosen_step(tmp_path, None) == tmp_path / '100'


def test_a_save_does_not_see_what_is_done_to_the_state_after_it(tmp_path):
  overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
  state = {'model': {'w': jnp.ones(100_000)}, 'optimizer': {'count': jnp.ones(1)}}
  with Checkpoints(tmp_path, 5, CONTENT) as checkpoints:
    checkpoints.save(1, state)
    state['model']['w'] = overwrite(state['model']['w'])
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.ShapeDtypeStruct((100_000,), jnp.float32, sharding=sharding)
    checkpoints.wait()
    loaded = checkpoints.load(1, {'model': {'w': abstract}})
  assert (np.asarray(loaded['model']['w']) == 1).all()


def test_the_checksums_are_what_sha256sum_reads_and_cover_every_item(three_steps):
  folder = three_steps / 'checkpoints' / '3'
  words = ['sha256sum', '--check', '--strict', '--quiet', SUMS]
  subprocess.run(words, cwd=folder, check=True)
  names = [line.split('  ')[1] for line in (folder / SUMS).read_text().splitlines()]
  of_commit = {'_CHECKPOINT_METADATA', 'commit_success.txt', SUMS}
  assert {*names} == {*names_below(folder)} - of_commit
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
def test_damage_to_any_file_is_one_line_that_says_how_to_go_on(steps_123, damage):
  folder = steps_123 / 'checkpoints' / '3'
  names = files_of(folder)
  assert len(names) > 10
  for name in [*names, SUMS]:
    content = (folder / name).read_bytes()
    damage(folder / name)
    with pytest.raises(RunError, match=f'{folder} is damaged') as info:
      Checkpoints(steps_123, 5, CONTENT)
    assert '\n' not in str(info.value)
    assert name == SUMS or name in str(info.value)
    assert f'step 2 is good: delete {folder} and give the same' in str(info.value)
    assert sorted(path.name for path in folder.parent.iterdir()) == ['1', '2', '3']
    (folder / name).write_bytes(content)
  assert load_latest(steps_123) == 3
  damage(folder / names[0])
  shutil.rmtree(folder)
  assert load_latest(steps_123) == 2
  save(steps_123, 3)  # the run reaches the step again
  assert load_latest(steps_123) == 3


def test_what_orbax_writes_at_its_commit_loads_no_other_weights(steps_123):
  """It is not in the checksums; that it is damaged is harmless, or an error."""
  path = steps_123 / 'checkpoints' / '3' / '_CHECKPOINT_METADATA'
  content = path.read_bytes()
  cuts = (content[:i] for i in range(0, len(content), 90))
  for damaged in *cuts, b'[1]', b'\xff':
    path.write_bytes(damaged)
    with contextlib.suppress(RunError):
      assert load_latest(steps_123) == 3  # it checks the weights


def test_the_older_step_that_is_named_is_a_good_one(steps_123):
  folder = steps_123 / 'checkpoints'
  (folder / '3' / SUMS).unlink()
  flip(folder / '2' / files_of(folder / '2')[0])
  with pytest.raises(RunError, match=f'3 is damaged: it has no {SUMS}; step 1 is good'):
    load_latest(steps_123)
  (folder / '1' / SUMS).write_text('')
  with pytest.raises(RunError, match=f'no older step is good: delete {folder} to beg'):
    load_latest(steps_123)
  shutil.rmtree(folder)
  assert load_latest(steps_123) is None  # the run begins anew


def test_a_file_that_cannot_be_read_is_named(steps_123):
  path = steps_123 / 'checkpoints' / '3' / 'origin' / 'data.json'
  path.unlink()
  path.symlink_to(path)
  with pytest.raises(RunError, match=r'data.json cannot be read: Too many levels'):
    load_latest(steps_123)


def test_what_a_kill_leaves_is_cleared(steps_123, full):
  folder = steps_123 / 'checkpoints'
  (folder / '4.orbax-checkpoint-tmp' / 'model').mkdir(parents=True)
  save(steps_123, 4)
  assert load_latest(steps_123) == 4
  assert sorted(path.name for path in folder.iterdir()) == ['1', '2', '3', '4']
  # A step that was being deleted lacks some of its files.
  for i, path in enumerate(sorted((folder / '1').rglob('*'), reverse=True)):
    path.rmdir() if path.is_dir() else path.unlink()
    if full or i % 9 == 0:
      assert load_latest(steps_123) == 4
  save(steps_123, 5, keep=2)
  assert load_latest(steps_123) == 5


def test_a_step_of_another_run_is_refused(steps_123):
  other = {**CONTENT, 'seed': 1}
  with refuses('was saved by a run of another config', 'seed (0 there, 1 here)'):
    Checkpoints(steps_123, 5, other)


def test_a_step_of_another_format_is_neither_resumed_nor_opened(steps_123, monkeypatch):
  monkeypatch.setattr('zoo.storage.steps.FORMAT', 2)
  said = 'has the format 1; this version of ICL Zoo reads the format 2 alone'
  with refuses(said):
    Checkpoints(steps_123, 5, CONTENT)
  with refuses(said):
    load(steps_123)


def test_weights_of_another_precision_are_not_converted(steps_123):
  weights = ABSTRACT['model']['w']
  half = jax.ShapeDtypeStruct(weights.shape, jnp.float16, sharding=weights.sharding)
  said = 'holds w as float32', 'would train it as float16'
  with Checkpoints(steps_123, 5, CONTENT) as checkpoints, refuses(*said):
    checkpoints.load(3, {**ABSTRACT, 'model': {'w': half}})


@pytest.mark.parametrize(
  ('shapes', 'said'),
  [
    ({'w': 100, 'b': 2}, 'it lacks b (2,)'),
    ({'b': 100}, 'it has w (100,), and the model b (100,)'),
    ({'w': 50}, 'it has w (100,), and the model w (50,)'),
  ],
)
def test_weights_of_another_class_are_named(steps_123, shapes, said):
  sharding = ABSTRACT['model']['w'].sharding
  model = {
    name: jax.ShapeDtypeStruct((size,), jnp.float32, sharding=sharding)
    for name, size in shapes.items()
  }
  said = f'3 does not fit the model as its class is now: {said}'
  with Checkpoints(steps_123, 5, CONTENT) as checkpoints, refuses(said):
    checkpoints.load(3, {**ABSTRACT, 'model': model})


def test_checksums_that_are_none_or_list_too_little_are_damaged(steps_123):
  folder = steps_123 / 'checkpoints' / '3'
  lines = (folder / SUMS).read_text().splitlines(keepends=True)
  (folder / SUMS).write_bytes(b'\xff\xfe nonsense')
  assert damage_of(folder) is not None
  (folder / SUMS).write_text('')
  assert damage_of(folder) == f'{SUMS} is empty'
  for length in range(1, len(lines)):
    (folder / SUMS).write_text(''.join(lines[:length]))
    assert re.search('is not in', str(damage_of(folder)))


def test_a_failed_step_is_saved_again(tmp_path):
  """An error before the commit, as of copying records into a bucket, is one line."""

  def fail():
    raise OSError('away')

  with Checkpoints(tmp_path, 5, CONTENT) as checkpoints:
    checkpoints.save(1, state_at(1), fail)
    with pytest.raises(RunError, match='there is none yet; the reason: OSError: away'):
      checkpoints.wait()
  save(tmp_path, 1)
  assert load_latest(tmp_path) == 1


@pytest.mark.parametrize('level', [logging.INFO, logging.WARNING, logging.ERROR])
def test_what_orbax_logs_reaches_the_log_of_the_user(caplog, level):
  """Also where Checkpoints has been imported, and through absl, as Orbax logs it."""
  logger = absl_logging.get_absl_logger()
  record = logger.makeRecord(
    logger.name, level, ocp.__file__, 1, 'a message of Orbax', (), None
  )
  logger.handle(record)
  assert caplog.messages == ['a message of Orbax']


@pytest.mark.slow
def test_an_import_leaves_no_filter_of_warnings():
  code = 'import warnings, zoo.training; print([str(f) for f in warnings.filters])'
  answer = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert '_create_paths' not in answer.stdout
