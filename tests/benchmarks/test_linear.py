"""The benchmark measures what it says, and its arithmetic is right."""

import jax
import numpy as np
import pytest
from flax import nnx

from benchmarks import harness, linear
from benchmarks.harness import Contender, Timing
from benchmarks.linear import Case
from tests.built import model_of
from tests.marks import mostly_full
from tests.training.runs import saved_arrays, small_config
from zoo.config.read import read
from zoo.core.prompt import Prompt
from zoo.training import train

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', mostly_full(['multi_head_lsa'], ['ltb', 'lsa', 'yq_lsa'])
)
def test_the_literal_program_trains_the_same_model(name):
  """Adam's first step is the learning rate, against the sign of the gradient."""
  config = small_config(name, optimizer__schedule='constant', model__init_scale=0.5)
  step, state = linear.literal_step(read(config))
  key = jax.random.key(3)
  after, _ = step(state, key)
  # The gradient on the same prompts, by the model's cheap prediction.
  d, c, b = 3, 4, config.train.batch_size

  @jax.jit
  def gradient(key):
    keys = jax.random.split(key, 3)
    x = jax.random.normal(keys[0], (b, c, d))
    x_query = jax.random.normal(keys[1], (b, d))
    w = 2.0 + jax.random.normal(keys[2], (b, d))
    y, target = (x * w[:, None]).sum(-1), (x_query * w).sum(-1)
    prompt = Prompt(x=x, y=y, x_query=x_query, y_query=target)
    model = model_of(config, nnx.Rngs(0))
    return nnx.grad(lambda model: ((model(prompt) - target) ** 2).mean())(model)

  grads = gradient(key)
  for before, later, grad in zip(
    jax.tree.leaves(state[0]),
    jax.tree.leaves(after),
    jax.tree.leaves(grads),
    strict=True,
  ):
    grad, moved = np.asarray(grad), np.asarray(later) - np.asarray(before)
    clear = np.abs(grad) > 1e-3 * np.abs(grad).max()  # its sign is not rounding
    np.testing.assert_allclose(moved[clear], -5e-4 * np.sign(grad[clear]), rtol=1e-3)


class Clock:
  """Time that goes by with the steps that are run: wall and CPU time of each."""

  def __init__(self, wall, cpu):
    self._wall, self._cpu = wall, cpu
    self.steps = []

  def run(self, steps):
    self.steps.append(steps)

  def perf_counter(self):
    return self._wall * sum(self.steps)

  def process_time(self):
    return self._cpu * sum(self.steps)


def test_a_timing_is_of_the_steps_after_those_that_warm_up(monkeypatch):
  clock = Clock(wall=0.25, cpu=0.375)
  monkeypatch.setattr(harness, 'time', clock)
  assert harness.of_steps('a', clock.run).time(10.0) == Timing(4.0, 375.0)
  assert clock.steps == [2, 2, 40]  # as many as take so long


CONFIG = small_config(train__num_steps=3, optimizer__schedule='constant')


@pytest.fixture(scope='module')
def contest():
  return linear.Contest(CONFIG)


@pytest.mark.slow
@pytest.mark.full
def test_the_chunk_is_the_training_of_the_loop(contest, tmp_path):
  train(CONFIG, tmp_path / 'run')
  expected = saved_arrays(tmp_path / 'run', 3)
  state = contest.run('chunk', 3)
  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  assert len(leaves) == len(expected)
  for (_, leaf), array in zip(leaves, expected.values(), strict=True):
    np.testing.assert_array_equal(leaf, array)


def timed(*rates):
  return Contender('', lambda _: Timing(1.0, 1.0), [Timing(r, 1000 / r) for r in rates])


def test_ratios_are_of_medians():
  eleven, many = (Case('multi_head_lsa', h, 10) for h in (11, 64))
  results = {
    (eleven, 'literal'): timed(4.0, 5.0, 6.0),
    (eleven, 'zoo'): timed(300.0, 400.0, 350.0),
    (eleven, 'chunk'): timed(385.0),
    (eleven, 'draws'): timed(700.0),
    (eleven, 'examples'): timed(1050.0),
    (many, 'zoo'): timed(280.0),
    (many, 'chunk'): timed(280.0),
  }
  assert linear.ratios(results) == pytest.approx(
    {
      f'{eleven}: speed over literal': 70.0,
      f'{eleven}: step time over draws': 2.0,
      f'{eleven}: step time over examples': 3.0,
      f'{eleven}: step time over chunk': 1.1,
      f'{many}: step time over chunk': 1.0,
      f'step time of {many} over that of {eleven}': 1.25,
    }
  )
  contender = results[eleven, 'zoo']
  assert contender.rates == {'min': 300.0, 'median': 350.0, 'max': 400.0}
  assert contender.cpu_ms_per_step == pytest.approx(1000 / 350)
  assert str(eleven) == 'multi_head_lsa, H = 11, C = 10'
