"""Features whose axes are turned anew: prompts, baselines and exact risks."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from studies.paper import asymptotic
from tests.compare import refuses
from tests.compiled import built
from zoo import theory
from zoo.models import DeepLSA
from zoo.tasks import RotatedRegression

TASK = RotatedRegression(3, 5, 2.0, 0.5)
COUNT = 20_000


@functools.cache
def prompts():
  return jax.device_get(TASK.sample(jax.random.key(0), COUNT))


def assert_mean(values, wanted):
  error = values.std(axis=0) / np.sqrt(len(values))
  assert np.all(np.abs(values.mean(axis=0) - wanted) < 4.5 * error)


@pytest.mark.slow
def test_the_frame_is_new_in_each_prompt_and_the_spectrum_is_not():
  v = TASK.variances
  np.testing.assert_allclose(v, np.array([36, 9, 4]) * 3 / 49)
  x = prompts().x.astype(float)
  s = np.einsum('bci,bcj->bij', x, x) / 5
  assert_mean(s, np.eye(3))
  # E tr S² for examples of one prompt, of which all share the axes.
  square = np.sum(v**2)
  assert_mean(np.sum(s * s, axis=(1, 2)), (1 + 1 / 5) * square + v.sum() ** 2 / 5)
  # Of two axes of one frame: E Q_1k² Q_2k² = 1/15 in three dimensions.
  both = x[:, 0, 0] * x[:, 1, 0] * x[:, 0, 1] * x[:, 1, 1]
  assert_mean(both, (square - v @ np.roll(v, 1)) / 15)


@pytest.mark.slow
def test_labels_are_linear_in_the_features():
  prompt = prompts()
  x, targets = prompt.x[0], prompt.context_targets[0]
  weights = np.linalg.lstsq(x, targets)[0]
  np.testing.assert_allclose(x @ weights, targets, atol=1e-5)
  np.testing.assert_allclose(prompt.x_query[0] @ weights, prompt.y_query[0], atol=1e-4)
  assert_mean((prompt.y - prompt.context_targets) ** 2, 0.25)


@pytest.mark.slow
@pytest.mark.full
def test_gradient_descent_has_the_exact_risk_of_one_frame():
  prompt = prompts()
  task = TASK.in_one_frame
  gd = TASK.baselines()['gd']
  least = asymptotic.rotated_optimum(TASK.variances, 5, 1, 0.5)
  np.testing.assert_allclose(theory.exact_risk(gd, task), least, rtol=1e-12)
  assert_mean((np.asarray(jax.jit(gd)(prompt)) - prompt.y_query) ** 2, least)
  model = built(
    lambda: DeepLSA(3, num_layers=2, form='scalar', init_scale=0.3, rngs=nnx.Rngs(0))
  )
  losses = (np.asarray(jax.jit(model)(prompt)) - prompt.y_query) ** 2
  assert_mean(losses, theory.exact_risk(model, task))
  bayes = np.asarray(jax.jit(TASK.baselines()['bayes'])(prompt))
  # By hand: the posterior mean of N(0, I), whatever the frame.
  x, y = prompt.x[0].astype(float), prompt.y[0].astype(float)
  weights = np.linalg.solve(x.T @ x + 0.25 * np.eye(3), x.T @ y)
  np.testing.assert_allclose(bayes[0], weights @ prompt.x_query[0], rtol=1e-4)
  assert np.mean((bayes - prompt.y_query) ** 2) < least


def test_mistakes_are_one_line(unchecked):
  with refuses('exponent is -1'):
    zoo.create_task('rotated_regression', exponent=-1.0)
