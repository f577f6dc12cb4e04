from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.tasks import host
from zoo.tasks import FunctionClass
from zoo.tasks.base import Scale, ShiftedTask, dot

_D, _C = 6, 5
_CHANGED = [
  'random_quadrants',
  'repeated_query',
  'skewed',
  'half_subspace',
  'orthogonal_query',
  'scale_x=0.333',
  'scale_x=0.5',
  'scale_x=2',
  'scale_x=3',
]
_SCALED = ['scale_y=0.333', 'scale_y=0.5', 'scale_y=2', 'scale_y=3']
_LONGER = [f'context_length={_C * factor}' for factor in (2, 4, 8, 16, 32)]


def _task(name='linear_regression', **changes) -> Any:
  return zoo.create_task(name, **{'num_features': _D, 'context_length': _C} | changes)


def _shifted(name: str, seed: int, count: int) -> zoo.Prompt:
  return host.sample(_task().shifts()[name], seed, count)


def test_each_task_gets_the_shifts_that_make_sense():
  assert [*_task().shifts()] == [*_CHANGED, *_SCALED, 'noise_std=1', *_LONGER]
  assert [*_task(noise_std=1.0).shifts()] == [*_CHANGED, *_SCALED, *_LONGER]
  assert [*_task('quadratic_regression').shifts()] == [*_task().shifts()]
  # No query is orthogonal to all of a space, and one feature has no half.
  assert 'orthogonal_query' not in _task(num_features=_C).shifts()
  assert not {'skewed', 'half_subspace'} & {*_task(num_features=1).shifts()}
  # The labels are classes, which have no size and no noise.
  assert [*_task('logistic_regression').shifts()] == [*_CHANGED, *_LONGER]
  assert _task().shifts()['skewed'].shifts() == {}


def test_shifts_of_a_task_that_holds_out_functions_are_measured_on_those():
  @struct.dataclass
  class Apart(FunctionClass):
    num_features: int = struct.field(pytree_node=False, default=_D)
    context_length: int = struct.field(pytree_node=False, default=_C)
    part: str = struct.field(pytree_node=False, default='training')

    def sample_function(self, key):
      return {'training': 1.0, 'held_out': -1.0}[self.part] * jnp.ones(_D)

    def evaluate(self, function, x):
      return dot(x, function[None])

    def held_out(self):
      return Apart(self.num_features, self.context_length, 'held_out')

  shifted = Apart().shifts()['scale_x=2'].held_out()
  assert shifted == ShiftedTask(Apart(part='held_out'), Scale(2.0))
  scaled = _task().shifts()['scale_x=2']
  assert scaled.held_out() is scaled


def test_longer_contexts_are_the_same_task():
  changes = {'prior_mean': [1.0] * _D, 'feature_covariance': np.diag(np.arange(1.0, 7))}
  shifts = _task(noise_std=0.5, **changes).shifts()
  assert shifts['context_length=10'] == _task(
    context_length=10, noise_std=0.5, **changes
  )
  assert shifts['noise_std=1'] == _task(noise_std=1.0, **changes)
  longer = _task('logistic_regression').shifts()['context_length=80']
  prompt = jax.eval_shape(lambda key: longer.sample(key, 2), jax.random.key(0))
  assert prompt.x.shape == (2, 80, _D)
  # A length that the task refuses is left out.
  few = [name for name in _task(context_length=2**29).shifts() if 'context' in name]
  assert few == [f'context_length={2**30}']


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  mostly_full(['skewed'], [*_CHANGED, *_SCALED], slow=['scale_y=3']),
)
def test_labels_are_those_of_the_function_at_the_features(name):
  mean = np.arange(1.0, _D + 1)  # the weights of each prompt, as they do not vary
  task = _task(prior_mean=mean, prior_covariance=np.zeros((_D, _D)))
  prompt = host.sample(task.shifts()[name], 0, 20)
  scale = {f'scale_y={s:.3g}': s for s in (1 / 3, 1 / 2, 2, 3)}.get(name, 1)
  expected, targets = scale * host.features(prompt) @ mean, host.targets(prompt)
  np.testing.assert_allclose(targets, expected, rtol=1e-4, atol=1e-4)
  np.testing.assert_array_equal(prompt.y, targets[:, :-1])


@pytest.mark.slow
@pytest.mark.full
def test_noise_of_the_labels_is_that_of_the_task():
  prompt = host.sample(_task(noise_std=0.5).shifts()['scale_y=3'], 0, 4000)
  noise = np.ravel(prompt.y - host.targets(prompt)[:, :-1])
  error = 0.25 * np.sqrt(2 / len(noise))  # of the variance of a Gaussian sample
  assert abs(np.mean(noise**2) - 0.25) <= 4.5 * error
  prompt = host.sample(_task('logistic_regression').shifts()['scale_x=3'], 0, 4000)
  assert set(np.unique(prompt.y)) == {-1, 1}
  gap = np.ravel((prompt.y + 1) / 2 - host.targets(prompt)[:, :-1])
  assert abs(gap.mean()) <= 4.5 * gap.std() / np.sqrt(len(gap))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('name', mostly_full(['skewed'], ['half_subspace']))
def test_stretched_features_have_the_promised_eigenvalues(name):
  count, j = 20_000, np.arange(_D)
  powers = 1 / (j + 1) ** 2 if name == 'skewed' else j < _D // 2
  with jax.enable_x64(True):
    prompt = _shifted(name, 1, count)
  x = host.features(prompt).reshape(-1, _D)
  covariance = x.T @ x / len(x)
  expected = np.sort(_D * powers / np.sum(powers))
  eigenvalues = np.linalg.eigvalsh(covariance)
  # An eigenvalue λ of a Gaussian sample has the standard error λ √(2/n).
  error = expected * np.sqrt(2 / len(x))
  assert np.all(np.abs(eigenvalues - expected) <= 4.5 * error + 1e-12)
  # The axes are not those of the features.
  off = covariance - np.diag(np.diag(covariance))
  assert np.abs(off).max() > 0.1
  # One matrix for all prompts: so also that of other keys.
  y = host.features(_shifted(name, 2, count)).reshape(-1, _D)
  gap = np.abs(y.T @ y / len(y) - covariance)
  size = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
  assert np.all(gap <= 4.5 * np.sqrt(2 * 2 / len(x)) * size)


@pytest.mark.slow
def test_the_context_lies_in_one_random_quadrant():
  prompt = _shifted('random_quadrants', 1, 2000)
  signs = np.sign(prompt.x)
  assert np.all(signs == signs[:, :1])
  # The quadrants are uniform, and the query is in any of them.
  first = signs[:, 0]
  for product in (first, first[:, :1] * first[:, 1:], first * np.sign(prompt.x_query)):
    assert np.all(np.abs(product.mean(0)) <= 4.5 / np.sqrt(2000))
  # Features keep their size: E x² = 1, with the variance 2.
  size = np.mean(np.square(prompt.x), axis=(0, 1))
  assert np.all(np.abs(size - 1) <= 4.5 * np.sqrt(2 / (2000 * _C)))


@pytest.mark.parametrize('value', [0, -2.0, np.float32(-2), np.nan, True])
def test_features_are_scaled_by_a_positive_number(value):
  with refuses(f'factor is {value!r}; it must be a finite number > 0'):
    Scale(value)
  # A transformation of JAX may put anything in its place.
  assert jax.tree.map(lambda factor: None, Scale(2.0)).factor is None


def test_the_repeated_query_is_any_example():
  prompt = _shifted('repeated_query', 1, 2000)
  same = np.all(prompt.x == np.asarray(prompt.x_query)[:, None], axis=-1)
  np.testing.assert_array_equal(same.sum(1), 1)
  error = np.sqrt(1 / _C * (1 - 1 / _C) / 2000)
  assert np.all(np.abs(same.mean(0) - 1 / _C) <= 4.5 * error)
  np.testing.assert_array_equal(np.asarray(prompt.y)[same], prompt.y_query)


@pytest.mark.slow
def test_the_orthogonal_query_keeps_its_norm():
  prompt = _shifted('orthogonal_query', 1, 2000)
  overlap = np.einsum('bcd,bd->bc', prompt.x, prompt.x_query)
  # Rounding errors of products of about |x|² = 6, in float32.
  assert np.abs(overlap).max() <= 1e-5
  # With d − 1 examples one axis is left, and the query keeps its side of it.
  plain = host.sample(ShiftedTask(_task(), Scale(1.0)), 1, 2000).x_query
  along = np.sum(plain * prompt.x_query, axis=-1) / np.sum(prompt.x_query**2, axis=-1)
  assert np.all(along > -1e-5)
  squares = np.sum(np.square(prompt.x_query), axis=-1)
  # |x|² is χ² with d degrees: the mean d and the variance 2d.
  assert abs(squares.mean() - _D) <= 4.5 * np.sqrt(2 * _D / 2000)
  assert abs(squares.var() - 2 * _D) <= 4.5 * squares.var() * np.sqrt(10 / 2000)


@pytest.mark.slow
@pytest.mark.full
def test_a_query_in_the_span_of_the_context_is_orthogonal_all_the_same():
  # Of features with two directions only, three examples leave nothing.
  covariance = np.diag([1.0, 1.0, 0, 0, 0, 0])
  task = _task(feature_covariance=covariance, context_length=3)
  prompt = host.sample(task.shifts()['orthogonal_query'], 0, 50)
  assert np.isfinite(prompt.y_query).all()
  overlap = np.einsum('bcd,bd->bc', prompt.x, prompt.x_query)
  assert np.abs(overlap).max() <= 1e-5


@pytest.mark.slow
def test_scaled_features():
  x = np.ravel(_shifted('scale_x=3', 0, 2000).x)
  # E x² = s², with the variance 2 s⁴.
  assert abs(np.mean(x**2) / 9 - 1) <= 4.5 * np.sqrt(2 / len(x))


def test_shifts_that_differ_in_numbers_share_their_programs():
  """A compiled program depends on a task's structure, and takes its numbers."""
  kinds = {}
  for name, shifted in _task().shifts().items():
    kinds.setdefault(jax.tree.structure(shifted), []).append(name)
  shared = [names for names in kinds.values() if len(names) > 1]
  stretched, scaled_x, scaled_y = shared
  assert stretched == ['skewed', 'half_subspace']
  assert scaled_x == [name for name in _CHANGED if name.startswith('scale_x')]
  assert scaled_y == _SCALED


def test_bayes_of_the_task_goes_by_another_name():
  task = _task('quadratic_regression', noise_std=0.5)
  shifted = task.shifts()['scale_y=2']
  assert [*shifted.baselines()] == ['bayes_unshifted', *[*task.baselines()][1:]]
  assert shifted.baselines()['bayes_unshifted'] == task.baselines()['bayes']
  assert 'bayes' in task.shifts()['noise_std=1'].baselines()
  classes: Any = _task('logistic_regression').shifts()['skewed']
  prediction, target = jnp.zeros(3), jnp.ones(3)
  np.testing.assert_allclose(classes.loss(prediction, target), np.log(2), rtol=1e-6)
