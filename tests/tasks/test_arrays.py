"""One's own arrays as a task."""

import hashlib
from typing import Any

import jax
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.training.runs import small_config
from tests.training.test_evaluation import mean_losses
from zoo.config import schema
from zoo.config.validation import build_task
from zoo.measure.predict import sample_batches
from zoo.tasks import arrays
from zoo.training.trainer import make_program

_N, _C = 30, 4


def _write(path, **changed):
  random = np.random.default_rng(0)
  # The first feature is the number of the row, and the last is constant.
  x = np.column_stack([np.arange(_N), random.normal(size=_N), np.full(_N, 7)])
  np.savez(path, **{'x': x, 'y': 10.0 * np.arange(_N)} | changed)
  return str(path)


def _task(path, **changed) -> Any:
  given = {'context_length': _C, 'standardise': 'nothing'} | changed
  return zoo.create_task('arrays', path=path, **given)


def _rows(task):
  """The numbers of the rows of 64 prompts, and the prompts."""
  prompt = jax.device_get(task.sample(jax.random.key(0), 64))
  return np.asarray(prompt.features)[..., 0].round().astype(int), prompt


@pytest.fixture
def path(tmp_path):
  return _write(tmp_path / 'my.npz')


def test_prompts_are_of_different_rows_and_others_are_held_out(path):
  task = _task(path)
  rows, prompt = _rows(task)
  assert all(len({*each}) == _C + 1 for each in rows.tolist())
  np.testing.assert_array_equal(prompt.targets, 10 * rows)
  held_out, _ = _rows(task.held_out())
  # A fifth of the rows, the first of a permutation by the seed.
  expected = {*np.random.RandomState(0).permutation(_N)[:6].tolist()}
  assert {*held_out.ravel()} == expected
  assert {*rows.ravel()} == {*range(_N)} - expected
  assert task.held_out().held_out() == task.held_out()
  # What is measured is measured on these.
  (batch,) = sample_batches(task, 0, 64, 64)
  measured = np.asarray(batch.features)[..., 0].round().astype(int)
  assert {*measured.ravel()} == expected


def test_rows_are_drawn_uniformly_in_random_order():
  draw = jax.vmap(lambda key: arrays._draw(key, 2, 4))
  count = 12_000
  pairs = np.asarray(jax.jit(draw)(jax.random.split(jax.random.key(0), count)))
  found = np.bincount(4 * pairs[:, 0] + pairs[:, 1], minlength=16).reshape(4, 4)
  assert not np.diag(found).any()
  expected = count / 12
  apart = found[~np.eye(4, dtype=bool)] - expected
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


def test_classes_of_any_names_are_one_hot(tmp_path):
  names = np.array(['rose', 'iris', 'lily'])[np.arange(_N) % 3]
  task = _task(_write(tmp_path / 'c.npz', y=names), label_kind='classes')
  rows, prompt = _rows(task)
  assert (task.num_outputs, task.num_features) == (3, 3)
  expected = np.array([2, 0, 1])[rows % 3]  # in the order of the alphabet
  np.testing.assert_array_equal(prompt.targets, np.eye(3)[expected])
  assert next(iter(task.baselines())) == 'logistic'


@pytest.mark.parametrize(
  'kind', ['numbers', pytest.param('classes', marks=pytest.mark.slow)]
)
def test_it_keeps_the_contract_of_a_task(kind, tmp_path, unchecked):
  y = np.arange(_N) % 3 + 0.5
  path = _write(tmp_path / 'my.npz', y=y)
  zoo.check_task(_task(path, label_kind=kind, standardise='features'))


def _config(path) -> Any:
  config: Any = small_config()
  with config.unlocked():
    config.task = schema.section('task', 'arrays')
  config.task.path, config.task.context_length = path, _C
  config.task.standardise = 'nothing'
  return config


def test_a_run_records_the_file_and_refuses_another(path):
  config = schema.complete(_config(path))
  with open(path, 'rb') as file:
    assert config.task.sha256 == hashlib.sha256(file.read()).hexdigest()
  assert build_task(config) == _task(path)
  assert schema.complete(config) is config
  _write(path, y=np.ones(_N))
  with refuses('config.task: path is', 'my.npz', 'a file that has changed'):
    build_task(config)


def test_a_run_keeps_the_full_path(path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  config = schema.complete(_config('my.npz'))
  assert config.task.path == _task('my.npz').path == path
  monkeypatch.chdir('/')
  assert build_task(config) == _task(path)


def test_evaluation_is_on_the_rows_that_are_held_out(tmp_path):
  """Labels are 0 where the model is trained, so that it predicts 0, and 3 elsewhere."""
  y = np.zeros(_N)
  y[np.random.RandomState(0).permutation(_N)[:6]] = 3
  config = _config(_write(tmp_path / 'my.npz', y=y))
  config.model.init_scale = 0.0
  program = make_program([schema.complete(config)])
  np.testing.assert_allclose(mean_losses(program), 9, rtol=1e-6)
  assert not _rows(build_task(config))[1].targets.any()


@pytest.mark.parametrize(
  ('changed', 'fields', 'said'),
  [
    ({}, {'path': 'no.npz'}, "path is 'no.npz', which cannot be read: No such file"),
    ({}, {'path': None}, 'path is None; it must be an .npz file with the arrays x'),
    ({'x': np.ones(_N)}, {}, 'has shape (30,); it must be [rows, features]'),
    ({'y': np.ones((_N, 2))}, {}, 'it must be a label for each of the 30 rows of x'),
    ({'y': np.full(_N, np.nan)}, {}, 'has entries that are not finite numbers'),
    ({'y': np.full(_N, 'a')}, {}, "has labels such as 'a'; give numbers, or set"),
    ({'x': np.full((_N, 2), 'a')}, {}, 'has entries that are not finite numbers'),
    ({}, {'label_kind': 'classes'}, 'has 30 different values in 30 rows'),
    ({}, {'context_length': 6}, 'has 6 for held_out'),
    ({'y': np.array([{}] * _N)}, {}, 'it must be an .npz file with the arrays x'),
    ({}, {'standardise': 'all'}, 'unknown standardise'),
  ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
  changed, fields, said, tmp_path, unchecked
):
  fields = {'path': _write(tmp_path / 'my.npz', **changed)} | fields
  with refuses(said):
    _task(**fields)


def test_a_file_of_another_kind_is_refused(tmp_path):
  for name, content in ('a.npz', b'x, y'), ('b.npz', b''):
    (tmp_path / name).write_bytes(content)
    with refuses('it must be an .npz file with the arrays x and y'):
      _task(str(tmp_path / name))
  np.save(tmp_path / 'c.npy', np.ones(3))
  with refuses('it must be an .npz file with the arrays x and y'):
    _task(str(tmp_path / 'c.npy'))
