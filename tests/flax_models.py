"""Small models in the forms that the guides of Flax NNX show, in ordinary classes.

What Flax's own loop trains must train here, or be refused before anything is written.
`FORMS` has the models that train, and `REFUSED` those that do not, with words of the
reason. Each is a read-in, a hidden layer in one of the forms, and a read-out.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

import zoo

WIDTH = 8

FORMS: dict[str, type] = {}
REFUSED: dict[str, tuple[type, str, str]] = {}


class Base(nnx.Module):
  """Reads a summary of the prompt in, applies `hidden`, and reads a prediction out."""

  def __init__(self, num_features: int, *, rngs: nnx.Rngs):
    self.read_in = nnx.Linear(2 * num_features, WIDTH, rngs=rngs)
    self.read_out = nnx.Linear(WIDTH, 1, rngs=rngs)
    self.build(rngs)

  def build(self, rngs: nnx.Rngs) -> None:
    """Makes the hidden layer."""

  def hidden(self, h: Array) -> Array:
    """The hidden layer, from `[b, WIDTH]` to the same shape."""
    return h

  def __call__(self, prompt: zoo.Prompt) -> Array:
    moved = jnp.sum(prompt.x * prompt.y[..., None], axis=1) / 4.0
    h = nnx.tanh(self.read_in(jnp.concatenate([moved, prompt.x_query], axis=-1)))
    return self.read_out(self.hidden(h))[:, 0]


def trains(cls: type) -> type:
  """Enters a class among the models that train."""
  FORMS[cls.__name__] = cls
  return cls


def refused(reason: str, *, by: str = 'check') -> Any:
  """Enters a class among the models that are refused.

  Args:
    reason: Words of the message.
    by: Which function refuses it besides training: `check`, for `zoo.check_model`, or
      `save`, for `zoo.save`.
  """

  def enter(cls: type) -> type:
    REFUSED[cls.__name__] = cls, reason, by
    return cls

  return enter


def register_all(register: Any) -> None:
  """Enters all models by a decorator such as `zoo.register_model`, by their names."""
  for name, cls in (
    FORMS | {name: cls for name, (cls, _, _) in REFUSED.items()}
  ).items():
    register(name)(cls)


class Block(nnx.Module):
  """A residual layer."""

  def __init__(self, rngs: nnx.Rngs, **options: Any):
    self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs, **options)

  def __call__(self, h: Array) -> Array:
    return h + nnx.tanh(self.linear(h))


@trains
class Plain(Base):
  def build(self, rngs):
    self.block = Block(rngs)

  def hidden(self, h):
    return self.block(h)


# Transforms in `__call__`.


@trains
class Remat(Base):
  def build(self, rngs):
    self.block = Block(rngs)

  def hidden(self, h):
    return nnx.remat(lambda block, h: block(h))(self.block, h)


@trains
class Jit(Base):
  def build(self, rngs):
    self.block = Block(rngs)

  def hidden(self, h):
    return nnx.jit(lambda block, h: block(h))(self.block, h)


@trains
class Scan(Base):
  def build(self, rngs):
    @nnx.split_rngs(splits=2)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs: nnx.Rngs):
      return Block(rngs)

    self.blocks = make(rngs)

  def hidden(self, h):
    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def forward(block, h):
      return block(h)

    return forward(self.blocks, h)


@trains
class Vmap(Base):
  def build(self, rngs):
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs: nnx.Rngs):
      return Block(rngs)

    self.ensemble = make(rngs)

  def hidden(self, h):
    outputs = nnx.vmap(lambda block, h: block(h), in_axes=(0, None))(self.ensemble, h)
    return jnp.mean(outputs, axis=0)


@trains
class Cond(Base):
  def build(self, rngs):
    self.block, self.other = Block(rngs), Block(rngs)

  def hidden(self, h):
    return nnx.cond(
      jnp.sum(self.read_out.kernel[...]) < 100.0,
      lambda one, other, h: one(h),
      lambda one, other, h: other(h),
      self.block,
      self.other,
      h,
    )


@trains
class RematOfLayers(Base):
  """The layers are rematerialised by a decorator, as large models do."""

  def build(self, rngs):
    self.layers = nnx.List([Block(rngs) for _ in range(2)])

  def hidden(self, h):
    @functools.partial(nnx.remat, static_argnums=())
    def forward(layer, h):
      return layer(h)

    for layer in self.layers:
      h = forward(layer, h)
    return h


# Kinds of variables.


class Fixed(nnx.Variable):
  """An array that is not trained."""


@trains
class OwnVariable(Base):
  def build(self, rngs):
    self.projection = Fixed(jax.random.normal(rngs.params(), (WIDTH, WIDTH)))

  def hidden(self, h):
    return nnx.tanh(h @ self.projection[...])


@trains
class Statistics(Base):
  """Batch normalisation by averages, as after training."""

  def build(self, rngs):
    self.norm = nnx.BatchNorm(WIDTH, use_running_average=True, rngs=rngs)

  def hidden(self, h):
    return self.norm(h)


@trains
class Untrained(Base):
  """All kinds of arrays that are not trained."""

  def build(self, rngs):
    self.projection = Fixed(jax.random.normal(rngs.params(), (WIDTH, WIDTH)))
    self.norm = nnx.BatchNorm(WIDTH, use_running_average=True, rngs=rngs)
    self.scale, self.rngs = 1 / jnp.sqrt(float(WIDTH)), rngs

  def hidden(self, h):
    return self.norm(nnx.tanh(h @ self.projection[...])) * self.scale


@trains
class OtherTypes(Base):
  """Weights in bfloat16, and a mask of truth values."""

  def build(self, rngs):
    self.block = Block(rngs, param_dtype=jnp.bfloat16)
    self.mask = Fixed(jnp.arange(WIDTH) % 2 == 0)

  def hidden(self, h):
    return jnp.where(self.mask[...], self.block(h).astype(jnp.float32), h)


# Shared weights.


@trains
class Tied(Base):
  """One kernel at two attributes, once transposed."""

  def build(self, rngs):
    self.read, self.write = Block(rngs), Block(rngs)
    self.write.linear.kernel = self.read.linear.kernel

  def hidden(self, h):
    return self.write(self.read(h))


@trains
class SharedLayer(Base):
  """One layer at two attributes."""

  def build(self, rngs):
    self.first = Block(rngs)
    self.second = self.first

  def hidden(self, h):
    return self.second(self.first(h))


# Random keys.


@trains
class KeepsRngs(Base):
  def build(self, rngs):
    self.rngs, self.block = rngs, Block(rngs)

  def hidden(self, h):
    return self.block(h)


@trains
class DefaultStream(Base):
  """Draws from the default stream, and from one of its own."""

  def build(self, rngs):
    self.start = nnx.Param(jax.random.normal(rngs(), (WIDTH,)))
    self.code = Fixed(jax.random.normal(rngs.codes(), (WIDTH,)))

  def hidden(self, h):
    return h * self.start[...][None] + self.code[...][None]


@trains
class DropoutOff(Base):
  def build(self, rngs):
    self.block = Block(rngs)
    self.dropout = nnx.Dropout(0.5, deterministic=True, rngs=rngs)

  def hidden(self, h):
    return self.dropout(self.block(h))


@trains
class ZeroDropout(Base):
  """A rate of 0, as a config would have it, which draws nothing."""

  def build(self, rngs):
    self.dropout = nnx.Dropout(0.0, rngs=rngs)

  def hidden(self, h):
    return self.dropout(h)


# Arrays that are plain attributes.


@trains
class PlainArray(Base):
  """A number, and a mask of attention that is -inf where nothing is seen."""

  def build(self, rngs):
    self.scale = 1 / jnp.sqrt(float(WIDTH))
    self.mask = jnp.where(jnp.arange(WIDTH) < WIDTH - 2, 0.0, -jnp.inf)

  def hidden(self, h):
    return h * self.scale * nnx.softmax(h + self.mask[None])


@trains
class NumPyMask(Base):
  def build(self, rngs):
    self.mask = np.tril(np.ones((WIDTH, WIDTH), np.float32))

  def hidden(self, h):
    return h @ self.mask


@trains
class PlainKey(Base):
  """A random key as a plain attribute, from which the call draws the same each time."""

  def build(self, rngs):
    self.key = rngs.params()

  def hidden(self, h):
    return h + 0.1 * jax.random.normal(self.key, (1, WIDTH))


# Layers of Flax that keep keys, scan, or share.


@trains
class Attended(Base):
  def build(self, rngs):
    self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
    self.norm = nnx.GroupNorm(WIDTH, num_groups=2, rngs=rngs)

  def hidden(self, h):
    return self.norm(h + self.attention(h[:, None])[:, 0])


@trains
class Adapted(Base):
  def build(self, rngs):
    self.layer = nnx.LoRALinear(WIDTH, WIDTH, lora_rank=2, rngs=rngs)

  def hidden(self, h):
    return self.layer(h)


@trains
class Recurrent(Base):
  """Flax draws a key for the first carry at each call, which is 0 for every key."""

  def build(self, rngs):
    self.rnn = nnx.RNN(nnx.LSTMCell(WIDTH, WIDTH, rngs=rngs))

  def hidden(self, h):
    outputs: Any = self.rnn(jnp.stack([h, nnx.relu(h)], axis=1))
    return outputs[:, -1]


# Containers.


@trains
class Nested(Base):
  def build(self, rngs):
    self.parts = nnx.Dict(
      a=nnx.List([Block(rngs), nnx.Dict(b=Block(rngs))]),
      c=nnx.Sequential(Block(rngs), nnx.tanh),
    )

  def hidden(self, h):
    parts: Any = self.parts
    return parts['c'](parts['a'][1]['b'](parts['a'][0](h)))


# What cannot be trained, and is said to be so.


@refused('dropout')
class DropoutOn(Base):
  def build(self, rngs):
    self.dropout = nnx.Dropout(0.5, rngs=rngs)

  def hidden(self, h):
    return self.dropout(h)


@refused('dropout')
class RandomCarry(Base):
  """A recurrence whose first carry is another one at each call."""

  def build(self, rngs):
    self.rnn, self.rngs = nnx.RNN(nnx.GRUCell(WIDTH, WIDTH, rngs=rngs)), rngs

  def hidden(self, h):
    carry = 0.1 * jax.random.normal(self.rngs.carry(), h.shape)
    outputs: Any = self.rnn(h[:, None], initial_carry=carry)
    return outputs[:, -1]


@refused('batch statistics')
class StatisticsOn(Base):
  def build(self, rngs):
    self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)

  def hidden(self, h):
    return self.norm(h)


@refused('counter')
class Counter(Base):
  def build(self, rngs):
    self.count = Fixed(jnp.zeros(()))

  def hidden(self, h):
    self.count[...] += 1.0
    return h


@refused('layer.layer_instance.kernel')
class NormalisedWeights(Base):
  """Weight normalisation of Flax itself, which normalises the kernel in place."""

  def build(self, rngs):
    self.layer = nnx.WeightNorm(nnx.Linear(WIDTH, WIDTH, rngs=rngs), rngs=rngs)

  def hidden(self, h):
    return self.layer(h)


@refused('same name', by='save')
class SameNames(Base):
  """Two arrays whose paths are the same text once joined by dots."""

  def build(self, rngs):
    self.parts = nnx.Dict({'a': nnx.Dict(b=nnx.Param(jnp.ones(WIDTH)))})
    setattr(self.parts, 'a.b', nnx.Param(2 * jnp.ones(WIDTH)))

  def hidden(self, h):
    return h * self.parts['a']['b'][...] - getattr(self.parts, 'a.b')[...]


@refused('cannot be saved', by='save')
class FourBits(Base):
  """An array of a type that Orbax does not write."""

  def build(self, rngs):
    self.mask = Fixed(jnp.ones(WIDTH, jnp.uint4))

  def hidden(self, h):
    return h * self.mask[...].astype(jnp.float32)


@refused('cannot be saved', by='save')
class Empty(Base):
  """An array without entries, as of a layer of the width 0."""

  def build(self, rngs):
    self.none = nnx.Param(jnp.zeros((0, WIDTH)))

  def hidden(self, h):
    return h + jnp.sum(self.none[...])
