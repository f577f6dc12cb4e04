"""Which tasks the theory covers, and the moments of their contexts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.wrapped import Wrapped
from zoo import theory
from zoo.tasks import LinearRegression
from zoo.theory.moments import context_moments


def test_linear_regression_alone_is_covered():
  task = LinearRegression(2, 3)
  assert theory.covers(task)
  rule = zoo.LearningRule.gradient_descent(np.zeros(2), 0.5)
  for other in Wrapped(task), 'linear_regression':
    assert not theory.covers(other)
  with refuses('of type Wrapped', 'covers LinearRegression'):
    theory.exact_risk(rule, Wrapped(task))


@pytest.mark.parametrize('kind', ['isotropic', 'mean', 'noise', 'general', 'singular'])
def test_context_moments_are_expectations_over_all_prompts(cubature, make_task, kind):
  task = make_task(kind, 2, 2)
  prompt, weights = cubature(task)
  x = np.asarray(prompt.x)
  label = np.asarray(prompt.y) - x @ task.prior_mean
  second = np.einsum('bci,bcj->bij', x, x) / 2
  r = np.einsum('bci,bc->bi', x, label) / 2
  q = np.mean(label**2, axis=1)
  found = context_moments(theory.task_moments(task))
  # Rounding of sums of at most 26,000 terms.
  np.testing.assert_allclose(
    found.features, np.tensordot(weights, second, 1), atol=1e-12
  )
  np.testing.assert_allclose(found.mean_q, weights @ q, rtol=1e-12)
  np.testing.assert_allclose(found.variance_q, weights @ (q - weights @ q) ** 2)
  rr = np.einsum('b,bi,bj->ij', weights, r, r)
  np.testing.assert_allclose(found.second_moment_r, rr, atol=1e-12)
  # What is left of q when its regression on the entries of S is taken off.
  entries = second[:, [0, 0, 1], [0, 1, 1]]
  entries = (entries - weights @ entries) * np.sqrt(weights)[:, None]
  rest = (q - weights @ q) * np.sqrt(weights)
  rest = rest - entries @ np.linalg.lstsq(entries, rest)[0]
  np.testing.assert_allclose(found.variance_label, rest @ rest, rtol=1e-10)


def test_context_moments_in_jax_are_those_in_numpy(make_task):
  moments = theory.task_moments(make_task('noise', 3, 4))
  expected = context_moments(moments)
  with jax.enable_x64(True):
    numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), moments)
    found = jax.jit(context_moments)(numbers)
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-14)
