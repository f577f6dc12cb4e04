"""Guess models against NumPy, and what is done to their guesses."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from studies.llm.benchmarks import Benchmark, Example
from studies.llm.config import check_fit
from studies.llm.guesses import LabelScale, guess_network, make_guesses
from tests.compare import refuses
from tests.llm.pairs import small_config

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')

WIDTH = 4


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
  first, second = (vector / np.linalg.norm(vector) for vector in vectors)
  return float(np.clip(2.5 + 2 * first @ second + first[0], 0, 5))


NUMBERS = LabelScale(0.0, 5.0)
CLASSES = LabelScale(0.0, 0.0, ('minus', 'plus'))


def guessed(data, scale=NUMBERS, seed=0, **fields) -> Any:
  config = small_config(**{f'guess__{name}': value for name, value in fields.items()})
  examples = itertools.chain(*data.splits.values())
  texts = [text for example in examples for text in example.texts]
  vectors = dict(zip(texts, embed(texts), strict=True))
  return make_guesses(config.guess, data, scale, vectors, seed)


def lines(data, targets):
  """The least-squares lines in the cosine for all targets, in the test split."""
  train, test = (
    np.array([np.prod(embed(e.texts), axis=0).sum() for e in data.splits[split]])
    for split in ('train', 'test')
  )
  return np.array([np.polyval(np.polyfit(train, y, 1), test) for y in targets])


def test_the_line_in_the_cosine_is_that_of_polyfit():
  data = benchmark(score)
  (expected,) = lines(data, [labels_of(data)]).clip(0, 5)
  # Two decimals are kept of each guess.
  np.testing.assert_allclose(
    guessed(data, model='cosine')['test'], expected, atol=0.005001
  )


def trained(data, y, seed):
  """The outputs of Linear(16), ReLU and Linear by split, trained in NumPy.

  By Adam 1e-3 in batches of 8: on the mean square for one output, and otherwise on the
  cross-entropy of a softmax.
  """
  x = {
    split: np.array([np.concatenate(embed(e.texts)) for e in examples], np.float64)
    for split, examples in data.splits.items()
  }
  init_key, *epoch_keys = jax.random.split(jax.random.key(seed), 1 + 10)
  network: Any = guess_network(x['train'].shape[1], y.shape[1], nnx.Rngs(init_key))
  weights = [
    np.asarray(array[...], np.float64)
    for layer in (network.layers[0], network.layers[2])
    for array in (layer.kernel, layer.bias)
  ]
  assert [w.shape[-1] for w in weights] == [16, 16, y.shape[1], y.shape[1]]
  first, second = ([np.zeros_like(w) for w in weights] for _ in range(2))

  def forward(x):
    inner = x @ weights[0] + weights[1]
    outputs = np.maximum(inner, 0) @ weights[2] + weights[3]
    if y.shape[1] == 1:
      return inner, outputs
    return inner, np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)

  orders = [np.asarray(jax.random.permutation(key, len(y))) for key in epoch_keys]
  batches = np.concatenate(orders).reshape(-1, 8)
  for step, rows in enumerate(batches, start=1):
    inner, outputs = forward(x['train'][rows])
    # Of the square, or of the cross-entropy in the logits.
    slope = (1 + (y.shape[1] == 1)) * (outputs - y[rows]) / 8
    back = (slope @ weights[2].T) * (inner > 0)
    hidden = np.maximum(inner, 0)
    grads = [x['train'][rows].T @ back, back.sum(0), hidden.T @ slope, slope.sum(0)]
    for i, grad in enumerate(grads):
      first[i] = 0.9 * first[i] + 0.1 * grad
      second[i] = 0.999 * second[i] + 0.001 * grad**2
      scale = np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8
      weights[i] = weights[i] - 1e-3 * first[i] / (1 - 0.9**step) / scale
  return {split: forward(features)[1] for split, features in x.items()}


@pytest.mark.slow
def test_the_network_is_trained_as_in_appendix_c3():
  data = benchmark(score)
  expected = trained(data, np.array(labels_of(data))[:, None], 5)
  guesses = guessed(data, model='network', seed=5)
  for split, outputs in expected.items():
    # Two decimals are kept, and float32 is off by less than 1e-4 after 250 steps.
    np.testing.assert_allclose(
      guesses[split], np.clip(outputs[:, 0], 0, 5), atol=0.0051
    )


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


def test_guesses_that_do_not_fit_classes_are_refused():
  data = benchmark(
    lambda vectors: 'plus' if vectors[0][0] > 0 else 'minus', 1, CLASSES.classes
  )

  def check(**fields):
    guess = {f'guess__{name}': value for name, value in fields.items()}
    check_fit(small_config('own_benchmark', **guess), data)

  with refuses("'cosine'", 'has 1 per example', 'network, cosine, constant'):
    check(model='cosine')
  with refuses('config.guess.bias is 1', 'classes'):
    check(model='constant', bias=1.0)
  with refuses('config.guess.noise is 1.5', 'at most 1'):
    check(model='oracle', noise=1.5)


def three(vectors):
  """A class that the first entries of two vectors decide."""
  return 'abc'[int(vectors[0][0] > 0) + int(vectors[1][0] > 0)]


ABC = LabelScale(0.0, 0.0, ('a', 'b', 'c'))


@pytest.mark.slow
def test_a_network_of_classes_is_trained_on_the_cross_entropy():
  data = benchmark(three, classes=ABC.classes)
  y = np.eye(3)[['abc'.index(label) for label in labels_of(data)]]
  expected = trained(data, y, 5)
  guesses = guessed(data, ABC, model='network', seed=5)
  for split, p in expected.items():
    # float32 is off by 1e-5 after 250 steps, which decides only between equals.
    *_, second, first = np.sort(p, axis=1).T
    clear = first - second > 1e-4
    assert clear.mean() > 0.9
    chosen = np.array(guesses[split])[clear]
    assert chosen.tolist() == ['abc'[i] for i in p[clear].argmax(axis=1)]


def test_the_other_guesses_of_classes():
  data = benchmark(three, classes=ABC.classes)
  constant = guessed(data, ABC, model='constant')
  assert set(constant['test']) == {max('abc', key=labels_of(data).count)}
  # The lines are fitted one by one.
  targets = [[label == name for label in labels_of(data)] for name in ABC.classes]
  expected = lines(data, targets).argmax(axis=0)
  guesses = guessed(data, ABC, model='cosine')['test']
  assert guesses == ['abc'[i] for i in expected]
  shuffled = guessed(data, ABC, model='cosine', shuffled=True)['test']
  assert sorted(shuffled) == sorted(guesses)


def test_the_oracle_has_the_noise_that_is_asked_for():
  data = benchmark(score)
  label = {s: np.array([e.label for e in data.splits[s]]) for s in data.splits}
  exact = guessed(data, model='oracle')
  noisy, twice = (guessed(data, model='oracle', noise=size) for size in (0.4, 0.8))
  for split in data.splits:
    np.testing.assert_allclose(exact[split], label[split], atol=0.005001)
    # The draws are the same, so that twice the noise is twice as far off.
    single, double = (np.array(of[split]) - label[split] for of in (noisy, twice))
    inside = (np.array(twice[split]) > 0) & (np.array(twice[split]) < 5)
    inside &= (np.array(noisy[split]) > 0) & (np.array(noisy[split]) < 5)
    np.testing.assert_allclose(2 * single[inside], double[inside], atol=0.0151)
  # Of 200 labels whose noise is hardly cut: the spread is known to 1 / √400 of itself.
  middle = np.abs(label['train'] - 2.5) < 1.2
  errors = (np.array(noisy['train']) - label['train'])[middle]
  assert abs(errors.std() / 0.4 - 1) < 4 / np.sqrt(2 * middle.sum())


@pytest.mark.parametrize('noise', [0.0, 0.3, 1.0])
def test_the_oracle_of_classes_is_wrong_as_often_as_is_asked_for(noise):
  data = benchmark(three, classes=ABC.classes)
  guesses = guessed(data, ABC, model='oracle', noise=noise)['train']
  right = np.array(labels_of(data))
  wrong = np.array(guesses) != right
  assert abs(wrong.mean() - noise) <= 4 * np.sqrt(noise * (1 - noise) / 200)
  if noise == 1.0:  # the other two classes are as frequent
    moves = [
      (ord(guess) - ord(label)) % 3 for guess, label in zip(guesses, right, strict=True)
    ]
    assert abs(moves.count(1) / 200 - 0.5) < 4 * np.sqrt(0.25 / 200)


def test_wrong_on_purpose():
  data = benchmark(score)
  expected = [5.0 if label < 2.5 else 0.0 for label in labels_of(data)]
  assert guessed(data, model='wrong')['train'] == expected
  data = benchmark(three, classes=ABC.classes)
  guesses = guessed(data, ABC, model='wrong')['train']
  assert all(g != r for g, r in zip(guesses, labels_of(data), strict=True))
  assert set(guesses) == set(ABC.classes)


def test_losses_and_middles():
  assert NUMBERS.loss(3.0, 4.5) == 2.25
  assert (CLASSES.loss('plus', 'plus'), CLASSES.loss('plus', 'minus')) == (0.0, 1.0)
  assert NUMBERS.middle([1.0, 2.0, 4.5]) == 2.5
  assert CLASSES.middle(['plus', 'minus', 'plus']) == 'plus'
  assert CLASSES.middle(['plus', 'minus']) == 'minus'
  assert NUMBERS.same(3.4, 3.40)
  assert not NUMBERS.same(3.4, 3.41)
