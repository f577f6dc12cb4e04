"""How often intervals contain the truth, at the least number of prompts of each.

The values are drawn in NumPy, from distributions whose truth is known, and go through
the functions that `calibration`, `exchangeability` and `martingale` call.
"""

import numpy as np
import pytest

from tests.marks import SLOW
from tests.probing.test_coverage import assert_covered, contains
from zoo.measure.bayesian import _LEAST_OF_DRIFT, _LEAST_PROMPTS, _drifts
from zoo.measure.calibrate import _LEAST_IN_BIN, _histogram, _reliability
from zoo.measure.calibrate import _LEAST_PROMPTS as LEAST_OF_CALIBRATION
from zoo.measure.intervals import Interval, estimate

pytestmark = SLOW
_NUM_DRAWS = 1000


def _within(found, truth) -> bool:
  """Whether an interval contains the truth between its own two ends."""
  assert isinstance(found, Interval)
  return found.low <= truth <= found.high


@pytest.mark.parametrize('num_bins', [4, 10, 20])
def test_intervals_of_a_histogram_contain_equal_shares(num_bins):
  generator, hits, refused = np.random.default_rng(0), [], []
  for _ in range(_NUM_DRAWS // 2):
    found = _histogram(generator.random(_LEAST_IN_BIN * num_bins), num_bins)
    hits += [_within(row.share, 1 / num_bins) for row in found.bins[:4]]
    refused.append(found.p_value < 0.05)
  assert_covered(hits)
  assert np.mean(refused) < 0.05 + 3 * (0.05 * 0.95 / len(refused)) ** 0.5


@pytest.mark.parametrize('sure', [False, True])
@pytest.mark.parametrize('num_prompts', [LEAST_OF_CALIBRATION, 200])
def test_intervals_of_an_accuracy_contain_the_confidence(num_prompts, sure):
  """Of a calibrated predictor of two classes, also of one that is nearly sure."""
  generator, hits, above = np.random.default_rng(1), [], []
  for _ in range(_NUM_DRAWS // 4):
    if sure:
      confidence = np.maximum(generator.beta(20, 1, size=num_prompts), 0.5)
    else:
      confidence = generator.uniform(0.5, 1.0, size=num_prompts)
    correct = (generator.random(num_prompts) < confidence).astype(float)
    found = _reliability(confidence, correct, 10, seed=0)
    hits += [_within(row.accuracy, row.confidence) for row in found.rows]
    above.append(found.ece > found.null)
  assert_covered(hits)
  assert np.mean(above) < 0.05 + 3 * (0.05 * 0.95 / len(above)) ** 0.5


@pytest.mark.parametrize('num_orders', [1, 4])
def test_intervals_of_a_divergence_contain_it(num_orders):
  """KL of normal distributions of one width is a square of a difference of means."""
  generator = np.random.default_rng(2)
  size = _NUM_DRAWS, _LEAST_PROMPTS, num_orders
  kl = np.square(generator.normal(size=size)).mean(axis=-1)
  assert_covered([contains(estimate(row), 1.0) for row in kl])


def _moves_of_means(generator):
  """Predictions of numbers that move by steps of different sizes."""
  first, steps = generator.normal(size=(2, _LEAST_OF_DRIFT))
  return first, steps * np.exp(0.5 * generator.normal(size=first.shape))


def _moves_of_classes(generator):
  """The probability of the likelier of two classes, after 4 labels drawn by Bayes."""
  seen = generator.binomial(8, generator.random(_LEAST_OF_DRIFT))
  hits = 1.0 + np.maximum(seen, 8 - seen)
  first = hits / 10
  for count in range(10, 14):
    hits += generator.random(_LEAST_OF_DRIFT) < hits / count
  return first, hits / 14 - first


@pytest.mark.parametrize('moves', [_moves_of_means, _moves_of_classes])
def test_intervals_of_a_martingale_contain_no_drift_and_no_slope(moves):
  generator, drifts, slopes = np.random.default_rng(3), [], []
  for _ in range(_NUM_DRAWS):
    first, moved = moves(generator)
    (row,) = _drifts(first, moved[:, None])
    drifts.append(contains(row.drift, 0.0))
    slopes.append(contains(row.slope, 0.0))
  assert_covered(drifts)
  assert_covered(slopes)
