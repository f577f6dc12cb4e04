"""The distributions of Bayes predictors against other derivations, in NumPy."""

# The kind of a distribution and the fields of a task follow from its name.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

import itertools

import jax
import numpy as np
import pytest
import scipy.stats

import zoo
from tests.compare import refuses
from tests.marks import SLOW, mostly_full, mostly_slow
from zoo.core.distributions import Classes, Gaussian, GaussianMixture
from zoo.estimators.linear import Ridge
from zoo.tasks.base import BAYES

_D, _B = 3, 4


def _matrix(seed, rank=_D):
  root = np.random.default_rng(seed).normal(size=(_D, rank))
  return root @ root.T


def _distribution(task, prompt, name='bayes'):
  return zoo.distribution(task.baselines()[name], prompt, task)


# Jointly normal labels: the covariance of the labels and of the query's, from the
# equation of the task, and their conditional distribution.


def _linear(task, x):
  covariance = np.eye(_D) if task.prior_covariance is None else task.prior_covariance
  return x @ task.mean_weights(), x @ covariance @ x.T


def _quadratic(task, x):
  return x**2 @ np.broadcast_to(task.prior_mean, _D) / 3**0.5, x**2 @ (x**2).T / 3


def _rotated(task, x):
  return np.zeros(len(x)), x @ x.T


_NORMAL = {
  'linear': (
    lambda **sizes: zoo.create_task('linear_regression', noise_std=0.4, **sizes),
    _linear,
  ),
  'linear with a prior': (
    lambda **sizes: zoo.create_task(
      'linear_regression',
      prior_mean=[1.0, -2.0, 0.5],
      prior_covariance=_matrix(0),
      feature_covariance=_matrix(1),
      noise_std=0.7,
      **sizes,
    ),
    _linear,
  ),
  'linear with a singular prior': (
    lambda **sizes: zoo.create_task(
      'linear_regression', prior_covariance=_matrix(2, rank=2), noise_std=0.3, **sizes
    ),
    _linear,
  ),
  'linear without noise': (
    lambda **sizes: zoo.create_task('linear_regression', **sizes),
    _linear,
  ),
  'quadratic': (
    lambda **sizes: zoo.create_task(
      'quadratic_regression', prior_mean=0.5, noise_std=0.4, **sizes
    ),
    _quadratic,
  ),
  'rotated': (
    lambda **sizes: zoo.create_task('rotated_regression', noise_std=0.4, **sizes),
    _rotated,
  ),
}


def _conditional(mean, covariance, noise_std, y):
  """The mean and the std of the last label given those before it."""
  joint = covariance + noise_std**2 * np.eye(len(mean))
  gain = joint[-1, :-1] @ np.linalg.pinv(joint[:-1, :-1], hermitian=True)
  variance = joint[-1, -1] - gain @ joint[:-1, -1]
  return mean[-1] + gain @ (y - mean[:-1]), np.sqrt(max(variance, 0))


@pytest.mark.parametrize(
  ('name', 'length'),
  mostly_full(
    [*itertools.product(['linear with a prior', 'quadratic'], [0, 2, 5])],
    _NORMAL,
    [0, 2, 5],
    slow=[(name, 2) for name in list(_NORMAL)[2:] if name != 'quadratic'],
  ),
)
def test_the_posterior_of_normal_labels_is_the_conditional_normal(name, length):
  make, joint = _NORMAL[name]
  if name == 'linear without noise' and length > 2:
    pytest.skip('the label is known, which another test has')
  task = make(num_features=_D, context_length=5)
  prompt = task.sample(jax.random.key(1), _B).prefix(length)
  said = _distribution(task, prompt)
  assert isinstance(said, Gaussian)
  for i in range(_B):
    x = np.asarray(prompt.features[i], np.float64)
    y = np.asarray(prompt.y[i], np.float64)
    expected = _conditional(*joint(task, x), float(task.noise_std), y)
    # Float32: some tens of products, with conditions up to 100.
    np.testing.assert_allclose([said.mean[i], said.std[i]], expected, 1e-4, 1e-4)


@pytest.mark.slow
def test_a_kernel_has_the_conditional_normal_of_its_covariance():
  task = zoo.create_task(
    'relu_network', num_features=_D, context_length=4, noise_std=0.3, output_mean=0.5
  )
  prompt = task.sample(jax.random.key(1), _B)
  said = _distribution(task, prompt, 'kernel')
  for i in range(_B):
    x, y = (np.asarray(a[i], np.float64) for a in (prompt.features, prompt.y))
    norms = np.linalg.norm(x, axis=1)
    sizes = norms[:, None] * norms
    cosines = np.clip(x @ x.T / sizes, -1, 1)
    angles = np.arccos(cosines)
    kernel = sizes * (np.sin(angles) + (np.pi - angles) * cosines) / np.pi
    covariance = (1 + 0.5**2) * kernel - 0.5**2 * sizes / np.pi
    mean = 0.5 * np.sqrt(task.hidden_features / np.pi) * norms
    expected = _conditional(mean, covariance, 0.3, y)
    np.testing.assert_allclose([said.mean[i], said.std[i]], expected, 1e-4, 1e-4)


_REGRESSIONS = 'linear_regression', 'rotated_regression', 'quadratic_regression'


@pytest.mark.parametrize('name', mostly_slow(['linear_regression'], _REGRESSIONS))
def test_without_noise_a_label_is_known_once_the_examples_determine_it(name):
  task = zoo.create_task(name, num_features=_D, context_length=5)
  prompt = task.sample(jax.random.key(1), _B)
  assert np.all(np.asarray(_distribution(task, prompt).std) == 0)
  assert np.all(np.asarray(_distribution(task, prompt.prefix(2)).std) > 0.01)


@pytest.mark.slow
def test_without_noise_a_label_is_known_in_every_component():
  sparse = zoo.create_task(
    'sparse_regression', num_features=5, context_length=4, num_nonzero=2
  )
  prompt = sparse.sample(jax.random.key(1), _B)
  np.testing.assert_array_equal(_distribution(sparse, prompt).stds, 0)
  pool = zoo.create_task('task_pool', num_features=_D, noise_std=0.0)
  said = _distribution(pool, pool.sample(jax.random.key(1), _B))
  np.testing.assert_array_equal(said.std, 0)


# Other tasks by importance sampling: functions drawn from the prior, weighed by the
# likelihood of the examples.

_SAMPLED = {
  'sparse': lambda: zoo.create_task(
    'sparse_regression', num_features=5, context_length=3, num_nonzero=2, noise_std=0.8
  ),
  'pool': lambda: zoo.create_task(
    'task_pool', num_features=_D, context_length=3, num_tasks=16, noise_std=0.8
  ),
  'quadratic': lambda: zoo.create_task(
    'quadratic_regression', num_features=2, context_length=3, noise_std=0.8
  ),
  'mixture': lambda: zoo.create_task(
    'mixture',
    parts=(
      {'name': 'linear_regression', 'noise_std': 0.5, 'prior_mean': 1.0},
      {'name': 'task_pool', 'num_tasks': 4, 'noise_std': 1.0},
      {'name': 'sparse_regression', 'num_nonzero': 1, 'noise_std': 0.7},
    ),
    weights=(0.5, 0.2, 0.3),
    num_features=2,
    context_length=3,
  ),
}
_DRAWS = 50_000


def _parts(task):
  """The parts of a mixture with their probabilities; the task itself, if it is none."""
  if hasattr(task, 'tasks'):
    return [*zip(task.tasks, task.probabilities, strict=True)]
  return [(task, 1.0)]


@pytest.mark.parametrize('name', mostly_slow(['pool'], _SAMPLED))
def test_the_posterior_weighs_functions_of_the_prior(name):
  task = _SAMPLED[name]()
  prompt = task.sample(jax.random.key(3), _B)
  said = _distribution(task, prompt)
  if name == 'mixture':
    assert isinstance(said, GaussianMixture)
    assert said.means.shape == (_B, 1 + 4 + 2)
  parts = _parts(task)

  @jax.jit
  def values_of(keys, x):
    return [
      jax.vmap(lambda key, part=part: part.evaluate(part.sample_function(key), x))(keys)
      for part, _ in parts
    ]

  keys = jax.random.split(jax.random.key(4), _DRAWS)
  cdf = jax.jit(lambda label, y: label.cdf(y))
  for i in range(_B):
    labels = np.asarray(prompt.y[i], np.float64)
    weights, values, stds = [], [], []
    of_parts = values_of(keys, prompt.features[i])
    for (part, share), drawn in zip(parts, of_parts, strict=True):
      drawn = np.asarray(drawn, np.float64)
      std = float(part.noise_std)
      density = scipy.stats.norm(drawn[:, :-1], std).pdf(labels).prod(axis=1)
      weights.append(share * density)
      values.append(drawn[:, -1])
      stds.append(np.full(_DRAWS, std))
    weights, values, stds = map(np.concatenate, (weights, values, stds))
    weights /= weights.sum()
    # Five standard errors, from the effective number of draws.
    error = 5 * np.sqrt(np.sum(weights**2))
    mean = weights @ values
    spread = np.sqrt(weights @ (stds**2 + (values - mean) ** 2))
    assert abs(said.mean[i] - mean) < error * spread
    # The standard error of a std is at most some half of spread · √(kurtosis) / √n.
    assert abs(said.std[i] - spread) < 2 * error * spread
    for z in -1.5, -0.3, 0.8, 2.0:
      y = mean + z * spread
      below = weights @ scipy.stats.norm(values, stds).cdf(y)
      own = float(cdf(said, np.full(_B, y, np.float32))[i])
      assert abs(own - below) < error / 2


def _small(name):
  """A task of a registered name, of a size at which posteriors are quick."""
  sizes = {'linear_regression': {'noise_std': 0.5}, 'mixture': {}}.get(name, {})
  return zoo.create_task(name, **sizes)


_WITHOUT_FILES = sorted({*zoo.list_tasks()} - {'arrays'})
_QUICK = ['linear_regression', 'markov_chain']
_SLOW = ['gaussian_clusters', 'mixture', 'parity', 'sinusoid', 'sparse_regression']


@pytest.mark.parametrize('name', mostly_full(_QUICK, _WITHOUT_FILES, slow=_SLOW))
def test_the_distribution_of_a_bayes_predictor_has_its_prediction_as_mean(name):
  task = _small(name)
  baselines = {key: value for key, value in task.baselines().items() if key in BAYES}
  for baseline in baselines.values():
    prompt = task.sample(jax.random.key(0), 3)
    predictions = np.asarray(zoo.predict(baseline, prompt))
    if name == 'sinusoid':
      with refuses('SinusoidPosterior has no distribution of labels that are numbers'):
        zoo.distribution(baseline, prompt, task)
      continue
    said = zoo.distribution(baseline, prompt, task)
    if isinstance(said, Classes):
      logits = np.asarray(said.logits)
      if task.label_kind == 'signs':
        logits = logits[..., 1] - logits[..., 0]
      np.testing.assert_allclose(logits, predictions, rtol=1e-5, atol=1e-5)
      np.testing.assert_allclose(said.probabilities.sum(-1), 1, rtol=1e-5)
    else:
      assert task.label_kind == 'numbers'
      # The rounding of some tens of terms of the size of the labels.
      scale = np.abs(predictions).max()
      np.testing.assert_allclose(said.mean, predictions, atol=1e-5 * scale)


@pytest.mark.parametrize(
  'make',
  [
    lambda: _NORMAL['linear'][0](context_length=3),
    pytest.param(_SAMPLED['mixture'], marks=SLOW),
  ],
)
def test_one_pass_has_the_distributions_of_every_length(make):
  task = make()
  prompt = task.sample(jax.random.key(0), 3)
  baseline = task.baselines()['bayes']

  def moments(label):
    return label.mean, label.std

  means, stds = jax.jit(lambda prompt: moments(baseline.distributions(prompt)))(prompt)
  at = jax.jit(lambda prompt: moments(baseline.distribution(prompt)))
  for k in 0, 2, 3:
    mean, std = at(prompt.prefix(k))
    np.testing.assert_allclose(means[:, k], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(stds[:, k], std, rtol=1e-4)


def test_a_predictor_of_classes_or_signs_needs_no_method():
  for name in 'markov_chain', 'logistic_regression':
    task = zoo.create_task(name)
    prompt = task.sample(jax.random.key(0), 3)
    said = zoo.distribution(task.baselines()['zero'], prompt, task)
    assert isinstance(said, Classes)
    size = said.logits.shape[-1]
    np.testing.assert_allclose(said.probabilities, 1 / size, rtol=1e-6)


def test_a_predictor_of_numbers_without_a_distribution_is_refused():
  task = zoo.create_task('linear_regression', noise_std=0.5)
  prompt = task.sample(jax.random.key(0), 3)
  for name in 'ols', 'zero':
    with refuses('has no distribution of labels that are numbers', 'named bayes'):
      zoo.distribution(task.baselines()[name], prompt, task)
  with refuses('has no prior_std'):
    Ridge(1.0).distribution(prompt)


def test_a_baseline_with_a_distribution_predicts_as_one_without():
  """`bayes` and `ols` stay one entry where they predict the same."""
  task = zoo.create_task('linear_regression', num_features=2, context_length=3)
  names = [*zoo.estimators.baselines.distinct(task.baselines())]
  assert any('bayes' in name.split(', ') and 'ols' in name for name in names)
