"""Models and tasks that the tests of probing share."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import zoo
from tests.compiled import built
from tests.settings import general, isotropic
from zoo.core.trees import fresh
from zoo.measure.predict import Programs
from zoo.tasks import LinearRegression

PROGRAMS = Programs()  # that tests share, which change nothing that they call


def sample(task, key, num_prompts) -> zoo.Prompt:
  """`task.sample` in one program, which tasks that differ in numbers share."""
  return PROGRAMS.sample(fresh(task), key, num_prompts)


class Softmax(nnx.Module):
  """One head of softmax attention: a model without a learning rule."""

  def __init__(self, num_features: int):
    normal = np.random.default_rng(3).normal(size=(num_features, num_features))
    self.num_features = num_features
    self.w = nnx.Param(jnp.asarray((0.3 * normal).astype('f'), 'float32'))
    self.scores_tap = zoo.probing.Tap()

  def scores(self, prompt):
    scores = jnp.einsum('bcd,de,be->bc', prompt.x, self.w[...], prompt.x_query)
    return self.scores_tap(jax.nn.softmax(scores))

  def __call__(self, prompt):
    return jnp.sum(self.scores(prompt) * prompt.y, axis=1)


def biased(num_heads=2) -> Any:
  """Multi-head LSA of d = 3 in which nothing is 0: random weights, a guess, a bias."""
  return nnx.clone(_biased(num_heads))


@functools.cache
def _biased(num_heads):
  return built(
    lambda: zoo.create_model(
      'multi_head_lsa',
      num_features=3,
      num_heads=num_heads,
      initial_guess=[0.3, -0.5, 1.0],
      initial_bias=0.4,
      init_scale=0.4,
      rngs=nnx.Rngs(5),
    )
  )


def tasks():
  return [
    isotropic(3, 4, prior_mean=0.5),
    isotropic(3, 5, prior_mean=[1.0, -0.5, 0.0], noise_std=0.5),
    general(noise_std=0.7),
  ]


def table(folder, num_rows=40) -> Any:
  """A task of a file of rows, of which a fifth is held out.

  The first feature is the number of the row.
  """
  noise = np.random.default_rng(0).normal(size=(num_rows, 2))
  x = np.column_stack([np.arange(num_rows), noise])
  np.savez(folder / 'table.npz', x=x, y=noise.sum(axis=1))
  path = str(folder / 'table.npz')
  return zoo.create_task('arrays', path=path, context_length=4, standardise='nothing')


def with_heads_in_order(model, layer, order) -> Any:
  """A copy of a transformer whose heads of one layer are in another order."""
  copy: Any = nnx.clone(model)
  mixer = copy.layers[layer].mixer
  size = mixer.out.kernel[...].shape[0] // len(order)
  entries = np.concatenate([np.arange(size) + size * head for head in order])
  for linear in (mixer.query, mixer.key, mixer.value):
    linear.kernel[...] = linear.kernel[...][:, entries]
    if linear.bias is not None:
      linear.bias[...] = linear.bias[...][entries]
  mixer.out.kernel[...] = mixer.out.kernel[...][entries]
  return copy


def assert_within(estimate, exact):
  """The exact value is within four standard errors: one in 16,000 draws is not."""
  assert abs(estimate.mean - exact) <= 4 * estimate.stderr, (estimate, exact)


def keep(monkeypatch, method, *names):
  """Keeps some `shifts` or `baselines`; compiling takes most of the time of each."""
  every = getattr(LinearRegression, method)

  def kept(task):
    return {name: entry for name, entry in every(task).items() if name in names}

  monkeypatch.setattr(LinearRegression, method, kept)


_SHARP = 60.0  # so that a softmax over the tokens leaves e⁻⁶⁰ to each of the others


@functools.cache
def induction_share(prompt) -> float:
  """The induction head's attention on the tokens after the earlier same ones.

  The first token also counts as one that follows itself, for queries with its key.
  """
  keys = np.asarray(prompt.features.argmax(axis=-1))
  shares = [
    seen / (seen + (row[i] == row[0]))
    for row in keys
    for i in range(1, len(row))
    if (seen := int((row[:i] == row[i]).sum()))
  ]
  return float(np.mean(shares))


def recall(num_keys=8, num_examples=8) -> Any:
  """The task that the model of `induction` solves."""
  sizes = {'num_keys': num_keys, 'num_values': num_keys, 'num_pairs': num_keys}
  return zoo.create_task('associative_recall', context_length=num_examples, **sizes)


@functools.cache
def induction(num_keys=8, num_examples=8):
  """A previous-token head and an induction head, whose second heads do nothing.

  A token has its content, that of the token before it, what the model answers, and its
  position, one-hot: the first four blocks of the width. A test that changes the model
  takes a copy.
  """
  task = recall(num_keys, num_examples)
  m, n = 2 * num_keys, 2 * num_examples + 1  # entries of a content, tokens
  head_size = max(3 * m, n)
  width = 2 * head_size
  model: Any = built(
    lambda: zoo.models.Transformer(
      num_keys,
      num_examples,
      num_outputs=num_keys,
      num_layers=2,
      num_heads=2,
      width=width,
      feed_forward='none',
      norm='none',
      rngs=nnx.Rngs(0),
    )
  )
  content, before, answer = (np.arange(m) + i * m for i in range(3))
  position = 3 * m + np.arange(n)
  model.read_in.kernel[...] = one_hot_map((m, width), np.arange(m), content)
  model.positions[...] = one_hot_map((n, width), np.arange(n), position)
  model.read_out.kernel[...] = 20 * one_hot_map(
    (width, num_keys), answer[num_keys:], np.arange(num_keys)
  )
  first, second = (layer.mixer for layer in model.layers)
  scale, square = _SHARP * head_size**0.5, (width, width)
  # Token t asks for the position t − 1.
  first.query.kernel[...] = scale * one_hot_map(square, position[1:], np.arange(n - 1))
  first.key.kernel[...] = one_hot_map(square, position[:-1], np.arange(n - 1))
  first.value.kernel[...] = one_hot_map(square, content, np.arange(m))
  first.out.kernel[...] = one_hot_map(square, np.arange(m), before)
  second.query.kernel[...] = scale * one_hot_map(square, content, np.arange(m))
  second.key.kernel[...] = one_hot_map(square, before, np.arange(m))
  second.value.kernel[...] = one_hot_map(square, content, np.arange(m))
  second.out.kernel[...] = one_hot_map(square, np.arange(m), answer)
  return model, task


def one_hot_map(shape, rows, columns):
  matrix = np.zeros(shape, np.float32)
  matrix[rows, columns] = 1
  return jnp.asarray(matrix)


TASK = isotropic(3, 4, prior_mean=0.5)
