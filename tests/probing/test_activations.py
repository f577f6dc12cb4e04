"""Intermediates: against the equation in NumPy."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests import oracle
from tests.compare import assert_close, refuses
from tests.compiled import predict
from tests.marks import mostly_full
from tests.probing.models import Softmax, sample
from tests.settings import isotropic
from tests.weights import double, drawn, heads
from zoo.mixers.linear_state import LinearState
from zoo.mixers.mixer import Mixer
from zoo.mixers.short_convolution import PAST
from zoo.models.tokens import LAYOUTS, num_tokens, token_names
from zoo.probing import (
  Tap,
  attention_maps,
  capture,
  intermediates,
  mean_attention,
  sites,
)
from zoo.probing.activations import in_order, recorded

_D, _C, _W, _H = 3, 4, 8, 2
_MIXERS = {name: zoo.core.registry.MIXERS[name] for name in zoo.list_mixers()}
_WITH_MAP = [
  name for name, mixer in _MIXERS.items() if mixer.attention is not Mixer.attention
]
_WITH_STATE = [name for name, mixer in _MIXERS.items() if mixer.step is not Mixer.step]
# Sums of some ten float32 products, each in another order.
_ROUNDING = 1e-5


@functools.cache
def _prompt():
  return sample(isotropic(_D, _C, prior_mean=0.5), jax.random.key(0), 2)


def _transformer(mixer, **arguments) -> Any:
  arguments = {
    'width': _W,
    'num_heads': _H,
    'num_layers': 1,
    'feed_forward': 'none',
  } | arguments
  return drawn(
    lambda: zoo.models.Transformer(_D, _C, mixer=mixer, rngs=nnx.Rngs(0), **arguments),
    dtype='float32',
  )


@pytest.mark.parametrize('name', mostly_full(['yq_lsa'], ['lsa', 'ltb']))
def test_they_are_the_terms_of_the_equation(name):
  model = drawn(
    lambda: zoo.create_model(name, num_features=3, rngs=nnx.Rngs(0)), dtype='float32'
  )
  prompt = jax.device_get(_prompt())
  captured = jax.device_get(intermediates(model, prompt))
  (head,) = heads(model)
  w_p, w_v, w_k, w_q = head
  guess = np.asarray(model.initial_guess()[0])
  for i in range(2):
    # Tokens are columns in the oracle.
    x_query = np.asarray(prompt.x_query[i])
    tokens = oracle.embed(prompt.x[i], prompt.y[i], x_query, guess @ x_query)
    scores = (w_k @ tokens).T @ (w_q @ tokens) / 4
    terms = {
      'embed': tokens,
      'keys': w_k @ tokens,
      'queries': w_q @ tokens,
      'values': w_p @ w_v @ tokens,
      'scores': (oracle.mask(4) @ scores).T,  # [key, query], as in zoo
      'update': oracle.attention_update(tokens, head),
    }
    for term, expected in terms.items():
      value = captured[term][i]
      value = value[0] if value.ndim == 3 else value  # the one head
      np.testing.assert_allclose(value, expected.T, atol=1e-4, err_msg=term)
  np.testing.assert_allclose(
    captured['forward_tokens'][:, -1, -1], predict(model, prompt), rtol=1e-4, atol=1e-5
  )


def test_any_other_module_is_called():
  prompt = _prompt()
  captured = intermediates(Softmax(3), prompt)
  assert set(captured) == {'scores'}
  np.testing.assert_allclose(captured['scores'].sum(axis=1), 1, rtol=1e-6)
  with refuses('the model is of type GradientDescent; it must be an NNX module'):
    intermediates(zoo.estimators.gradient_descent(np.zeros(3), 0.1), prompt)


@functools.cache
def _captured(mixer, **arguments):
  """A transformer of one layer, its intermediates, and those of its mixer."""
  model = _transformer(mixer, **arguments)
  captured = intermediates(model, _prompt())
  start = 'layers.0.mixer.'
  own = {
    name.removeprefix(start): np.asarray(value)
    for name, value in captured.items()
    if name.startswith(start)
  }
  return model, np.asarray(captured['layers.0.mixer.out']), own


def _read(attention, values):
  """Σ_i a_ti v_i for each head, one token after the other: `[b, n, h, v]`."""
  b, h, n, _ = attention.shape
  outputs = np.zeros((b, n, h, values.shape[-1]))
  for t in range(n):
    for i in range(n):
      outputs[:, t] += attention[:, :, t, i, None] * values[:, i]
  return outputs


def _check_outputs(model, outputs, own):
  """A map times the values of the heads, projected, is what the mixer returns."""
  mixer = model.layers[0].mixer
  values = _linear(mixer.value, own['in'])
  b, n, _ = values.shape
  read = _read(own['attention'], values.reshape(b, n, _H, -1))
  assert_close(_linear(mixer.out, read.reshape(b, n, _W)), outputs, _ROUNDING)


def _linear(layer, inputs):
  kernel, bias = double(layer)
  return inputs @ kernel + bias


@nnx.jit
def _convolved(mixer, tokens):
  """The values of `hyena`: a projection, then its short convolution."""
  past = jnp.zeros((len(tokens), PAST, mixer.width), tokens.dtype)
  return mixer.convolutions[0](mixer.projections[0](tokens), past)[0]


def _check_channels(model, outputs, own, name):
  """As `_check_outputs`, where each channel of the values has its own map."""
  mixer, tokens = model.layers[0].mixer, jnp.asarray(own['in'])
  values = np.asarray(tokens if name == 's4d' else _convolved(mixer, tokens))
  read = jnp.asarray(_read(own['attention'], values[..., None])[..., 0], 'float32')
  if name == 's4d':
    hidden = read + mixer.skip[...][None, None] * tokens
    hidden = jax.nn.gelu(hidden, approximate=False)
    read_out = mixer.out(hidden) * jax.nn.sigmoid(mixer.gate(hidden))
  else:
    read_out = mixer.out(read)
  assert_close(read_out, outputs, _ROUNDING)


@nnx.jit
def _read_by_recurrence(mixer, tokens):
  """The values of the heads, and what the heads read of them token by token."""
  start = mixer.initial_state(len(tokens))
  inputs, _ = mixer.inputs(tokens, start)
  values, steps = inputs.value, inputs.value.shape[1] // tokens.shape[1]
  if steps > 1:  # a map is of values that are the same in all steps of a token
    values = values[:, ::steps]
    inputs = mixer.with_values(inputs, values)
  read = mixer.recur(inputs, start.memory)[0]
  return values, read


@pytest.mark.parametrize(
  'name',
  mostly_full(['softmax'], _WITH_MAP, slow=['hyena']),
)
def test_a_map_times_the_values_is_what_the_layer_reads(name):
  model, outputs, own = _captured(name)
  attention, n = own['attention'], 2 * _C + 1
  assert attention.shape[2:] == (n, n)
  assert not np.triu(attention, 1).any()
  if name in ('softmax', 'relu', 'fox'):
    _check_outputs(model, outputs, own)
  elif name in ('hyena', 's4d'):
    _check_channels(model, outputs, own, name)
  else:
    tokens = jnp.asarray(own['in'])
    values, read = _read_by_recurrence(model.layers[0].mixer, tokens)
    if name == 'mesa':  # its values are [k, v]
      values = values[..., _W // _H :]
    assert_close(_read(attention, np.asarray(values)), read, _ROUNDING)
  if name == 'softmax':
    np.testing.assert_allclose(attention.sum(axis=-1), 1, rtol=1e-6)
  (shown,) = mean_attention(model, _prompt()).values()
  assert_close(shown, np.abs(attention).mean(axis=0), _ROUNDING)


@pytest.mark.parametrize('name', mostly_full(['linear'], ['softmax', 'relu']))
def test_in_a_set_each_token_sees_the_context(name):
  model, outputs, own = _captured(name, causal=False, tokens='joint', positions='none')
  _check_outputs(model, outputs, own)
  unseen = own['attention'][..., -1]
  assert not unseen[..., :-1].any()
  assert unseen[..., -1].any() == (name == 'softmax')  # there the query sees itself
  assert 'state.memory' not in own


@pytest.mark.parametrize('name', mostly_full([], _WITH_STATE, slow=['linear']))
def test_the_states_are_those_after_each_token(name):
  model, _, own = _captured(name)
  tokens, mixer = own['in'], model.layers[0].mixer
  state = mixer.initial_state(2)
  n = 3
  step = nnx.jit(lambda mixer, token, state: mixer.step(token, state)[1])
  for t in range(n):
    state = step(mixer, tokens[:, t], state)
  for field, value in state._asdict().items():
    if field == 'position':
      assert own['state.position'].tolist() == list(range(1, 2 * _C + 2))
    elif field != 'past':
      assert_close(own[f'state.{field}'][:, n - 1], value, _ROUNDING)
  if 'state.memory' in own:
    run = nnx.jit(lambda mixer, tokens: mixer.run(tokens, mixer.initial_state(2))[1])
    assert_close(own['state.memory'][:, -1], run(mixer, tokens).memory, _ROUNDING)


@pytest.mark.slow
def test_each_loop_has_its_own_name():
  """Also a loop that is not trained."""
  model = _transformer('softmax', num_loops=3, num_trained_loops=1)
  prompt = _prompt()
  captured = intermediates(model, prompt)
  loops = ['', '@2', '@3']
  for i, loop in enumerate(loops):
    before = captured['layer_tokens.0'] + (captured[f'layer_tokens.{i}'] if i else 0)
    assert_close(captured[f'layers.0.tokens{loop}'], before, _ROUNDING)
    after = before + captured[f'layers.0.mixer.out{loop}']
    assert_close(captured[f'layer_tokens.{i + 1}'], after, _ROUNDING)
  assert list(attention_maps(model, prompt)) == [f'layers.0{loop}' for loop in loops]
  read = nnx.jit(lambda model, tokens: model.read(tokens, prompt)[:, -1])
  assert_close(
    read(model, captured['layer_tokens.3']), predict(model, prompt), _ROUNDING
  )


def test_layers_and_loops_are_in_the_order_of_their_numbers():
  names = ['layers.1', 'layers.1@2', 'layers.1@10', 'layers.2', 'layers.10']
  assert in_order(sorted(names)) == names


@pytest.mark.parametrize('form', mostly_full(['dense'], ['gd_plus_plus']))
def test_deep_lsa_has_its_tokens_and_maps(form):
  model: Any = drawn(
    lambda: zoo.models.DeepLSA(_D, 1, 2, _H, form=form, rngs=nnx.Rngs(0)),
    dtype='float32',
  )
  prompt = _prompt()
  captured = jax.device_get(intermediates(model, prompt))
  shown = np.asarray(attention_maps(model, prompt)['layers.1'])[..., :_C]
  tokens, layer = captured['layer_tokens.1'], model.layers[1]
  if form == 'dense':
    values = np.swapaxes(captured['layers.1.values'], 1, 2)[:, :_C]
  else:
    moved = np.einsum('hij,bcj->bchi', layer.b[...], tokens[:, :_C, :_D])
    labels = np.broadcast_to(tokens[:, :_C, None, _D:], (2, _C, _H, 1))
    values = np.concatenate([moved, labels], axis=-1)
  update = np.einsum('bhqk,bkhe->bqe', shown, values)
  assert_close(tokens + update, captured['layer_tokens.2'], _ROUNDING)


@pytest.mark.parametrize('name', mostly_full(['lstm'], ['gru']))
def test_recurrent_networks_have_what_they_carry(name):
  model: Any = drawn(
    lambda: zoo.create_model(
      name, num_features=_D, width=_W, num_layers=2, rngs=nnx.Rngs(0)
    ),
    dtype='float32',
  )
  prompt = _prompt()
  captured = intermediates(model, prompt)
  step = nnx.jit(lambda cell, carry, token: cell(carry, token))
  inputs, zeros = np.asarray(captured['embed']), jnp.zeros((2, _W))
  for i, cell in enumerate(model.layers):
    carry, outputs = model.start(zeros), []
    for t in range(_C + 1):
      carry, output = step(cell, carry, inputs[:, t])
      outputs.append(np.asarray(output))
      for j, part in enumerate(jax.tree.leaves(carry)):
        carried = np.asarray(captured[f'carries.{i}.{j}'])
        assert_close(carried[:, t], part, _ROUNDING)
    inputs = np.stack(outputs, axis=1)
  predictions = nnx.jit(lambda model, prompt: model.predictions(prompt))(model, prompt)
  assert_close(_linear(model.read_out, inputs)[..., 0], predictions, _ROUNDING)


def test_sites_have_the_names_of_what_is_there():
  of_mixer = [
    'heads',
    'in',
    'key',
    'norm',
    'out',
    'pattern',
    'query',
    'scores',
    'value',
  ]
  of_layer = [*(f'mixer.{name}' for name in of_mixer), 'tokens']
  final = ['final.norm', 'final.stream']
  wanted = ['embed', *final, 'guess', *(f'layers.0.{name}' for name in of_layer)]
  wanted.append('read_out')
  assert sites(_transformer('softmax')) == wanted
  terms = ['embed', 'guess', 'keys', 'queries', 'scores', 'update', 'values']
  linear = drawn(
    lambda: zoo.create_model('yq_lsa', num_features=3, rngs=nnx.Rngs(0)),
    dtype='float32',
  )
  assert sites(linear) == terms
  with refuses('the model is of type GradientDescent; it must be an NNX module'):
    sites(zoo.estimators.gradient_descent(np.zeros(3), 0.1))


def _own_norm(width, rngs):
  return nnx.GroupNorm(width, num_groups=2, rngs=rngs)


@pytest.mark.parametrize(
  ('name', 'settings'),
  [
    ('transformer', {'context_length': _C, 'norm': 'none'}),
    ('transformer', {'context_length': _C, 'norm': _own_norm}),
    ('tabular', {'norm': 'none'}),
  ],
)
def test_every_site_has_a_value_whatever_the_norm_is(name, settings):
  settings |= {'num_features': _D, 'num_layers': 1, 'num_heads': 2, 'width': 8}

  def values():
    model = zoo.create_model(name, **settings, rngs=nnx.Rngs(0))
    listed.extend(sites(model))
    return recorded(model, _prompt(), listed)[0]

  listed: list[str] = []
  names = jax.eval_shape(values)
  assert {name.partition('@')[0] for name in names} == {*listed}


def test_the_sites_of_a_layer_are_those_of_a_forward_pass_in_numpy():
  model = _transformer('softmax', feed_forward='gelu')
  found = capture(model, _prompt())
  values = {name: np.asarray(value, np.float64) for name, value in found.items()}
  layer, n, size = model.layers[0], 2 * _C + 1, _W // _H

  def of(name):
    return values[f'layers.0.{name}']

  def normed(norm, tokens):
    centred = tokens - tokens.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
    return scale, centred * scale * np.array(norm.scale) + np.array(norm.bias)

  tokens = of('tokens')
  scale, inputs = normed(layer.norm_1, tokens)
  expected = {'mixer.norm': scale, 'mixer.in': inputs}
  for name in 'query', 'key', 'value':
    projected = _linear(getattr(layer.mixer, name), inputs)
    expected[f'mixer.{name}'] = projected.reshape(2, n, _H, size)
  query, key, value = (expected[f'mixer.{name}'] for name in ('query', 'key', 'value'))
  scores = np.einsum('bqhs,bkhs->bhqk', query, key) / np.sqrt(size)
  weights = np.where(np.tri(n, dtype=bool), np.exp(scores), 0)
  pattern = weights / weights.sum(axis=-1, keepdims=True)
  heads = np.einsum('bhqk,bkhs->bqhs', pattern, value)
  mixed = _linear(layer.mixer.out, heads.reshape(2, n, _W))
  scale, inputs = normed(layer.norm_2, tokens + mixed)
  before = _linear(layer.feed_forward.up, inputs)
  # GELU by its approximation with tanh, as jax.nn.gelu has it.
  cube = np.sqrt(2 / np.pi) * (before + 0.044715 * before**3)
  neurons = 0.5 * before * (1 + np.tanh(cube))
  final = tokens + mixed + _linear(layer.feed_forward.out, neurons)
  expected |= {
    **{'mixer.scores': scores, 'mixer.pattern': pattern, 'mixer.heads': heads},
    **{'mixer.out': mixed, 'middle': tokens + mixed, 'network.norm': scale},
    **{'network.in': inputs, 'feed_forward.before': before},
    **{'feed_forward.neurons': neurons, 'network.out': final - tokens - mixed},
  }
  for name, value in expected.items():
    assert_close(of(name), value, _ROUNDING)
  assert_close(values['final.stream'], final, _ROUNDING)
  # A prediction is read at the query alone.
  scale, outputs = normed(model.norm, final[:, -1:])
  assert_close(values['final.norm'], scale, _ROUNDING)
  assert_close(values['read_out'], _linear(model.read_out, outputs), 1e-4)


@pytest.mark.slow
def test_some_sites_alone_are_those_of_all():
  model, prompt = _transformer('linear', num_layers=2), _prompt()
  every = capture(model, prompt)
  some = capture(model, prompt, ['layers.1.mixer.out', 'guess'])
  assert set(some) == {'layers.1.mixer.out', 'guess'}
  for name, value in some.items():
    assert_close(value, every[name], _ROUNDING)
  with refuses("'layers.2.tokens'", 'did you mean'):
    capture(model, prompt, ['layers.2.tokens'])
  with refuses("sites is 'guess'; it must be a list"):
    capture(model, prompt, 'guess')


class _OwnBlock(nnx.Module):
  """A mixer of the zoo in a model of one's own."""

  def __init__(self):
    self.mixer = zoo.mixers.SoftmaxAttention(
      zoo.mixers.Slot(width=3, num_heads=1), rngs=nnx.Rngs(0)
    )
    self.in_tap = Tap('mixer.in')

  def __call__(self, prompt):
    return self.mixer(self.in_tap(prompt.features))[:, -1, 0]


def test_a_mixer_in_a_model_of_ones_own_has_a_map_if_its_input_has_a_tap():
  model, prompt = drawn(_OwnBlock, dtype='float32'), _prompt()
  (weights,) = attention_maps(model, prompt).values()
  attention = nnx.jit(lambda mixer, tokens: mixer.attention(tokens))
  assert_close(weights, attention(model.mixer, prompt.features), _ROUNDING)


class _Looped(nnx.Module):
  """A tap of its own name in a list, one that returns a pair, and one in a loop."""

  def __init__(self):
    self.taps = nnx.List([Tap('first'), Tap()])
    self.inner_tap, self.outer_tap = Tap(), Tap('last')

  def __call__(self, prompt):
    query, _ = self.taps[1]((self.taps[0](prompt.x_query), prompt.y))

    def body(_, value):
      return self.inner_tap(2 * value)

    return self.outer_tap(jax.lax.fori_loop(0, 3, body, query[:, 0]))


def test_values_of_a_loop_are_left_out_and_parts_of_a_value_have_names():
  prompt, model = _prompt(), _Looped()
  assert sites(model) == ['first', 'inner', 'last', 'taps.1']
  values = capture(model, prompt)
  assert set(values) == {'first', 'last', 'taps.1.0', 'taps.1.1'}
  np.testing.assert_array_equal(values['last'], 8 * prompt.x_query[:, 0])
  np.testing.assert_array_equal(values['taps.1.1'], prompt.y)
  np.testing.assert_array_equal(model(prompt), values['last'])
  with refuses("'inner' has no value"):
    capture(model, prompt, ['last', 'inner'])
  (part,) = capture(model, prompt, ['taps.1.1']).values()
  np.testing.assert_array_equal(part, prompt.y)
  assert set(capture(model, prompt, ['taps.1'])) == {'taps.1.0', 'taps.1.1'}
  with refuses("unknown site 'taps.1.2'", 'taps.1.0'):
    capture(model, prompt, ['taps.1.2'])


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', mostly_full(['linear'], ['softmax', 'gated_delta', 'mesa'])
)
def test_a_model_that_is_not_probed_computes_nothing_more(name, monkeypatch):
  model, prompt = _transformer(name), _prompt()
  program = str(jax.make_jaxpr(model)(prompt))
  prediction = predict(model, prompt)
  before, attributes = nnx.graphdef(model), set(vars(model))
  intermediates(model, prompt)
  assert nnx.graphdef(model) == before
  assert set(vars(model)) == attributes
  assert str(jax.make_jaxpr(model)(prompt)) == program
  np.testing.assert_array_equal(predict(model, prompt), prediction)
  if name != 'softmax':  # whose forward pass is made of its map
    monkeypatch.delattr(LinearState, 'attention')
    assert str(jax.make_jaxpr(model)(prompt)) == program


def test_tokens_have_names_in_the_order_in_which_they_are_laid_out():
  assert token_names('interleaved', 2) == ['x_1', 'y_1', 'x_2', 'y_2', 'x_q']
  assert token_names('joint', 2) == ['x_1, y_1', 'x_2, y_2', 'x_q']
  assert token_names('shifted', 2) == ['x_1', 'x_2, y_1', 'x_q, y_2']
  for layout in LAYOUTS:
    assert len(token_names(layout, 5)) == num_tokens(layout, 5)
