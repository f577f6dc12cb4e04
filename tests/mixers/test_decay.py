"""Linear attention, retention, gated linear attention, Mamba-2."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.marks import mostly_slow
from tests.mixers.loops import (
  B,
  H,
  N,
  W,
  assert_is,
  heads,
  linear,
  recur,
  rms,
  sigmoid,
  silu,
  softplus,
  turned,
  warm,
)
from zoo.mixers.mixer import Mixer

_S = W // H


def _gated(p, reads, x):
  """out(norm(o) ∘ silu(W_g x)), the norm head by head."""
  merged = np.zeros_like(x)
  for t in range(len(x)):
    merged[t] = np.concatenate([rms(p, 'norm', read[t]) for read in reads])
  return linear(p, 'out', merged * silu(linear(p, 'gate', x)))


def _linear_loop(p, x, causal=True):
  q, k, v = (heads(linear(p, name, x)) for name in ('query', 'key', 'value'))
  out = np.zeros((len(x), H, _S))
  for t in range(len(x)):
    seen = range(t + 1) if causal else range(len(x) - 1)
    for h in range(H):
      for i in seen:
        out[t, h] += (q[h, t] @ k[h, i]) * v[h, i] / max(len(seen), 1)
  return linear(p, 'out', out.reshape(len(x), W))


@pytest.mark.parametrize(
  ('n', 'causal'), mostly_slow([(N, True), (1, False), (N, False)], [(1, True)])
)
def test_linear_attention(n, causal):
  assert_is('linear', functools.partial(_linear_loop, causal=causal), n, causal=causal)


@pytest.mark.parametrize('rotary', mostly_slow([True], [False]))
def test_retention(rotary):
  def loop(p, x):
    q, k, v = (heads(linear(p, name, x)) for name in ('query', 'key', 'value'))
    reads = []
    for h in range(H):
      if rotary:
        for t in range(N):
          q[h, t], k[h, t] = turned(q[h, t], t), turned(k[h, t], t)
      decay = np.full((N, _S), 1 - 2.0 ** (-5 - h))
      reads.append(recur(q[h], k[h] / np.sqrt(_S), v[h], decay)[0])
    return _gated(p, reads, x)

  assert_is('retention', loop, rotary=rotary)


def test_gated_linear_attention():
  def loop(p, x):
    q, k, v = (heads(linear(p, name, x)) for name in ('query', 'key', 'value'))
    gate = sigmoid(linear(p, 'decay', linear(p, 'decay_in', x)))
    decay = heads(gate ** (1 / 16))
    reads = [recur(q[h] / np.sqrt(_S), k[h], v[h], decay[h])[0] for h in range(H)]
    return _gated(p, reads, x)

  assert_is('gla', loop)


def test_mamba2_starts_with_the_rates_of_the_paper():

  @jax.jit
  def rates():
    rate = zoo.mixers.Mamba2(zoo.mixers.Site(64, 64), rngs=nnx.Rngs(0)).rate
    return rate.bias[...], rate.log_a[...]

  bias, log_a = jax.device_get(rates())
  delta = softplus(bias)
  # The bias is rounded to 6e-8 of a value up to 7, the rate to as much of itself.
  assert delta.min() >= 0.001 * (1 - 1e-5)
  assert delta.max() <= 0.1 * (1 + 1e-5)
  assert delta.min() < 0.002
  assert delta.max() > 0.05
  a = np.exp(log_a)
  assert 1 - 1e-6 <= a.min() < 2
  assert 15 < a.max() <= 16 * (1 + 1e-6)


def test_linear_attention_of_the_context_cannot_decode():
  mixer: Mixer = warm('linear', 'float32', causal=False)
  with refuses('causal is False'):
    mixer.initial_state(B)  # pyright: ignore[reportAttributeAccessIssue]


def test_rotary_needs_an_even_number_of_features():
  with refuses('the heads have 3 features', 'an even number'):
    warm('retention', width=6, rotary=True)
