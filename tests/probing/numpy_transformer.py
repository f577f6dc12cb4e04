"""A forward pass of a small transformer, written a second time in NumPy, in float64."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from flax import nnx

import zoo
from tests.settings import isotropic
from tests.weights import double, drawn, promoting_float64

HEADS, SIZE = 2, 3


@functools.cache
def setting():
  """A model of two layers in double precision, with a pair of prompts."""
  task = isotropic(2, 3)
  with promoting_float64():
    model: Any = drawn(
      lambda: zoo.models.Transformer(
        2,
        3,
        num_layers=2,
        num_heads=HEADS,
        width=HEADS * SIZE,
        feed_forward='linear',
        norm='rms',
        rngs=nnx.Rngs(0),
      )
    )
  clean = task.sample(jax.random.key(0), 240)
  corrupt = task.redraw(jax.random.key(1), clean, 'inputs')
  double_of = functools.partial(jax.tree.map, lambda array: np.asarray(array, float))
  clean, corrupt = double_of(clean), double_of(corrupt)
  with promoting_float64():
    # Labels that the model predicts, so that corrupt prompts have the larger loss.
    labels = np.asarray(nnx.jit(lambda model, prompt: model(prompt))(model, clean))
  return model, task, dataclasses.replace(clean, y_query=labels), corrupt


def linear(layer, inputs):
  kernel, bias = double(layer)
  return inputs @ kernel + bias


def normed(norm, stream):
  square = np.square(stream).mean(axis=-1, keepdims=True)
  return stream / np.sqrt(square + 1e-6) * np.asarray(norm.scale[...])


def embedded(model, prompt):
  b, c, d = prompt.x.shape
  tokens = np.zeros((b, 2 * c + 1, d + 1))
  tokens[:, ::2, :d] = np.concatenate([prompt.x, prompt.x_query[:, None]], axis=1)
  tokens[:, 1::2, d] = prompt.y
  return linear(model.read_in, tokens) + np.asarray(model.positions[...])


def projected(layer, name, stream):
  """Queries, keys or values `[b, n, h, s]` of a stream."""
  outputs = linear(getattr(layer.mixer, name), normed(layer.norm_1, stream))
  return outputs.reshape(*outputs.shape[:2], HEADS, SIZE)


def attended(query, key, value):
  scores = np.einsum('bqhs,bkhs->bhqk', query, key) / SIZE**0.5
  scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  return np.einsum('bhqk,bkhs->bqhs', weights, value)


def after(layer, stream, heads):
  """The stream after a layer whose heads read this."""
  stream = stream + linear(layer.mixer.out, heads.reshape(*heads.shape[:2], -1))
  hidden = linear(layer.feed_forward.up, normed(layer.norm_2, stream))
  return stream + linear(layer.feed_forward.out, hidden)


def parts(layer, stream):
  return {name: projected(layer, name, stream) for name in ('query', 'key', 'value')}
