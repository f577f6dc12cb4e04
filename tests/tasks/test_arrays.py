"""One's own arrays as a task."""

import hashlib
import io
import os
import pathlib
import pickle
import zipfile
from typing import Any

import jax
import numpy as np
import pytest

import zoo
from configs import common
from tests.built import task_of
from tests.compare import refuses
from tests.marks import mostly_full
from tests.tasks import host
from tests.training.runs import small_config
from tests.training.test_evaluation import made, mean_losses
from zoo.config.building import with_full_path
from zoo.config.read import read
from zoo.measure.predict import sample_batches
from zoo.tasks import arrays

_N, _C = 30, 4


def _write(path, **changed):
  random = np.random.default_rng(0)
  # The first feature is the number of the row, and the last is constant.
  x = np.column_stack([np.arange(_N), random.normal(size=_N), np.full(_N, 7)])
  np.savez(path, **{'x': x, 'y': 10.0 * np.arange(_N)} | changed)
  return str(path)


def _task(path, **changed) -> Any:
  fields = {'context_length': _C, 'standardise': 'nothing'} | changed
  return zoo.create_task('arrays', path=path, **fields)


def _rows(task):
  """The numbers of the rows of 64 prompts, and the prompts."""
  prompt = host.sample(task, 0, 64)
  return host.features(prompt)[..., 0].round().astype(int), prompt


@pytest.fixture
def path(tmp_path):
  return _write(tmp_path / 'my.npz')


def test_prompts_are_of_different_rows_and_others_are_held_out(path):
  task = _task(path)
  rows, prompt = _rows(task)
  assert all(len({*row}) == _C + 1 for row in rows.tolist())
  np.testing.assert_array_equal(host.targets(prompt), 10 * rows)
  # A fifth of the rows, the first of a permutation by the seed.
  expected = {*np.random.RandomState(0).permutation(_N)[:6].tolist()}
  assert {*rows.ravel()} == {*range(_N)} - expected
  assert task.held_out().held_out() == task.held_out()
  # What is measured is measured on these.
  (batch,) = sample_batches(task, 0, 64, 64)
  measured = host.features(batch)[..., 0].round().astype(int)
  assert {*measured.ravel()} == expected


@pytest.mark.slow
def test_rows_are_drawn_uniformly_in_random_order():
  draw = jax.vmap(lambda key: arrays._draw(key, 2, 4))
  count = 12_000
  pairs = np.asarray(jax.jit(draw)(jax.random.split(jax.random.key(0), count)))
  counts = np.bincount(4 * pairs[:, 0] + pairs[:, 1], minlength=16).reshape(4, 4)
  assert not np.diag(counts).any()
  expected = count / 12
  apart = counts[~np.eye(4, dtype=bool)] - expected
  assert np.abs(apart).max() < 4 * np.sqrt(expected)


def test_arrays_are_standardised_over_the_rows_for_training(path):
  plain, both = _task(path), _task(path, standardise='features_and_labels')
  mean, std = plain.x.mean(0), plain.x.std(0)
  std[2] = 1  # of a constant
  np.testing.assert_allclose(both.x, (plain.x - mean) / std, atol=1e-12)
  np.testing.assert_allclose(both.y, (plain.y - plain.y.mean()) / plain.y.std())
  there = both.held_out()
  np.testing.assert_allclose(there.x, (plain.held_out().x - mean) / std, atol=1e-12)
  features = _task(path, standardise='features')
  np.testing.assert_array_equal(features.x, both.x)
  np.testing.assert_array_equal(features.y, plain.y)


def test_a_constant_column_is_0_although_its_mean_is_rounded(tmp_path):
  x = np.column_stack([np.arange(_N), np.full(_N, 0.1)])
  held_out = _task(_write(tmp_path / 'a.npz', x=x)).held_out()
  row = held_out.x[0, 0]  # of the rows that are not standardised
  x[int(row), 1] = 0.2
  task = _task(_write(tmp_path / 'b.npz', x=x), standardise='features')
  assert np.full(len(task.x), 0.1).mean() != 0.1
  np.testing.assert_array_equal(task.x[:, 1], 0)
  np.testing.assert_allclose(np.unique(task.held_out().x[:, 1]), [0, 0.1])


@pytest.mark.slow
def test_classes_of_any_names_are_one_hot(tmp_path):
  names = np.array(['rose', 'iris', 'lily'])[np.arange(_N) % 3]
  task = _task(_write(tmp_path / 'c.npz', y=names), label_kind='classes')
  rows, prompt = _rows(task)
  assert (task.num_outputs, task.num_features) == (3, 3)
  expected = np.array([2, 0, 1])[rows % 3]  # in the order of the alphabet
  np.testing.assert_array_equal(host.targets(prompt), np.eye(3)[expected])
  assert task.class_names == ('iris', 'lily', 'rose')
  assert next(iter(task.baselines())) == 'logistic'


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('kind', mostly_full(['classes'], ['numbers']))
def test_it_keeps_the_contract_of_a_task(kind, tmp_path, unchecked):
  y = np.arange(_N) % 3 + 0.5
  path = _write(tmp_path / 'my.npz', y=y)
  zoo.check_task(_task(path, label_kind=kind, standardise='features'))


def _config(path) -> Any:
  config: Any = small_config()
  with config.unlocked():
    config.task = common.task_section('arrays')
  config.task.path, config.task.context_length = path, _C
  config.task.standardise = 'nothing'
  return config


def _recorded(config):
  """The config as a run records it."""
  run = read(config)
  return with_full_path(run, task_of(run))


def test_a_run_records_the_file_and_refuses_another(path):
  config = _recorded(_config(path))
  with open(path, 'rb') as file:
    assert config.task.arguments['sha256'] == hashlib.sha256(file.read()).hexdigest()
  assert task_of(config) == _task(path)
  assert _recorded(config) == config
  _write(path, y=np.ones(_N))
  with refuses('config.task: path is', 'my.npz', 'a file that has changed'):
    task_of(config)


def test_a_run_keeps_the_full_path(path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  config = _recorded(_config('my.npz'))
  assert config.task.arguments['path'] == _task('my.npz').path == path
  monkeypatch.chdir('/')
  assert task_of(config) == _task(path)


@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_evaluation_is_on_the_rows_that_are_held_out(tmp_path):
  """Labels are 0 where the model is trained, so that it predicts 0, and 3 elsewhere."""
  y = np.zeros(_N)
  y[np.random.RandomState(0).permutation(_N)[:6]] = 3
  config = _config(_write(tmp_path / 'my.npz', y=y))
  config.model.init_scale = 0.0
  training = made(_recorded(config))
  np.testing.assert_allclose(mean_losses(training), 9, rtol=1e-6)
  assert not host.targets(_rows(task_of(config))[1]).any()


@pytest.mark.parametrize(
  ('changed', 'fields', 'said'),
  [
    ({}, {'path': 'no.npz'}, "path is 'no.npz', which cannot be read: No such file"),
    ({}, {'path': None}, 'path is None; it must be an .npz file with the arrays x'),
    ({'x': np.ones(_N)}, {}, 'has shape (30,); it must be [rows, features]'),
    ({'y': np.ones((_N, 2))}, {}, 'it must be a label for each of the 30 rows of x'),
    ({'y': np.full(_N, np.nan)}, {}, 'has entries that are not finite numbers'),
    (
      {'x': np.where(np.eye(_N, 2), np.inf, 1)},
      {},
      'the first is inf in row 0, column',
    ),
    ({'y': np.full(_N, 'a')}, {}, "has labels such as 'a'; give numbers, or set"),
    (
      {'y': np.where(np.arange(_N) % 3, np.nan, 1.0)},
      {'label_kind': 'classes'},
      'has entries that are not finite numbers; the first is nan in row 1, from 0',
    ),
    ({'x': np.full((_N, 2), 'a')}, {}, 'has entries that are not finite numbers'),
    ({}, {'label_kind': 'classes'}, 'has 30 different values in 30 rows'),
    ({}, {'context_length': 6}, 'has 6 for held_out'),
    ({'y': np.array([{}] * _N)}, {}, 'is an array of Python objects'),
    ({}, {'standardise': 'all'}, 'unknown standardise'),
  ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
  changed, fields, said, tmp_path, unchecked
):
  fields = {'path': _write(tmp_path / 'my.npz', **changed)} | fields
  with refuses(said):
    _task(**fields)


def _npz(path, **members):
  """An archive of any bytes by name."""
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    for name, content in members.items():
      archive.writestr(f'{name}.npy', content)
  return str(path)


def _npy(shape, data=b'', descr='<f8'):
  file = io.BytesIO()
  header = {'descr': descr, 'fortran_order': False, 'shape': shape}
  np.lib.format.write_array_header_1_0(file, header)
  return file.getvalue() + data


_DAMAGED = {
  'a pickle': pickle.dumps(np.ones(3)),
  'objects': _npy((3,), bytes(24), '|O'),
  'a shape that the data do not have': _npy((10**12, 3), bytes(24)),
  'no entries of a shape that is too large': _npy((0, 10**30)),
  'a negative shape': _npy((-1, 3), bytes(24)),
  'text': b'1, 2, 3',
}


@pytest.mark.parametrize('what', _DAMAGED)
def test_an_array_is_read_only_after_its_header(what, tmp_path):
  y = _npy((3,), np.ones(3).tobytes())
  said = 'it must be an .npz file with the arrays x and y, of numbers'
  if what == 'objects':
    said = 'is an array of Python objects, as columns of pandas are'
  for members in {'x': _DAMAGED[what], 'y': y}, {'x': y, 'y': _DAMAGED[what]}:
    with refuses(said):
      _task(_npz(tmp_path / 'a.npz', **members))


@pytest.mark.slow
def test_arrays_that_unpack_to_far_more_than_the_file_are_refused_at_once(tmp_path):
  path = tmp_path / 'bomb.npz'
  rows = 40_000_000  # 320 MB
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    with archive.open('x.npy', 'w') as member:
      member.write(_npy((rows, 1)))
      for _ in range(rows // 10**6):
        member.write(bytes(8 * 10**6))
    archive.writestr('y.npy', _npy((rows,)))
  assert path.stat().st_size < 10**6
  with refuses("bomb.npz' takes 0.32 GB, more than 100 times the file", 'numpy.savez'):
    _task(str(path))


@pytest.mark.timeout(60)
def test_what_never_ends_is_not_read(tmp_path):
  os.mkfifo(tmp_path / 'fifo.npz')
  for path in str(tmp_path / 'fifo.npz'), '/dev/zero', str(tmp_path):
    with refuses(f'path is {path!r}, which is not a regular file'):
      _task(path)


def test_a_file_that_is_encrypted_or_cut_is_refused(path, tmp_path):
  whole = pathlib.Path(path).read_bytes()
  encrypted = bytearray(whole)
  for mark, at in (b'PK\x03\x04', 6), (b'PK\x01\x02', 8):
    encrypted[encrypted.index(mark) + at] |= 1
  for content in encrypted, whole[: len(whole) // 2]:
    (tmp_path / 'bad.npz').write_bytes(content)
    with refuses('it must be an .npz file with the arrays x and y'):
      _task(str(tmp_path / 'bad.npz'))


def test_compressed_arrays_are_those_that_were_saved(path, tmp_path):
  with np.load(path) as arrays:
    np.savez_compressed(tmp_path / 'c.npz', **arrays)
  task, other = _task(path), _task(str(tmp_path / 'c.npz'))
  np.testing.assert_array_equal(task.x, other.x)
  np.testing.assert_array_equal(task.y, other.y)


def test_a_file_of_another_kind_is_refused(tmp_path):
  for name, content in ('a.npz', b'x, y'), ('b.npz', b''):
    (tmp_path / name).write_bytes(content)
    with refuses('it must be an .npz file with the arrays x and y'):
      _task(str(tmp_path / name))
  np.save(tmp_path / 'c.npy', np.ones(3))
  with refuses('it must be an .npz file with the arrays x and y'):
    _task(str(tmp_path / 'c.npy'))
  np.savez(tmp_path / 'd.npz', X=np.ones((3, 2)), y=np.ones(3))
  with refuses('which has no array x; it must be an .npz file', 'and has X, y'):
    _task(str(tmp_path / 'd.npz'))
