"""The precision of the mesa layer, and the inner gradient of test-time training."""

import numpy as np
import pytest

from tests.compare import assert_close, refuses
from tests.mixers.drawn import call, tokens, warm
from tests.mixers.reference import ttt


@pytest.mark.slow
@pytest.mark.full
def test_it_computes_in_bfloat16():
  expected, outputs = (
    call(warm('mesa', dtype), tokens(6, dtype)) for dtype in ('float32', 'bfloat16')
  )
  assert outputs.dtype == 'bfloat16'
  # Rounded to 8 bits, a dozen times one after the other.
  error = np.abs(np.asarray(outputs, 'float32') - expected).max()
  assert error <= 0.05 * np.abs(expected).max()


def test_the_gradient_of_the_loop_is_one():
  rng = np.random.default_rng(5)
  z, scale, bias, target = rng.normal(size=(4, 5))
  loss = [
    0.5 * ((ttt.norm(z + s * 1e-5 * e, scale, bias) - target) ** 2).sum()
    for e in np.eye(5)
    for s in (1, -1)
  ]
  numeric = (np.array(loss[::2]) - np.array(loss[1::2])) / 2e-5
  # Central differences err by the square of 1e-5.
  assert_close(ttt.gradient(z, scale, bias, target), numeric, 1e-7)


def test_a_mini_batch_has_a_token():
  with refuses('mini_batch_size is 0'):
    warm('ttt', mini_batch_size=0)
