"""Markov chains of higher order, and from a pool, against sums over all sequences."""

import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import softmax

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.sequences import all_sequences, check_causal, check_law, predicted
from tests.tasks import host
from zoo.tasks import MarkovChain


def _task(**changes) -> MarkovChain:
  task = zoo.create_task('markov_chain', **changes)
  assert isinstance(task, MarkovChain)
  return task


def _symbols(prompt: zoo.Prompt) -> np.ndarray:
  """The symbols of each prompt, `[b, t]`."""
  return host.features(prompt).argmax(-1)


def _state(symbols, size: int, order: int) -> int:
  """The number of the last `order` symbols, by a loop."""
  number = 0
  for symbol in symbols[len(symbols) - order :]:
    number = size * number + int(symbol)
  return number


def _probability(symbols, rows: np.ndarray, first: np.ndarray | None) -> float:
  """Of a sequence from one chain of any order, whose first symbols have the law given.

  Without it they are uniform.
  """
  count, size = rows.shape
  order = round(np.log(count) / np.log(size))
  value: Any = 1.0
  for i, symbol in enumerate(symbols):
    if i >= order:
      value *= rows[_state(symbols[:i], size, order), symbol]
    else:
      value *= 1 / size if first is None else first[symbol]
  return value


def _eigenvector(rows: np.ndarray) -> np.ndarray:
  """The stationary law of the last symbol, from a matrix of all last symbols."""
  count, size = rows.shape
  moves = np.zeros((count, count))
  for state, symbol in itertools.product(range(count), range(size)):
    moves[state, (state * size + symbol) % count] += rows[state, symbol]
  values, vectors = np.linalg.eig(moves.T)
  law = np.real(vectors[:, np.argmin(np.abs(values - 1))])
  return (law / law.sum()).reshape(-1, size).sum(axis=0)


_POOLS = [
  {'num_symbols': 3, 'context_length': 3, 'num_chains': 4},
  {'num_symbols': 2, 'context_length': 4, 'num_chains': 3, 'order': 2},
  {'num_symbols': 2, 'context_length': 5, 'num_chains': 3, 'order': 3},
]


@pytest.mark.parametrize('changes', mostly_full(_POOLS[:1], _POOLS, slow=_POOLS[1:2]))
def test_retrieval_is_the_ratio_of_probabilities_of_all_sequences(changes):
  task, order = _task(**changes), changes.get('order', 1)
  size, length = task.num_symbols, task.context_length + 1
  sequences = all_sequences(task)
  # Of order 1 the first symbol is stationary; retrieval by transitions ignores it.
  firsts: dict[str, Any] = {'bayes': [_eigenvector(rows) for rows in task.pool]}
  name = 'bigram_retrieval' if order == 1 else 'ngram_retrieval'
  firsts[name] = [None] * len(task.pool)
  if order > 1:
    firsts['bayes'] = firsts[name]
  every = predicted(task, [*firsts], sequences)
  for actual, laws in zip(every, firsts.values(), strict=True):

    def law(symbols, laws=laws):
      pairs = zip(task.pool, laws, strict=True)
      return np.sum([_probability(symbols, *pair) for pair in pairs])

    for b, symbols in enumerate(sequences.tolist()):
      for k in range(length):
        prefix = symbols[: k + 1]
        # The sequence of fewer symbols has the sum of the probabilities of longer ones.
        both = np.asarray([law([*prefix, symbol]) for symbol in range(size)])
        np.testing.assert_allclose(both.sum(), law(prefix), rtol=1e-12)
        np.testing.assert_allclose(actual[b, k], both / both.sum(), rtol=1e-9)


@pytest.mark.parametrize('changes', mostly_full(_POOLS[:1], _POOLS[1:2]))
def test_unigram_retrieval_takes_symbols_for_independent(changes):
  task = _task(**changes)
  laws = np.stack([_eigenvector(rows) for rows in task.pool])
  np.testing.assert_allclose(task.laws, laws, rtol=1e-10)
  sequences = all_sequences(task)
  (actual,) = predicted(task, ['unigram_retrieval'], sequences)
  for b, symbols in enumerate(sequences):
    for k in range(len(symbols)):
      weights = np.prod(laws[:, symbols[: k + 1]], axis=1)
      expected = weights @ laws / weights.sum()
      np.testing.assert_allclose(actual[b, k], expected, rtol=1e-10)


def test_bayes_of_a_fresh_chain_of_order_two_is_an_integral_over_its_rows():
  task = _task(context_length=6, order=2)
  assert [*task.baselines()] == ['bayes', 'ngram', 'bigram', 'unigram', 'zero']
  sequences = all_sequences(task)[::5]
  (actual,) = predicted(task, ['bayes'], sequences)
  # Polynomials in the four probabilities of symbol 1, of degree 5 at most.
  nodes, weights = np.polynomial.legendre.leggauss(4)
  grid = np.stack(np.meshgrid(*[(1 + nodes) / 2] * 4, indexing='ij'), -1).reshape(-1, 4)
  mass = np.prod(np.stack(np.meshgrid(*[weights / 2] * 4, indexing='ij'), -1), -1)

  def law(symbols) -> float:
    value = np.ones(len(grid))
    for i in range(2, len(symbols)):
      p = grid[:, 2 * symbols[i - 2] + symbols[i - 1]]
      value = value * (p if symbols[i] else 1 - p)
    return float(value @ mass.ravel())

  for b, symbols in enumerate(sequences.tolist()):
    for k in range(7):
      both = np.asarray([law([*symbols[: k + 1], symbol]) for symbol in (0, 1)])
      np.testing.assert_allclose(actual[b, k], both / both.sum(), rtol=1e-9)


@pytest.mark.slow
def test_ngram_counts_are_those_of_a_loop():
  task, drawn = _drawn(2, None)
  prompt = jax.tree.map(lambda array: array[:10], drawn)
  predictor: Any = task.baselines()['ngram']
  actual = softmax(np.asarray(jax.jit(predictor.predictions)(prompt)), axis=-1)
  for b, symbols in enumerate(_symbols(prompt)):
    for k in range(13):
      counts = np.ones(3)
      for i in range(2, k + 1):
        if k and tuple(symbols[i - 2 : i]) == tuple(symbols[k - 1 : k + 1]):
          counts[symbols[i]] += 1
      np.testing.assert_allclose(actual[b, k], counts / counts.sum(), rtol=1e-5)


_LAWS = [
  _POOLS[0],
  _POOLS[1],
  {'num_symbols': 2, 'context_length': 3, 'order': 2},
]


@pytest.mark.slow
@pytest.mark.parametrize('changes', mostly_full(_LAWS[:1], _LAWS, slow=_LAWS[2:]))
def test_sequences_have_their_probabilities(changes):
  """All of them, and so the symbols at each position and the label of the query."""
  task, count = _task(**changes), 20_000
  order = task.order
  symbols = _symbols(host.sample(task, 5, count))
  sequences = all_sequences(task)
  if task.num_chains:
    firsts = [_eigenvector(rows) if order == 1 else None for rows in task.pool]
    pairs = [*zip(task.pool, firsts, strict=True)]
    law = np.asarray(
      [np.mean([_probability(s, *pair) for pair in pairs]) for s in sequences]
    )
  else:  # of counts n after the same symbols n_0! n_1! / (n_0 + n_1 + 1)!
    law = np.full(len(sequences), 0.25)
    for row, s in enumerate(sequences.tolist()):
      seen = np.ones((4, 2))
      for i in range(2, len(s)):
        at = 2 * s[i - 2] + s[i - 1]
        law[row] *= seen[at, s[i]] / seen[at].sum()
        seen[at, s[i]] += 1
  check_law(task, symbols, law)


@functools.cache
def _drawn(order: int, chains: int | None) -> Any:
  task = _task(num_symbols=3, context_length=12, order=order, num_chains=chains)
  return task, host.sample_with_latents(task, 6, 2000)


@pytest.mark.slow
@pytest.mark.parametrize('order', mostly_full([2], [1, 3]))
def test_targets_are_rows_after_the_last_symbols(order):
  for chains in (None, 4):
    task, drawn = _drawn(order, chains)
    prompt = jax.tree.map(lambda array: array[:40], drawn)
    if chains:
      gap = np.abs(prompt.latents[:, None] - task.pool[None]).max((2, 3))
      assert (gap.min(1) < 1e-6).all()
      assert {*gap.argmin(1)} == {0, 1, 2, 3}
    assert prompt.latents.shape == (40, 3**order, 3)
    for symbols, rows, targets in zip(
      _symbols(prompt), prompt.latents, host.targets(prompt), strict=True
    ):
      for i, target in enumerate(targets):
        expected = np.full(3, 1 / 3)
        if i >= order - 1:
          expected = rows[_state(symbols[: i + 1], 3, order)]
        np.testing.assert_allclose(target, expected, rtol=1e-6)
      np.testing.assert_allclose(rows.sum(1), 1, rtol=1e-5)


@pytest.mark.slow
def test_rows_of_higher_order_are_dirichlet():
  rows = _drawn(2, None)[1].latents
  for sample in (rows.reshape(-1, 3), _task(num_symbols=3, num_chains=6000).pool):
    sample = sample.reshape(-1, 3)
    # Dirichlet(1, 1, 1) has the covariance (δ_ij/3 − 1/9)/4.
    np.testing.assert_allclose(sample.mean(0), 1 / 3, atol=5 * 0.236 / 18_000**0.5)
    np.testing.assert_allclose(
      np.cov(sample.T), (np.eye(3) / 3 - 1 / 9) / 4, atol=5 * 0.08 / 18_000**0.5
    )


def test_the_pool_depends_on_the_seed_alone():
  pool = _task(num_chains=3).pool
  np.testing.assert_array_equal(_task(num_chains=3, context_length=5).pool, pool)
  assert not np.isclose(_task(num_chains=3, seed=1).pool, pool).any()
  assert not pool.flags.writeable
  shift: Any = _task(num_chains=3, order=2).shifts()
  assert [*shift][:2] == ['fresh_chains', 'context_length=200']
  assert shift['fresh_chains'] == _task(order=2)
  assert 'fresh_chains' not in _task().shifts()
  assert [*_task(num_chains=3, order=2).baselines()] == [
    *('bayes', 'ngram_retrieval', 'unigram_retrieval', 'ngram', 'bigram', 'unigram'),
    'zero',
  ]
  assert [*_task(num_chains=3).baselines()] == [
    *('bayes', 'bigram_retrieval', 'unigram_retrieval', 'bigram', 'unigram', 'zero')
  ]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('changes', mostly_full(_POOLS[1:2], _POOLS))
def test_predictions_do_not_depend_on_later_symbols(changes):
  check_causal(_task(**changes))


def test_too_many_rows_are_refused():
  assert _task(num_symbols=64, order=2).num_outputs == 64
  with refuses('order is 13 with 2 symbols; num_symbols to the power of order must be'):
    _task(order=13)
  with refuses('order is 4; it must be an integer from 1 to 3'):
    _task(context_length=3, order=4)
