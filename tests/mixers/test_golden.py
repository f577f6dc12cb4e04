"""Mixers against the numbers that their public definitions give."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.compare import assert_close
from tests.marks import mostly_full
from tests.mixers.golden import golden
from tests.mixers.reference import (
  comba,
  fox,
  gated_delta_product,
  gdn2,
  kda,
  log_linear,
  mamba3,
  rwkv7,
)
from tests.mixers.reference.parts import sigmoid
from tests.mixers.reference.recurrence import recurrence
from tests.weights import drawn
from zoo.mixers import ForgettingAttention, Slot
from zoo.mixers.log_linear import pair_weights
from zoo.mixers.mamba3 import trapezoid, turn, write_and_read
from zoo.mixers.recurrence import Inputs, chunkwise, over_tokens, scan
from zoo.mixers.titans import Descent, descend

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


_each_precision = pytest.mark.parametrize(
  ('dtype', 'error'), mostly_full([('float64', 1e-10)], [('float32', 1e-5)])
)


def _expected(name):
  at = golden(name)
  return at['out'], at['state']


@pytest.mark.parametrize('name', _NAMES)
def test_the_shared_loop_is_the_public_definition(name):
  terms, (out, state) = _terms(name), _expected(name)
  for h in range(out.shape[2]):
    read, last = recurrence(*(term[0, :, h] for term in terms))
    if name == 'gated_delta_product':
      read = read[_STEPS - 1 :: _STEPS]
    assert_close(read, out[0, :, h], 1e-13)
    assert_close(last, state[0, h], 1e-13)


def _by_its_loop(name, at):
  """The outputs and the last state of a head, of which the last may not be known."""
  decay = np.exp(at.get('g', at.get('gk', 0.0)))
  if name == 'rwkv7':
    terms = at['q'], at['k'], at['v'], decay, -at['alpha'], at['beta']
    return rwkv7.recurrence(*terms)
  if name == 'mamba3':
    q, k = (
      mamba3.turn(
        at[term] + at[f'{term}_bias'],
        np.cumsum(np.pi * np.tanh(at['Angles']) * at['DT'][:, None], axis=0),
      )
      for term in ('Q', 'K')
    )
    numbers = np.exp(at['ADT']), at['DT'], sigmoid(at['Trap'])
    read, state = mamba3.recurrence(q, k, at['V'], *numbers)
    return read + at['D'] * at['V'], state.T
  q, k, v = at['q'], at['k'], at['v']
  if name == 'gated_delta_product':
    k, v, beta = (
      array.reshape(len(q), _STEPS, *array.shape[1:]) for array in (k, v, at['beta'])
    )
    return gated_delta_product.recurrence(q, k, v, decay, beta)
  if name == 'kda':
    return kda.recurrence(q, k, v, decay, at['beta'])
  if name == 'gdn2':
    return gdn2.recurrence(q, k, v, decay, at['b'], at['w'])
  if name == 'fox':
    return fox.attend(q, k, v, decay), None
  if name == 'log_linear':
    return log_linear.attend(q, k, v, decay, at['level_scales']), None
  reader = at['p'] if name == 'comba' else decay[:, None] * at['p']
  return comba.recurrence(q, k, v, decay, at['beta'], reader)


@pytest.mark.parametrize('name', [*_NAMES, 'fox', 'log_linear', 'mamba3'])
def test_the_loop_of_a_mixer_is_the_public_definition(name):
  arrays = golden(name)
  for h in range(2):
    # Axes of heads come second, those of numbers of each head first, and those of
    # `mamba3` before the tokens.
    at = {}
    for term, array in arrays.items():
      rows = array[0] if array.shape[0] == 1 else array
      if term in ('ADT', 'DT', 'Trap', 'Q_bias', 'K_bias', 'D', 'state', 'angles'):
        at[term] = rows[h]
      else:
        at[term] = rows[:, h]
    read, last = _by_its_loop(name, at)
    assert_close(read, at['out'], 1e-13)
    if last is not None:
      assert_close(last, at['state'], 1e-13)


@_each_precision
def test_the_forms_are_the_public_definitions(dtype, error):
  """One program for all whose tokens have one step, side by side as prompts."""
  with jax.enable_x64(True):
    names = [name for name in _NAMES if name != 'gated_delta_product']
    terms = [np.concatenate(term) for term in zip(*map(_terms, names), strict=True)]
    terms[3] = np.log(terms[3])
    q, k, u, g, a, e = (jnp.asarray(term, dtype) for term in terms)
    inputs = Inputs(q, k, u, g, None, a, e)
    outs, states = map(np.concatenate, zip(*map(_expected, names), strict=True))
    zero = jnp.zeros(states.shape, dtype)
    run = jax.jit(lambda inputs, state: (scan(inputs, state), chunkwise(inputs, state)))
    for outputs, last in run(inputs, zero):
      assert outputs.dtype == dtype
      assert_close(outputs, outs, error)
      assert_close(last, states, error)


def _fox(at):
  """Attention whose tokens are q, k and v of both heads, and the logits of f."""
  (_, n, _, size), width = at['q'].shape, 32
  mixer = drawn(
    lambda: ForgettingAttention(Slot(width, 2), rngs=nnx.Rngs(0)),
    0.0,
    at['q'].dtype.name,
  )
  for i, layer in enumerate((mixer.query, mixer.key, mixer.value)):
    kernel = np.zeros((width, width))
    for head in range(2):
      rows = size * (2 * i + head) + np.arange(size)
      kernel[rows, 16 * head + np.arange(size)] = 1
    # Scores are divided by the root of 16, not of 5.
    kernel *= (16 / size) ** 0.5 if i == 0 else 1
    layer.kernel[...] = jnp.asarray(kernel, at['q'].dtype)
  mixer.out.kernel[...] = jnp.asarray(np.eye(width), at['q'].dtype)
  forget = np.eye(width)[:, -2:]
  mixer.forget.kernel[...] = jnp.asarray(forget, at['q'].dtype)
  parts = [at[name].reshape(1, n, -1) for name in ('q', 'k', 'v')]
  logits = -jnp.log(jnp.expm1(-at['g']))
  read = mixer(jnp.concatenate([*parts, logits], axis=-1))
  return read.reshape(1, n, 2, 16)[..., :size]


def _log_linear(at):
  write = jnp.ones_like(at['g'])
  inputs = Inputs(at['q'], at['k'], at['v'], at['g'][..., None], write)
  weights = pair_weights(inputs, at['level_scales'])
  return jnp.einsum('bhti,bihv->bthv', weights, at['v'])


def _titans(at):
  """With the gradient of that code, which is not the paper's."""
  scale, shift, size = at['w'], at['b'], at['q'].shape[-1]

  def gradient(read, key, value):
    centred = read - read.mean(axis=-1, keepdims=True)
    deviation = jnp.sqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + 1e-6)
    unit = centred / deviation
    error = scale[None] * (scale[None] * unit + shift[None] - value + key)
    total = error.sum(axis=-1, keepdims=True)
    along = unit * (error * unit).sum(axis=-1, keepdims=True)
    return 2 * (size * error - (total + along) / (deviation * size))

  rows = (jnp.swapaxes(at[name], 1, 2) for name in ('q', 'k', 'v'))
  numbers = (jnp.swapaxes(at[name], 1, 2)[..., 0] for name in ('theta', 'eta', 'alpha'))
  memory = jnp.zeros((1, 2, 2 * size, size), at['q'].dtype)
  step = functools.partial(descend, gradient=gradient)
  read, memory = over_tokens(step, Descent(*rows, *numbers), memory)
  centred = read - read.mean(axis=-1, keepdims=True)
  deviation = jnp.sqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + 1e-6)
  out = read + centred / deviation * scale[None, None] + shift[None, None]
  return jnp.swapaxes(out, 1, 2), memory[:, :, :size]


def _mamba3(at):
  delta, log_decay, weight = (
    jnp.swapaxes(at[name], 1, 2) for name in ('DT', 'ADT', 'Trap')
  )
  angle = jnp.cumsum(np.pi * jnp.tanh(at['Angles']) * delta[..., None], axis=1)
  query, key = (
    turn(at[name] + at[f'{name}_bias'][None, None], angle) for name in ('Q', 'K')
  )
  start = jnp.zeros_like(key[:, :1]), jnp.zeros_like(at['V'][:, :1])
  weight = jax.nn.sigmoid(weight)
  inputs = trapezoid(query, key, at['V'], log_decay, delta, weight, last=start)
  memory = jnp.zeros((1, 2, key.shape[-1], at['V'].shape[-1]), key.dtype)
  read, memory = write_and_read(inputs, memory)
  out = read + at['D'][None, None, :, None] * at['V']
  return out, jnp.swapaxes(memory, 2, 3)


_OTHERS = {'fox': _fox, 'log_linear': _log_linear, 'titans': _titans, 'mamba3': _mamba3}


@_each_precision
def test_other_mixers_are_the_public_definitions(dtype, error):
  """One program for all four."""
  with jax.enable_x64(True):
    arrays = {
      name: {key: jnp.asarray(array, dtype) for key, array in golden(name).items()}
      for name in _OTHERS
    }
    outputs = jax.jit(
      lambda arrays: {name: _OTHERS[name](arrays[name]) for name in arrays}
    )(arrays)
    for name, output in outputs.items():
      at, both = golden(name), output if isinstance(output, tuple) else (output,)
      out = at['out'].reshape(both[0].shape)
      assert_close(both[0], out, error)
      if len(both) == 2:
        assert_close(both[1], at['state'], error)
