import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.tasks import host
from zoo.tasks import Tabular, tabular

_D, _C, _K, _BATCH = 6, 40, 4, 500


def _task(**changes) -> Tabular:
  fields = {'num_features': _D, 'context_length': _C, 'num_classes': _K} | changes
  task = zoo.create_task('tabular', **fields)
  assert isinstance(task, Tabular)
  return task


@functools.cache
def _drawn() -> zoo.Prompt:
  return host.sample_with_latents(_task(share_missing=0.5), 0, _BATCH)


def _near(share: float, expected: float, number: int = _BATCH) -> bool:
  """Whether a share of draws is within five standard errors of a probability."""
  return abs(share - expected) <= 5 * math.sqrt(expected * (1 - expected) / number)


@pytest.mark.slow
def test_the_number_of_features_is_log_uniform_and_others_are_zero():
  prompt = _drawn()
  sizes, x = prompt.latents['num_features'], host.features(prompt)
  for d in range(2, _D + 1):
    expected = math.log((d + 1) / d) / math.log((_D + 1) / 2)
    assert _near(np.mean(sizes == d), expected)
  absent = np.arange(_D)[None] >= sizes[:, None]
  assert not np.any(np.swapaxes(x, 1, 2)[absent])
  assert (np.nanstd(np.swapaxes(x, 1, 2)[~absent], axis=1) > 0).mean() > 0.97


@pytest.mark.slow
def test_half_of_the_tables_have_classes_and_the_others_numbers():
  prompt = _drawn()
  labels, is_class = host.targets(prompt), prompt.latents['is_class']
  assert _near(is_class.mean(), 0.5)
  assert not labels[is_class, :, 0].any()
  assert not labels[~is_class, :, 1:].any()
  np.testing.assert_array_equal(labels[is_class].sum(axis=(2,)), 1)
  # All names of classes are used alike, since they are permuted.
  shares = labels[is_class][..., 1:].mean(axis=1)
  errors = shares.std(axis=0) / math.sqrt(len(shares))
  assert (np.abs(shares.mean(axis=0) - 1 / _K) <= 5 * errors).all()
  assert (shares > 0).sum(axis=1).max() == _K
  # Numbers have the variance 1 over 64 hidden rows of their table.
  deviations = labels[~is_class][..., 0].std(axis=1)
  assert 0.8 < np.median(deviations) < 1.1


@pytest.mark.slow
def test_rows_are_alike():
  """The query is as any example: first and second moments at both ends of a table."""
  prompt = _drawn()
  x, y = np.nan_to_num(host.features(prompt)), host.targets(prompt)
  rows = np.concatenate([x, y], axis=2)
  for power in (1, 2):
    first, last = (np.float64(rows[:, at] ** power) for at in (0, -1))
    difference = first - last
    errors = difference.std(axis=0) / math.sqrt(_BATCH)
    assert (np.abs(difference.mean(axis=0)) <= 5 * errors).all()


@pytest.mark.slow
def test_scales_do_not_come_from_the_rows_that_are_shown():
  """Means of standardised rows would be 0; here they vary as those of 41 rows do.

  The variance is 1/41, and 1/64 from the mean of the hidden rows, of features whose
  rows have the variance 1.
  """
  prompt = _drawn()
  x = host.features(prompt)[:, :, 0]
  x = x[~np.isnan(x).any(axis=1)].astype(np.float64)
  expected = 1 / (_C + 1) + 1 / 64
  assert 0.7 * expected < np.mean(x.mean(axis=1) ** 2) < 1.4 * expected


@pytest.mark.slow
@pytest.mark.full
def test_in_tables_of_clusters_labels_follow_from_the_features():
  x = jax.random.normal(jax.random.key(0), (70, 3))
  label = jax.jit(tabular._sample_labels, static_argnums=5)
  for seed in range(5):
    first, other = (
      label(
        jax.random.key(seed),
        x,
        jnp.asarray(3),
        jax.random.normal(jax.random.key(node_seed), (70, 4)),
        jnp.asarray(True),
        _K,
      )
      for node_seed in (1, 2)
    )
    np.testing.assert_array_equal(first.numbers, other.numbers)
    np.testing.assert_array_equal(first.classes, other.classes)


@pytest.mark.slow
@pytest.mark.full
def test_scores_are_nodes_that_are_no_features():
  nodes = jnp.arange(64.0)[None]  # each node has its number
  for seed in range(20):
    draws = tabular._Draws(jax.random.key(seed), 200)
    x, scores = tabular._choose_nodes(draws, nodes, jnp.asarray(5), 40)
    features = np.asarray(x[0])
    assert len({*features}) == 40
    chosen = {*np.asarray(scores[0])}
    assert len(chosen) == 4
    assert not chosen & {*features[:5]}
    layers = {int(node) // 16 for node in chosen}
    if features[:16].max() < 16:  # the features are roots, and layers are whole
      assert len(layers) == 1


@pytest.mark.slow
def test_the_share_of_tables_with_missing_features_is_that_of_the_field():
  """At most 30 % are missing, uniformly: of few entries some tables miss none."""
  prompt = _drawn()
  missing, sizes = np.isnan(host.features(prompt)), prompt.latents['num_features']
  number = sizes * (_C + 1)
  shares = missing.sum(axis=(1, 2)) / number
  # The mean over u of 1 − (1 − 0.3 u)^n, n entries.
  some = 0.5 * np.mean(1 - (1 - 0.7 ** (number + 1.0)) / (0.3 * (number + 1)))
  assert _near(np.mean(shares > 0), some)
  deviation = 0.3 / math.sqrt(12) + 0.5 / math.sqrt(number.min())
  present = shares[shares > 0]
  assert abs(present.mean() - 0.15) <= 5 * deviation / math.sqrt(len(present)) + 0.005
  whole = host.sample_with_latents(_task(share_missing=0.0), 0, _BATCH)
  assert not np.isnan(host.features(whole)).any()


def test_labels_of_one_kind_are_a_part_of_those_of_both():
  numbers, classes = jnp.array([0.5, -1.0]), jnp.array([2, 0])
  labels = tabular._Labels(numbers, classes)
  one_hot = [[0, 0, 1, 0], [1, 0, 0, 0]]
  for kind, expected in (('numbers', [0.5, -1.0]), ('classes', one_hot)):
    task = _task(kind=kind)
    assert task.label_kind == kind
    assert task.num_outputs == np.ndim(expected[0]) * 3 + 1
    for is_class in (True, False):
      found = task._labels_of_kind(labels, jnp.asarray(is_class))
      np.testing.assert_array_equal(found, expected)
  found = _task()._labels_of_kind(labels, jnp.asarray(True))
  np.testing.assert_array_equal(found, [[0, *row] for row in one_hot])
  found = _task()._labels_of_kind(labels, jnp.asarray(False))
  np.testing.assert_array_equal(found, [[0.5, 0, 0, 0, 0], [-1.0, 0, 0, 0, 0]])


def test_the_loss_is_that_of_the_labels_of_a_table():
  task = _task()
  prediction = jnp.array([[2.0, 0.0, 0.0, 1.0, 0.0]] * 2)
  target = jnp.array([[5.0, 0, 0, 0, 0], [0, 0, 0, 1, 0]])
  expected = [9.0, math.log(3 + math.e) - 1]
  np.testing.assert_allclose(task.loss(prediction, target), expected, rtol=1e-6)


@pytest.mark.slow
def test_scores_are_what_they_are_called():
  """Linear functions lie in the span of the features, and trees have few values."""
  n = 80
  x = np.random.default_rng(0).normal(size=(n, 3)).astype('f')

  @jax.jit
  def draw(x):
    draws = tabular._Draws(jax.random.key(1), 10_000)
    linear = tabular._sample_linear(draws, x)
    return linear, tabular._sample_trees(draws, x, jnp.asarray(3))

  linear, trees = map(np.asarray, draw(x))
  linear = linear.astype(np.float64)
  columns = np.concatenate([np.ones((n, 1)), x], axis=1)
  left = linear - columns @ np.linalg.lstsq(columns, linear)[0]
  assert np.abs(left).max() < 1e-5
  # Rows in the same boxes have equal scores: those that agree in all comparisons.
  assert len(np.unique(trees.round(5), axis=0)) < n
  hidden = linear[-64:]
  np.testing.assert_allclose(hidden.mean(axis=0), 0, atol=1e-5)
  np.testing.assert_allclose(hidden.std(axis=0), 1, atol=1e-5)


def test_products_are_those_of_numpy():
  left, right = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
  found = tabular._product(jnp.asarray(left), jnp.asarray(right))
  np.testing.assert_allclose(found, left @ right.T, rtol=1e-5, atol=1e-6)


def test_baselines_are_those_of_numpy():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(16, _C + 1, _D)).astype('f')
  x[:, :, -1] = 0  # a feature that a table does not have
  x[rng.random(x.shape) < 0.1] = np.nan
  y = np.zeros((16, _C + 1, 1 + _K), 'f')
  y[:8, :, 0] = rng.normal(size=(8, _C + 1))
  y[8:, :, 1:] = np.eye(_K)[rng.integers(_K, size=(8, _C + 1))]
  arrays: Any = x[:, :-1], y[:, :-1], x[:, -1], y[:, -1]
  prompt = zoo.Prompt(*arrays)
  of_numbers = dataclasses.replace(prompt, y=y[:, :-1, 0], y_query=y[:, -1, 0])

  @jax.jit
  def predictions(prompt, of_numbers):
    found = {name: b(prompt) for name, b in _task().baselines().items()}
    return found, _task(kind='numbers').baselines()['ridge'](of_numbers)

  found, ridge = jax.device_get(predictions(prompt, of_numbers))
  for i in range(16):
    x, q, y = prompt.x[i].astype(np.float64), prompt.x_query[i], prompt.y[i]
    mean, std = np.nanmean(x, axis=0), np.nanstd(x, axis=0)
    scale = np.divide(1, std, out=np.zeros_like(std), where=std > 1e-6)
    z, of_query = (np.nan_to_num((row - mean) * scale) for row in (x, q))
    near = np.argsort(np.square(z - of_query).sum(axis=1))[:10]
    classes = y[:, 1:]
    of_all = (classes.sum(axis=0) + 1 / _K) / (classes.sum() + 1)
    of_near = (classes[near].sum(axis=0) + of_all) / (classes[near].sum() + 1)
    for name, rows, shares in (
      ('mean', y, of_all),
      ('nearest_neighbours', y[near], of_near),
    ):
      expected = [rows[:, 0].mean(), *np.log(shares)]
      np.testing.assert_allclose(found[name][i], expected, rtol=1e-4, atol=1e-5)
    numbers = y[:, 0].astype(np.float64)
    weights = np.linalg.solve(z.T @ z + np.eye(_D), z.T @ (numbers - numbers.mean()))
    expected = numbers.mean() + of_query @ weights
    assert ridge[i] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_fields_out_of_range_are_refused():
  for fields, said in (
    ({'kind': 'both kinds'}, 'kind'),
    ({'num_classes': 1}, 'num_classes'),
    ({'num_features': 61}, 'num_features'),
    ({'share_missing': 1.5}, 'share_missing'),
  ):
    with refuses(said):
      _task(**fields)
