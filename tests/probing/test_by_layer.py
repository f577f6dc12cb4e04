"""Which algorithm at which layer: on models by hand, whose algorithm is known."""

from typing import Any

import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.settings import general, isotropic
from zoo.probing import layer_algorithms
from zoo.probing.nearest import solvers
from zoo.probing.nearest.by_layer import Match, Readout
from zoo.probing.nearest.by_layer import _match as match_of
from zoo.probing.nearest.by_layer import _readout as readout_of
from zoo.reports.probe import name_layer_algorithms
from zoo.reports.probe.algorithm_pictures import plot_layer_algorithms
from zoo.reports.style import drawing_of
from zoo.theory import constructions

_D, _C = 3, 6
# Of float32 predictions, whose relative error of some 10⁻⁷ is squared.
_EXACT = 1e-10
_START = np.array([1.0, -0.5, 2.0])


def _task(**arguments):
  return isotropic(_D, _C, prior_mean=_START, noise_std=0.3, **arguments)


def _steps_to(match, layers):
  return [float(match.unexplained[layer, layer]) for layer in layers]


def test_a_layer_of_gradient_descent_is_one_more_step_of_it():
  model = constructions.deep_gradient_descent(_START, [0.4, 0.4])
  layers = layer_algorithms(model, _task(), num_prompts=256, num_steps=2).own
  assert 'preconditioned_gd' not in layers.matches
  descent = layers.matches['gd']
  assert max(_steps_to(descent, range(3))) < _EXACT
  for steps in descent.nearest, descent.low, descent.high:
    np.testing.assert_array_equal(steps, range(3))
  np.testing.assert_allclose(
    [descent.parameters[k][k, 0] for k in (1, 2)], 0.4, rtol=1e-5
  )
  # No other number of steps comes near, whatever its step size.
  off = [descent.unexplained[i, k] for i in (1, 2) for k in range(3) if k != i]
  assert min(off) > 1e-4
  # Only what contains gradient descent is as near.
  for names in layers.nearest[1:]:
    assert names == ['gd', 'gd_plus_plus', 'chebyshev', 'richardson'][: len(names)]
    assert names[0] == 'gd'
  for name in 'newton', 'conjugate_gradients', 'ridge', 'bayes':
    assert layers.matches[name].unexplained[1:].min() > 1e-3


@pytest.mark.slow
def test_a_layer_of_gd_plus_plus_is_one_more_step_of_it():
  model = constructions.gd_plus_plus(_START, [-0.3] * 2, [-0.1])
  layers = layer_algorithms(model, _task(), num_prompts=256, num_steps=2).own
  match = layers.matches['gd_plus_plus']
  assert max(_steps_to(match, range(3))) < _EXACT
  np.testing.assert_array_equal(match.nearest, range(3))
  np.testing.assert_allclose(match.parameters[2][2], [0.3, 0.1], rtol=1e-3)
  assert layers.matches['gd'].unexplained[2].min() > 1e-4
  assert layers.nearest[2][0] == 'gd_plus_plus'


@pytest.mark.slow
def test_a_schedule_of_steps_is_found():
  """The schedule is Chebyshev's after all of its steps, and Richardson's after each."""
  schedule = solvers.chebyshev_steps(2, 0.3, 2.5)
  model = constructions.deep_gradient_descent(_START, schedule)
  layers = layer_algorithms(model, _task(), num_prompts=256, num_steps=2).own
  assert max(_steps_to(layers.matches['richardson'], range(3))) < _EXACT
  assert layers.matches['chebyshev'].unexplained[2, 2] < _EXACT
  np.testing.assert_allclose(
    np.exp(layers.matches['chebyshev'].parameters[2][2]), [0.3, 2.5], rtol=1e-3
  )
  assert layers.matches['gd'].unexplained[2].min() > 1e-4


@pytest.mark.slow
def test_preconditioned_descent_is_found():
  task: Any = general(c=_C, noise_std=0.3)
  start = task.mean_weights()
  model = constructions.deep_gradient_descent(start, [1.0, 1.0])
  inverse = np.linalg.inv(task.feature_covariance)
  layers: Any = model.layers
  for layer in layers:
    layer.a[...] = 0.5 * inverse[None].astype('float32')
  # Features whose variances differ by some hundred leave float32 fewer digits.
  found = layer_algorithms(model, task, num_prompts=256, num_steps=2).own
  match = found.matches['preconditioned_gd']
  assert max(_steps_to(match, range(3))) < 1e-8
  assert abs(match.parameters[2][2, 0] - 0.5) < 1e-4
  assert found.matches['gd'].unexplained[2].min() > 1e-3


def test_the_distances_are_shares_of_the_variation_over_contexts():
  """That of a step of size 0.4 from w_0 = w*, `0.16 E |r|²` with r = Xᵀ(y − X w*)/C."""
  model = constructions.deep_gradient_descent(_START, [0.4])
  layers = layer_algorithms(model, _task(), num_prompts=1024, num_steps=1)
  bayes = layers.own.matches['bayes']
  x = np.random.default_rng(0).normal(size=(20_000, _C, _D))
  posterior = np.linalg.inv(np.eye(_D) + np.swapaxes(x, 1, 2) @ x / 0.3**2)
  left = posterior.trace(axis1=1, axis2=2).mean() / _D  # to 2e-4
  # Orthogonality: E (f_0 − bayes)² is the prior's risk minus that of Bayes.
  variation = 0.16 * (_D * (1 + (_D + 1) / _C) + 0.3**2 * _D / _C)
  expected = _D * (1 - left) / variation
  assert abs(bayes.unexplained[0, 0] - expected) < 4 * bayes.stderr[0, 0]
  assert 0 < bayes.stderr[0, 0] < 0.3 * expected
  assert layers.fitted.matches['gd'].unexplained[0, 0] < 0.1
  assert layers.own.matches['gd'].unexplained.shape == (2, 2)


def test_a_share_is_of_the_variation_on_the_prompts_of_its_distance():
  rng = np.random.default_rng(0)
  predictions, variation = rng.normal(size=(40, 1)), np.repeat([4.0, 1.0], 10)
  own = readout_of(predictions, {}, {'zero': np.zeros(20)}, variation, num_steps=1)
  (distance,) = own.matches['zero'].unexplained[0]
  # The first half of 20 prompts chooses the number of steps.
  assert distance == pytest.approx(np.mean(predictions[10:20] ** 2))


@pytest.mark.slow
def test_errors_and_intervals_hold_for_other_prompts():
  """Of draws whose distances are known: 0.5 at one step, a little more at two."""
  rng, matches = np.random.default_rng(0), []
  for _ in range(200):
    variation = rng.chisquare(3, size=100) / 3
    noise = rng.chisquare(3, size=(2, 100, 1)) / 3
    errors = noise * [1.0, 0.5, 0.51] + rng.normal(0, 0.1, size=(2, 100, 3))
    matches.append(match_of(errors[0][:, None], errors[1][:, None], variation, []))
  distances = np.stack([match.unexplained[0] for match in matches])
  stated = np.mean([match.stderr[0] for match in matches], axis=0)
  # The spread of 200 is known to 5 %, and ratios are biased in the second order.
  np.testing.assert_allclose(distances.std(axis=0, ddof=1), stated, rtol=0.2)
  np.testing.assert_allclose(distances.mean(axis=0), [1.0, 0.5, 0.51], atol=0.03)
  covered = [match.low[0] <= 1 <= match.high[0] for match in matches]
  assert np.mean(covered) > 0.9
  assert not any(match.low[0] == 0 for match in matches)
  # The two are hardly to be told apart, and most intervals say so.
  assert np.mean([match.high[0] == 2 for match in matches]) > 0.5


@pytest.mark.parametrize(
  ('task', 'arguments', 'said'),
  [
    (isotropic(_D, _C), {'num_prompts': 79}, 'num_prompts is 79'),
    (isotropic(_D, _C), {'num_steps': 0}, 'num_steps is 0'),
    (
      zoo.create_task('logistic_regression', num_features=_D, context_length=_C),
      {},
      'a nearest step needs labels that are numbers',
    ),
  ],
)
def test_what_cannot_be_compared_is_refused(task, arguments, said):
  model = constructions.deep_gradient_descent(np.zeros(_D), [0.4])
  with refuses(said):
    layer_algorithms(model, task, **arguments)
  with refuses('YqLSA has no layers to read'):
    yq_lsa = zoo.create_model('yq_lsa', num_features=_D, rngs=nnx.Rngs(0))
    layer_algorithms(yq_lsa, task)


@pytest.mark.slow
def test_a_model_that_ignores_its_context_runs_no_algorithm():
  model = constructions.deep_gradient_descent(_START, [0.0])
  with refuses('ignores its context'):
    layer_algorithms(model, _task(), num_prompts=256)


def _readout(own_steps, near, distance=0.02):
  """A readout of three layers, whose conjugate gradients have some intervals."""
  nearest, low, high = (np.array(steps) for steps in own_steps)
  shares = np.full((3, 4), 0.9)
  shares[np.arange(3), nearest] = distance
  match = Match(shares, np.full((3, 4), 0.001), nearest, low, high, [])
  still = np.zeros(3, int)
  ridge = Match(np.full((3, 1), 0.03), np.full((3, 1), 0.001), still, still, still, [])
  return Readout({'conjugate_gradients': match, 'ridge': ridge}, near)


def test_a_sentence_says_only_what_survives_its_interval():
  near = [['ridge'], ['conjugate_gradients'], ['conjugate_gradients', 'ridge']]
  apart = _readout(([0, 1, 2], [0, 1, 2], [0, 1, 2]), near)
  assert name_layer_algorithms(apart) == (
    'After the last layer, 2, the nearest algorithm is conjugate gradients with 2 '
    'steps, which is 2 % (s.e. 0.1 %) of the variation over contexts away from it; not '
    "told apart from it: the task's ridge at 3 % (s.e. 0.1 %). Its nearest number of "
    'steps rises from 1 after layer 1 to 2 after layer 2.'
  )
  # The intervals of layers 1 and 2 meet: nothing is said of a rise.
  meets = _readout(([0, 1, 2], [0, 1, 1], [0, 1, 2]), near)
  assert 'with 2 steps (1 to 2 in 95 % of boot' in name_layer_algorithms(meets)
  assert 'rises' not in name_layer_algorithms(meets)
  # Nor of a layer to which other algorithms are nearer.
  alone = [['ridge'], ['ridge'], ['conjugate_gradients']]
  of_last = _readout(([0, 1, 2], [0, 1, 2], [0, 1, 2]), alone)
  assert 'rises' not in name_layer_algorithms(of_last)
  most = _readout(([0, 1, 3], [0, 1, 3], [0, 1, 3]), alone, distance=0.7)
  assert name_layer_algorithms(most).startswith(
    'No algorithm is near the last layer, 2; the nearest is conjugate gradients with '
    'at least 3 steps'
  )


def test_a_picture_has_a_map_for_each_algorithm():
  near = [['ridge']] * 3
  readout = _readout(([0, 1, 2], [0, 1, 1], [0, 1, 2]), near)
  figure = drawing_of(plot_layer_algorithms(readout))
  titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
  assert titles == ['conjugate gradients', 'without steps']
  marks = [text.get_text() for text in figure.axes[0].texts]
  assert marks == ['●', '', '', '', '', '●', '', '', '', '○', '●', '']
