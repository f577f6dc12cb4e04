"""Regression among outliers: both kinds of them, and Bayes where they are known."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats

import zoo
from tests.compare import refuses
from tests.tasks import host
from zoo.tasks import OutlierRegression
from zoo.tasks.outlier_regression import WithoutOnes


def _sample(task, num_prompts, seed=0):
  with jax.enable_x64(True):
    return host.sample(task, seed, num_prompts)


def _all(prompt):
  """Features, labels and targets; the label of the query is its target."""
  y = np.concatenate([prompt.y, prompt.y_query[:, None]], axis=1)
  return host.features(prompt), y, host.targets(prompt)


@pytest.mark.slow
def test_many_outliers_have_features_and_labels_of_one():
  x, y, targets = _all(_sample(OutlierRegression(4, 60), 2048))
  outlier = np.all(x == 1, axis=2)
  assert not outlier[:, -1].any()
  error = np.sqrt(0.9 * 0.1 / outlier[:, :-1].size)
  assert abs(outlier[:, :-1].mean() - 0.9) < 4 * error
  np.testing.assert_array_equal(y[outlier], 1)
  np.testing.assert_array_equal(targets, y)
  regular = x[~outlier]
  assert np.abs(regular.mean(0)).max() < 4 / np.sqrt(len(regular))
  weights = []
  for x_one, y_one, out in zip(x, y, outlier, strict=True):
    if np.sum(~out) > 4:
      w, *_ = np.linalg.lstsq(x_one[~out], y_one[~out])
      np.testing.assert_allclose(x_one[~out] @ w, y_one[~out], atol=1e-9)
      weights.append(w)
  assert np.abs(np.cov(np.transpose(weights)) - np.eye(4)).max() < 0.2


@pytest.mark.slow
@pytest.mark.full
def test_orthogonal_outliers_are_orthogonal_to_the_weights():
  task = OutlierRegression(5, 40, kind='orthogonal')
  x, y, targets = _all(_sample(task, 512))
  lengths, shares = [], []
  for x_one, y_one, targets_one in zip(x, y, targets, strict=True):
    outlier = targets_one == 0
    assert not outlier[-1]
    w, *_ = np.linalg.lstsq(x_one[~outlier], y_one[~outlier])
    np.testing.assert_allclose(targets_one[~outlier], y_one[~outlier])
    np.testing.assert_allclose(x_one[~outlier] @ w, y_one[~outlier], atol=1e-9)
    features, labels = x_one[outlier], y_one[outlier]
    assert np.ptp(features, axis=0).max() == np.ptp(labels) == 0
    assert abs(features[0] @ w) < 1e-9 * np.linalg.norm(features[0])
    assert labels[0] != 0
    lengths.append(np.linalg.norm(features[0]))
    shares.append(outlier[:-1].mean())
  assert abs(np.mean(shares) - 0.5) < 4 * 0.5 / np.sqrt(512 * 40)
  # |a u + b v|² is a²|u|² + b²|v|², where |u|² and |v|² have chi-squared laws of d − 1
  # and d − 2 degrees: u loses a direction, and v two.
  random = np.random.default_rng(0)
  a, b = random.normal(size=(2, 4096))
  u, v = random.chisquare(4, 4096), random.chisquare(3, 4096)
  expected = np.sqrt(a**2 * u + b**2 * v) / (a**2 + b**2)
  test: Any = scipy.stats.ks_2samp(lengths, expected)
  assert test.pvalue > 1e-3


@pytest.mark.slow
def test_bayes_is_least_squares_on_the_rest():
  task = OutlierRegression(4, 30, outlier_probability=0.7)
  prompt = _sample(task, 16)
  with jax.enable_x64(True):
    predictions = np.asarray(jax.jit(WithoutOnes().predictions)(prompt))
  x, y, _ = _all(prompt)
  for i in range(16):
    for k in range(31):
      rest = np.any(x[i, :k] != 1, axis=1)
      w = np.linalg.pinv(x[i, :k][rest]) @ y[i, :k][rest]
      expected = 1 if np.all(x[i, k] == 1) else w @ x[i, k]
      np.testing.assert_allclose(predictions[i, k], expected, atol=1e-8)


def test_there_is_no_bayes_for_orthogonal_outliers():
  baselines = OutlierRegression(kind='orthogonal').baselines()
  assert list(baselines) == ['ols', 'ridge', 'zero']


@pytest.mark.slow
@pytest.mark.full
def test_a_prompt_without_targets_is_not_drawn_again():
  task = zoo.tasks.OutlierRegression(2, 3, kind='orthogonal')
  prompt = task.sample(jax.random.key(0), 4)
  given = zoo.Prompt(prompt.x, prompt.y, prompt.x_query, prompt.y_query)
  with refuses('the prompt has no context_targets'):
    task.redraw(jax.random.key(1), given, 'inputs')


def test_bad_input_is_refused_in_one_line(unchecked):
  with refuses("kind 'orthogonal' is 2; it must be"):
    zoo.create_task('outlier_regression', num_features=2, kind='orthogonal')
