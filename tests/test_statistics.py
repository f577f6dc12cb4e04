"""Sufficient statistics lose nothing, and long contexts have the same distribution."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import zoo
from tests import oracle
from tests.compare import refuses
from tests.marks import mostly_full
from tests.settings import isotropic, random_rule
from zoo import theory

_KEY = jax.random.key(11)


def _covariance(d, seed):
  root = np.random.default_rng(seed).normal(size=(d, d)) / np.sqrt(d)
  return root @ root.T + 0.1 * np.eye(d)


def _task(d, c, general=False, **changes):
  fields: dict = {'prior_mean': np.linspace(-1, 2, d)}
  if general:
    fields['prior_covariance'] = _covariance(d, 1)
    fields['feature_covariance'] = _covariance(d, 2)
  return isotropic(d, c, **fields | changes)


# Of size (30, 40) the triangle is not written out.
_QUICK, _SLOW = [(3, 4, True, 0.6)], [(30, 40, False, 0.6)]


@pytest.mark.parametrize(
  ('d', 'c', 'general', 'noise_std'),
  mostly_full(
    _QUICK,
    *([(1, 1), (3, 4), (4, 3), (30, 40)], [False, True], [0.0, 0.6]),
    slow=_SLOW,
  ),
)
def test_errors_are_those_on_the_prompts_that_sample_draws(d, c, general, noise_std):
  task, rule = _task(d, c, general, noise_std=noise_std), random_rule(d, d, 0.3 / d)
  with jax.enable_x64(True):
    prompt = jax.device_get(task.sample(_KEY, 5))
    statistics = task.sample_statistics(_KEY, 5)
    errors = jax.jit(lambda s: s.errors(rule, task.prior_mean))(statistics)
  for i, error in enumerate(np.asarray(errors)):
    x, y, x_query = (np.asarray(p[i]) for p in (prompt.x, prompt.y, prompt.x_query))
    parts = rule.init, rule.update, rule.bias, rule.bias_update
    predicted = oracle.rule_prediction(x, y, x_query, *parts)
    # About e³ products in each, of numbers of size 10.
    target = np.asarray(prompt.y_query)[i]
    assert abs(predicted - target - error) < 1e-14 * 10 * (d + 1) ** 3


_COUNT = 10_000


def _of_noise(c, **changes):
  """A task with ε = 0, so that labels minus their mean are noise."""
  return _task(3, c, prior_covariance=np.zeros((3, 3)), **changes)


def test_one_draw_serves_every_prior_mean():
  near, far = _task(3, 4, noise_std=0.2), _task(3, 4, prior_mean=5.0, noise_std=0.2)
  drawn = [task.sample_statistics(_KEY, 16) for task in (near, far)]
  jax.tree.map(np.testing.assert_array_equal, *drawn)


class _Wide(zoo.tasks.LinearRegression):
  """Features ten times as large."""

  def sample_one(self, key):
    prompt = super().sample_one(key)
    return dataclasses.replace(prompt, x=10 * prompt.x, x_query=10 * prompt.x_query)


def test_a_subclass_has_no_statistics_of_its_base(unchecked):
  with refuses('the task is of type _Wide; exact theory covers LinearRegression'):
    _Wide(2, 3).sample_statistics(_KEY, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('c', 'general', 'noise_std'),
  mostly_full([(6, True, 0.6)], [6, 10_000], [False, True], [0.0, 0.6]),
)
def test_the_risk_over_long_contexts_is_the_exact_one(c, general, noise_std):
  task = _task(3, c, general, noise_std=noise_std)
  assert task.has_long_context

  @jax.jit
  def draw(rule):
    statistics = task.sample_statistics(_KEY, 100_000)
    return statistics.errors(rule, task.prior_mean)

  # Its weights must not swamp the spread of G, which is as 1/√C.
  for rule in (random_rule(3, 3, 0.05), theory.optimal_rule(task)):
    squares = np.asarray(draw(_as_float32(rule)), float) ** 2
    stderr = squares.std() / np.sqrt(len(squares))
    assert abs(squares.mean() - theory.exact_risk(rule, task)) < 4 * stderr


def _as_float32(rule):
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), rule)


def _moments(statistics, width):
  """The matrices of which the triangles are kept, `[b, u, u]`, float64."""
  rows, columns = np.tril_indices(width)
  whole = np.zeros((statistics.x_query.shape[1], width, width))
  whole[:, rows, columns] = whole[:, columns, rows] = np.asarray(statistics.moment).T
  return whole


@pytest.mark.parametrize('c', [4, 6])  # examples, and pseudo-examples
def test_label_noise_has_the_standard_deviation_of_the_task(c):
  # ε = 0, so that the last entry is the mean of (σ n)², of variance 2σ⁴/C.
  task = _of_noise(c, noise_std=0.5)
  assert task.has_long_context == (c == 6)
  square = np.asarray(task.sample_statistics(_KEY, _COUNT).moment, float)[-1]
  assert abs(square.mean() - 0.25) < 4 * 0.25 * np.sqrt(2 / c / _COUNT)


@pytest.mark.parametrize('c', mostly_full([6], [40]))
def test_long_contexts_have_the_distribution_of_drawn_examples(c):
  # Of [x; n], since ε = 0: by the chain of Schur complements, whose j-th is χ² of C − j
  # degrees over C, each independent of the others. That, with rotations, is Wishart.
  d = 3
  task = _of_noise(c, noise_std=1.0)
  statistics = task.sample_statistics(_KEY, _COUNT)
  whole = _moments(statistics, d + 1)
  logs = []
  for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1]):
    factor = np.linalg.cholesky(whole[:, order][:, :, order])
    for j in range(d + 1):
      square = c * factor[:, j, j] ** 2
      assert scipy.stats.kstest(square, scipy.stats.chi2(c - j).cdf).pvalue > 1e-4
      below = factor[:, j + 1 :, j].ravel() * np.sqrt(c)
      assert not below.size or scipy.stats.kstest(below, 'norm').pvalue > 1e-4
    logs.append(np.log(np.einsum('bjj->bj', factor)))
  for chain in logs:
    correlation = np.corrcoef(chain.T)[~np.eye(d + 1, dtype=bool)]
    assert np.abs(correlation).max() < 5 / np.sqrt(_COUNT)


def test_a_long_context_is_never_laid_out():
  task = _task(3, 10_000, noise_std=0.5)
  text = str(jax.make_jaxpr(lambda key: task.sample_statistics(key, 7))(_KEY))
  assert '[10000' not in text
  assert ',10000' not in text


@pytest.mark.slow
@pytest.mark.parametrize(
  ('c', 'data', 'model'),
  mostly_full([(1000, 4, 2)], [10, 1000], [(4, 2), (1, 1), (2, 1), (8, 1)]),
)
def test_statistics_are_the_same_bits_on_any_number_of_devices(c, data, model):
  task = _task(10 if c == 10 else 4, c, noise_std=0.5)
  mesh = jax.make_mesh(
    (data, model),
    ('data', 'model'),
    axis_types=(AxisType.Auto,) * 2,
    devices=jax.devices()[: data * model],
  )
  alone = jax.jit(task.sample_statistics, static_argnums=1)(_KEY, 256)
  specs = jax.tree.map(
    lambda leaf: NamedSharding(mesh, P(*[None] * (leaf.ndim - 1), 'data')), alone
  )
  with jax.set_mesh(mesh):
    draw = jax.jit(task.sample_statistics, static_argnums=1, out_shardings=specs)
    together = draw(jax.device_put(_KEY, NamedSharding(mesh, P())), 256)
  jax.tree.map(np.testing.assert_array_equal, alone, together)
