"""How often intervals contain the truth, at the least number of draws of each.

The values are drawn in NumPy, from distributions whose truth is known or is that of
many draws, and go through the functions that the instruments call. The shares of gaps,
of `effects`, `path_effect` and `circuit`, are in tests/measure/test_ratio.py, and those
of whole instruments in test_instruments.py.
"""

import numpy as np
import pytest

from tests.marks import SLOW, mostly_full
from zoo.measure.intervals import Estimate, Interval
from zoo.probing.attention_heads import _LEAST_PROMPTS as LEAST_OF_CORRELATION
from zoo.probing.attention_heads import correlation
from zoo.probing.latents import _scores
from zoo.probing.linear_maps import LEAST_PROMPTS as LEAST_OF_PROBES
from zoo.probing.linear_maps import LEAST_UNTRAINED, Ridge
from zoo.probing.nearest.by_layer import _match
from zoo.probing.nearest.context import share_of_variation

pytestmark = SLOW
_NUM_DRAWS = 600
_MANY = 4000  # As many prompts stand for all.


def contains(found: Estimate | Interval | None, truth: float) -> bool:
  assert found is not None
  return found.mean - found.half <= truth <= found.mean + found.half


def assert_covered(hits, low=0.93, high=0.97) -> None:
  """The share of hits is within the limits, up to three of its binomial errors."""
  share, error = np.mean(hits), 3 * (0.95 * 0.05 / len(hits)) ** 0.5
  print(f'covered: {share:.3f}')
  assert low - error <= share <= high + error, share


def _noisy(generator, count, noise, skewed):
  """Values of a site `[p, 3]`, and a target that is linear in them up to noise."""
  rows = generator.normal(size=(count, 3))
  if skewed:
    rows = rows * np.exp(0.5 * generator.normal(size=(count, 1)))
  target = rows[:, :1] + noise * generator.normal(size=(count, 1))
  return rows, target


@pytest.mark.parametrize(
  ('noise', 'skewed'),
  mostly_full([], [0.3, 1.0, 3.0], [False, True], slow=[(0.3, False), (3.0, True)]),
)
def test_intervals_of_r2_contain_that_of_the_fitted_map(noise, skewed):
  """Given the map, R² on all prompts is the truth; the null has permuted targets."""
  generator, hits, nulls = np.random.default_rng(0), [], []
  half = LEAST_OF_PROBES // 2
  all_rows, all_targets = _noisy(generator, _MANY, noise, skewed)
  for _ in range(_NUM_DRAWS):
    rows, target = _noisy(generator, 2 * half, noise, skewed)
    (score,) = _scores({'site': rows}, (), {'w': target})
    predicted = Ridge(rows[:half])(target[:half], all_rows)
    whole = np.square(all_targets - target[:half].mean()).mean()
    truth = 1 - np.square(predicted - all_targets).mean() / whole
    hits.append(contains(score.r2, float(truth)))
    nulls.append(score.permuted.mean - score.permuted.half > 0)
  assert_covered(hits)
  # A map to the targets of other prompts predicts nothing.
  assert np.mean(nulls) < 0.025 + 3 * (0.025 * 0.975 / _NUM_DRAWS) ** 0.5


@pytest.mark.parametrize('num_untrained', mostly_full([], [8], slow=[LEAST_UNTRAINED]))
def test_intervals_beside_untrained_models_contain_one_more_of_them(num_untrained):
  """An untrained model has the target with a noise that depends on its seed."""
  generator, hits, above = np.random.default_rng(1), [], []

  def inputs_of(target):
    noise = np.exp(0.5 * generator.normal())
    return target + noise * generator.normal(size=target.shape)

  for _ in range(_NUM_DRAWS):
    target = generator.normal(size=(LEAST_OF_PROBES, 1))
    trained = target + 0.3 * generator.normal(size=target.shape)
    untrained = [{'site': inputs_of(target)} for _ in range(num_untrained)]
    (score,) = _scores({'site': trained}, untrained, {'w': target})
    (other,) = _scores({'site': inputs_of(target)}, (), {'w': target})
    hits.append(contains(score.untrained, other.r2.mean))
    above.append(contains(score.above_untrained, score.r2.mean - other.r2.mean))
  assert_covered(hits)
  # Its error is also that of the prompts, which the truth here does not have.
  assert_covered(above, high=1.0)


@pytest.mark.parametrize(
  ('truth', 'skewed'),
  mostly_full([], [-0.3, 0.5, 0.95], [False, True], slow=[(0.5, False), (0.95, True)]),
)
def test_intervals_of_a_correlation_contain_it(truth, skewed):
  """Of normal values, and of values that share how large they are."""
  generator, hits = np.random.default_rng(2), []
  for _ in range(_NUM_DRAWS):
    first, noise = generator.normal(size=(2, LEAST_OF_CORRELATION, 1))
    second = truth * first + (1 - truth**2) ** 0.5 * noise
    if skewed:
      scale = np.exp(0.5 * generator.normal(size=first.shape))
      first, second = scale * first, scale * second
    hits.append(contains(correlation(first, second), truth))
  assert_covered(hits)


@pytest.mark.parametrize('apart', [0.0, 0.05, 0.3])
def test_the_range_of_the_nearest_number_of_steps_contains_it(apart):
  """One layer and two numbers of steps, the second of which is nearer."""
  generator, hits = np.random.default_rng(3), []
  for _ in range(300):
    gaps = generator.normal(size=(64, 1, 2)) * np.array([1.0 + apart, 1.0])
    errors = generator.normal(size=gaps.shape) ** 2
    match = _match(gaps**2, errors, np.ones(64), [])
    hits.append(match.low[0] <= 1 <= match.high[0])
  # The range is of whole numbers, so that it contains the truth more often.
  assert_covered(hits, high=1.0)


@pytest.mark.parametrize('num_prompts', [512, 2048])
def test_intervals_of_an_unexplained_share_contain_it(num_prompts):
  """Of squared differences of predictions w·x, whose square has heavy tails."""
  generator, hits = np.random.default_rng(4), []
  for _ in range(_NUM_DRAWS):
    weights, queries = generator.normal(size=(2, num_prompts, 4))
    own = np.sum(weights * queries, axis=1)
    gap = np.square(0.5 * own + 0.2 * generator.normal(size=num_prompts))
    found = share_of_variation(gap, np.square(own), own)
    hits.append(contains(found, 0.25 + 0.04 / 4))
  assert_covered(hits)
