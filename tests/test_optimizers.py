"""Optimizers and schedules against the formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.runs import small_config
from zoo.config.optimizers import OPTIMIZERS, build_optimizer, build_schedule

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def updates(config, gradients):
  optimizer = build_optimizer(config.optimizer, config.train.num_steps)
  weights = jnp.asarray([1.0, -2.0])
  state = optimizer.init(weights)
  found = []
  for gradient in gradients:
    update, state = optimizer.update(jnp.asarray(gradient), state, weights)
    found.append(np.asarray(update))
  return found


def test_adam_is_the_papers():
  config = small_config(
    optimizer__schedule='constant', optimizer__learning_rate=5e-4, seed=0
  )
  gradients = np.asarray([[0.3, -4.0], [0.1, 2.0], [-0.2, 0.5]])
  m = v = np.zeros(2)
  for t, (g, update) in enumerate(
    zip(gradients, updates(config, gradients.astype(np.float32)), strict=True), start=1
  ):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = 5e-4 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    # float32: 1 − 0.999ᵗ alone loses about three of seven digits.
    np.testing.assert_allclose(update, -step, rtol=2e-4)


def test_clipping_is_of_the_whole_gradient():
  config = small_config(
    optimizer__name='sgd',
    optimizer__schedule='constant',
    optimizer__learning_rate=1.0,
    optimizer__clip_norm=0.5,
  )
  (small, large) = updates(config, np.asarray([[0.3, 0.0], [3.0, 4.0]], np.float32))
  np.testing.assert_allclose(small, [-0.3, 0.0])
  np.testing.assert_allclose(large, [-0.3, -0.4], rtol=1e-6)


def test_adam_takes_the_clipped_gradient():
  plain = small_config(optimizer__schedule='constant', optimizer__clip_norm=None)
  clipping = small_config(optimizer__schedule='constant', optimizer__clip_norm=0.5)
  given = np.asarray([[0.3, 0.0], [3.0, 4.0]], np.float32)
  clipped = np.asarray([[0.3, 0.0], [0.3, 0.4]], np.float32)
  np.testing.assert_allclose(
    updates(clipping, given), updates(plain, clipped), rtol=1e-5
  )


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_every_optimizer_goes_downhill(name):
  config = small_config(optimizer__name=name, optimizer__schedule='constant')
  (update,) = updates(config, np.asarray([[1.0, -1.0]], np.float32))
  assert update[0] < 0 < update[1]


def rates(**changes):
  config = small_config(optimizer__learning_rate=1.0, **changes)
  schedule = build_schedule(config.optimizer, config.train.num_steps)
  return np.asarray([schedule(step) for step in range(13)])


def test_schedules():
  np.testing.assert_allclose(rates(optimizer__schedule='constant'), 1.0)
  cosine = (1 + np.cos(np.pi * np.arange(13) / 12)) / 2
  np.testing.assert_allclose(rates(optimizer__schedule='cosine'), cosine, atol=1e-6)
  warm = rates(optimizer__schedule='constant', optimizer__warmup_steps=4)
  np.testing.assert_allclose(warm, np.minimum(np.arange(13) / 4, 1))
  both = rates(optimizer__schedule='cosine', optimizer__warmup_steps=4)
  np.testing.assert_allclose(both[:5], np.arange(5) / 4)
  decay = (1 + np.cos(np.pi * np.arange(9) / 8)) / 2
  np.testing.assert_allclose(both[4:], decay, atol=1e-6)
  only = rates(optimizer__schedule='cosine', optimizer__warmup_steps=12)
  np.testing.assert_allclose(only, np.arange(13) / 12, rtol=1e-6)
