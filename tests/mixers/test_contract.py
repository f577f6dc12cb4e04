"""What every registered mixer must do; a new one is covered by being registered."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import built
from tests.marks import mostly_full, mostly_slow
from tests.mixers.drawn import B, H, W, call, tokens, warm
from tests.settings import isotropic
from tests.traced import carried
from tests.weights import promoting_float64
from zoo.mixers import Slot

_DECODING = [
  name
  for name in zoo.list_mixers()
  if zoo.core.registry.MIXERS[name].step is not zoo.mixers.Mixer.step
]
# One of each kind: the others share the code that these tests are about with one of
# them, and are tested with --full.
_KINDS = [
  *('linear', 'gated_delta_product', 'rwkv7', 'mamba3', 'log_linear', 'mamba'),
  *('mesa', 'ttt', 's4d', 'fox'),
]
_QUICK = ['linear']
_one_of_each_kind = pytest.mark.parametrize(
  'name', mostly_full(_QUICK, zoo.list_mixers(), slow=_KINDS)
)
_one_decoder_of_each_kind = pytest.mark.parametrize(
  'name',
  mostly_full(
    [name for name in _QUICK if name in _DECODING],
    _DECODING,
    slow=[name for name in _KINDS if name in _DECODING],
  ),
)
# One of each state that is carried from token to token, the simplest first.
_STATES = ['linear', 'gdn2', 'mamba3', 'mesa', 'ttt']
# Each channel has a state of its own.
_WITHOUT_HEADS = {'hyena', 'longhorn', 'mamba', 's4d'}
# Convolved by Fourier transforms, in which later tokens reach earlier outputs by
# roundings of 6e-8 of the largest output.
_BY_FOURIER = {'hyena', 's4d'}


_LONG = 18  # tokens, more than a chunk of 16


class _Facts(NamedTuple):
  """What a mixer says, from one program."""

  outputs: np.ndarray
  gradients: Any  # of the sum of their squares, with respect to parameters and tokens
  steps: np.ndarray | None  # the outputs token by token, if it can decode


@functools.cache
def _program(name: str) -> Callable[[np.ndarray], _Facts]:
  graph, parameters = nnx.split(warm(name, 'float32'))

  def loss(parameters, x):
    outputs = nnx.merge(graph, parameters)(x)
    return jnp.square(outputs).sum(), outputs

  @jax.jit
  def run(parameters, x):
    gradients, outputs = jax.grad(loss, argnums=(0, 1), has_aux=True)(parameters, x)
    mixer: Any = nnx.merge(graph, parameters)
    if name not in _DECODING:
      return _Facts(outputs, gradients, None)

    def step(state, token):
      output, state = mixer.step(token, state)
      return state, output

    _, decoded = jax.lax.scan(step, mixer.initial_state(B), jnp.moveaxis(x, 1, 0))
    return _Facts(outputs, gradients, jnp.moveaxis(decoded, 0, 1))  # pyright: ignore

  return lambda x: jax.device_get(run(parameters, x))


@functools.cache
def _facts(name: str) -> _Facts:
  return _program(name)(np.asarray(tokens(_LONG, 'float32')))


@_one_of_each_kind
def test_outputs_gradients_and_causality(name):
  outputs, gradients, _ = _facts(name)
  assert outputs.shape == (B, _LONG, W)
  assert outputs.dtype == jnp.float32
  largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients))
  for leaf in jax.tree.leaves(gradients):
    assert leaf.dtype == jnp.float32
    assert np.isfinite(leaf).all()
    # A weight that outputs do not depend on has rounding errors of 6e-8 as gradients.
    assert np.abs(leaf).max() > 1e-5 * largest
  for t in (1, _LONG - 1):
    later = np.array(tokens(_LONG, 'float32'))
    later[:, t:] += 1
    changed = _program(name)(later).outputs
    if name in _BY_FOURIER:
      assert_close(changed[:, :t], outputs[:, :t], 1e-5)
    else:
      np.testing.assert_array_equal(changed[:, :t], outputs[:, :t])
    assert not np.allclose(changed[:, t], outputs[:, t])


@_one_decoder_of_each_kind
def test_steps_are_the_call(name):
  # The same sums in another order: roundings of 6e-8, in a chunk of 16 tokens.
  assert_close(_facts(name).steps, _facts(name).outputs, 1e-5)  # pyright: ignore


@pytest.mark.parametrize(
  'name', mostly_full(_STATES[:1], zoo.list_mixers(), slow=_STATES[1:])
)
def test_a_mixer_in_bfloat16_keeps_its_state_in_float32(name):
  """Forward and backward; a sum over tokens in 8 bits soon stops growing."""
  graph, weights, rest = nnx.split(warm(name, 'bfloat16'), nnx.Param, ...)
  x = tokens(_LONG, 'bfloat16')

  def loss(weights, x):
    outputs = nnx.merge(graph, weights, rest)(x)
    assert outputs.dtype == jnp.bfloat16
    return jnp.square(outputs).sum()

  program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(weights, x)
  assert {*carried(program.jaxpr)} <= {'float32', 'int32'}


@_one_decoder_of_each_kind
def test_a_step_in_bfloat16_keeps_the_state_of_the_first(name):
  mixer = warm(name, 'bfloat16')
  before = jax.eval_shape(lambda: mixer.initial_state(B))
  token = tokens(dtype='bfloat16')[:, 0]
  output, after = jax.eval_shape(mixer.step, token, before)
  assert output.dtype == jnp.bfloat16
  assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
    lambda leaf: (leaf.shape, leaf.dtype), before
  )


@pytest.mark.parametrize('name', mostly_full([], zoo.list_mixers(), slow=['gla']))
def test_weights_in_float32_take_tokens_in_float64(name):
  """The state has the wider type, so that the outputs are those of wider weights."""
  with promoting_float64():
    mixer = warm(name, 'float32')
    graph, weights, rest = nnx.split(mixer, nnx.Param, ...)
    wide = nnx.merge(
      graph, jax.tree.map(lambda leaf: leaf.astype(float), weights), rest
    )
    outputs, expected = (call(module, tokens(_LONG)) for module in (mixer, wide))
    assert outputs.dtype == jnp.float64
    # Constants of the mixer, such as decays, have the precision of its weights.
    assert_close(outputs, expected, 1e-5)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('name', zoo.list_mixers())
def test_a_transformer_of_it_keeps_the_contract_of_models(name):
  arguments = {'width': W, 'num_heads': H, 'num_layers': 1, 'mixer': name}
  model = built(lambda: zoo.models.Transformer(3, 5, **arguments, rngs=nnx.Rngs(0)))
  zoo.check_model(model, isotropic(3, 5, prior_mean=1.0, noise_std=0.5))


@pytest.mark.parametrize('name', mostly_slow(['linear', 'mamba'], zoo.list_mixers()))
def test_heads_share_the_width(name):
  create = zoo.core.registry.create_mixer
  if name in _WITHOUT_HEADS:
    first, second = (
      jax.make_jaxpr(
        lambda h=h: nnx.state(create(name, slot=Slot(W, h), rngs=nnx.Rngs(0)))
      )()
      for h in (1, 3)
    )
    assert str(first) == str(second)  # they are drawn alike
    return
  with refuses(f'width is {W}; it must be a multiple of num_heads, which is 3'):
    nnx.eval_shape(lambda: create(name, slot=Slot(W, 3), rngs=nnx.Rngs(0)))


@pytest.mark.parametrize('name', mostly_slow(_QUICK, zoo.list_mixers()))
def test_heads_are_split_over_the_model_axis(name):
  create = zoo.core.registry.create_mixer
  mesh = jax.make_mesh((4, 2), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
  with jax.set_mesh(mesh):
    _, abstract = nnx.get_abstract_model(
      lambda: create(name, slot=Slot(W, H), rngs=nnx.Rngs(0)), mesh
    )
  specs = [leaf.sharding.spec for leaf in jax.tree.leaves(abstract)]
  assert any('model' in spec for spec in specs)
