"""Softmax and ReLU attention against loops over queries, keys and heads."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.compare import assert_close
from tests.mixers.loops import call
from tests.weights import double, drawn
from zoo.mixers import ReLUAttention, Site, SoftmaxAttention

_B, _N, _W, _H = 2, 5, 8, 2
_S = _W // _H

# Some hundred operations in double precision, each rounded by 1e-16.
_DOUBLE = 1e-12


pytestmark = pytest.mark.usefixtures('float64')


def _tokens(n=_N):
  return np.random.default_rng(1).normal(size=(_B, n, _W))


def _turned(vector, position):
  """Each pair (j, j + s/2) as a complex number, turned by its angle."""
  half = len(vector) // 2
  z = vector[:half] + 1j * vector[half:]
  z = z * np.exp(1j * position * 10000.0 ** (-np.arange(half) / half))
  return np.concatenate([z.real, z.imag])


def _loop(model, tokens, weigh, causal, rotary):
  """Σ_i weight_i v_i for each head and query; `weigh` is from scores to weights."""
  (wq, bq), (wk, bk), (wv, bv), (wo, bo) = map(
    double, (model.query, model.key, model.value, model.out)
  )
  n = tokens.shape[1]
  result = np.zeros_like(tokens)
  for b, t in np.ndindex(len(tokens), n):
    seen = range(t + 1) if causal else range(n - 1)
    if not causal and t == n - 1 and weigh is _softmax:
      seen = range(n)
    heads = []
    for h in range(_H):
      part = slice(h * _S, (h + 1) * _S)
      query = (tokens[b, t] @ wq + bq)[part]
      keys = [(tokens[b, i] @ wk + bk)[part] for i in seen]
      values = [(tokens[b, i] @ wv + bv)[part] for i in seen]
      if rotary:
        query = _turned(query, t)
        keys = [_turned(key, i) for i, key in zip(seen, keys, strict=True)]
      scores = np.array([query @ key / np.sqrt(_S) for key in keys])
      total = np.zeros(_S)
      for weight, value in zip(weigh(scores), values, strict=True):
        total += weight * value
      heads.append(total)
    result[b, t] = np.concatenate(heads) @ wo + bo
  return result


def _softmax(scores):
  return np.exp(scores) / np.exp(scores).sum()


def _relu(scores):
  return np.maximum(scores, 0) / max(len(scores), 1)


@pytest.mark.parametrize(
  ('kind', 'weigh', 'causal', 'rotary'),
  [
    (SoftmaxAttention, _softmax, True, True),
    (SoftmaxAttention, _softmax, False, False),
    (ReLUAttention, _relu, True, False),
    (ReLUAttention, _relu, False, True),
  ],
)
def test_it_is_the_sum_over_the_tokens_that_it_sees(kind, weigh, causal, rotary):
  model = drawn(lambda: kind(Site(_W, _H), causal, rotary, rngs=nnx.Rngs(0)))
  tokens = _tokens()
  expected = _loop(model, tokens, weigh, causal, rotary)
  assert_close(call(model, jnp.asarray(tokens)), expected, _DOUBLE)


@pytest.mark.parametrize(
  ('kind', 'rotary', 'has_bias'),
  [
    (SoftmaxAttention, False, False),
    (SoftmaxAttention, True, True),
    (ReLUAttention, False, True),
    (ReLUAttention, True, True),
  ],
)
def test_keys_have_a_bias_only_where_it_changes_outputs(kind, rotary, has_bias):
  # Of the weights that are compared, only the key's bias differs.
  model, without = (
    drawn(lambda: kind(Site(_W, _H), rotary=rotary, rngs=nnx.Rngs(0))) for _ in range(2)
  )
  if without.key.bias is not None:
    without.key.bias[...] = jnp.asarray(np.zeros(_W))
  found, other = (call(one, jnp.asarray(_tokens())) for one in (model, without))
  same = np.allclose(other, found, rtol=0, atol=_DOUBLE)
  assert (model.key.bias is not None) == has_bias
  assert same != has_bias


@pytest.mark.parametrize('kind', [SoftmaxAttention, ReLUAttention])
def test_a_set_without_examples_is_finite(kind):
  model = drawn(lambda: kind(Site(_W, _H), False, rngs=nnx.Rngs(0)))
  assert np.isfinite(call(model, jnp.asarray(_tokens(n=1)))).all()
