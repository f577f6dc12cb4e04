"""Whole mixers: against blocks that others wrote, and other mixers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.compare import assert_close
from tests.mixers.drawn import EXACT, H, W, call, tokens, warm
from tests.mixers.golden import golden
from zoo.mixers.log_linear import _step, pair_weights
from zoo.mixers.recurrence import over_tokens


def _set(mixer: Any, weights: dict[str, np.ndarray]) -> None:
  """Sets every parameter by its path; those that are not named become 0."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  paths = {'.'.join(map(str, path)): leaf for path, leaf in flat}
  assert weights.keys() <= paths.keys()
  for name, leaf in paths.items():
    value = weights.get(name, np.zeros(leaf.shape))
    leaf[...] = jnp.asarray(value.reshape(leaf.shape).astype('f'), 'float32')
  nnx.update(mixer, nnx.from_flat_state(flat))


def _split(at, sizes):
  return np.split(at['in_proj.kernel'], np.cumsum(sizes)[:-1], axis=1)


def test_mamba2_is_the_block_of_a_package():
  at = golden('mamba2_block', 'blocks.npz')
  mixer = warm('mamba2', 'float32', state_size=8)
  gate, value, key, query, rate = _split(at, [16, 16, 8, 8, 2])
  kernel, bias = at['conv1d.conv.kernel'][:, 0], at['conv1d.conv.bias']
  _set(
    mixer,
    {
      'gate.kernel': gate,
      'value.kernel': value,
      'key_query.kernel': np.concatenate([key, query], axis=1),
      'convolve_value.kernel': kernel[:, :16],
      'convolve_value.bias': bias[:16],
      'convolve_key_query.kernel': kernel[:, 16:],
      'convolve_key_query.bias': bias[16:],
      'rate.linear.kernel': rate,
      'rate.bias': at['dt_bias'],
      'rate.log_a': at['A_log'],
      'skip': at['D'],
      'norm.scale': at['norm.weight'],
      'out.kernel': at['out_proj.kernel'],
    },
  )
  assert_close(call(mixer, at['tokens']), at['out'], 1e-5)


def test_mamba3_is_the_block_of_a_package():
  at = golden('mamba3_block', 'blocks.npz')
  mixer = warm('mamba3', 'float32', state_size=8)
  gate, value, key, query, *rest = _split(at, [16, 16, 8, 8, 2, 2, 2, 2])
  names = 'rate', 'decay', 'weight', 'angle'
  _set(
    mixer,
    {
      'gate.kernel': gate,
      'value.kernel': value,
      'key.kernel': key,
      'query.kernel': query,
      **{f'{name}.kernel': kernel for name, kernel in zip(names, rest, strict=True)},
      'rate_bias': at['dt_bias'],
      'key_norm.scale': at['B_norm.weight'],
      'query_norm.scale': at['C_norm.weight'],
      'key_bias': at['B_bias'],
      'query_bias': at['C_bias'],
      'skip': at['D'],
      'out.kernel': at['out_proj.kernel'],
    },
  )
  assert_close(call(mixer, at['tokens']), at['out'], 1e-5)


def test_a_token_that_nobody_forgets_is_attended_to_as_by_softmax():
  """At f = 1."""
  fox, softmax = warm('fox', 'float32'), warm('softmax', 'float32')
  nnx.update(softmax, nnx.state(fox, lambda path, _: 'forget' not in path))
  fox.forget.kernel[...] = jnp.asarray(np.zeros((W, H), 'f'))
  fox.forget.bias[...] = jnp.asarray(np.full(H, 50.0, 'f'))
  x = tokens(dtype='float32')
  assert_close(call(fox, x), call(softmax, x), 1e-6)


@pytest.mark.slow
def test_log_linear_with_equal_levels_is_mamba2():
  """With the scale log 2 of each level, softplus(0)."""
  with jax.enable_x64(True):
    log_linear, mamba2, x = warm('log_linear'), warm('mamba2'), tokens()
    nnx.update(
      mamba2,
      nnx.state(log_linear, lambda path, _: not {'levels', 'level_scale'} & {*path}),
    )
    log_linear.levels.kernel[...] = jnp.asarray(
      np.zeros(log_linear.levels.kernel.shape)
    )

    @nnx.jit
    def both(first: Any, second: Any) -> Any:
      return first.attention(x), second.attention(x)

    attention, expected = both(log_linear, mamba2)
    assert_close(attention, np.log(2) * expected, EXACT)


@pytest.mark.slow
def test_few_levels_put_the_oldest_tokens_together():
  """All pairs at once, and token by token, for more tokens than levels tell apart."""
  with jax.enable_x64(True):
    mixer, x = warm('log_linear', num_levels=3), tokens(13)

    @nnx.jit
    def both(mixer, x):
      state = mixer.initial_state(2)
      inputs, _ = mixer.inputs(x, state)
      weights = pair_weights(inputs.recurrence, inputs.scales)
      read = jnp.einsum('bhti,bihv->bthv', weights, inputs.value)
      return read, over_tokens(_step, inputs, state.memory)[0]

    pairs, steps = both(mixer, x)
    assert_close(pairs, steps, EXACT)
