"""The biases of softmax and ReLU attention, and sets without examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.marks import mostly_slow
from tests.mixers.drawn import call, tokens, warm
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


@pytest.mark.parametrize('name', mostly_slow(['softmax'], ['fox', 'relu']))
def test_weights_in_bfloat16_are_normalised_in_float32(name):
  """257 tokens are 256 in bfloat16, and sums of log decays soon have whole steps."""
  with jax.enable_x64(False):
    mixer, x = warm(name, 'bfloat16'), tokens(257, 'bfloat16')
    # All scores are 4 · 1/2 / √4 = 1 with a bias of the keys, and 0 without it.
    for layer, bias in ((mixer.query, 1.0), (mixer.key, 0.5)):
      layer.kernel[...] = jnp.zeros((_W, _W), 'bfloat16')
      if layer.bias is not None:
        layer.bias[...] = jnp.full(_W, bias, 'bfloat16')
    run = nnx.jit(lambda mixer, x: (mixer(x), mixer.attention(x)))
    outputs, weights = jax.device_get(run(mixer, x))
    forget = mixer.forget(x[:, -1]).astype('float32') if name == 'fox' else np.inf
    assert (outputs.dtype, weights.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=0, atol=1e-5)
    # The sums of log f are near −200, with roundings of 1e-5.
    kept = np.broadcast_to(jax.nn.sigmoid(forget), (_B, _H))
    ratio = weights[:, :, -1, -2] / weights[:, :, -1, -1]
    np.testing.assert_allclose(ratio, kept, rtol=1e-3)
