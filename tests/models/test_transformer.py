"""Transformers against NumPy, looped ones against loops, and what they refuse."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import assert_close, refuses
from tests.compiled import built, predict, predict_all
from tests.marks import mostly_full
from tests.mixers.drawn import parameters
from tests.mixers.reference import softmax
from tests.models import bodies
from tests.settings import isotropic
from tests.weights import drawn, promoting_float64
from zoo.core import registry
from zoo.core.taps import Tap
from zoo.models.layers import FeedForward, make_norm, normed
from zoo.models.tokens import LAYOUTS
from zoo.models.transformer import Transformer

_D, _C = bodies.D, 4
# Some thousand operations in double precision, each rounded by 1e-16.
_DOUBLE = 1e-11


def _model(**arguments: Any) -> Transformer:
  arguments = {'num_layers': 2, 'num_heads': 2, 'width': 8} | arguments
  return Transformer(_D, _C, **arguments, rngs=nnx.Rngs(0))


def _drawn(**arguments: Any) -> Any:
  return drawn(lambda: _model(**arguments))


def _prompt() -> zoo.Prompt:
  return bodies.prompt(context=_C)


def _layers(model, z):
  for layer in model.layers:
    mixer, normed = layer.mixer, bodies.layer_norm(layer.norm_1, z)
    z = z + softmax.outputs(parameters(mixer), normed, mixer.num_heads)
    normed = bodies.layer_norm(layer.norm_2, z)
    hidden = bodies.gelu(bodies.linear(layer.feed_forward.up, normed))
    z = z + bodies.linear(layer.feed_forward.out, hidden)
  return z


def _tokens(prompt, b):
  """Interleaved tokens with the guess 0."""
  x, x_query, y = (np.asarray(part)[b] for part in (prompt.x, prompt.x_query, prompt.y))
  x, y = np.vstack([x, x_query]), y[:, None]
  return bodies.tokens('interleaved', x, y, np.zeros((_C + 1, 1)))


def _read(model, z):
  return bodies.linear(model.read_out, bodies.layer_norm(model.norm, z))[::2, 0]


def test_it_is_gpt_2():
  with promoting_float64():
    model, prompt = _drawn(), _prompt()
    predictions = np.asarray(predict_all(model, prompt))
  for b in range(2):
    z = bodies.linear(model.read_in, _tokens(prompt, b))
    z = _layers(model, z + np.asarray(model.positions[...]))
    assert_close(predictions[b], _read(model, z), _DOUBLE)


def test_loops_apply_the_same_layers_to_the_sum_with_the_prompt():
  with promoting_float64():
    model = _drawn(num_layers=1, num_loops=3, num_trained_loops=2)
    prompt = _prompt()
    run = nnx.jit(lambda m, p: (m.loop_predictions(p, True), m.predictions(p)))
    loops, last = jax.device_get(run(model, prompt))
  for b in range(2):
    embedded = bodies.linear(model.read_in, _tokens(prompt, b))
    embedded += np.asarray(model.positions[...])
    z, expected = 0.0, []
    for _ in range(3):
      z = _layers(model, z + embedded)
      expected.append(_read(model, z))
    assert_close(loops[:, b], np.array(expected[-2:]), _DOUBLE)
    np.testing.assert_array_equal(last[b], loops[-1, b])


@pytest.mark.parametrize('remat', mostly_full([True], [False]))
def test_loops_that_are_not_trained_have_no_gradient(remat):
  """What the first loops give may as well be a constant."""
  with promoting_float64():
    prompt = _prompt()
    loops = {'num_loops': 3, 'num_trained_loops': 1, 'remat': remat}
    model = _drawn(num_layers=1, feed_forward='none', **loops)
    graph, parameters = nnx.split(model)

    def two_loops(parameters):
      model = nnx.merge(graph, parameters)
      embedded = model.embedded(model.embed(prompt))
      return model._layers(model._layers(embedded) + embedded)

    def last_loop(parameters, before):
      model = nnx.merge(graph, parameters)
      embedded = model.embedded(model.embed(prompt))
      return jnp.sum(model._read(model._layers(before + embedded))[:, ::2])

    def all_loops(parameters):
      return jnp.sum(nnx.merge(graph, parameters).predictions(prompt))

    expected, gradient = jax.device_get(
      jax.jit(lambda p: (jax.grad(last_loop)(p, two_loops(p)), jax.grad(all_loops)(p)))(
        parameters
      )
    )
  # Gradients of order 1, in double precision.
  jax.tree.map(
    lambda leaf, other: np.testing.assert_allclose(leaf, other, rtol=0, atol=1e-10),
    *(gradient, expected),
  )


@pytest.mark.parametrize('kind', ['linear', 'swiglu'])
def test_feed_forward_networks_are_their_equations(kind):
  z = np.random.default_rng(0).normal(size=(2, 3, 4))
  with promoting_float64():
    network = drawn(lambda: FeedForward(4, 6, kind, rngs=nnx.Rngs(0)))
    outputs = nnx.jit(lambda network, z: network(z))(network, z)
  hidden = bodies.linear(network.up, z)
  if kind == 'swiglu':
    gate = bodies.linear(network.gate, z)
    hidden *= gate / (1 + np.exp(-gate))
    assert network.up.bias is None
  assert_close(outputs, bodies.linear(network.out, hidden), _DOUBLE)


def test_kernels_start_at_the_scale_that_is_asked_for():
  graph = nnx.eval_shape(lambda: _model(width=128, num_layers=2, init_scale=0.05))
  layer: Any = built(lambda: _model(width=128, num_layers=2, init_scale=0.05).layers[0])
  assert len(graph.layers) == 2
  residual = 1 / np.sqrt(2 * 2)
  for linear, factor in (
    (layer.mixer.query, 1.0),
    (layer.mixer.out, residual),
    (layer.feed_forward.up, 1.0),
    (layer.feed_forward.out, residual),
  ):
    # 16384 or more entries: the standard deviation is off by 0.6 % of itself or less.
    assert abs(np.std(np.asarray(linear.kernel[...])) / (0.05 * factor) - 1) < 0.03
    assert not np.any(np.asarray(linear.bias[...]))


@pytest.mark.slow
@pytest.mark.full
def test_kernels_start_by_the_number_of_inputs_unless_told():
  first: Any = built(lambda: _model(width=128, num_layers=1)).layers[0]
  default = np.asarray(first.feed_forward.up.kernel[...])
  assert abs(np.std(default) * np.sqrt(128) - 1) < 0.03


def test_mixers_take_turns():
  options = {'num_layers': 3, 'feed_forward': 'none'}
  for mixer in ('softmax,relu', ['softmax', 'relu']):
    model = nnx.eval_shape(lambda mixer=mixer: _model(mixer=mixer, **options))
    names = [type(layer.mixer).__name__ for layer in model.layers]
    assert names == ['SoftmaxAttention', 'ReLUAttention', 'SoftmaxAttention']


_AT = slice(-1, None), slice(None, None, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
  'arguments',
  mostly_full(
    [{'num_layers': 1, 'mixer': 'relu', 'positions': 'rotary'}],
    [
      {'mixer': 'softmax,relu', 'positions': 'rotary'},
      {'mixer': 'relu', 'norm': 'none'},
      {'mixer': 'delta', 'positions': 'none'},
      {'mixer': 'retention', 'positions': 'rotary', 'feed_forward': 'none'},
      {'causal': False, 'positions': 'none'},
      {'mixer': 'relu', 'causal': False, 'positions': 'none'},
      {'num_loops': 3, 'num_trained_loops': 2},
      {'num_loops': 2, 'remat': True},
      {'num_loops': 3, 'num_trained_loops': 2, 'remat': True},
    ],
  ),
)
def test_some_outputs_are_those_of_all(arguments):
  with promoting_float64():
    model = _drawn(**arguments)
    shape = 2, 9, model.token_width
    tokens = jnp.asarray(np.random.default_rng(0).normal(size=shape), float)
    graph, state = nnx.split(model)

    def some(model):
      return [model.body(tokens, at) for at in _AT]

    def chosen(model):
      outputs = model.body(tokens, slice(None))
      return [outputs[:, :, at] for at in _AT]

    def loss(state, function):
      outputs = function(nnx.merge(graph, state))
      return sum(jnp.sum(jnp.sin(output)) for output in outputs), outputs

    differentiate = jax.grad(loss, has_aux=True)
    (gradients, outputs), (expected, all_outputs) = jax.device_get(
      jax.jit(lambda s: [differentiate(s, function) for function in (some, chosen)])(
        state
      )
    )
  for output, other in zip(outputs, all_outputs, strict=True):
    assert_close(output, other, _DOUBLE)
  # All parts together: the gradient of the keys' bias is 0 but for rounding.
  vector, other = (
    np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
    for gradient in (gradients, expected)
  )
  assert_close(vector, other, _DOUBLE)


@pytest.mark.usefixtures('register')
def test_a_mixer_that_is_no_subclass_is_refused():
  @zoo.register_mixer('plain')
  class Plain(nnx.Module):
    def __init__(self, width, num_heads, *, rngs):
      pass

  with refuses("the mixer 'plain' makes a Plain", 'subclass of zoo.mixers.Mixer'):
    nnx.eval_shape(lambda: _model(mixer='plain'))


@pytest.mark.slow
def test_a_set_without_positions_does_not_see_the_order():
  arguments: dict[str, Any] = {'tokens': 'joint', 'causal': False, 'num_layers': 1}
  arguments['positions'] = 'none'
  model = drawn(lambda: _model(**arguments), dtype='float32')
  prompt = _prompt()
  shuffled = zoo.Prompt(
    np.asarray(prompt.x)[:, ::-1],  # pyright: ignore
    np.asarray(prompt.y)[:, ::-1],  # pyright: ignore
    prompt.x_query,
    prompt.y_query,
  )
  # The same sums in another order.
  assert_close(predict(model, shuffled), predict(model, prompt), 1e-5)


def test_a_longer_context_than_the_positions_is_refused():
  prompt = bodies.prompt(context=_C + 1)
  with refuses('the prompt has 11 tokens', 'for 9, those of 4 examples'):
    nnx.eval_shape(lambda: _model(num_layers=1)(prompt))
  prediction = nnx.eval_shape(lambda: _model(num_layers=1, positions='rotary')(prompt))
  assert prediction.shape == (2,)


class _Forgetting(zoo.mixers.HeadState):
  """S_t = α_t S_{t−1} + k_tᵀ v_t, with a decay that depends on the token."""

  def __init__(self, slot, *, rngs):
    super().__init__(slot, rngs=rngs)
    self.forget = nnx.Linear(slot.width, slot.num_heads, rngs=rngs)

  def inputs(self, tokens, state):
    (query, key, value), past = self.heads(tokens, state)
    log_decay = jax.nn.log_sigmoid(self.forget(tokens))[..., None]
    return zoo.mixers.Inputs(query, key, value, log_decay), past


class _OverASet(zoo.mixers.ReLUAttention):
  """Attention that is never causal."""

  def __init__(self, slot, *, rngs):
    super().__init__(slot, causal=False, rngs=rngs)


@pytest.mark.slow
def test_a_mixer_is_given_by_its_name_its_class_or_a_function():
  def delta(slot, rngs, negative_eigenvalues=False):
    return zoo.mixers.Delta(slot, negative_eigenvalues, rngs=rngs)

  options: dict[str, Any] = {'num_layers': 1, 'feed_forward': 'none'}
  by_name, by_class, by_function = (
    nnx.graphdef(nnx.eval_shape(lambda mixer=mixer: _model(mixer=mixer, **options)))
    for mixer in ('delta', zoo.mixers.Delta, [delta])
  )
  # Models of one structure, which JAX takes for the same, compute the same.
  assert by_name == by_class == by_function
  mixers = [lambda slot, rngs: zoo.mixers.TTT(slot, rngs=rngs), delta]
  options['num_layers'] = 2
  several = nnx.eval_shape(lambda: _model(mixer=mixers, **options))
  assert [type(layer.mixer).__name__ for layer in several.layers] == ['TTT', 'Delta']
  with refuses("option of the mixer Delta, 'horizon'"):
    wrong = {'horizon': 3}
    nnx.eval_shape(lambda: _model(mixer=zoo.mixers.Delta, mixer_options=wrong))


@pytest.mark.slow
@pytest.mark.full
def test_a_mixer_over_the_set_is_a_layer_where_the_query_alone_is_predicted():
  mixers = ['delta', _OverASet]
  model = built(lambda: _model(mixer=mixers, num_layers=2, tokens='joint'))
  assert [layer.mixer.causal for layer in model.layers] == [True, False]


@pytest.mark.slow
def test_inputs_that_are_no_arrays_are_refused(unchecked):
  class Number(_Forgetting):
    def inputs(self, tokens, state):
      inputs, past = super().inputs(tokens, state)
      return inputs._replace(log_decay=-0.1), past

  class Nothing(_Forgetting):
    def inputs(self, tokens, state):
      inputs, past = super().inputs(tokens, state)
      return inputs._replace(value=None), past

  tokens = jnp.ones((2, 3, 8))
  for mixer, said in (
    (Number, 'returns -0.1 as .log_decay'),
    (Nothing, 'without a value'),
  ):
    with refuses(f'{mixer.__name__}.inputs', said):
      mixer(zoo.mixers.Slot(8, 2), rngs=nnx.Rngs(0))(tokens)


@pytest.mark.slow
@pytest.mark.full
def test_a_recurrence_of_ones_own_has_all_forms():
  model = built(lambda: _model(mixer=_Forgetting, num_layers=1))
  task = zoo.create_task('linear_regression', num_features=_D, context_length=_C)
  zoo.check_model(model, task)


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    ({'width': 1, 'num_heads': 1}, ['width is 1; it must be at least 2', 'layer norm']),
    ({'width': 9}, ['width is 9', 'multiple of num_heads, which is 2']),
    ({'mixer': 'softmaxx'}, ["unknown mixer 'softmaxx'", 'softmax']),
    ({'mixer': []}, ['mixer is empty']),
    ({'mixer': 3}, ['mixer is 3; it must be a name, a class of mixers']),
    ({'mixer': [[]]}, ['mixer is []; it must be a name, a class of mixers, or a list']),
    ({'mixer_options': 3}, ['mixer_options is 3; it must be a dict by name']),
    ({'mixer_options': {'kernel': 3}}, ['option of the mixer softmax', "'kernel'"]),
    ({'num_loops': 2, 'num_trained_loops': 3}, ['num_trained_loops is 3', 'is 2']),
    ({'tokens': 'shifted', 'causal': False}, ["is 'shifted'", "tokens = 'joint'"]),
    (
      {'feed_forward': 'none', 'hidden_features': 3},
      ["hidden_features is 3; it must be None, since feed_forward is 'none'"],
    ),
    (
      {'mixer': _OverASet},
      ['causal is True; the mixer _OverASet sets self.causal to False', 'interleaved'],
    ),
  ],
  ids=str,
)
def test_mistakes_are_one_line(arguments, said, unchecked):
  with refuses(*said):
    nnx.eval_shape(lambda: _model(**arguments))


def _layouts():
  """Every mixer and layout that is allowed, with and without causality."""
  for name in zoo.list_mixers():
    yield from ((name, layout, True) for layout in LAYOUTS)
    if 'causal' in registry.parameters(registry.MIXERS[name]):
      yield from ((name, layout, False) for layout in LAYOUTS if layout != 'shifted')


@pytest.mark.parametrize(
  ('mixer', 'tokens', 'causal'),
  mostly_full(
    [],
    _layouts(),
    slow=[
      *(('linear', layout, True) for layout in ('shifted', 'interleaved')),
      ('softmax', 'joint', False),
    ],
  ),
)
def test_the_query_sees_every_label(mixer, tokens, causal):
  arguments = {'mixer': mixer, 'tokens': tokens, 'causal': causal}
  model = built(lambda: _model(**arguments, norm='none', num_layers=1))
  slopes = nnx.jit(
    lambda model, prompt, y: jax.grad(
      lambda y: jnp.sum(model(dataclasses.replace(prompt, y=y)))
    )(y)
  )
  prompt = _prompt()
  sizes = np.abs(np.asarray(slopes(model, prompt, prompt.y)))
  # ReLU attention leaves out what its scores are negative for, in some prompts.
  assert (sizes.max(axis=0) > 1e-4 * sizes.max()).all()


class _Own(zoo.models.Transformer):
  """Features are read through tanh, and each token has its number as its position."""

  def embed(self, prompt):
    tokens = super().embed(prompt)
    return tokens.at[..., :3].set(jnp.tanh(tokens[..., :3]))

  def embedded(self, tokens):
    numbers = jnp.arange(tokens.shape[1], dtype=tokens.dtype)
    return super().embedded(tokens) + 0.1 * numbers[None, :, None]


def test_the_rms_norm_is_that_of_flax():
  """With and without a tap, at weights that are not 1."""
  norm: Any = make_norm('rms', 8, nnx.Rngs(0))
  flax: Any = nnx.RMSNorm(8, rngs=nnx.Rngs(0))
  numbers = np.random.default_rng(0).normal(size=(2, 5, 8)).astype('f')
  for one in (norm, flax):
    one.scale[...] = jnp.asarray(numbers[0, 0])

  @nnx.jit
  def each(norm, flax, x):
    return norm(x), normed(norm, x, Tap()), normed(flax, x, Tap()), flax(x)

  *others, expected = each(norm, flax, jnp.asarray(numbers))
  for other in others:
    assert_close(other, expected, 1e-6)  # float32, a dozen roundings of 6e-8


@pytest.mark.slow
@pytest.mark.full
def test_tokens_positions_and_norms_may_be_ones_own():
  def norm(width, rngs):
    return nnx.RMSNorm(width, use_scale=False, rngs=rngs)

  options = {'width': 8, 'num_layers': 1, 'positions': 'none', 'norm': norm}
  model: Any = built(lambda: _Own(3, 4, rngs=nnx.Rngs(0), **options))
  assert not jax.tree.leaves(nnx.state(model.norm))
  with refuses('the function norm returns None', 'an NNX module'):
    _Own(3, 4, rngs=nnx.Rngs(0), **{**options, 'norm': lambda width, rngs: None})
  plain: Any = built(lambda: zoo.models.Transformer(3, 4, rngs=nnx.Rngs(0), **options))
  prompt: Any = jax.device_get(isotropic(3, 4).sample(jax.random.key(0), 2))
  shown = dataclasses.replace(
    prompt, x=np.tanh(prompt.x), x_query=np.tanh(prompt.x_query)
  )

  @nnx.jit
  def embed(model, prompt):
    tokens = model.embed(prompt)
    return tokens, model.embedded(tokens)

  (tokens, embedded), (expected, of_plain) = jax.device_get(
    (embed(model, prompt), embed(plain, shown))
  )
  np.testing.assert_allclose(tokens, expected, rtol=1e-6)
  difference = embedded - of_plain
  numbers = np.broadcast_to(0.1 * np.arange(9)[None, :, None], (2, 9, 8))
  np.testing.assert_allclose(difference, numbers, atol=1e-6)
  zoo.check_model(model, isotropic(3, 4))
