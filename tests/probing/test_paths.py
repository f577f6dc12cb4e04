"""Paths from head to head, beside a forward pass in NumPy."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.settings import isotropic
from tests.weights import double, drawn, promoting_float64
from zoo import probing
from zoo.probing import Node

# Shares are None only where a test says so.
path_effect: Any = probing.path_effect

_HEADS, _SIZE = 2, 3


@functools.cache
def _setting() -> Any:
  """A model of two layers in double precision, with a pair of prompts."""
  task = isotropic(2, 3)
  with promoting_float64():
    model = drawn(
      lambda: zoo.models.Transformer(
        2,
        3,
        num_layers=2,
        num_heads=_HEADS,
        width=_HEADS * _SIZE,
        feed_forward='linear',
        norm='rms',
        rngs=nnx.Rngs(0),
      )
    )
  clean = task.sample(jax.random.key(0), 24)
  corrupt = task.redraw(jax.random.key(1), clean, 'inputs')
  double_of = functools.partial(jax.tree.map, lambda array: np.asarray(array, float))
  clean, corrupt = double_of(clean), double_of(corrupt)
  with promoting_float64():
    # Labels that the model predicts, so that corrupt prompts have the larger loss.
    labels = np.asarray(nnx.jit(lambda model, prompt: model(prompt))(model, clean))
  return model, task, dataclasses.replace(clean, y_query=labels), corrupt


def _linear(layer, inputs):
  kernel, bias = double(layer)
  return inputs @ kernel + bias


def _normed(norm, stream):
  square = np.square(stream).mean(axis=-1, keepdims=True)
  return stream / np.sqrt(square + 1e-6) * np.asarray(norm.scale[...])


def _embedded(model, prompt):
  b, c, d = prompt.x.shape
  tokens = np.zeros((b, 2 * c + 1, d + 1))
  tokens[:, ::2, :d] = np.concatenate([prompt.x, prompt.x_query[:, None]], axis=1)
  tokens[:, 1::2, d] = prompt.y
  return _linear(model.read_in, tokens) + np.asarray(model.positions[...])


def _projected(layer, name, stream):
  """Queries, keys or values `[b, n, h, s]` of a stream."""
  outputs = _linear(getattr(layer.mixer, name), _normed(layer.norm_1, stream))
  return outputs.reshape(*outputs.shape[:2], _HEADS, _SIZE)


def _attended(query, key, value):
  scores = np.einsum('bqhs,bkhs->bhqk', query, key) / _SIZE**0.5
  scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  return np.einsum('bhqk,bkhs->bqhs', weights, value)


def _after(layer, stream, heads):
  """The stream after a layer whose heads read this."""
  stream = stream + _linear(layer.mixer.out, heads.reshape(*heads.shape[:2], -1))
  hidden = _linear(layer.feed_forward.up, _normed(layer.norm_2, stream))
  return stream + _linear(layer.feed_forward.out, hidden)


def _parts(layer, stream):
  return {name: _projected(layer, name, stream) for name in ('query', 'key', 'value')}


def _losses(model, prompt, changed):
  """The losses after a change of the second layer's queries, keys and values."""
  first, second = model.layers
  stream = _embedded(model, prompt)
  stream = _after(first, stream, _attended(**_parts(first, stream)))
  parts = changed(_parts(second, stream), stream)
  stream = _after(second, stream, _attended(**parts))
  outputs = _linear(model.read_out, _normed(model.norm, stream))[:, -1, 0]
  return np.square(outputs - _setting()[2].y_query)


def _expected(name, sender, receiver):
  """The share by equations; sender and receiver are (head, token), None is all."""
  model, _, clean, corrupt = _setting()
  first, second = model.layers
  heads = [
    _attended(**_parts(first, _embedded(model, prompt))) for prompt in (clean, corrupt)
  ]

  def mask(head, token):
    chosen = np.zeros(heads[0].shape[1:3], bool)
    rows = slice(None) if token is None else token
    chosen[rows, slice(None) if head is None else head] = True
    return chosen[None, :, :, None]

  change = np.where(mask(*sender), heads[0] - heads[1], 0)
  moved = change.reshape(*change.shape[:2], -1) @ double(first.mixer.out)[0]

  def changed(parts, stream):
    new = _projected(second, name, stream + moved)
    return parts | {name: np.where(mask(*receiver), new, parts[name])}

  before = _losses(model, clean, lambda parts, stream: parts)
  after = _losses(model, corrupt, lambda parts, stream: parts)
  patched = _losses(model, corrupt, changed)
  return (after - patched).mean() / (after - before).mean()


@pytest.mark.parametrize(
  ('name', 'sender', 'receiver'),
  [
    ('query', (1, None), (0, None)),
    ('key', (1, None), (0, None)),
    ('value', (1, None), (0, None)),
    ('key', (0, -2), (1, -2)),
    ('value', (None, None), (1, None)),
  ],
)
def test_the_path_from_a_head_to_the_inputs_of_another_is_that_of_numpy(
  name, sender, receiver
):
  model, task, clean, corrupt = _setting()
  nodes = (
    Node('layers.0.mixer.heads', *sender),
    Node(f'layers.1.mixer.{name}', *receiver),
  )
  with promoting_float64():
    share = path_effect(model, task, clean, corrupt, *nodes)
  expected = _expected(name, sender, receiver)
  assert abs(expected) > 1e-5  # a share of 0 would say nothing
  # Losses are differences of sums of some hundred products in float64.
  assert share.mean == pytest.approx(expected, rel=1e-9)


def test_nodes_that_are_not_there_are_refused():
  model, task, clean, corrupt = _setting()
  effect = functools.partial(path_effect, model, task, clean, corrupt)
  heads, key = Node('layers.0.mixer.heads'), Node('layers.1.mixer.key')
  with promoting_float64():
    with refuses('the head is 2 at the site', 'from 0 to 1'):
      effect(heads._replace(head=2), key)
    with refuses('the token is -8 at the site', 'from -7 to 6'):
      effect(heads, key._replace(token=-8))
    with refuses("'layers.1.tokens' has no axis of heads", 'axes are b n w'):
      effect(heads, Node('layers.1.tokens', head=0))
    with refuses("unknown site 'layers.0.mixer.hats'"):
      effect('layers.0.mixer.hats', key)
    # The residual stream keeps tokens apart.
    with refuses('layers.1.mixer.key, token 1', 'does not depend on', 'token 2'):
      effect(heads._replace(token=2), key._replace(token=1))
