"""Direct contributions: against NumPy, and their sums for all mixers and norms."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.probing.models import sample
from tests.settings import isotropic
from tests.weights import drawn
from zoo.probing import Tap, attribution, capture

_D, _C, _W = 3, 4, 8
_TASK = isotropic(_D, _C, prior_mean=0.5)


def _transformer(**arguments):
  return drawn(
    lambda: zoo.models.Transformer(
      _D, _C, num_layers=1, width=_W, rngs=nnx.Rngs(0), **arguments
    ),
    dtype='float32',
  )


def test_contributions_are_those_of_the_equations():
  """LN(Σ parts) read out, with the mean and the scale of the whole sum, in NumPy."""
  model: Any = _transformer()
  prompt = sample(_TASK, jax.random.key(0), 3)
  values = capture(model, prompt)
  parts = [
    np.asarray(values[name], np.float64)[:, -1]
    for name in values
    if name == 'layers.0.tokens' or name.endswith('.out')
  ]
  whole = np.sum(parts, axis=0)
  spread = whole - whole.mean(axis=-1, keepdims=True)
  scale = 1 / np.sqrt(np.square(spread).mean(axis=-1, keepdims=True) + 1e-5)
  norm = np.asarray(model.norm.scale[...], np.float64)
  readout = np.asarray(model.read_out.kernel[...], np.float64)

  def read(part):
    centred = part - part.mean(axis=-1, keepdims=True)
    return ((centred * scale * norm) @ readout)[:, 0]

  found = jax.device_get(attribution(model, prompt))
  heads = np.asarray(values['layers.0.mixer.heads'], np.float64)[:, -1]
  kernel = np.asarray(model.layers[0].mixer.out.kernel[...], np.float64)
  size = heads.shape[-1]
  for head in range(2):
    part = heads[:, head] @ kernel[head * size : (head + 1) * size]
    np.testing.assert_allclose(
      found.contributions['layers.0.mixer.heads'][:, head], read(part), atol=2e-5
    )
  network = np.asarray(values['layers.0.network.out'], np.float64)[:, -1]
  np.testing.assert_allclose(
    found.contributions['layers.0.network.out'], read(network), atol=2e-5
  )


@pytest.mark.parametrize(
  'arguments',
  mostly_full(
    [],
    [
      {'num_loops': 2, 'norm': 'none'},
      *({'mixer': name} for name in zoo.list_mixers()),
    ],
    slow=[{'mixer': 'delta', 'norm': 'rms', 'guess': 'residual', 'num_loops': 2}],
  ),
)
def test_they_sum_to_the_prediction(arguments):
  model, prompt = _transformer(**arguments), sample(_TASK, jax.random.key(0), 3)
  prediction, contributions, rest = attribution(model, prompt)
  total = np.asarray(rest, np.float64)
  for name, part in contributions.items():
    of_heads = name.partition('@')[0].endswith('heads')
    total = total + np.asarray(part, np.float64).sum(axis=1 if of_heads else ())
  # Some tens of terms of float32.
  scale = max(np.abs(part).max() for part in contributions.values())
  np.testing.assert_allclose(total, prediction, atol=1e-5 * max(scale, 1))


def test_a_linear_layer_adds_its_update():
  prompt = sample(_TASK, jax.random.key(0), 3)
  model = drawn(lambda: zoo.models.YqLSA(_D, rngs=nnx.Rngs(0)), dtype='float32')
  found = attribution(model, prompt)
  values = jax.device_get(capture(model, prompt, ['update', 'guess']))
  update = values['update'][:, -1, -1]
  np.testing.assert_allclose(found.contributions['update'], update, rtol=1e-5)
  np.testing.assert_allclose(found.rest, values['guess'], rtol=1e-5)


def test_heads_are_where_the_axes_say():
  class Summed(nnx.Module):
    def __init__(self):
      self.heads_tap = Tap(axes='b h n v', kind='heads')

    def __call__(self, prompt):
      heads = jnp.stack([prompt.x, 2 * prompt.x, 3 * prompt.x], axis=1)
      return self.heads_tap(heads).sum(axis=(1, 2, 3))

  prompt = sample(_TASK, jax.random.key(0), 3)
  found = attribution(Summed(), prompt)
  sums = np.asarray(prompt.x, np.float64).sum(axis=(1, 2))
  expected = sums[:, None] * np.arange(1, 4)
  np.testing.assert_allclose(found.contributions['heads'], expected, atol=1e-5)


class _Through(nnx.Module):
  """Predicts what one tap makes of another one's value, and a feature of the query."""

  def __init__(self, first, name='first'):
    self.first_tap, self.out_tap = Tap(name, 'b h', kind=first), Tap('out', 'b')
    self.out_tap.kind = 'added'
    self.unused_tap = Tap('heads', 'b', kind='added')

  def __call__(self, prompt):
    self.unused_tap(prompt.y[:, 0])
    return self.out_tap(self.first_tap(prompt.y).sum(axis=1)) + prompt.x_query[:, 0]


@pytest.mark.parametrize('name', mostly_full(['first'], ['mixer.heads', 'out.update']))
def test_heads_stand_in_place_of_what_is_added_from_them_whatever_their_names(name):
  prompt = sample(_TASK, jax.random.key(0), 3)
  found = attribution(_Through('heads', name), prompt).contributions
  assert {*found} == {name, 'heads'}
  np.testing.assert_allclose(found[name], prompt.y, rtol=1e-6)
  np.testing.assert_array_equal(found['heads'], np.zeros(3))
  # A value of no kind is part of what is added from it.
  found = attribution(_Through(None, name), prompt).contributions
  assert {*found} == {'out', 'heads'}
  np.testing.assert_allclose(found['out'], prompt.y.sum(axis=1), rtol=1e-5)


class _ShowsStream(_Through):
  """Shows its stream at taps that cannot be edited."""

  def __init__(self):
    super().__init__('heads')
    self.seen_tap = Tap('seen', 'b', kind='stream', is_read_only=True)
    self.pair_tap = Tap('pair', 'b', kind='stream')
    self.loop_tap = Tap('loop', 'b', kind='stream')

  def __call__(self, prompt):
    query = prompt.x_query[:, 0]
    self.seen_tap(query)
    self.pair_tap((query, query))
    jax.lax.fori_loop(0, 2, lambda _, z: self.loop_tap(z), query)
    return super().__call__(prompt)


def test_a_stream_that_cannot_be_edited_does_no_harm():
  prompt = sample(_TASK, jax.random.key(0), 3)
  found = attribution(_ShowsStream(), prompt).contributions
  np.testing.assert_allclose(found['first'], prompt.y, rtol=1e-6)


def test_a_value_that_is_only_read_by_another_is_refused_and_not_0():
  prompt = sample(_TASK, jax.random.key(0), 3)
  with refuses("'first' reaches the prediction only through that at 'out'"):
    attribution(_Through('added'), prompt)
  with refuses('Plain has no tap of the kind heads or added'):
    attribution(Plain(), prompt)


class Plain(nnx.Module):
  """A model whose taps have no kind."""

  def __init__(self):
    self.heads_tap, self.out_tap = Tap(), Tap('mixer.out')

  def __call__(self, prompt):
    return self.out_tap(self.heads_tap(prompt.y)).sum(axis=1)


def test_a_prediction_that_is_no_sum_is_refused():
  class Square(nnx.Module):
    def __init__(self):
      self.out_tap = Tap('network.out', 'b n', kind='added')

    def __call__(self, prompt):
      return self.out_tap(prompt.y).sum(axis=1) ** 2 + 1

  with refuses('the contributions to the prediction of Square miss it'):
    attribution(Square(), sample(_TASK, jax.random.key(0), 3))
