"""Delta rules, with and without gates, and RWKV-7, whose state is erased likewise."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.compare import assert_close
from tests.marks import SLOW
from tests.mixers.loops import (
  H,
  N,
  W,
  assert_is,
  convolve,
  heads,
  linear,
  recur,
  rms,
  sigmoid,
  silu,
  softplus,
  tokens,
  unit,
  warm,
)

_S = W // H
_NEGATIVE = {'negative_eigenvalues': True}


def _low_rank(p, name, x, between=lambda inner: inner):
  return linear(p, f'{name}.up', between(linear(p, f'{name}.down', x)))


def _convolved(p, name, x):
  return silu(convolve(p, f'convolutions.{name}', linear(p, name, x)))


def _units(x):
  return np.stack([unit(row) for row in x])


def _decays(p, x):
  """e^g of each head, `[h, n, s]`."""
  if 'rates.bias' in p:
    rate = softplus(_low_rank(p, 'rates.linear', x) + p['rates.bias'])
    return np.exp(-np.exp(p['rates.log_a'])[:, None, None] * heads(rate))
  if 'rate.bias' not in p:
    return np.ones((H, N, _S))
  rate = softplus(linear(p, 'rate.linear', x) + p['rate.bias'])
  return np.exp(-np.exp(p['rate.log_a']) * rate).T[:, :, None] * np.ones(_S)


def _gated(p, name, reads, x):
  merged = np.stack([[rms(p, 'norm', row) for row in read] for read in reads], axis=1)
  merged = merged.reshape(N, W)
  if name in ('gated_delta', 'gated_delta_product'):
    merged = merged * silu(linear(p, 'gate', x))
  if name == 'comba':
    merged = merged * sigmoid(linear(p, 'gate', x))
  if name in ('kda', 'gdn2'):
    merged = merged * sigmoid(_low_rank(p, 'gate', x))
  return linear(p, 'out', merged)


def _loop(name, p, x, most):
  q, k, v = (heads(_convolved(p, term, x)) for term in ('query', 'key', 'value'))
  decay, reads = _decays(p, x), []
  for h in range(H):
    query, key = _units(q[h]), _units(k[h])
    if name == 'gdn2':
      b, w = (heads(sigmoid(linear(p, term, x)))[h] for term in ('erase', 'write'))
      written, erase = w * v[h], most * decay[h] * b * key
    else:
      beta = most * sigmoid(linear(p, 'strength', x))[:, h, None]
      written, erase = beta * v[h], beta * decay[h] * key
      if name == 'comba':
        erase = sigmoid(p['feedback'][h]) * beta * key
        query = query - p['correction'][h] * key
    reads.append(recur(query, key, written, decay[h], erase)[0])
  return _gated(p, name, reads, x)


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    ('delta', {}),
    ('gdn2', _NEGATIVE),
    *(
      pytest.param(*values, marks=SLOW)
      for values in (('gated_delta', _NEGATIVE), ('kda', {}), ('comba', {}))
    ),
  ],
)
def test_delta_rules(name, options):
  assert_is(name, functools.partial(_loop, name, most=2 if options else 1), **options)


@pytest.mark.slow
def test_gated_delta_product():
  steps = 3

  def loop(p, x):
    q = heads(_convolved(p, 'query', x))
    k, v = (
      _convolved(p, term, x).reshape(N, steps, H, _S) for term in ('key', 'value')
    )
    beta = 2 * sigmoid(linear(p, 'strength', x)).reshape(N, steps, H)
    decay, reads = _decays(p, x), []
    for h in range(H):
      state, read = np.zeros((_S, _S)), np.zeros((N, _S))
      for t in range(N):
        state = decay[h, t][:, None] * state
        for j in range(steps):
          key = unit(k[t, j, h])
          error = v[t, j, h] - key @ state
          state = state + beta[t, j, h] * np.outer(key, error)
        read[t] = unit(q[h, t]) @ state
      reads.append(read)
    return _gated(p, 'gated_delta_product', reads, x)

  assert_is('gated_delta_product', loop, num_householder=steps)


def test_one_product_is_the_gated_delta_rule():
  """The same parameters: the outputs, and the weights of the values in them."""
  rule = warm('gated_delta', 'float32', **_NEGATIVE)
  product = warm('gated_delta_product', 'float32', num_householder=1)
  nnx.update(product, nnx.state(rule, nnx.Param))
  x = tokens(dtype='float32')

  @nnx.jit
  def of_both(product, rule, x):
    return [(mixer(x), mixer.attention(x)) for mixer in (product, rule)]

  for actual, expected in zip(*of_both(product, rule, x), strict=True):
    assert_close(actual, expected, 1e-6)


@pytest.mark.slow
def test_a_product_weighs_the_values_of_a_token_alike():
  """With the same value at each step, the weights times it are what is read."""
  mixer, x = warm('gated_delta_product', 'float32'), tokens(dtype='float32')

  @nnx.jit
  def both(mixer, x):
    inputs, _ = mixer.inputs(x, mixer.initial_state(len(x)))
    values = inputs.value[:, ::2]
    memory = mixer.initial_state(len(x)).memory
    read, _ = mixer.recur(mixer.with_values(inputs, values), memory)
    return read, jnp.einsum('bhti,bihv->bthv', mixer.attention(x), values)

  read, weighed = both(mixer, x)
  assert_close(weighed, read, 1e-5)


@pytest.mark.slow
def test_rwkv7():
  def loop(p, x):
    change = np.concatenate([np.zeros((1, W)), x[:-1]]) - x
    r, w, k, v, a, g = (
      x + p[f'shifts.{name}'] * change
      for name in ('receptance', 'decay', 'key', 'value', 'rate', 'gate')
    )
    r, v = linear(p, 'receptance', r), linear(p, 'value', v)
    decay = np.exp(-np.exp(-0.5) * sigmoid(_low_rank(p, 'decay', w, np.tanh)))
    k, a = linear(p, 'key', k), sigmoid(_low_rank(p, 'rate', a))
    removed = k * p['numbers.erased']
    k = k * (1 + (a - 1) * p['numbers.mixed'])
    parts = []
    terms = zip(*map(heads, (r, k, v, decay, removed, a)), strict=True)
    for h, (query, key, value, kept, removed_key, rate) in enumerate(terms):
      part, kappa = slice(h * _S, (h + 1) * _S), _units(removed_key)
      read, _ = recur(query, key, value, kept, kappa, rate * kappa)
      read = read - read.mean(axis=1, keepdims=True)
      read = read / np.sqrt((read**2).mean(axis=1, keepdims=True) + 1e-5 * _S)
      read = read * p['numbers.scale'][part] + p['numbers.bias'][part]
      bonus = (query * key * p['numbers.bonus'][part]).sum(axis=1, keepdims=True)
      parts.append(read + bonus * value)
    gate = _low_rank(p, 'gate', g, sigmoid)
    return linear(p, 'out', gate * np.concatenate(parts, axis=1))

  assert_is('rwkv7', loop)


@pytest.mark.parametrize(('negative', 'least'), [(True, -0.99), (False, 0.0)])
def test_eigenvalues_below_0_only_where_they_are_asked_for(negative, least):
  """The erased part of I − β kᵀ k, for strengths at the ends of their range."""
  mixer = warm('delta', 'float32', negative_eigenvalues=negative)
  kernel = 100 * np.ones((W, H), 'f')
  mixer.strength.kernel[...] = jnp.asarray(kernel)
  x = jnp.asarray(np.array([[-np.ones(W), np.ones(W)]], 'f'))

  @nnx.jit
  def betas(mixer, x):
    return mixer.inputs(x, mixer.initial_state(1))[0].write

  eigenvalues = 1 - np.asarray(betas(mixer, x))
  assert eigenvalues.max() == 1.0
  assert (eigenvalues.min() < least) == negative
