"""The context as an update of rank one: with it, the query alone gives the output."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.marks import mostly_full
from tests.probing.models import sample
from tests.settings import isotropic
from tests.weights import drawn, promoting_float64
from zoo.probing import context_update, context_updates, updated_layer

_D, _C, _B = 3, 4, 2
# Float64: some thousand roundings, of weights and tokens of order 1.
_EXACT = 1e-11
_SLOW = 'softmax', 'rwkv7'


def _model(mixer='softmax', num_layers=1, **arguments) -> Any:
  return drawn(
    lambda: zoo.models.Transformer(
      *(_D, _C),
      num_layers=num_layers,
      num_heads=2,
      width=8,
      mixer=mixer,
      rngs=nnx.Rngs(0),
      **arguments,
    )
  )


def _prompt():
  prompt = sample(isotropic(_D, _C), jax.random.key(0), _B)
  return jax.tree.map(lambda array: jnp.asarray(array, 'float64'), prompt)


def _check(model):
  """Each layer alone, and the whole model, from the query's token alone."""
  prompt = _prompt()
  run = nnx.jit(lambda model, prompt: (model.layer_tokens(prompt), model(prompt)))
  states, predictions = jax.device_get(run(model, prompt))
  updates = context_updates(model, prompt)
  call = nnx.jit(lambda layer, token: layer(token))
  read = nnx.jit(lambda model, token: model.read(token, prompt))
  for i in range(_B):
    token = states[0][i : i + 1, -1:]
    for layer, update, state in zip(model.layers, updates, states[1:], strict=True):
      changed = updated_layer(layer, update, i)
      without, token = jax.device_get((call(layer, token), call(changed, token)))
      assert_close(token[0, 0], state[i, -1], _EXACT)
      assert np.abs(without - token).max() > 1e-3
      for name in update.moved:
        before, after = (
          np.asarray(getattr(block.feed_forward, name).kernel[...])
          for block in (layer, changed)
        )
        assert np.linalg.matrix_rank(after - before, tol=1e-9) == 1
    every = np.tile(token, (_B, 1, 1))
    assert_close(np.asarray(read(model, every))[i, -1], predictions[i], _EXACT)


@pytest.mark.parametrize('mixer', mostly_full([], zoo.list_mixers(), slow=_SLOW))
def test_the_query_alone_gives_the_output_in_context(mixer):
  with promoting_float64():
    _check(_model(mixer))


@pytest.mark.slow
@pytest.mark.parametrize(
  'arguments',
  [
    {'mixer': 'linear', 'num_layers': 2, 'feed_forward': 'swiglu', 'norm': 'rms'},
    {
      'positions': 'rotary',
      'feed_forward': 'linear',
      'norm': 'none',
      'causal': False,
      'tokens': 'joint',
    },
  ],
  ids=['swiglu', 'linear'],
)
def test_it_holds_for_several_layers_other_mixers_networks_norms_and_tokens(arguments):
  with promoting_float64():
    _check(_model(**arguments))


def test_the_update_is_that_of_its_definition():
  """By the least change of W_1 that maps z' to W_1 z, from the pseudo-inverse."""
  with promoting_float64():
    layer = _model().layers[0]
    tokens = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 8)))
    update = nnx.jit(context_update)(layer, tokens)

    @nnx.jit
    def mixed(layer, t):
      return layer.norm_2(t[0, -1] + layer.mixer(layer.norm_1(t))[0, -1])

    z, alone = (np.asarray(mixed(layer, t)) for t in (tokens, tokens[:, -1:]))
    kernel = np.asarray(layer.feed_forward.up.kernel[...])
    expected = np.linalg.pinv(alone[None]) @ (z - alone)[None] @ kernel
    assert_close(update.matrix('up', 0), expected, _EXACT)


@pytest.mark.slow
def test_a_loop_has_updates_of_its_own():
  with promoting_float64():
    model, prompt = _model(num_loops=2), _prompt()
    updates = context_updates(model, prompt)
    assert len(updates) == 2
    layer_tokens = nnx.jit(lambda model, prompt: model.layer_tokens(prompt))
    states = jax.device_get(layer_tokens(model, prompt))
    changed = updated_layer(model.layers[0], updates[1], 0)
    token = (states[1] + states[0])[:1, -1:]
    after = nnx.jit(lambda layer, token: layer(token))(changed, token)
    assert_close(np.asarray(after)[0, 0], states[2][0, -1], _EXACT)


def test_what_has_no_update_is_refused():
  with promoting_float64():
    model, prompt = _model(feed_forward='none'), _prompt()
    update = context_updates(model, prompt)[0]
    assert update.moved == {}
    with refuses('the layer has no network'):
      updated_layer(model.layers[0], update, 0)
    with refuses('prompt is 2'):
      updated_layer(_model().layers[0], update, 2)
    with refuses('YqLSA is no transformer'):
      yq_lsa = drawn(lambda: zoo.models.YqLSA(_D, rngs=nnx.Rngs(0)))
      context_updates(yq_lsa, prompt)
