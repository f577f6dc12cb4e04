"""Mixtures of tasks, and their Bayes predictor against densities of SciPy."""

import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from flax import struct
from scipy import special, stats

import zoo
from configs import common
from studies.strategies.series import named
from tests.built import task_of
from tests.compare import refuses
from tests.tasks import host
from zoo.config.read import to_json
from zoo.estimators.baselines import Examples
from zoo.probing import strategies
from zoo.tasks import LinearRegression, Mixture, SparseRegression, TaskPool
from zoo.tasks.logistic_regression import ImportanceSampling, Quadrature, num_nodes

_D, _C = 3, 4
normal: Any = stats.multivariate_normal
_COVARIANCE = [[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.1]]
_LINEAR = {
  'name': 'linear_regression',
  'noise_std': 0.3,
  'prior_mean': [1, 0, -1],
  'prior_covariance': _COVARIANCE,
  'feature_covariance': _COVARIANCE,
}
_SPARSE = {'name': 'sparse_regression', 'num_nonzero': 1, 'noise_std': 0.5}
_POOL = {'name': 'task_pool', 'num_tasks': 5, 'noise_std': 0.4}
_SQUARES = {'name': 'quadratic_regression', 'noise_std': 0.2, 'prior_mean': 1}
_WEIGHTS = (0.2, 0.1, 0.3, 0.4)


def test_parts_that_are_no_tasks_are_refused(unchecked):
  one: Any = LinearRegression(2, 4)
  with refuses('tasks is one task; it must be a list'):
    zoo.tasks.Mixture(one)
  numbers: Any = (1, 2)
  with refuses('tasks[0] is 1; it must be a task'):
    zoo.tasks.Mixture(numbers).check()


def test_weights_in_an_array_are_divided_by_their_sum():
  parts = tuple(zoo.tasks.LinearRegression(2, 3, prior_mean=mean) for mean in (0, 2))
  for kind in np.array, jnp.array:
    task: Any = zoo.tasks.Mixture(parts, weights=kind([1.0, 9.0]))
    np.testing.assert_allclose(task.probabilities, [0.1, 0.9], rtol=1e-6)
    np.testing.assert_allclose(task.mean_weights(), [1.8, 1.8], rtol=1e-6)
    with refuses('weights[0]', '-1'):
      zoo.tasks.Mixture(parts, weights=kind([-1.0, 9.0])).check()


def _mixture(*parts: Any, weights: Any = None, **sizes: int) -> Any:
  if not parts:
    parts, weights = (_LINEAR, _SPARSE, _POOL, _SQUARES), _WEIGHTS
  fields = {'num_features': _D, 'context_length': _C} | sizes
  return zoo.create_task('mixture', parts=parts, weights=weights, **fields)


def _named(name: str, **fields: Any) -> dict[str, Any]:
  return {'name': name, **fields}


def _gaussian(x, y, query, mean, covariance, std):
  """The log density of labels of functions of x, and the mean of that of the query."""
  between = x @ covariance @ x.T + std**2 * np.eye(len(x))
  density = normal(x @ mean, between).logpdf(y) if len(x) else 0.0
  gain = np.linalg.solve(between, y - x @ mean) if len(x) else np.zeros(0)
  return density, query @ (mean + covariance @ x.T @ gain)


def _averaged(cases):
  """The log of the mean density of equally probable cases, and their mean."""
  logs, means = map(np.array, zip(*cases, strict=True))
  weights = np.exp(logs - logs.max())
  return logs.max() + np.log(weights.mean()), weights @ means / weights.sum()


def _expected(task, x, y, query):
  """The posterior mean of the query from the definitions of the four parts."""
  identity, covariance = np.eye(_D), np.array(_COVARIANCE)
  pool = task.tasks[2].pool
  supports = [np.diag(row) for row in identity]
  parts = [
    _gaussian(x, y, query, np.array([1.0, 0, -1]), covariance, 0.3),
    _averaged([_gaussian(x, y, query, np.zeros(_D), s, 0.5) for s in supports]),
    _averaged([_gaussian(x, y, query, w, 0.0 * identity, 0.4) for w in pool]),
    _gaussian(x * x, y, query * query, np.full(_D, 3**-0.5), identity / 3, 0.2),
  ]
  points = [*x, query]
  scores = [
    np.log(weight) + density + np.sum(normal(np.zeros(_D), features).logpdf(points))
    for weight, (density, _), features in zip(
      (0.2, 0.1, 0.3, 0.4),
      parts,
      (covariance, identity, identity, identity),
      strict=True,
    )
  ]
  weights = np.exp(np.array(scores) - np.max(scores))
  return weights @ [mean for _, mean in parts] / weights.sum(), weights / weights.sum()


def test_bayes_weighs_the_parts_by_their_densities():
  task = _mixture()
  with jax.enable_x64(True):
    prompt = jax.device_get(task.sample(jax.random.key(0), 24))
    predictions = jax.device_get(jax.jit(task.baselines()['bayes'].predictions)(prompt))
  shares = []
  for i, k in itertools.product(range(24), (0, 1, _C)):
    x = np.concatenate([prompt.x[i], prompt.x_query[i][None]])
    expected, share = _expected(task, x[:k], prompt.y[i, :k], x[k])
    np.testing.assert_allclose(predictions[i, k], expected, rtol=1e-8, atol=1e-10)
    shares.append(share)
  assert np.max(shares, axis=0).min() > 0.5  # each part is the most probable somewhere


@pytest.mark.slow
@pytest.mark.full
def test_bayes_of_signs_weighs_probabilities_by_the_likelihood_of_the_labels():
  """Against integrals over a grid of both weights, of links from SciPy."""
  parts = (
    _named('logistic_regression', prior_mean=[2, 1]),
    _named('logistic_regression', link='probit'),
  )
  task = _mixture(*parts, weights=(0.3, 0.7), num_features=2)
  with jax.enable_x64(True):
    prompt = jax.device_get(task.sample(jax.random.key(0), 12))
    logits = jax.device_get(jax.jit(task.baselines()['bayes'].predictions)(prompt))
  axis = np.linspace(-8, 10, 200)
  grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
  priors = [normal(mean).pdf(grid) for mean in ([2.0, 1.0], [0.0, 0.0])]
  x = np.concatenate([prompt.x, prompt.x_query[:, None]], axis=1)
  for i, k in itertools.product(range(12), range(_C + 1)):
    both = np.zeros(2)  # of the labels +1 and −1, with the labels before them
    for weight, prior, link in zip(
      (0.3, 0.7), priors, (special.expit, special.ndtr), strict=True
    ):
      density = weight * prior * link(prompt.y[i, :k] * (grid @ x[i, :k].T)).prod(1)
      both += [density @ link(sign * (grid @ x[i, k])) for sign in (1, -1)]
    # The quadrature is good to 2e-5 of a probability.
    np.testing.assert_allclose(
      special.expit(logits[i, k]), both[0] / both.sum(), atol=2e-5
    )


def test_a_mixture_with_an_estimated_part_has_an_estimate():
  parts = (
    _named('logistic_regression'),
    _named('logistic_regression', prior_mean=2.0),
  )
  names = [*_mixture(*parts, num_features=4).baselines()]
  assert names[:3] == ['bayes_estimate', 'bayes_estimate_1', 'bayes_estimate_2']
  assert 'bayes' not in names


@pytest.mark.slow
@pytest.mark.full
def test_a_sampled_density_is_that_of_the_quadrature():
  task: Any = zoo.create_task('logistic_regression', num_features=2, context_length=_C)
  with jax.enable_x64(True):
    prompt = jax.device_get(task.sample(jax.random.key(0), 12))

    @jax.jit
    def densities(x: Any, y: Any, query: Any) -> Any:
      posteriors = Quadrature(task, num_nodes(task)), ImportanceSampling(task)
      examples = Examples(x, y, jnp.ones(_C, bool), query)
      return [posterior.weigh(examples)[0] for posterior in posteriors]

    rows = zip(prompt.x, prompt.y, prompt.x_query, strict=True)
    log_densities = np.array([densities(*row) for row in rows])
  # 4096 samples of nearly the posterior, whose weights vary by about a tenth.
  np.testing.assert_allclose(log_densities[:, 1], log_densities[:, 0], atol=0.01)


@pytest.mark.slow
def test_each_prompt_is_of_one_part_as_often_as_its_weight():
  task, count = _mixture(), 4000
  prompt = host.sample_with_latents(task, 1, count)
  part, drawn = prompt.latents['part'], prompt.latents['of_parts']
  shares = np.bincount(part, minlength=4) / count
  weights = np.array([0.2, 0.1, 0.3, 0.4])
  error = np.sqrt(weights * (1 - weights) / count)
  assert np.all(np.abs(shares - weights) < 4 * error)
  np.testing.assert_allclose(task.weights, weights)
  for i in range(4):
    own = jax.tree.map(lambda leaf, at=part == i: leaf[at], prompt)
    x, noiseless = host.features(own), host.targets(own)
    targets = np.einsum('btd,bd->bt', x * x if i == 3 else x, drawn[i][part == i])
    np.testing.assert_allclose(noiseless, targets, atol=1e-4)
    noise = own.y - noiseless[:, :-1]
    std = (0.3, 0.5, 0.4, 0.2)[i]
    assert abs(noise.std() / std - 1) < 4 / np.sqrt(2 * noise.size)


@pytest.mark.slow
@pytest.mark.full
def test_it_keeps_the_contract_of_a_task(unchecked):
  noisy = _named('linear_regression', noise_std=0.1)
  zoo.check_task(_mixture(noisy, _named('task_pool'), weights=(1, 2)))


def test_it_has_the_baselines_of_its_parts():
  task = _mixture(*(_named('linear_regression', noise_std=std) for std in (0.1, 1)))
  same = ['ols', 'averaging', 'nearest_neighbours', 'zero']
  names = ['bayes', 'bayes_1', 'bayes_2', 'gd_1', 'gd_2', 'gd_beta_1', 'gd_beta_2']
  assert [*task.baselines()] == [*names, 'ridge_1', 'ridge_2', *same]
  for i, part in enumerate(task.tasks, 1):
    for name in ('bayes', 'gd', 'ridge'):
      assert task.baselines()[f'{name}_{i}'] == part.baselines()[name]
  assert [*task.shifts()][:2] == ['part_1', 'part_2']
  assert task.shifts()['part_1'] == task.tasks[0]
  parts = _named('linear_regression', prior_mean=4.0), _named('linear_regression')
  mean = _mixture(*parts, weights=(0.25, 0.75))
  np.testing.assert_allclose(mean.mean_weights(), np.ones(_D))


@pytest.mark.slow
def test_half_bursty_clusters_have_the_rules_and_the_tests_of_their_parts():
  clusters = {'num_classes': 4, 'num_labels': 2, 'within': 0.7}
  task = _mixture(
    *(_named('labelled_clusters', burstiness=b, **clusters) for b in (2, 0)),
    weights=(3, 1),
  )
  baselines = task.baselines()
  # Bursts do not matter to what knows the weights alone.
  assert [*baselines] == [
    'bayes_1',
    'bayes_2',
    'context_1',
    'context_2',
    'weights',
    'zero',
  ]
  for i, part in enumerate(task.tasks, 1):
    assert baselines[f'context_{i}'] == part.baselines()['context']
    assert baselines['weights'] == part.baselines()['weights']
  shifts = task.shifts()
  tests = 'in_context', 'swapped', 'in_weights'
  assert [*shifts][:5] == ['part_1', 'part_2', *tests]
  for test in tests:
    assert shifts[test] == Mixture(
      tuple(part.shifts()[test] for part in task.tasks), weights=(3.0, 1.0)
    )
    assert {'context_1', 'weights'} < {*shifts[test].baselines()}
  # What is published: in bursts a query is answered from the context or the weights.
  rules = named(task, ['context_1', 'weights'])
  found = strategies(rules['weights'], shifts['swapped'], rules, num_prompts=64)
  assert found.weights == pytest.approx({'context_1': 0, 'weights': 1})


def test_a_shift_that_only_some_parts_have_leaves_the_others_as_they_are():
  task = _mixture(_named('linear_regression', noise_std=1.0), _named('task_pool'))
  shifts, (linear, pool) = task.shifts(), task.tasks
  assert shifts['new_tasks'].tasks == (linear, pool.shifts()['new_tasks'])
  assert shifts['skewed'].tasks == (linear.shifts()['skewed'], pool)
  assert not [name for name in shifts if name.startswith('context_length')]
  for shifted in shifts.values():
    shifted.check()
  nested = Mixture((task, linear))
  assert nested.shifts()['part_1'] == task


def test_without_densities_there_is_no_bayes_but_a_word(caplog, monkeypatch):
  monkeypatch.setattr(logging, '_log_counter_per_token', {})  # it is said once
  parts = _named('sparse_regression', num_nonzero=1), _named('decision_tree', depth=2)
  task = _mixture(*parts)
  names = [*task.baselines()]
  assert names[0] == 'bayes_1'
  assert {'ols_1', 'greedy_tree_2', 'nearest_neighbours', 'zero'} < {*names}
  text = 'no bayes of this mixture, since DecisionTree and SparseRegression say'
  assert text in caplog.text


def test_a_mixture_may_be_a_part():
  inner = _named('mixture', parts=(_named('task_pool', seed=1), _named('task_pool')))
  task = _mixture(_named('task_pool', seed=2), inner, weights=[3, 1])
  np.testing.assert_allclose(task.weights, [0.75, 0.25])
  assert [part.seed for part in task.tasks[1].tasks] == [1, 0]


def test_tasks_that_hold_out_prompts_are_refused(tmp_path):
  np.savez(tmp_path / 'a.npz', x=np.ones((50, _D)), y=np.ones(50))
  with refuses('tasks[1], Arrays, holds out some of its prompts'):
    _mixture(_named('task_pool'), _named('arrays', path=str(tmp_path / 'a.npz')))


def test_classes_can_be_mixed():
  task = _mixture(_named('conjunction'), _named('majority'))
  assert (task.label_kind, task.num_outputs) == ('signs', 1)
  assert task.posterior() is None
  measure = jax.jit(lambda f, target: (task.accuracy(f, target), task.loss(f, target)))
  accuracies, losses = map(np.asarray, measure(np.array([1, 0], 'f'), np.ones(2, 'f')))
  assert accuracies[0] == 1
  np.testing.assert_allclose(losses[1], np.log(2), rtol=1e-6)


def test_objects_are_mixed_and_configs_name_their_sections():
  tasks = (
    LinearRegression(_D, _C, 2.0, noise_std=0.1),
    SparseRegression(_D, _C, 1, noise_std=0.2),
    TaskPool(_D, _C),
  )
  task = Mixture(tasks, weights=(1.0, 2.0, 1.0))
  assert task.tasks == tasks
  np.testing.assert_allclose(task.weights, [0.25, 0.5, 0.25])
  np.testing.assert_allclose(Mixture(tasks).probabilities, [1 / 3] * 3)
  config: Any = common.with_variant(common.get_config(), 'task=mixture')
  config.task.num_features, config.task.context_length = _D, _C
  config.task.weights = (1.0, 2.0, 1.0)
  config.task.parts = (
    _named('linear_regression', prior_mean=2.0, noise_std=0.1),
    _named('sparse_regression', num_nonzero=1, noise_std=0.2),
    _named('task_pool'),
  )
  assert task_of(config) == task
  # As a file of a run has them, which knows lists alone.
  config.task.update(json.loads(to_json(config))['task'])
  assert task_of(config) == task


@pytest.mark.parametrize(
  ('parts', 'said'),
  [
    ([], 'parts is (); it must be a tuple of tasks'),
    (['task_pool'], "parts is ('task_pool',); it must be a tuple of tasks"),
    ([{'seed': 1}], "parts is ({'seed': 1},); it must be a tuple of tasks"),
    ([_named('task_pol')], "parts[0], task_pol: unknown task 'task_pol'"),
    ([_named('task_pool', noise_std=-1)], 'parts[0], task_pool: noise_std is -1'),
    ([_named('task_pool', num_features=3)], 'parts[0] has num_features, which is that'),
    (
      [_named('task_pool'), _named('parity')],
      "label_kind of tasks[1], Parity, is 'signs'; it must be 'numbers'",
    ),
    (
      [_named('task_pool'), _named('markov_chain')],
      'num_features of tasks[1], MarkovChain, is 2; it must be 3',
    ),
  ],
)
def test_what_is_no_mixture_is_refused_in_one_line(parts, said, unchecked):
  with refuses(said):
    zoo.create_task('mixture', parts=tuple(parts), num_features=3)


def test_weights_are_positive(unchecked):
  with refuses('weights[1] is 0; it must be a finite number > 0'):
    _mixture(_named('task_pool'), _named('task_pool'), weights=(1, 0))


@pytest.mark.usefixtures('register')
def test_a_part_with_a_loss_of_its_own_is_refused():
  @zoo.register_task('absolute')
  @struct.dataclass
  class Absolute(zoo.tasks.BaseTask):
    num_features: int = struct.field(pytree_node=False, default=_D)
    context_length: int = struct.field(pytree_node=False, default=_C)

    def sample_one(self, key):
      raise NotImplementedError

    def loss(self, prediction, target):
      return jnp.abs(prediction - target)

  with refuses('tasks[1], Absolute, has a loss of its own; all of them have the same'):
    _mixture(_named('task_pool'), _named('absolute'))
  _mixture(_named('absolute'))
  _mixture(_named('task_pool'), _named('mixture', parts=(_named('task_pool'),)))


def test_each_object_needs_a_weight():
  with refuses('there are 1 tasks and 2 weights'):
    Mixture((TaskPool(),), weights=(1.0, 1.0)).check()


def test_objects_of_other_sizes_are_refused():
  with refuses('context_length of tasks[1], TaskPool, is 8; it must be 5, as all'):
    Mixture((TaskPool(context_length=5), TaskPool(context_length=8))).check()


@pytest.mark.slow
@pytest.mark.full
def test_a_mixture_of_linear_regression_alone_has_other_prompts_than_the_task():
  task = LinearRegression(_D, _C)
  mixed, alone = (
    jax.device_get(distribution.sample(jax.random.key(0), 8))
    for distribution in (Mixture((task,)), task)
  )
  assert not np.isclose(mixed.x, alone.x).any()
