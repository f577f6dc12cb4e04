"""Initial rates, and what linear attention and retention refuse."""

import jax
import numpy as np
from flax import nnx

import zoo
from tests.compare import refuses
from tests.mixers.drawn import B, warm
from tests.mixers.reference.parts import softplus
from zoo.mixers.mixer import Mixer


def test_mamba2_starts_with_the_rates_of_the_paper():

  @jax.jit
  def rates():
    rate = zoo.mixers.Mamba2(zoo.mixers.Slot(64, 64), rngs=nnx.Rngs(0)).rate
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
