"""A model in context is an estimator of scikit-learn."""

from typing import Any

import numpy as np
import pytest

import zoo
from tests.compare import refuses
from zoo.tasks.baselines import LeastSquares

pytest.importorskip('sklearn', reason="needs the extra 'baselines'")


def test_least_squares_in_context_are_those_of_scikit_learn():
  from sklearn.linear_model import LinearRegression
  from sklearn.model_selection import cross_val_score

  normal = np.random.default_rng(0).normal
  x = normal(size=(30, 3))
  y = x @ [1.0, -2.0, 0.5] + 0.5 * normal(size=30)
  model = zoo.Regressor(LeastSquares())
  ours = LinearRegression(fit_intercept=False)
  found, expected = (cross_val_score(one, x, y, cv=3) for one in (model, ours))
  np.testing.assert_allclose(found, expected, atol=1e-4)  # one is in float32


def test_a_trained_model_is_one_too():
  """The shipped yq_lsa is a step of gradient descent from w = 2, of size 1/2.1."""
  from sklearn.base import clone

  saved = zoo.load('checkpoints/yq_lsa')
  normal = np.random.default_rng(0).normal
  x, y, queries = normal(size=(10, 10)), normal(size=10), normal(size=(4, 10))
  model: Any = clone(zoo.Regressor(saved.model))
  model.fit(x, y)
  start = np.full(10, 2.0)
  weights = start + x.T @ (y - x @ start) / 10 / 2.1
  np.testing.assert_allclose(model.predict(queries), queries @ weights, atol=0.01)
  with refuses('is for 10 features; the prompt has 3'):
    zoo.Regressor(saved.model).fit(x[:, :3], y)


def test_more_examples_than_a_model_has_places_for_are_refused_at_once():
  model = zoo.load('checkpoints/transformer').model
  with refuses('the prompt has 23 tokens; the model has places for 21'):
    zoo.Regressor(model).fit(np.ones((11, 5)), np.ones(11))
