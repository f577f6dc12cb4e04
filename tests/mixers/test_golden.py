"""The recurrence against the public definitions of the mixers that it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compare import assert_close
from tests.mixers.golden import golden
from tests.mixers.loops import recur
from zoo.mixers.linear_state import Inputs, chunkwise, scan

_STEPS = 3  # of gated_delta_product


def _terms(name):
  """q, k, what is written, e^g, what is read to be erased and where, `[b, n, h, k]`."""
  at, g = golden(name), None
  if name == 'rwkv7':
    return at['q'], at['k'], at['v'], np.exp(at['gk']), -at['alpha'], at['beta']
  q, k, g = at['q'], at['k'], at['g']
  if name == 'gated_delta_product':
    read, g = np.zeros_like(k), np.repeat(g, _STEPS, axis=1)
    read[:, _STEPS - 1 :: _STEPS], q = q, read
    g[:, np.arange(g.shape[1]) % _STEPS > 0] = 0
  decay = np.exp(g if g.ndim == 4 else g[..., None]) * np.ones_like(k)
  if name == 'gdn2':
    return q, k, at['w'] * at['v'], decay, decay * at['b'] * k, k
  beta = at['beta'][..., None]
  reader = at.get('p', k)
  if name != 'comba':  # otherwise it is read before the decay
    reader = decay * reader
  return q, k, beta * at['v'], decay, beta * reader, k


_NAMES = 'kda', 'gdn2', 'comba', 'comba_after_decay', 'rwkv7', 'gated_delta_product'


def _expected(name):
  at = golden(name)
  return at['out'], at['state']


@pytest.mark.parametrize('name', _NAMES)
def test_the_loop_of_these_tests_is_the_public_definition(name):
  terms, (out, state) = _terms(name), _expected(name)
  for h in range(out.shape[2]):
    read, last = recur(*(term[0, :, h] for term in terms))
    if name == 'gated_delta_product':
      read = read[_STEPS - 1 :: _STEPS]
    assert_close(read, out[0, :, h], 1e-13)
    assert_close(last, state[0, h], 1e-13)


@pytest.mark.parametrize(('dtype', 'error'), [('float64', 1e-10), ('float32', 1e-5)])
def test_the_forms_are_the_public_definitions(dtype, error):
  """One program for all whose tokens have one step, side by side as prompts."""
  with jax.enable_x64(True):
    names = [name for name in _NAMES if name != 'gated_delta_product']
    terms = [np.concatenate(each) for each in zip(*map(_terms, names), strict=True)]
    terms[3] = np.log(terms[3])
    q, k, u, g, a, e = (jnp.asarray(each, dtype) for each in terms)
    inputs = Inputs(q, k, u, g, None, a, e)
    outs, states = map(np.concatenate, zip(*map(_expected, names), strict=True))
    zero = jnp.zeros(states.shape, dtype)
    run = jax.jit(lambda inputs, state: (scan(inputs, state), chunkwise(inputs, state)))
    for found, last in run(inputs, zero):
      assert found.dtype == dtype
      assert_close(found, outs, error)
      assert_close(last, states, error)
