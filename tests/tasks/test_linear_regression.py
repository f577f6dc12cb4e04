import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import zoo
from tests.compiled import AS_USERS
from tests.marks import mostly_full
from tests.tasks import host

_D, _C = 3, 4
_KEY = jax.random.key(5)
_MEAN = [1.0, -2.0, 0.5]
_PRIOR = np.asarray([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.5]])
_FEATURE = np.asarray([[1.0, -0.4, 0.2], [-0.4, 3.0, 0.0], [0.2, 0.0, 0.25]])
_COVARIANCES = {'prior_covariance': _PRIOR, 'feature_covariance': _FEATURE}
_GENERAL = {'noise_std': 0.5, 'prior_mean': _MEAN, **_COVARIANCES}


def _task(**changes):
  fields = {'num_features': _D, 'context_length': _C} | changes
  return zoo.create_task('linear_regression', **fields)


_COUNT = 10_000


def _sample(task, seed=0, batch_size=_COUNT) -> zoo.Prompt:
  return host.sample(task, seed, batch_size)


def _recovered_weights(prompt: zoo.Prompt) -> np.ndarray:
  """ŵ of each prompt, from its labels without noise; needs C ≥ d."""
  return np.einsum('bdc,bc->bd', np.linalg.pinv(prompt.x), prompt.y)


def _first(prompt: zoo.Prompt) -> Any:
  """64 prompts of the program that draws all of them."""
  return jax.tree.map(lambda array: array[:64], prompt)


@pytest.mark.parametrize('kind', mostly_full(['general'], ['identity']))
def test_sampled_moments_agree_with_the_formulas(kind):
  changes, prior, feature = {}, np.eye(_D), np.eye(_D)
  if kind == 'general':
    changes = _COVARIANCES
    prior, feature = _PRIOR, _FEATURE
  batch, std = _COUNT, 0.7
  with jax.enable_x64(True):
    clean = _sample(_task(prior_mean=_MEAN, **changes), 1)
    noisy = _sample(_task(prior_mean=_MEAN, noise_std=std, **changes), 1)
  weights = _recovered_weights(clean)
  noise = np.asarray(noisy.y) - np.asarray(clean.y)

  # All that is random in a prompt, side by side: the means, the variances, and that
  # nothing is correlated with anything else, in one matrix.
  drawn = np.concatenate(
    [np.asarray(clean.x).reshape(batch, -1), clean.x_query, weights, noise], axis=1
  )
  mean = np.concatenate([np.zeros((_C + 1) * _D), _MEAN, np.zeros(_C)])
  blocks = [feature] * (_C + 1) + [prior, std**2 * np.eye(_C)]
  covariance = np.zeros((len(mean), len(mean)))
  start = 0
  for block in blocks:
    stop = start + len(block)
    covariance[start:stop, start:stop] = block
    start = stop

  # Standard errors of a Gaussian sample whose mean is known: Var(v_i) = Σ_ii and
  # Var(v_i v_j) = Σ_ii Σ_jj + Σ_ij². With about 300 entries, one beyond 5 of them
  # happens by chance once in 10,000 seeds, and the seed is fixed.
  variance = np.diag(covariance)
  gap = drawn - mean
  assert np.all(np.abs(gap.mean(0)) <= 5 * np.sqrt(variance / batch))
  error = np.sqrt((np.outer(variance, variance) + covariance**2) / batch)
  assert np.all(np.abs(gap.T @ gap / batch - covariance) <= 5 * error)

  # Gaussian, not merely of the right variance: E v⁴ = 3 Σ_ii², Var v⁴ = 96 Σ_ii⁴.
  fourth = np.mean(gap**4, axis=0) / variance**2
  assert np.all(np.abs(fourth - 3) <= 5 * np.sqrt(96 / batch))


def test_targets_are_labels_without_noise():
  with jax.enable_x64(True):
    clean, noisy = (
      _first(_sample(_task(**_GENERAL | {'noise_std': std}))) for std in (0.0, 0.5)
    )
  expected = np.sum(_recovered_weights(clean) * np.asarray(clean.x_query), axis=1)
  # A least-squares solution loses the condition number of X, up to a few thousand
  # among 64 random 4 × 3 matrices.
  np.testing.assert_allclose(clean.y_query, expected, rtol=0, atol=1e-10)
  np.testing.assert_array_equal(noisy.y_query, clean.y_query)
  np.testing.assert_array_equal(noisy.context_targets, clean.y)
  np.testing.assert_array_equal(clean.context_targets, clean.y)


@pytest.mark.slow
def test_parts_of_a_prompt_have_the_distribution_of_whole_prompts():
  """`sample_one` draws other numbers than `sample`, from the same distribution."""
  task, batch = _task(**_GENERAL), 8000
  with jax.enable_x64(True):
    whole = _sample(task, 1, batch)
    draw = jax.jit(lambda key: jax.vmap(task.sample_one)(jax.random.split(key, batch)))
    parts = jax.device_get(draw(jax.random.key(2)))
  weights = parts.latents
  moments = []
  for prompt in (whole, parts):
    noise = np.asarray(prompt.y) - np.asarray(prompt.context_targets)
    examples = np.concatenate([prompt.x, prompt.y[..., None]], axis=2)
    query = np.concatenate([prompt.x_query, prompt.y_query[:, None]], axis=1)
    drawn = np.concatenate([examples.reshape(batch, -1), query, noise], axis=1)
    products = np.einsum('bi,bj->bij', drawn, drawn).reshape(batch, -1)
    moments.append(np.concatenate([drawn, products], axis=1))
  of_whole, of_parts = moments
  gap = of_whole.mean(0) - of_parts.mean(0)
  error = np.sqrt((of_whole.var(0) + of_parts.var(0)) / batch)
  # About 500 numbers; one beyond 5 standard errors happens once in 3000 seeds.
  assert np.all(np.abs(gap) <= 5 * error)
  assert np.all(np.abs(weights.mean(0) - _MEAN) <= 5 * np.sqrt(np.diag(_PRIOR) / batch))
  assert np.abs(np.cov(weights.T) - _PRIOR).max() <= 5 * np.sqrt(8 / batch)


def test_noise_repeats_no_other_draw_of_the_batch():
  # A stream shared with the features would pair noise with another prompt's features,
  # which no correlation within prompts shows.
  plain = _GENERAL | dict.fromkeys(_COVARIANCES, np.eye(_D))
  with jax.enable_x64(True):
    clean, noisy = (
      _first(_sample(_task(**plain | {'noise_std': std}))) for std in (0.0, 1.0)
    )
  noise = np.ravel(np.asarray(noisy.y) - np.asarray(clean.y))
  others = np.concatenate([np.ravel(clean.x), np.ravel(clean.x_query)])
  assert np.abs(noise[:, None] - others).min() > 1e-10


@pytest.mark.slow
def test_prompts_are_of_the_precision_that_is_enabled():
  for x64, kind in ((False, 'float32'), (True, 'float64')):
    with jax.enable_x64(x64):
      prompt = jax.eval_shape(lambda key: _task(**_GENERAL).sample(key, 2), _KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(prompt)} == {np.dtype(kind)}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('changes', 'data', 'model'),
  mostly_full(
    [(_GENERAL, 4, 2)],
    [_GENERAL, {'num_features': 64, 'context_length': 5}],
    [(1, 1), (2, 1), (8, 1)],
  ),
  ids=lambda value: f'{len(value)}_fields' if isinstance(value, dict) else str(value),
)
def test_prompts_are_the_same_bits_in_longer_batches_and_on_devices(
  changes, data, model
):
  task = _task(**changes)
  mesh = jax.make_mesh(
    (data, model),
    ('data', 'model'),
    axis_types=(AxisType.Auto,) * 2,
    devices=jax.devices()[: data * model],
  )
  split = NamedSharding(mesh, P('data'))
  compiled = functools.partial(
    jax.jit, task.sample, static_argnums=1, compiler_options=AS_USERS
  )
  alone, short = (compiled()(_KEY, size) for size in (64, 1))
  with jax.set_mesh(mesh):
    key = jax.device_put(_KEY, NamedSharding(mesh, P()))
    together = compiled(out_shardings=split)(key, 64)
  assert together.x.sharding.is_equivalent_to(split, together.x.ndim)
  jax.tree.map(np.testing.assert_array_equal, together, alone)
  beginning = jax.tree.map(lambda leaf: leaf[:1], alone)
  jax.tree.map(np.testing.assert_array_equal, short, beginning)


# Rank 2: nothing varies along `_NULL`.
_NULL = np.asarray([1.0, 2.0, -2.0]) / 3
_SINGULAR = 2 * (np.eye(_D) - np.outer(_NULL, _NULL))


def test_a_singular_prior_fixes_the_weights_along_its_null_space():
  with jax.enable_x64(True):
    task = _task(**_GENERAL | {'noise_std': 0.0, 'prior_covariance': _SINGULAR})
    deviation = _recovered_weights(_first(_sample(task))) - _MEAN
  # The root of an eigenvalue of 1e-16 instead of 0 is 1e-8.
  np.testing.assert_allclose(deviation @ _NULL, 0, atol=1e-6)
  assert np.all(np.linalg.eigvalsh(np.cov(deviation.T))[1:] > 0.5)
