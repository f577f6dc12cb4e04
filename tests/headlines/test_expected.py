"""What is expected is what formulas and independent NumPy loops give."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import xlogy

import zoo
from studies.headlines import (
  HEADLINES,
  clusters,
  diversity,
  garg,
  induction,
  markov_phases,
  ranking,
  saddles,
)
from tests.marks import FULL, SLOW
from zoo import theory
from zoo.tasks import LinearRegression, TaskPool


def expected(name):
  return HEADLINES[name].expected


def middle(range_):
  return (range_.low + range_.high) / 2


def test_ridge_and_the_pools_posterior_by_a_loop():
  """Raventós et al.: D = 8, σ² = .25, the mean over 0 … 15 examples, over D."""
  random = np.random.RandomState(0)
  d, sigma, count, size = 8, 0.5, 150, 64
  pool = random.normal(size=(size, d))
  errors = {'ridge': [], 'new_tasks_64': [], 'pool_64': []}
  for w, known in itertools.product([None, pool], range(count)):
    truth = random.normal(size=d) if w is None else w[known % size]
    x = random.normal(size=(15, d))
    y = x @ truth + sigma * random.normal(size=15)
    ridge, posterior = [], []
    for k in range(16):
      gram = x[:k].T @ x[:k] + sigma**2 * np.eye(d)
      ridge.append(np.linalg.solve(gram, x[:k].T @ y[:k]))
      logs = -np.square(y[:k, None] - x[:k] @ pool.T).sum(axis=0) / (2 * sigma**2)
      weights = np.exp(logs - logs.max())
      posterior.append(weights @ pool / weights.sum())
    # The error to the label without noise at a fresh x ~ N(0, I) is |w − truth|².
    mean = [
      np.square(np.subtract(estimate, truth)).sum(1).mean()
      for estimate in (ridge, posterior)
    ]
    if w is None:
      errors['ridge'].append(mean[0] / d)
      errors['new_tasks_64'].append(mean[1] / d)
    else:
      errors['pool_64'].append(mean[1] / d)
  for name, values in errors.items():
    stderr = np.std(values) / math.sqrt(len(values))
    # Four standard errors, and the range, which has the spread over pools.
    half = expected('pool_lines')[name].high - middle(expected('pool_lines')[name])
    gap = abs(np.mean(values) - middle(expected('pool_lines')[name]))
    assert gap < half + 4 * stderr, name


def test_the_lines_of_markov_chains():
  """KL of 0 ↔ uniform by quadrature, and of counts by a loop over chains."""

  def entropy(p):
    return -xlogy(p, p) - xlogy(1 - p, 1 - p)

  # In the stationary law of leaving with u and v, the first state has v/(u + v).
  stay = integrate.dblquad(lambda u, v: v / (u + v) * entropy(u), 0, 1, 0, 1)[0]
  ranges = expected('markov_phases')
  assert ranges['kl_uniform'].holds(math.log(2) - 2 * stay)

  random = np.random.RandomState(0)
  count, length = 20000, 101
  leave = random.uniform(size=(count, 2))
  rows = np.arange(count)
  state = (random.uniform(size=count) < leave[:, 0] / leave.sum(axis=1)).astype(int)
  seen, moved = np.zeros((count, 2)), np.zeros((count, 2))
  for _ in range(length - 1):
    moves = random.uniform(size=count) < leave[rows, state]
    seen[rows, state] += 1
    moved[rows, state] += moves
    state = np.where(moves, 1 - state, state)
  truth = leave[rows, state]
  here = seen[rows, state] + 1  # the last symbol counts as seen
  total = seen.sum(axis=1) + 1
  says = {
    'kl_bigram': (moved[rows, state] + 1) / (seen[rows, state] + 2),
    'kl_unigram': (total - here + 1) / (total + 2),
  }
  for name, p in says.items():
    kl = xlogy(truth, truth / p) + xlogy(1 - truth, (1 - truth) / (1 - p))
    assert ranges[name].holds(float(kl.mean())), (name, kl.mean())


def test_a_divergence_is_that_of_the_last_symbol():
  p = np.array([[[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.25, 0.75]]])
  log_q = np.log(np.full((2, 2, 2), 0.5))
  divergence = (math.log(2) + 0.25 * math.log(0.5) + 0.75 * math.log(1.5)) / 2
  assert markov_phases._divergence(p, log_q) == pytest.approx(divergence, rel=1e-12)


@pytest.mark.parametrize(
  'depths', [pytest.param((1,), marks=SLOW), pytest.param((2, 3), marks=FULL)]
)
def test_deep_linear_attention_is_bounded_by_theory(depths):
  task, ranges = LinearRegression(5, 20), expected('deep_linear')
  one_step = theory.polynomial_optimum(task, 1).risk
  assert one_step == pytest.approx(5 * 6 / 26, rel=1e-12)
  # The ends are rounded to five digits.
  lower = [one_step - 1e-6, float(theory.deep.lower_bound(task, 4))]
  lower += [theory.polynomial_optimum(task, degree).risk for degree in (13, 40)]
  for depth, bound in enumerate(lower, start=1):
    assert ranges[f'risk_{depth}'].low == pytest.approx(bound, rel=1e-4)
  # What is known to be possible is in the range.
  for depth in depths:
    lowest = theory.deep.gd_plus_plus_optimum(task, depth, -1.0).upper
    assert ranges[f'risk_{depth}'].holds(lowest)


def test_the_risks_at_a_prior_mean():
  ranges = expected('prior_mean')
  infimum = theory.isotropic_head_limit(10, 10, 1, math.sqrt(10 * 2.0**2))
  assert ranges['lsa'].low < infimum < ranges['lsa'].high
  assert infimum == pytest.approx(14.4306, abs=1e-4)
  gd = LinearRegression(10, 10, prior_mean=2.0)
  assert theory.polynomial_optimum(gd, 1).risk == pytest.approx(110 / 21, rel=1e-12)


def test_averaging_and_one_step_of_descent_by_sampling():
  random = np.random.RandomState(0)
  count, ranges = 5000, expected('garg_toy')
  for d, k in ((5, 2), (5, 5), (5, 10), (20, 20)):
    x, w = random.normal(size=(count, k, d)), random.normal(size=(count, d))
    sums = np.einsum('nki,nkj,nj->ni', x, x, w, optimize=True)
    for step, value in (
      (1 / k, (d + 1) / k),
      (1 / (k + d + 1), garg._gd(d, k)),
    ):
      errors = np.square(step * sums - w).sum(axis=1) / d
      stderr = errors.std() / math.sqrt(count)
      assert abs(errors.mean() - value) < 4 * stderr
  # The numbers that the source prints are those of the formula.
  for k in (20, 40):
    assert ranges[f'averaging_{k}'].holds(21 / k)
  # Averaging and one step of descent miss the margins.
  for k in (2, 3, 5, 10):
    assert not ranges[f'model_{k}'].holds(6 / k)
    assert k > 3 or not ranges[f'model_{k}'].holds(garg._gd(5, k))


def test_a_plateau_is_where_the_loss_waits_longest():
  steps = [100 * i for i in range(1, 11)]
  waits = [3.9, 2.0, 0.72, 0.7, 0.69, 0.68, 0.68, 0.2, 0.01, 0.0]
  assert induction.plateau(steps, waits) == pytest.approx((0.7, 400 / 800))
  # After the drop the loss waits at 0, which does not count.
  passes = [3.9, 2.5, 1.9, 1.2, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0]
  assert induction.plateau(steps, passes)[1] == 0
  stays = [3.9, 2.0, *[0.69] * 8]
  assert induction.plateau(steps, stays) == pytest.approx((0.69, 700 / 1000))


def test_the_rank_correlation_is_at_its_level():
  known = [error for _, _, error in ranking._MODELS.values()]
  bound = expected('ranking')['rank_correlation'].low
  # Of every seventh order, 720 in all: the share is known to 0.8 %.
  orders = itertools.islice(itertools.permutations(map(float, range(7))), 0, None, 7)
  ranks = stats.rankdata(known)
  correlations = [np.corrcoef(ranks, order)[0, 1] for order in orders]
  assert np.mean(np.array(correlations) > bound - 1e-3) == pytest.approx(
    0.044, abs=0.024
  )


def test_chance_in_recall():
  chance = expected('recall')['new_keys']
  assert middle(chance) == 1 / 64
  error = math.sqrt(1 / 64 * 63 / 64 / 4096)
  assert chance.high - middle(chance) == pytest.approx(3 * error, rel=0.05)


def test_pauses_between_drops():
  at = np.log(saddles._TIMES)
  steps = [0.3 / (1 + np.exp(-8 * (at - middle))) for middle in (4, 9)]
  pauses = saddles.pauses(1 - steps[0] - steps[1])
  np.testing.assert_allclose(pauses, [1, 0.7, 0.4], atol=1e-6)


def test_chance_in_clusters():
  """Of a label that is drawn, and of another class with the label of the query."""
  ranges = expected('clusters')
  chance = ranges['few_in_context']
  assert middle(chance) == clusters.CHANCE == 1 / 32
  error = math.sqrt(1 / 32 * 31 / 32 / clusters._NUM_PROMPTS)
  assert chance.high - middle(chance) == pytest.approx(4 * error, rel=0.05)
  labels = np.arange(8192) % 32
  assert np.mean(labels[1:] == labels[0]) == pytest.approx(255 / 8191)
  assert ranges['many_in_weights'].holds(255 / 8191)


@pytest.mark.slow
def test_losses_of_mixtures_for_a_pool_by_a_loop():
  """The loss beyond dMMSE is the squared distance to it; that of ridge is 1.02."""
  random = np.random.RandomState(0)
  sigma, count = 0.5, 4000
  pool = TaskPool(4, 4, 4).pool
  beyond, distances = [], []
  for number in range(count):
    truth = pool[number % 4]
    x = random.normal(size=(4, 4))
    y = x @ truth + sigma * random.normal(size=4)
    ridge = np.linalg.solve(x.T @ x + sigma**2 * np.eye(4), x.T @ y)
    logs = -np.square(y[:, None] - x @ pool.T).sum(axis=0) / (2 * sigma**2)
    weights = np.exp(logs - logs.max())
    dmmse = weights @ pool / weights.sum()
    # Of the label without noise at a fresh x ~ N(0, I).
    beyond.append(np.square(ridge - truth).sum() - np.square(dmmse - truth).sum())
    distances.append(np.square(ridge - dmmse).sum())
  assert np.mean(beyond) == pytest.approx(np.mean(distances), rel=0.05)
  assert np.mean(distances) == pytest.approx(1.02, rel=0.1)
  # The baselines of the task are these two.
  task = TaskPool(4, 4, 4, noise_std=sigma)
  curves = [
    zoo.curve(task.baselines()[name], task, 4096) for name in ('ridge', 'dmmse')
  ]
  measured = curves[0].mean[-1] - curves[1].mean[-1]
  errors = [curve.stderr[-1] for curve in curves]
  by_hand = np.std(beyond) / np.sqrt(count)
  assert abs(measured - np.mean(beyond)) < 4 * np.linalg.norm([*errors, by_hand])


def test_the_weight_of_the_posterior_mean_and_when_it_switches():
  assert diversity.share({'dmmse': 0.6, 'ridge': 0.2, 'zero': 0.2}) == 0.6 / 0.8
  assert diversity.share({'dmmse, ridge': 1.0, 'zero': 0.0}) == 0.5
  assert diversity.share({'dmmse': 0.0, 'ridge': 0.0, 'zero': 1.0}) == 0.5
  for shares, measurements in (
    ([0.5, 0.7, 0.9], 1),
    ([0.7, 0.4, 0.6], 2),
    ([0.7, 0.8, 0.9], 0),
    ([0.7, 0.8, 0.1], 3),
  ):
    assert diversity.switch(shares) == measurements
