"""Products of delta rules, and the eigenvalues of a delta rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.compare import assert_close
from tests.marks import mostly_full
from tests.mixers.drawn import H, W, tokens, warm

_NEGATIVE = {'negative_eigenvalues': True}


@pytest.mark.slow
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
@pytest.mark.full
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
@pytest.mark.parametrize(
  'name',
  mostly_full(
    ['delta'], ['gated_delta', 'gated_delta_product', 'kda', 'gdn2', 'comba']
  ),
)
def test_a_scale_of_queries_is_without_effect(name):
  """Public code divides q by √k, these mixers do not: the norm removes the factor."""
  with jax.enable_x64(True):
    mixer, x = warm(name), tokens()

    @nnx.jit
    def both(mixer, x):
      state = mixer.initial_state(len(x))
      inputs, _ = mixer.inputs(x, state)
      scaled = inputs._replace(query=inputs.query / (W // H) ** 0.5)
      reads = [mixer.recur(terms, state.memory)[0] for terms in (inputs, scaled)]
      return reads[0], [mixer.norm(read) for read in reads]

    read, (plain, scaled) = both(mixer, x)
    # Beside the mean square m of a head's k entries, ε and k ε change the root by less
    # than k ε / 2 m of it.
    squares = np.square(np.asarray(read)).mean(axis=-1, keepdims=True)
    change = np.abs(np.asarray(scaled) / np.asarray(plain) - 1)
    assert change.max() > 0
    assert (change <= (W // H) * 1e-6 / (2 * squares)).all()


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
