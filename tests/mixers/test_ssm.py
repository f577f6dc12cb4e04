"""State-space models of channels, and Hyena's long convolutions."""

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.special import erf

import zoo
from tests.compare import refuses
from tests.marks import mostly_slow
from tests.mixers.loops import (
  N,
  W,
  assert_is,
  convolve,
  linear,
  sigmoid,
  silu,
  softplus,
  warm,
)
from zoo.mixers import Site

_SIZE = 3


@pytest.mark.parametrize(
  ('name', 'options'),
  mostly_slow([('mamba', {}), ('longhorn', {})], [('mamba', {'convolution': False})]),
)
def test_mamba_and_longhorn(name, options):
  def loop(p, u):
    x = linear(p, 'value', u)
    x = silu(x if options else convolve(p, 'convolution', x))
    k_q = linear(p, 'key_query', x)
    rate = linear(p, 'rate', linear(p, 'rate_in', x)) + p['rate_bias']
    y = np.zeros((N, 2 * W))
    for channel in range(2 * W):
      state = np.zeros(_SIZE)
      for t in range(N):
        k, q = np.split(k_q[t], 2)
        if name == 'mamba':
          step = softplus(rate[t, channel])
          state = np.exp(-step * np.exp(p['log_a'][channel])) * state
        else:
          beta = sigmoid(rate[t, channel])
          step = beta / (1 + beta * k @ k)
          state = (1 - step * k**2) * state
        state = state + step * k * x[t, channel]
        y[t, channel] = q @ state + p['skip'][channel] * x[t, channel]
    return linear(p, 'out', y * silu(linear(p, 'gate', u)))

  assert_is(name, loop, state_size=_SIZE, **options)


def test_s4d():
  def loop(p, u):
    poles = -np.exp(p['log_real']) + 1j * p['frequency']
    kept = np.exp(np.exp(p['log_rate'])[:, None] * poles)
    read = p['read_real'] + 1j * p['read_imaginary']
    state, y = np.zeros(poles.shape, complex), np.zeros(u.shape)
    for t in range(N):
      state = kept * state + (kept - 1) / poles * u[t][:, None]
      y[t] = 2 * (read * state).sum(axis=1).real + p['skip'] * u[t]
    y = y * (1 + erf(y / np.sqrt(2))) / 2
    return linear(p, 'out', y) * sigmoid(linear(p, 'gate', y))

  assert_is('s4d', loop, state_size=4)


def test_s4d_starts_as_s4d_lin():
  start = jax.jit(
    lambda: zoo.mixers.S4D(Site(4, 2), state_size=6, rngs=nnx.Rngs(0))._poles()
  )
  real, frequency = start()
  # A float32 logarithm and its exponential: 1e-6.
  np.testing.assert_allclose(real, -0.5 * np.ones((1, 4, 3)), rtol=1e-6)
  expected = np.broadcast_to(np.pi * np.arange(3), (1, 4, 3))
  np.testing.assert_allclose(frequency, expected, rtol=1e-6)


def test_mamba_starts_with_the_poles_of_the_paper():
  start = jax.jit(
    lambda: zoo.mixers.Mamba(Site(4, 2), state_size=5, rngs=nnx.Rngs(0)).log_a[...]
  )
  expected = np.broadcast_to(np.arange(1, 6), (8, 5))
  np.testing.assert_allclose(np.exp(start()), expected, rtol=1e-6)


def test_s4d_needs_pairs_of_states():
  with refuses('state_size is 3; it must be even'):
    warm('s4d', state_size=3)


def _long(kernels, x):
  out = np.zeros_like(x)
  for t in range(len(x)):
    for i in range(t + 1):
      out[t] += kernels[t - i] * x[i]
  return out


def test_hyena():
  horizon = 10.0

  def filters(p):
    kernels = np.zeros((2, N, W))
    for t in range(N):
      angles = 2 * np.pi * np.arange(1, 9) * t / horizon
      hidden = np.concatenate([[t / horizon], np.cos(angles), np.sin(angles)])
      for i in range(2):
        hidden = np.sin(linear(p, f'network.{i}', hidden))
      both = linear(p, 'filters', hidden).reshape(2, W)
      for channel in range(W):
        slow, fast = np.log(100) / 1.5, np.log(100) / 0.3
        alpha = slow + (fast - slow) * channel / (W - 1)
        kernels[:, t, channel] = np.exp(-alpha * t / horizon) * both[:, channel]
    return kernels

  def loop(p, u):
    v, first_gate, second_gate = (
      convolve(p, f'convolutions.{i}', linear(p, f'projections.{i}', u))
      for i in range(3)
    )
    first, second = filters(p)
    direct, other = p['skips']
    inner = first_gate * (_long(first, v) + direct * v)
    return linear(p, 'out', second_gate * (_long(second, inner) + other * inner))

  assert_is('hyena', loop, horizon=horizon)


def test_the_horizon_is_positive():
  with refuses('horizon is 0'):
    warm('hyena', horizon=0.0)
