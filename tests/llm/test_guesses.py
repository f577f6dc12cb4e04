"""Guess models against NumPy, and what is done to their guesses."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from tests.compare import refuses
from tests.llm.pairs import small_config
from zoo.llm.benchmarks import Benchmark, Example
from zoo.llm.guesses import GuessNetwork, Scale, make_guesses

WIDTH = 4


@pytest.fixture(autouse=True)
def standard_promotion():
  """Optax raises a float to an int32 array, which strict promotion refuses."""
  jax.config.update('jax_numpy_dtype_promotion', 'standard')
  yield
  jax.config.update('jax_numpy_dtype_promotion', 'strict')


def embed(texts):
  """Vectors of norm 1 that the texts spell out."""
  vectors = np.array([[float(x) for x in text.split()] for text in texts], np.float32)
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def labels_of(data) -> Any:
  return [example.label for example in data.splits['train']]


def benchmark(labels, num_texts=2, classes=()):
  rng = np.random.default_rng(0)
  splits = {}
  for split, size in {'train': 200, 'test': 40}.items():
    splits[split] = []
    for _ in range(size):
      vectors = rng.normal(size=(num_texts, WIDTH))
      texts = tuple(' '.join(map(str, vector)) for vector in vectors)
      splits[split].append(Example(texts, labels(vectors)))
  return Benchmark(splits, classes, 'sum')


def score(vectors):
  one, other = (vector / np.linalg.norm(vector) for vector in vectors)
  return float(np.clip(2.5 + 2 * one @ other + one[0], 0, 5))


NUMBERS = Scale(0.0, 5.0)
CLASSES = Scale(0.0, 0.0, ('minus', 'plus'))


def guessed(data, scale=NUMBERS, seed=0, **fields) -> Any:
  config = small_config(**{f'guess__{name}': value for name, value in fields.items()})
  return make_guesses(config.guess, data, scale, embed, seed)


def test_the_line_in_the_cosine_is_that_of_polyfit():
  data = benchmark(score)
  cosines = {
    split: np.array([np.prod(embed(e.texts), axis=0).sum() for e in examples])
    for split, examples in data.splits.items()
  }
  line = np.polyfit(cosines['train'], labels_of(data), 1)
  expected = np.clip(np.polyval(line, cosines['test']), 0, 5)
  # Two decimals are kept of each guess.
  np.testing.assert_allclose(
    guessed(data, model='cosine')['test'], expected, atol=0.005001
  )


def test_the_network_is_trained_as_in_appendix_c3():
  """Linear(16), ReLU, Linear(1), squares and Adam 1e-3 in batches of 8, in NumPy."""
  data = benchmark(score)
  num_epochs = 3
  x, y = {}, np.array(labels_of(data))[:, None]
  for split, examples in data.splits.items():
    x[split] = np.array([np.concatenate(embed(e.texts)) for e in examples], np.float64)
  init_key, *epoch_keys = jax.random.split(jax.random.key(5), 1 + num_epochs)
  network: Any = GuessNetwork(2 * WIDTH, 1, nnx.Rngs(init_key))
  weights = [
    np.asarray(array[...], np.float64)
    for layer in (network.hidden, network.output)
    for array in (layer.kernel, layer.bias)
  ]
  assert [w.shape for w in weights] == [(2 * WIDTH, 16), (16,), (16, 1), (1,)]
  first, second = ([np.zeros_like(w) for w in weights] for _ in range(2))
  step = 0
  for key in epoch_keys:
    order = np.asarray(jax.random.permutation(key, len(y)))
    for rows in order.reshape(-1, 8):
      step += 1
      inner = x['train'][rows] @ weights[0] + weights[1]
      hidden = np.maximum(inner, 0)
      slope = 2 * (hidden @ weights[2] + weights[3] - y[rows]) / 8
      back = (slope @ weights[2].T) * (inner > 0)
      grads = [x['train'][rows].T @ back, back.sum(0), hidden.T @ slope, slope.sum(0)]
      for i, grad in enumerate(grads):
        first[i] = 0.9 * first[i] + 0.1 * grad
        second[i] = 0.999 * second[i] + 0.001 * grad**2
        scale = np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8
        weights[i] = weights[i] - 1e-3 * first[i] / (1 - 0.9**step) / scale
  guesses = guessed(data, model='network', num_epochs=num_epochs, seed=5)
  for split, features in x.items():
    outputs = np.maximum(features @ weights[0] + weights[1], 0) @ weights[2]
    expected = np.clip(outputs + weights[3], 0, 5)[:, 0]
    # Two decimals are kept, and float32 is off by less than 1e-4 after 75 steps.
    np.testing.assert_allclose(guesses[split], expected, atol=0.0051)


def test_constant_shuffled_and_biased():
  data = benchmark(score)
  mean = round(float(np.mean(labels_of(data))), 2)
  assert set(guessed(data, model='constant')['test']) == {mean}
  plain = guessed(data, model='cosine')
  shuffled = guessed(data, model='cosine', shuffled=True)
  for split in plain:
    assert shuffled[split] != plain[split]
    assert sorted(shuffled[split]) == sorted(plain[split])
  biased = guessed(data, model='cosine', bias=-1.0)
  expected = np.clip(np.array(plain['test']) - 1, 0, 5)
  # Of a guess that was cut at 5 the whole is lower.
  inside = np.array(plain['test']) < 5
  np.testing.assert_allclose(
    np.array(biased['test'])[inside], expected[inside], atol=0.011
  )
  assert min(biased['test']) >= 0


def test_classes():
  data = benchmark(
    lambda vectors: 'plus' if vectors[0][0] > 0 else 'minus', 1, CLASSES.classes
  )
  right = [e.label for e in data.splits['test']]
  guesses = guessed(data, CLASSES, model='network', num_epochs=60)['test']
  assert np.mean([g == r for g, r in zip(guesses, right, strict=True)]) > 0.85
  frequent = max(CLASSES.classes, key=labels_of(data).count)
  assert set(guessed(data, CLASSES, model='constant')['test']) == {frequent}
  with refuses("'cosine'", 'has 1 per example', 'network or constant'):
    guessed(data, CLASSES, model='cosine')
  with refuses('config.guess.bias is 1', 'classes'):
    guessed(data, CLASSES, model='constant', bias=1.0)


def test_losses_and_middles():
  assert NUMBERS.loss(3.0, 4.5) == 2.25
  assert (CLASSES.loss('plus', 'plus'), CLASSES.loss('plus', 'minus')) == (0.0, 1.0)
  assert NUMBERS.middle([1.0, 2.0, 4.5]) == 2.5
  assert CLASSES.middle(['plus', 'minus', 'plus']) == 'plus'
  assert CLASSES.middle(['plus', 'minus']) == 'minus'
  assert NUMBERS.same(3.4, 3.40)
  assert not NUMBERS.same(3.4, 3.41)
