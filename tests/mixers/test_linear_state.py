"""The recurrence of the linear-state family, and its three forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compare import assert_close, refuses
from tests.marks import mostly_full, mostly_slow
from tests.mixers.drawn import EXACT
from tests.mixers.reference.parts import sigmoid, softplus, unit
from tests.mixers.reference.recurrence import recurrence
from tests.traced import equations
from zoo.mixers.log_linear import pair_weights
from zoo.mixers.recurrence import Inputs, chunkwise, scan
from zoo.mixers.recurrence import recurrence as run_recurrence

_B, _N, _H, _K, _V = 2, 21, 2, 4, 3  # two chunks of 16, the last one padded
# The size of a decay, whether β is given, what is erased: with the key where it was
# read, or elsewhere.
_KINDS = {
  'plain': (None, False, None),
  'number': (1, True, None),
  'vector': (_K, True, None),
  'delta': (None, True, 'key'),
  'gated_delta': (1, True, 'key'),
  'vector_delta': (_K, True, 'key'),
  'elsewhere': (_K, False, 'elsewhere'),
}
_every_kind = pytest.mark.parametrize('kind', mostly_slow(['elsewhere'], _KINDS))


def _inputs(kind, dtype, n=_N):
  rng = np.random.default_rng(0)

  def drawn(*shape):
    return rng.normal(size=(_B, n, _H, *shape))

  decay, write, erase = _KINDS[kind]
  query, key, value = drawn(_K), unit(drawn(_K)), drawn(_V)
  log_decay = None if decay is None else -softplus(drawn(decay))
  strength = sigmoid(drawn())
  terms = [query, key, value, log_decay, strength if write else None, None, None]
  if erase == 'key':
    terms[5] = strength[..., None] * key
    if log_decay is not None:
      terms[5] = terms[5] * np.exp(log_decay)
  if erase == 'elsewhere':
    terms[5:] = [unit(drawn(_K)), unit(drawn(_K))]
  # Converted in NumPy: JAX would compile a program for each shape.
  terms = [
    None if term is None else jnp.asarray(term.astype(dtype), dtype) for term in terms
  ]
  return Inputs(*terms)  # pyright: ignore


def _state(dtype):
  rng = np.random.default_rng(1)
  return jnp.asarray(rng.normal(size=(_B, _H, _K, _V)).astype(dtype), dtype)


def _loop(inputs, state):
  inputs, state = jax.tree.map(np.asarray, (inputs, state))
  unit = np.ones(inputs.key.shape)
  decay = unit if inputs.log_decay is None else unit * np.exp(inputs.log_decay)
  value = inputs.value
  if inputs.write is not None:
    value = inputs.write[..., None] * value
  arrays = inputs.query, inputs.key, value, decay, inputs.erase, inputs.erase_key
  out, last = np.zeros(inputs.value.shape), np.zeros(state.shape)
  for b in range(_B):
    for h in range(_H):
      of_head = [None if array is None else array[b, :, h] for array in arrays]
      out[b, :, h], last[b, h] = recurrence(*of_head, state=state[b, h])
  return out, last


@_every_kind
def test_forms_are_the_equation(kind):
  with jax.enable_x64(True):
    inputs, state = _inputs(kind, 'float64'), _state('float64')
    run = jax.jit(lambda inputs, state: (scan(inputs, state), chunkwise(inputs, state)))
    expected = _loop(inputs, state)
    for results in run(inputs, state):
      for array, other in zip(results, expected, strict=True):
        assert array.dtype == np.float64
        assert_close(array, other, EXACT)


@pytest.mark.parametrize(
  'kind',
  mostly_full([], _KINDS, slow=['elsewhere']),
)
def test_forms_agree_in_float32_with_their_gradients(kind):
  inputs, state = _inputs(kind, 'float32'), _state('float32')

  def loss(form, inputs, state):
    outputs, last = form(inputs, state)
    return jnp.square(outputs).sum() + jnp.square(last).sum(), (outputs, last)

  results = []
  for form in (scan, chunkwise):
    run = jax.grad(functools.partial(loss, form), argnums=(0, 1), has_aux=True)
    results.append(jax.jit(run)(inputs, state))
  for tolerance, part in ((1e-4, 0), (1e-5, 1)):
    leaves, others = (jax.tree.leaves(result[part]) for result in results)
    for a, b in zip(leaves, others, strict=True):
      assert_close(a, b, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize('size', mostly_full([32], [1, 2, 8]))
def test_the_size_of_chunks_makes_no_difference(size):
  with jax.enable_x64(True):
    inputs, state = _inputs('gated_delta', 'float64'), _state('float64')
    results = jax.jit(chunkwise, static_argnums=2)(inputs, state, size)
    for array, other in zip(results, _loop(inputs, state), strict=True):
      assert_close(array, other, EXACT)


@pytest.mark.slow
@pytest.mark.parametrize('kind', mostly_full(['elsewhere'], ['number', 'vector_delta']))
def test_strong_decay_does_not_overflow(kind):
  """e^(−50) a token is e^(−800) a chunk, whose inverse is not a number."""
  inputs, state = _inputs(kind, 'float32'), _state('float32')
  assert inputs.log_decay is not None
  decay = np.full(inputs.log_decay.shape, -50.0, 'float32')
  inputs = inputs._replace(log_decay=jnp.asarray(decay))

  def loss(form, inputs):
    outputs, _ = form(inputs, state)
    return jnp.square(outputs).sum(), outputs

  runs = [jax.grad(functools.partial(loss, f), has_aux=True) for f in (scan, chunkwise)]
  (expected, outputs), (gradient, other) = (jax.jit(run)(inputs) for run in runs)
  assert_close(other, outputs, 1e-5)
  # That of the decay is e^(−50) of the others, and less than their roundings.
  vector, other = (
    np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    for tree in (gradient, expected)
  )
  assert_close(vector, other, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('kind', mostly_full(['elsewhere'], _KINDS))
def test_sums_have_at_most_six_axes_with_models_side_by_side(kind):
  """Of seven, jaxlib 0.10.2 crashes at some on CPUs; at products, of eight."""
  inputs, state = _inputs(kind, 'float32'), _state('float32')

  def loss(inputs, state):
    outputs, last = chunkwise(inputs, state)
    return jnp.square(outputs).sum() + jnp.square(last).sum()

  both = jax.tree.map(lambda array: np.stack([array] * 2), (inputs, state))
  traced = jax.make_jaxpr(jax.vmap(jax.grad(loss, argnums=(0, 1))))(*both)
  summed = [
    equation.invars[0].aval.ndim
    for equation in equations(traced.jaxpr)
    if equation.primitive.name in ('reduce_sum', 'dot_general')
  ]
  assert 4 <= max(summed) <= 6


@pytest.mark.slow
@pytest.mark.parametrize('kind', mostly_full(['vector_delta'], ['number', 'elsewhere']))
def test_a_reset_in_a_chunk_is_the_same_in_both_forms(kind):
  """At a log decay of −∞ the state is forgotten, and gradients stay finite."""
  inputs, state = _inputs(kind, 'float32'), _state('float32')
  assert inputs.log_decay is not None
  decay = np.array(inputs.log_decay)
  decay[:, [0, 3, 4, 17]] = -np.inf
  inputs = inputs._replace(log_decay=jnp.asarray(decay))
  if kind == 'vector_delta':  # What is read after a reset is 0.
    erase = np.where(np.isinf(decay), 0, np.asarray(inputs.erase))
    inputs = inputs._replace(erase=jnp.asarray(erase))

  def loss(form, inputs):
    outputs, last = form(inputs, state)
    return jnp.square(outputs).sum() + jnp.square(last).sum(), (outputs, last)

  runs = [jax.grad(functools.partial(loss, f), has_aux=True) for f in (scan, chunkwise)]
  (expected, wanted), (gradient, given) = (jax.jit(run)(inputs) for run in runs)
  # After two resets in a chunk a sum of log decays is about −120, with roundings of
  # 8e-6.
  for array, other in zip(given, wanted, strict=True):
    assert_close(array, other, 3e-5)
  for array, other in zip(*map(jax.tree.leaves, (gradient, expected)), strict=True):
    assert_close(array, other, 3e-4)


@pytest.mark.slow
def test_a_reset_hides_all_tokens_before_it_from_log_linear():
  inputs = _inputs('number', 'float32')
  decay = np.array(inputs.log_decay)
  decay[:, 4] = -np.inf
  write = jnp.ones((_B, _N, _H))
  inputs = inputs._replace(log_decay=jnp.asarray(decay), write=write)
  with jax.numpy_dtype_promotion('standard'):
    weights = np.asarray(pair_weights(inputs, jnp.ones((_B, _N, _H, 5))))
  query, key, log_decay = (
    np.asarray(array, np.float64) for array in inputs[:2] + inputs[3:4]
  )
  expected = np.zeros_like(weights)
  for t in range(_N):
    for i in range(t + 1):
      kept = np.exp(log_decay[:, i + 1 : t + 1, :, 0].sum(axis=1))
      expected[:, :, t, i] = kept * (query[:, t] * key[:, i]).sum(axis=-1)
  assert_close(weights, expected, 1e-5)


@pytest.mark.parametrize(
  ('field', 'change', 'said'),
  [
    ('log_decay', lambda g: g[..., 0], 'must be (2, 21, 2, 4) or (2, 21, 2, 1)'),
    ('write', lambda beta: beta[..., None], 'must be (2, 21, 2), because'),
    ('key', lambda key: key[..., :-1], 'must be (2, 21, 2, 4) or (2, 21, 1, 4)'),
    ('query', lambda query: None, 'Inputs.query has the shape ()'),
    (
      'value',
      lambda value: jnp.swapaxes(value, 1, 2),
      'must be (2, 21, 2, 3), because',
    ),
  ],
)
def test_a_field_of_another_shape_is_named(field, change, said, unchecked):
  inputs, state = _inputs('number', 'float32'), _state('float32')
  wrong = inputs._replace(**{field: change(getattr(inputs, field))})
  with refuses(f'Inputs.{field} has the shape', said):
    run_recurrence(wrong, state)
