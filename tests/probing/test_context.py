"""The variation over contexts, against closed forms and of models that are blind."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.marks import mostly_full, mostly_slow
from tests.settings import isotropic
from zoo.estimators.baselines import Zero
from zoo.probing import strategies
from zoo.probing.nearest.context import _over_equal_queries, variation_by_length

_D, _C = 3, 4


def _variation(task, predict, num_prompts=2048):
  """The mean variation after 0, …, C examples, with their standard errors."""
  prompt = task.sample(jax.random.key(0), num_prompts)
  own = [predict(prompt.prefix(t), t) for t in range(task.context_length + 1)]
  found = variation_by_length(
    task,
    prompt,
    np.stack(own, axis=1),
    lambda prompt, t: predict(prompt.prefix(t), t),
    least=0,
    seed=0,
  )
  return found.mean(axis=0), found.std(axis=0, ddof=1) / num_prompts**0.5


def test_the_variation_on_numbers_is_the_variance_for_one_query():
  """Of `(a + y_last) Σ_j x_qj + b`: Var(y) d, whatever a and b are."""

  def predict(prompt, t):
    last = np.asarray(prompt.y[:, -1]) if t else 0.0
    along = np.asarray(prompt.x_query).sum(axis=1)
    return ((5 + last) * along + 7)[:, None]

  mean, stderr = _variation(isotropic(_D, _C, noise_std=0.5), predict)
  assert mean[0] == 0
  assert np.all(np.abs(mean - (_D + 0.25) * _D)[1:] < 4 * stderr[1:])


def test_a_query_that_occurs_once_has_the_mean_variation_of_the_others():
  own = np.array([[1.0], [3.0], *[[2.0]] * 14, [100.0]])
  queries = np.array([[0.0]] * 16 + [[1.0]])
  found = _over_equal_queries(own, queries, isotropic(_D, _C))
  assert found is not None
  assert found[:16].mean() == pytest.approx(own[:16].var(ddof=1))
  assert found[16] == found[:16].mean()


@pytest.mark.parametrize('name', mostly_slow(['urns'], ['gaussian_clusters']))
def test_the_variation_on_classes_is_a_divergence_from_the_mean(name):
  """Of p for the first label of two, and 1 − p for the other.

  The queries of one task are symbols, which recur, and of the other are points.
  """
  p = 0.9
  arguments = {'num_urns': None, 'num_symbols': 2} if name == 'urns' else {}
  task = zoo.create_task(name, context_length=3, **arguments)

  def predict(prompt, t):
    labels = np.asarray(prompt.y[:, 0]) if t else np.full((len(prompt.x), 2), 0.5)
    return labels * p + (1 - labels) * (1 - p)

  mean, stderr = _variation(task, predict, 512)
  assert mean[0] == 0
  # How often the first label is the class that the query makes more probable: of a
  # fresh urn with two symbols, the symbol of the query, by 2 of 3.
  share, first = (2 / 3, 2) if name == 'urns' else (1 / 2, 1)
  assert np.all(mean[1:first] == 0)  # the first label is the query itself
  balanced = share * p + (1 - share) * (1 - p)
  likely = p * math.log(p / balanced) + (1 - p) * math.log((1 - p) / (1 - balanced))
  seldom = (1 - p) * math.log((1 - p) / balanced) + p * math.log(p / (1 - balanced))
  expected = share * likely + (1 - share) * seldom
  # The bias is below a standard error.
  assert np.all(np.abs(mean - expected)[first:] < 5 * stderr[first:])


_BLIND = {
  'constant': lambda prompt: jnp.ones(len(prompt.x_query)),
  'linear': lambda prompt: prompt.x_query @ jnp.arange(1.0, _D + 1),
  'square': lambda prompt: jnp.sum(jnp.square(prompt.x_query), axis=1),
}


@pytest.mark.parametrize(
  ('name', 'task'),
  mostly_full(
    [],
    _BLIND,
    ['linear_regression', 'logistic_regression'],
    slow=[('square', 'linear_regression'), ('linear', 'logistic_regression')],
  ),
)
def test_a_model_that_sees_the_query_alone_follows_no_strategy(name, task):
  made = zoo.create_task(task, num_features=_D, context_length=_C)
  result = strategies(_BLIND[name], made, {'zero': Zero()}, 64)
  assert result.unexplained is None
  assert {mixture.unexplained for mixture in result.by_length} == {None}


@pytest.mark.slow
def test_after_fewer_examples_a_task_that_is_not_stationary_has_no_variation():
  task = zoo.create_task('nearest_neighbour', num_features=6, context_length=4)

  def model(prompt):
    return jnp.sum(prompt.y, axis=1)

  result = strategies(model, task, {'zero': Zero()}, 64)
  assert result.unexplained is None
  shares = [mixture.unexplained for mixture in result.by_length]
  assert shares[:-1] == [None] * 4
  assert shares[-1] is not None
