import itertools
from typing import Any

import jax
import numpy as np
import pytest
import scipy.integrate
from scipy.special import softmax

import zoo
from tests.marks import mostly_full
from tests.tasks import host


def _task(**changes) -> Any:
  return zoo.create_task('markov_chain', **changes)


def _symbols(prompt: zoo.Prompt) -> np.ndarray:
  """The symbols of each prompt, `[b, t]`."""
  x = host.features(prompt)
  assert set(np.unique(x)) == {0, 1}
  np.testing.assert_array_equal(x.sum(-1), 1)
  return x.argmax(-1)


def _rows(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
  """A random row of each of `count` Dirichlet(1) matrices, by its stationary law."""
  rng = np.random.default_rng(7)
  matrices = rng.dirichlet(np.ones(size), (count, size))
  values, vectors = np.linalg.eig(np.swapaxes(matrices, 1, 2))
  at = np.argmin(np.abs(values - 1), axis=1)
  law = np.real(np.take_along_axis(vectors, at[:, None, None], axis=2)[..., 0])
  law /= law.sum(axis=1, keepdims=True)
  symbols = (rng.random((count, 1)) > np.cumsum(law, axis=1)).sum(axis=1)
  return symbols, matrices[np.arange(count), symbols]


@pytest.mark.slow
@pytest.mark.parametrize('size', mostly_full([3], [2, 8]))
def test_chains_are_stationary_with_dirichlet_rows(size):
  count = 8000
  prompt = host.sample(_task(num_symbols=size, context_length=20), 1, count)
  symbols, targets = _symbols(prompt), host.targets(prompt)

  def moments(symbols: np.ndarray, rows: np.ndarray) -> np.ndarray:
    stay = np.take_along_axis(rows, symbols[:, None], axis=1)[:, 0]
    most, square = rows.max(axis=1), np.sum(rows**2, axis=1)
    return np.stack([stay, stay**2, most, square, symbols == 0], axis=1)

  expected = moments(*_rows(size, 100_000))
  for position in (0, 1, 5, 20):  # the same law of symbol and row at each position
    actual = moments(symbols[:, position], targets[:, position])
    # Two independent means; of 60 normal numbers one is beyond 4.5 once in 2000 seeds.
    error = np.sqrt(actual.var(0) / len(actual) + expected.var(0) / len(expected))
    assert np.all(np.abs(actual.mean(0) - expected.mean(0)) <= 4.5 * error)


@pytest.mark.slow
def test_a_prompt_is_one_sequence_whose_symbols_follow_the_rows_of_their_targets():
  prompt = host.sample(_task(num_symbols=3, context_length=20), 2, 2000)
  symbols, targets = _symbols(prompt), host.targets(prompt)
  np.testing.assert_array_equal(prompt.y, host.features(prompt)[:, 1:])
  # A one-hot symbol minus its probabilities has the mean 0 given all symbols before it:
  # so have its products with them, which are uncorrelated.
  gap = np.eye(3)[symbols[:, 1:]] - targets[:, :-1]
  for known in (np.ones_like(gap), targets[:, :-1], np.eye(3)[symbols[:, :-1]]):
    products = np.einsum('bti,btj->btij', gap, known)
    error = np.sqrt(np.sum(products**2, axis=(0, 1)))
    assert np.all(np.abs(products.sum((0, 1))) <= 4.5 * error)


@pytest.mark.slow
@pytest.mark.full
def test_counts_are_those_of_a_loop():
  task = _task(num_symbols=4, context_length=12)
  prompt = jax.device_get(task.sample(jax.random.key(3), 5))
  counts: Any = [task.baselines()[name] for name in ('bigram', 'unigram')]
  run = jax.jit(lambda prompt: [count.predictions(prompt) for count in counts])
  bigram, unigram = (softmax(logits, axis=-1) for logits in run(prompt))
  for b, symbols in enumerate(_symbols(prompt)):
    for k in range(13):
      pairs, single = np.ones(4), np.ones(4)
      for i in range(k):
        if symbols[i] == symbols[k]:
          pairs[symbols[i + 1]] += 1
      for i in range(k + 1):
        single[symbols[i]] += 1
      np.testing.assert_allclose(bigram[b, k], pairs / pairs.sum(), rtol=1e-5)
      np.testing.assert_allclose(unigram[b, k], single / single.sum(), rtol=1e-5)


_bayes = jax.jit(_task().baselines()['bayes'].predictions)


def _bayes_by_quadrature(symbols: np.ndarray) -> float:
  """The probability that symbol 0 is next, from the law of the whole sequence."""

  def likelihood(p: float, q: float, following: int | None) -> float:
    matrix = np.asarray([[1 - p, p], [q, 1 - q]])
    value = (q if symbols[0] == 0 else p) / (p + q)
    for i, j in zip(symbols, [*symbols[1:], following], strict=True):
      value *= 1.0 if j is None else matrix[i, j]
    return value

  zero, total = (
    scipy.integrate.dblquad(
      lambda q, p, j=j: likelihood(p, q, j), 0, 1, 0, 1, epsabs=1e-12, epsrel=1e-5
    )[0]
    for j in (0, None)
  )
  return zero / total


@pytest.mark.parametrize('k', mostly_full([6], [0, 1]))
def test_bayes_for_two_symbols_is_the_integral(k):
  prompt = host.sample(_task(context_length=6), 4, 2)
  probabilities = softmax(np.asarray(_bayes(prompt))[:, k], axis=-1)
  for row, symbols in zip(probabilities, _symbols(prompt), strict=True):
    # The integrand is not smooth at p = q = 0, where the integral is good to 1e-5.
    np.testing.assert_allclose(
      row[0], _bayes_by_quadrature(symbols[: k + 1]), rtol=1e-4
    )


def test_bayes_of_one_symbol_has_a_closed_form():
  # E pq/(p + q) / E q/(p + q), the probability to leave the only symbol that is known.
  prompt = host.sample(_task(context_length=6), 4, 2)
  probabilities = softmax(np.asarray(_bayes(prompt))[:, 0], axis=-1)
  leaves = np.sum(probabilities * (1 - np.asarray(prompt.x)[:, 0]), axis=1)
  np.testing.assert_allclose(leaves, 4 / 3 * (1 - np.log(2)), rtol=1e-4)


def test_bayes_is_left_out_where_it_has_no_closed_form():
  assert list(_task().baselines()) == ['bigram', 'bayes', 'unigram', 'zero']
  assert 'bayes' not in _task(num_symbols=3).baselines()


def test_the_excess_of_the_bigram_over_bayes_is_as_its_docstring_says():
  """Against a sum over all sequences that begin with the symbol 0."""
  nodes, weights = np.polynomial.legendre.leggauss(60)
  u, v = np.meshgrid((1 + nodes) / 2, (1 + nodes) / 2, indexing='ij')  # of leaving 0, 1
  # The first symbol is 0 with probability v/(u + v), and 0 as often as 1.
  prior = np.outer(weights, weights) / 4 * v / (u + v) / 0.5

  def excess(num_examples):
    total = 0.0
    for rest in itertools.product((0, 1), repeat=num_examples):
      symbols, likelihood, counts = (0, *rest), prior, np.ones((2, 2))
      for before, after in itertools.pairwise(symbols):
        leaves = (u, v)[before]
        likelihood = likelihood * (leaves if before != after else 1 - leaves)
        counts[before, after] += 1
      now, probability = symbols[-1], likelihood.sum()
      p = (likelihood * (u, v)[now]).sum() / probability
      q = counts[now, 1 - now] / counts[now].sum()
      total += probability * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    return total

  text = ' '.join((zoo.tasks.MarkovChain.baselines.__doc__ or '').split())
  assert f'by {excess(0):.4f} nats before the first example' in text
  assert f'by {excess(9):.4f} after 9' in text
