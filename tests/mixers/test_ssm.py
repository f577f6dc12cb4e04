"""How state-space models of channels start, and what they and Hyena refuse."""

import jax
import numpy as np
from flax import nnx

import zoo
from tests.compare import refuses
from tests.mixers.drawn import warm
from zoo.mixers import Slot


def test_s4d_starts_as_s4d_lin():
  start = jax.jit(
    lambda: zoo.mixers.S4D(Slot(4, 2), state_size=6, rngs=nnx.Rngs(0))._poles()
  )
  real, frequency = start()
  # A float32 logarithm and its exponential: 1e-6.
  np.testing.assert_allclose(real, -0.5 * np.ones((1, 4, 3)), rtol=1e-6)
  expected = np.broadcast_to(np.pi * np.arange(3), (1, 4, 3))
  np.testing.assert_allclose(frequency, expected, rtol=1e-6)


def test_mamba_starts_with_the_poles_of_the_paper():
  start = jax.jit(
    lambda: zoo.mixers.Mamba(Slot(4, 2), state_size=5, rngs=nnx.Rngs(0)).log_a[...]
  )
  expected = np.broadcast_to(np.arange(1, 6), (8, 5))
  np.testing.assert_allclose(np.exp(start()), expected, rtol=1e-6)


def test_s4d_needs_pairs_of_states():
  with refuses('state_size is 3; it must be even'):
    warm('s4d', state_size=3)


def test_the_horizon_is_positive():
  with refuses('horizon is 0'):
    warm('hyena', horizon=0.0)
