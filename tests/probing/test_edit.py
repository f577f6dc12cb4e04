"""Edited models: every site of every model, put back, dead or changed."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests import oracle
from tests.compare import refuses
from tests.compiled import predict
from tests.marks import mostly_full
from tests.probing.models import sample
from tests.settings import isotropic
from tests.weights import drawn, heads
from zoo.core.registry import MODELS, parameters
from zoo.probing import (
  Add,
  Mean,
  Resample,
  Set,
  Tap,
  Zero,
  capture,
  dead_sites,
  edited,
  sites,
)
from zoo.probing.activations import calls_of, recorded
from zoo.probing.checks import wanted_sites

_D, _C, _B = 3, 4, 3
_SMALL = {
  'num_features': _D,
  'context_length': _C,
  'num_layers': 1,
  'num_heads': 2,
  'width': 8,
}
_MODELS = [name for name in zoo.list_models() if name != 'transformer']
# The scale of predictions here is 1, and each is a few hundred float32 operations.
_ROUNDING = 1e-4


@functools.cache
def _prompt(seed=0, size=_B):
  return sample(isotropic(_D, _C, prior_mean=0.5), jax.random.key(seed), size)


def _model(name, **arguments) -> Any:
  if name == 'gpt':
    from examples.gpt import GPT  # registers it, for one test

    return drawn(
      lambda: GPT(_D, _C, num_layers=1, width=8, rngs=nnx.Rngs(0)), dtype='float32'
    )
  known = parameters(MODELS[name])
  settings = {key: value for key, value in _SMALL.items() if key in known} | arguments
  return drawn(
    lambda: zoo.create_model(name, **settings, rngs=nnx.Rngs(0)), dtype='float32'
  )


@jax.jit
def _replaced(graph, state, prompt):
  """The predictions with each site put back, or NaN, and the gradients' sum.

  Before the first of these nothing is replaced.
  """
  model = nnx.merge(graph, state)
  names = wanted_sites(model, None)

  def predictions(chosen, noise):
    values, _ = recorded(model, prompt, names)
    edits = {}
    for i, name in enumerate(names):
      if name not in _read_only(model):
        calls = iter(calls_of(values, name))

        def replace(value, i=i, calls=calls):
          return jnp.where(chosen == i, next(calls) + noise, value)

        edits[name] = replace
    return edited(model, edits)(prompt)

  def squares(state, chosen):
    return jnp.sum(jnp.square(edited(nnx.merge(graph, state), {})(prompt)))

  def row(chosen):
    return predictions(chosen, 0.0), predictions(chosen, jnp.nan)

  rows = jax.lax.map(row, jnp.arange(-1, len(names)))
  gradients = jax.grad(squares)(state, 0)
  return *rows, sum(jnp.sum(leaf) for leaf in jax.tree.leaves(gradients))


def _read_only(model):
  return [name for name in sites(model) if 'carries' in name and name.endswith('.0')]


_OTHERS = [
  *(('transformer', {'mixer': mixer}) for mixer in zoo.list_mixers()),
  ('transformer', {'num_layers': 2}),
]
_LOOPED = ('transformer', {'num_loops': 3, 'num_trained_loops': 2, 'remat': True})
_CASES = [
  *((name, {}) for name in [*_MODELS, 'gpt'] if name != 'yq_lsa'),
  *(('transformer', {'mixer': mixer}) for mixer in ('linear', 'hyena')),
  _LOOPED,
  ('transformer', {'guess': 'residual', 'tokens': 'shifted'}),
  ('deep_lsa', {'num_layers': 2, 'shared': True, 'form': 'gd_plus_plus'}),
]
_QUICK = [('yq_lsa', {})]
_SLOW = [('lstm', {}), ('transformer', {'mixer': 'softmax'}), _LOOPED]


@pytest.mark.parametrize(
  ('name', 'arguments'), mostly_full(_QUICK, [*_CASES, *_OTHERS], slow=_SLOW)
)
def test_each_site_put_back_changes_nothing_and_otherwise_all(
  name, arguments, register
):
  model, prompt = _model(name, **arguments), _prompt()
  names = wanted_sites(model, None)
  assert names
  graph, state = nnx.split(model)
  same, changed, slope = jax.device_get(_replaced(graph, state, prompt))
  # XLA may round the last digit otherwise where it does not fuse with what was before.
  scale = max(np.abs(same[0]).max(), 1)
  for i, site in enumerate(names):
    np.testing.assert_allclose(
      same[i + 1], same[0], atol=1e-6 * scale, rtol=0, err_msg=site
    )
  dead = [
    site
    for i, site in enumerate(names)
    if not np.isnan(changed[i + 1]).any() and site not in _read_only(model)
  ]
  assert not dead
  assert np.isfinite(slope)
  # By way of all sites and by shortcuts the prediction is the same.
  expected = np.asarray(predict(model, prompt))
  scale = np.abs(expected).max()
  np.testing.assert_allclose(same[0], expected, atol=_ROUNDING * max(scale, 1))


@pytest.mark.parametrize(
  ('name', 'arguments'),
  mostly_full([], [*_QUICK, *_CASES, *_OTHERS], slow=[('lstm', {})]),
)
def test_a_site_put_back_changes_no_bit_without_compilation(name, arguments, register):
  """Each operation then rounds as before."""
  model, prompt = _model(name, **arguments), _prompt()
  names = wanted_sites(model, None)
  with jax.disable_jit():
    values, before = recorded(model, prompt, names)
    for name in names:
      if name not in _read_only(model):
        calls = iter(calls_of(values, name))
        copy = edited(model, {name: lambda value, calls=calls: next(calls)})
        np.testing.assert_array_equal(copy(prompt), before, err_msg=name)


def test_dead_sites_are_named_and_refused():
  class Forgetful(nnx.Module):
    def __init__(self):
      self.seen_tap, self.unused_tap = Tap(), Tap()

    def __call__(self, prompt):
      self.unused_tap(2 * prompt.y)
      return self.seen_tap(prompt.y[:, 0])

  prompt = _prompt()
  assert dead_sites(Forgetful(), prompt) == ['unused']
  with refuses("the site 'unused' does not reach the prediction"):
    edited(Forgetful(), {'unused': Zero()}, prompt)
  copy = edited(Forgetful(), {'seen': Set(7.0)}, prompt)
  np.testing.assert_array_equal(predict(copy, prompt), 7.0)
  lstm = _model('lstm', num_layers=2)
  assert dead_sites(lstm, prompt) == ['carries.0.0', 'carries.1.0']
  with refuses("the site 'carries.1.0' does not reach", 'can only be captured'):
    edited(lstm, {'carries.1.0': Zero()})


class _Doubled(nnx.Module):
  """Predicts twice what its tap returns, summed over all axes but the first."""

  def __init__(self):
    self.value_tap = Tap(axes='b n h')

  def __call__(self, prompt):
    value = self.value_tap(prompt.x[:, :3, :2])
    return 2 * value.sum(axis=(1, 2))


@pytest.mark.parametrize(
  ('edit', 'change'),
  [
    (Set(3.0), lambda x: 0 * x + 3),
    (Set([1.0, 2.0], np.s_[:, 1]), lambda x: _with(x, np.s_[:, 1], [1, 2])),
    (Add(1.0, np.s_[..., 0]), lambda x: _with(x, np.s_[..., 0], x[..., 0] + 1)),
    (Zero(np.s_[:, -1]), lambda x: _with(x, np.s_[:, -1], 0)),
    (lambda value: value**2, lambda x: x**2),
  ],
)
def test_an_edit_is_what_numpy_does(edit, change):
  prompt = _prompt()
  x = np.asarray(prompt.x, np.float64)[:, :3, :2]
  copy = edited(_Doubled(), {'value': edit}, prompt)
  expected = 2 * change(x).sum(axis=(1, 2))
  np.testing.assert_allclose(predict(copy, prompt), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
  ('shape', 'where', 'said'),
  [
    ((3, 3, 1), None, '(3, 3, 2), or (3, 2) for all prompts alike'),  # for every head
    ((1, 3, 2), None, '(3, 3, 2)'),
    ((2,), None, '(3, 3, 2)'),  # for every token
    ((1,), np.s_[:, :, 0], '(3, 3), or (3,) for all prompts alike'),
    ((2,), np.s_[0], 'it must be a number, or have the shape (3, 2);'),
  ],
)
def test_an_array_is_not_repeated_along_axes_that_it_was_not_made_for(
  shape, where, said
):
  for edit in (Set(np.ones(shape), where), Add(np.ones(shape), where)):
    with refuses("at the site 'value' has the shape", said, 'np.broadcast_to'):
      edited(_Doubled(), {'value': edit})(_prompt())


@pytest.mark.parametrize(
  ('shape', 'where'), [((3, 3, 2), None), ((3, 2), None), ((2,), np.s_[:, 0])]
)
def test_an_array_is_the_whole_part_or_that_of_each_prompt(shape, where):
  prompt, numbers = _prompt(), np.arange(np.prod(shape), dtype='f').reshape(shape)
  x = np.asarray(prompt.x, np.float64)[:, :3, :2]
  copy = edited(_Doubled(), {'value': Set(numbers, where)}, prompt)
  expected = 2 * _with(x, ... if where is None else where, numbers).sum(axis=(1, 2))
  np.testing.assert_allclose(predict(copy, prompt), expected, rtol=1e-6)


def _with(array, index, value):
  array = array.copy()
  array[index] = value
  return array


def test_means_and_resamples_are_over_prompts():
  prompt, other = _prompt(), _prompt(1, 7)
  value = np.asarray(prompt.x)[:, :3, :2]
  x, y = (np.asarray(p.x, np.float64)[:, :3, :2] for p in (prompt, other))
  mean = edited(_Doubled(), {'value': Mean(y, np.s_[:, 0])}, prompt)
  expected = _with(x, np.s_[:, 0], y.mean(axis=0)[0])
  expected = 2 * expected.sum(axis=(1, 2))
  np.testing.assert_allclose(predict(mean, prompt), expected, rtol=1e-5)
  resampled = edited(_Doubled(), {'value': Resample(value)}, prompt)
  expected = 2 * x[[1, 2, 0]].sum(axis=(1, 2))
  np.testing.assert_allclose(predict(resampled, prompt), expected, rtol=1e-5)
  with refuses('Resample', "'value'", '(7, 3, 2)', '(3, 3, 2)'):
    edited(_Doubled(), {'value': Resample(y)}, prompt)


@pytest.mark.parametrize(
  'where', [np.s_[:, :, 4], np.s_[:, 3:9], np.s_[:, -9], np.s_[..., 0, 0, 0, 0], 'x']
)
def test_a_part_that_is_not_there_is_refused(where):
  copy = edited(_Doubled(), {'value': Zero(where)})
  with refuses("at the site 'value'", 'a part of the shape (3, 3, 2)'):
    copy(_prompt())


@pytest.mark.slow
def test_an_edit_that_does_not_reach_the_query_is_refused():
  model, prompt = _model('transformer'), _prompt()
  with refuses("the edit at the site 'layers.0.network.out' does not reach"):
    edited(model, {'layers.0.network.out': Zero(np.s_[:, 0])}, prompt)
  overwritten = {'layers.0.mixer.heads': Zero(), 'layers.0.mixer.out': Set(1.0)}
  with refuses("'layers.0.mixer.heads' does not reach"):
    edited(model, overwritten, prompt)


class _Masked(nnx.Module):
  """Predicts the first label; a mask multiplies all others by 0."""

  def __init__(self):
    self.value_tap, self.label_tap = Tap(axes='b n'), Tap(axes='b n')

  def __call__(self, prompt):
    labels = self.value_tap(self.label_tap(prompt.y))
    mask = (jnp.arange(labels.shape[1]) == 0).astype(labels.dtype)
    return jnp.sum(labels * mask[None], axis=1)


def test_nan_that_goes_through_a_mask_is_no_effect():
  model, prompt = _Masked(), _prompt()
  for value in (1e3, np.inf, np.nan):
    copy = edited(model, {'value': Set(value, np.s_[:, 0])}, prompt)
    np.testing.assert_array_equal(copy(prompt), value)
  for edit in (Set(1e3, np.s_[:, 1]), Add(1.0, np.s_[:, 1:])):
    with refuses("the edit at the site 'value' does not reach the prediction"):
      edited(model, {'value': edit}, prompt)
  overwritten = {'label': Zero(), 'value': Set(1.0, np.s_[:, 0])}
  with refuses("the edit at the site 'label' does not reach the prediction"):
    edited(model, overwritten, prompt)
  only_others = edited(model, {'value': Zero(np.s_[:, 0])})
  assert dead_sites(only_others, prompt) == ['label']


def test_sites_of_integers():
  class Chosen(nnx.Module):
    def __init__(self):
      self.index_tap = Tap(axes='b')

    def __call__(self, prompt):
      index = self.index_tap(jnp.argmax(prompt.x_query, axis=1))
      return jnp.take_along_axis(prompt.x_query, index[:, None], axis=1)[:, 0]

  prompt = _prompt()
  assert dead_sites(Chosen(), prompt) == []
  copy = edited(Chosen(), {'index': Set(1)}, prompt)
  np.testing.assert_array_equal(predict(copy, prompt), np.asarray(prompt.x_query)[:, 1])
  with refuses("the value of Set at the site 'index' is float32; it must be int32"):
    edited(Chosen(), {'index': Set(0.7)}, prompt)


def test_taps_have_one_place_and_axes_of_letters():
  class Twice(nnx.Module):
    def __init__(self):
      self.first_tap, self.second_tap = Tap('hidden'), Tap('hidden')

    def __call__(self, prompt):
      return self.first_tap(prompt.y) + self.second_tap(prompt.y)

  with refuses("two taps of the model have the site 'hidden'"):
    sites(Twice())
  with refuses("axes is 'bnw'", "as in 'b n w'"):
    Tap(axes='bnw')
  with refuses("name is 'b n w'"):
    Tap('b n w')


def test_all_ways_to_predict_see_an_edit_of_the_guess():
  model, prompt = _model('yq_lsa'), _prompt()
  copy = edited(model, {'guess': Set(3.0)})
  expected = predict(copy, prompt)
  assert np.abs(expected - predict(model, prompt)).max() > 0.1
  np.testing.assert_allclose(
    zoo.predict(copy, prompt, np.full(_B, _C)), expected, rtol=1e-5
  )
  with refuses('the model is edited'):
    copy.learning_rule()


def test_mistakes_are_one_line():
  model, prompt = _Doubled(), _prompt()
  with refuses("unknown site 'values'", "did you mean 'value'"):
    edited(model, {'values': Zero()})
  said = "'value@2' is one call of 'value'; give 'value', which stands for all of its"
  with refuses(said):
    edited(model, {'value@2': Zero()})
  with refuses(said):
    zoo.probing.capture(model, prompt, ['value@2'])
  with refuses('the value of Set', "'value'", '(5,)', '(3, 3, 2)'):
    edited(model, {'value': Set(np.zeros(5))}, prompt)
  with refuses("the edit at the site 'value' returns the shape (3,)"):
    edited(model, {'value': lambda value: value[:, 0, 0]})(prompt)


@pytest.mark.slow
def test_an_edit_may_return_an_array_of_numpy():
  model, prompt = _Doubled(), _prompt()
  by_numpy = edited(model, {'value': lambda value: np.zeros(value.shape)}, prompt)
  by_zero = edited(model, {'value': Zero()}, prompt)
  np.testing.assert_array_equal(by_numpy(prompt), by_zero(prompt))


def test_edits_at_one_site_follow_one_another_and_leave_the_model_alone():
  model, prompt = _Doubled(), _prompt()
  before = model(prompt)
  twice = edited(edited(model, {'value': Set(1.0)}), {'value': Add(2.0)})
  np.testing.assert_allclose(twice(prompt), 2 * 3 * 6, rtol=1e-6)
  np.testing.assert_array_equal(model(prompt), before)
  assert sites(twice) == ['value']
  np.testing.assert_allclose(capture(twice, prompt)['value'], 3.0)


def test_save_and_exact_theory_refuse_an_edited_model(tmp_path):
  task = isotropic(_D, _C)
  model = _model('yq_lsa')
  copy = edited(model, {'guess': Set(1.0)})
  config = {
    'model': {'name': 'yq_lsa', 'num_features': _D},
    'task': {'name': 'linear_regression', 'num_features': _D, 'context_length': _C},
  }
  with refuses('the model is edited'):
    zoo.save(copy, tmp_path / 'model', config)
  assert not (tmp_path / 'model').exists()
  with refuses('the model is edited'):
    zoo.theory.exact_risk(copy, task)


@pytest.mark.parametrize('name', mostly_full(['yq_lsa', 'ltb'], ['lsa']))
def test_the_guess_moves_the_prediction_as_the_equation_says(name):
  """Eq. 30 in NumPy, with another label entry of the query's token."""
  model, prompt = _model(name), jax.device_get(_prompt())
  target = np.array([2.0, -1.0, 0.5])
  for factor in (0.0, 1.0, -1.0):
    guess = np.asarray(prompt.x_query, np.float64) @ (factor * target)
    copy = edited(model, {'guess': Set(guess.astype('f'))})
    prediction = np.asarray(predict(copy, prompt))
    for i in range(_B):
      tokens = oracle.embed(prompt.x[i], prompt.y[i], prompt.x_query[i], guess[i])
      if name == 'ltb':
        tokens = oracle.ltb_tokens(tokens, heads(model), model.w_1, model.w_2)
      else:
        tokens = oracle.multi_head_tokens(tokens, heads(model))
      # Some hundred float32 products of numbers near 1.
      expected = tokens[-1, -1]
      assert abs(prediction[i] - expected) <= 1e-6 * max(np.abs(tokens).max(), 1)


class _Layer(nnx.Module):
  def __init__(self, rngs):
    self.linear, self.out_tap = nnx.Linear(_D, _D, rngs=rngs), Tap('out', 'b w')

  def __call__(self, tokens):
    return tokens + self.out_tap(self.linear(tokens))


class _Scanned(nnx.Module):
  """Two layers within `nnx.scan`."""

  def __init__(self):
    layers = nnx.vmap(_Layer, in_axes=0, out_axes=0)
    self.layers: Any = nnx.split_rngs(splits=2)(layers)(nnx.Rngs(0))

  def __call__(self, prompt):
    scan = nnx.scan(
      lambda tokens, layer: layer(tokens),
      in_axes=(nnx.Carry, 0),
      out_axes=nnx.Carry,
    )
    return scan(prompt.x_query, self.layers)[:, 0]


@pytest.mark.slow
def test_within_scan_an_edit_is_a_function_or_has_a_number():
  model, prompt = _Scanned(), _prompt()
  first = np.asarray(prompt.x_query)[:, 0]
  for edit, added in (Zero(), 0), (Set(1.0), 2), (lambda value: 0 * value + 1, 2):
    copy = edited(model, {'layers.out': edit}, prompt)
    np.testing.assert_allclose(copy(prompt), first + added, rtol=1e-6)
  cut = "the edit at the site 'layers.out' has an array", 'nnx.scan cuts'
  whole = Set(np.ones((_B, _D), 'f'))
  with refuses(*cut):
    edited(model, {'layers.out': whole}, prompt)
  with refuses(*cut):
    edited(model, {'layers.out': nnx.Linear(_D, _D, rngs=nnx.Rngs(0))}, prompt)
  # Arrays with as many rows as layers would be cut without an error.
  two, rows = jax.tree.map(lambda array: array[:2], prompt), Set(np.ones((2, _D), 'f'))
  with refuses(*cut):
    edited(model, {'layers.out': rows}, two)
  with refuses(*cut):
    edited(model, {'layers.out': rows})(two)


class _CompiledLayer(nnx.Module):
  """One layer within `nnx.jit`."""

  def __init__(self):
    self.layer = _Layer(nnx.Rngs(0))

  @nnx.jit
  def predict(self, prompt):
    return self.layer(prompt.x_query)[:, 0]

  def __call__(self, prompt):
    return self.predict(prompt)  # pyright: ignore[reportCallIssue]


@pytest.mark.slow
def test_within_jit_an_edit_may_have_arrays_and_mistakes_keep_their_traceback():
  model, prompt = _CompiledLayer(), _prompt()
  double, whole = nnx.Linear(_D, _D, rngs=nnx.Rngs(1)), np.ones((_B, _D), 'f')
  added = double(model.layer.linear(prompt.x_query))
  for edit, expected in (double, added), (Set(whole), whole):
    copy = edited(model, {'layer.out': edit}, prompt)
    found = np.asarray(copy(prompt)) - np.asarray(prompt.x_query)[:, 0]
    np.testing.assert_allclose(found, np.asarray(expected)[:, 0], atol=1e-5)

  def mistake(value):
    raise ValueError('my own mistake')

  with pytest.raises(ValueError, match='my own mistake') as info:
    edited(model, {'layer.out': mistake}, prompt)
  assert not isinstance(info.value, zoo.UserError)
