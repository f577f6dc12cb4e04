"""The benchmark of general models counts what it says, and its arithmetic is right."""

import functools

import jax
import numpy as np
import pytest

import configs
from benchmarks import models
from benchmarks.harness import Contender, Timing
from tests.marks import mostly_full
from zoo.config.read import read

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def small_contest(tokens):
  config = configs.get_config('transformer', 'smoke')
  config.model.tokens = tokens
  if tokens == 'joint':
    config.objective.positions = 'query'
  config.task.num_features, config.task.context_length = 3, 4
  config.model.num_layers, config.model.width = 2, 8
  config.train.batch_size = 8
  return models.Contest(read(config))


@pytest.fixture(scope='module')
def contests():
  return functools.cache(small_contest)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
  ('tokens', 'n', 'read'), mostly_full([('joint', 5, 1)], [('interleaved', 9, 5)])
)
def test_the_products_of_a_transformer_are_those_of_its_equations(
  contests, tokens, n, read
):
  """Forward: one product a kernel and token, and two of scores and values a layer.

  In the last layer, only keys and values are computed for tokens that are not read.
  """
  contest = contests(tokens)
  b, m, w = 8, 3 + 1, 8
  tokens, predictions = b * n, b * read
  first = tokens * (4 * w * w + 2 * 4 * w * w) + 2 * b * n * n * w
  last = tokens * 2 * w * w + predictions * (2 * w * w + 2 * 4 * w * w)
  last += 2 * b * read * n * w
  body = 2 * (first + last + predictions * w)
  embedding = 2 * tokens * m * w
  # Backward: two products for each, but nothing needs the gradient of the tokens.
  assert contest.tokens == tokens
  assert contest.flops == 3 * body + 2 * embedding


@pytest.mark.slow
@pytest.mark.full
def test_both_programs_train(contests):
  contest = contests('joint')
  weights = jax.device_get(contest.steps.state['model'])
  after = contest.steps.run(3)['model']  # it warms up: the first step is 0
  moved = jax.tree.map(
    lambda weight, trained_weight: np.abs(weight - trained_weight).max(), weights, after
  )
  assert max(jax.tree.leaves(moved)) > 1e-6
  losses = []
  for _ in range(4):
    contest.plain._steps_done = 0  # the same prompts again
    losses.append(float(contest.run_plain(1)))
  assert losses == sorted(losses, reverse=True)
  assert losses[-1] < losses[0]


def test_the_summary_is_of_medians():
  def timed(*rates):
    return Contender('', lambda _: Timing(1.0, 1.0), [Timing(r, 1.0) for r in rates])

  contenders = {
    'zoo': timed(90.0, 100.0, 120.0),
    'plain': timed(50.0),
    'matmul': timed(0.4, 0.5, 0.6),
  }
  speeds = models.summary(contenders, tokens=320, flops=30_000_000)
  peak = 2 * 2048**3 * 0.5
  assert speeds == pytest.approx(
    {
      'steps_per_second': 100.0,
      'tokens_per_second': 32_000.0,
      'speed_over_plain': 2.0,
      'gflops_per_second': 3.0,
      'peak_gflops_per_second': peak / 1e9,
      'share_of_peak': 3e9 / peak,
    }
  )
  text = models.table({'gru': speeds})
  assert '32,000' in text
  assert '35%' in text
