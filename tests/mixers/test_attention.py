"""The biases of softmax and ReLU attention, and sets without examples."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.mixers.drawn import call
from tests.weights import drawn
from zoo.mixers import ReLUAttention, Slot, SoftmaxAttention

_B, _N, _W, _H = 2, 5, 8, 2
# Some hundred operations in double precision, each rounded by 1e-16.
_DOUBLE = 1e-12


pytestmark = pytest.mark.usefixtures('float64')


def _tokens(n=_N):
  return np.random.default_rng(1).normal(size=(_B, n, _W))


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
    drawn(lambda: kind(Slot(_W, _H), rotary=rotary, rngs=nnx.Rngs(0))) for _ in range(2)
  )
  if without.key.bias is not None:
    without.key.bias[...] = jnp.asarray(np.zeros(_W))
  outputs, other = (call(mixer, _tokens()) for mixer in (model, without))
  same = np.allclose(other, outputs, rtol=0, atol=_DOUBLE)
  assert (model.key.bias is not None) == has_bias
  assert same != has_bias


@pytest.mark.parametrize('kind', [SoftmaxAttention, ReLUAttention])
def test_a_set_without_examples_is_finite(kind):
  model = drawn(lambda: kind(Slot(_W, _H), False, rngs=nnx.Rngs(0)))
  assert np.isfinite(call(model, _tokens(n=1))).all()
