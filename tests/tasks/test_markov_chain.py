import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from scipy.special import softmax
from scipy.stats import chi2

import zoo
from tests.compare import refuses
from tests.marks import mostly_full, mostly_slow


def _task(**changes) -> Any:
  return zoo.create_task('markov_chain', **changes)


def _symbols(prompt: zoo.Prompt) -> np.ndarray:
  """The symbols of each prompt, `[b, t]`."""
  x = np.concatenate([prompt.x, np.asarray(prompt.x_query)[:, None]], axis=1)
  assert set(np.unique(x)) == {0, 1}
  np.testing.assert_array_equal(x.sum(-1), 1)
  return x.argmax(-1)


def test_a_prompt_is_one_sequence_of_symbols():
  prompt = _task(num_symbols=3, context_length=5).sample(jax.random.key(0), 7)
  np.testing.assert_array_equal(prompt.y[:, :-1], prompt.x[:, 1:])
  np.testing.assert_array_equal(prompt.y[:, -1], prompt.x_query)


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
  prompt = _task(num_symbols=size, context_length=20).sample(jax.random.key(1), count)
  symbols, targets = _symbols(prompt), np.asarray(prompt.targets)

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


def test_symbols_follow_the_rows_that_are_their_targets():
  prompt = _task(num_symbols=3).sample(jax.random.key(2), 2000)
  symbols, targets = _symbols(prompt), np.asarray(prompt.targets)
  # A one-hot symbol minus its probabilities has the mean 0 given all symbols before it:
  # so have its products with them, which are uncorrelated.
  gap = np.eye(3)[symbols[:, 1:]] - targets[:, :-1]
  for known in (np.ones_like(gap), targets[:, :-1], np.eye(3)[symbols[:, :-1]]):
    products = np.einsum('bti,btj->btij', gap, known)
    error = np.sqrt(np.sum(products**2, axis=(0, 1)))
    assert np.all(np.abs(products.sum((0, 1))) <= 4.5 * error)


def test_counts_are_those_of_a_loop():
  task = _task(num_symbols=4, context_length=12)
  prompt = jax.device_get(task.sample(jax.random.key(3), 5))
  bigram, unigram = (
    softmax(jax.jit(task.baselines()[name].predictions)(prompt), axis=-1)
    for name in ('bigram', 'unigram')
  )
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
  prompt = jax.device_get(_task(context_length=6).sample(jax.random.key(4), 3))
  probabilities = softmax(np.asarray(_bayes(prompt))[:, k], axis=-1)
  for row, symbols in zip(probabilities, _symbols(prompt), strict=True):
    # The integrand is not smooth at p = q = 0, where the integral is good to 1e-5.
    np.testing.assert_allclose(
      row[0], _bayes_by_quadrature(symbols[: k + 1]), rtol=1e-4
    )


def test_bayes_of_one_symbol_has_a_closed_form():
  # E pq/(p + q) / E q/(p + q), the probability to leave the only symbol that is known.
  prompt = _task(context_length=6).sample(jax.random.key(4), 3)
  probabilities = softmax(np.asarray(_bayes(prompt))[:, 0], axis=-1)
  leaves = np.sum(probabilities * (1 - np.asarray(prompt.x)[:, 0]), axis=1)
  np.testing.assert_allclose(leaves, 4 / 3 * (1 - np.log(2)), rtol=1e-4)


def test_bayes_is_left_out_where_it_has_no_closed_form():
  assert list(_task().baselines()) == ['bigram', 'bayes', 'unigram', 'zero']
  assert 'bayes' not in _task(num_symbols=3).baselines()


# Chains of higher order, and pools.


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
  value = 1.0
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


def _prompt_of(sequences: np.ndarray, size: int) -> zoo.Prompt:
  x = np.eye(size)[sequences]
  y = np.roll(x, -1, axis=1)[:, :-1]
  arrays = [jnp.asarray(a, float) for a in (x[:, :-1], y, x[:, -1], x[:, -1])]
  return zoo.Prompt(*arrays)


def _all_sequences(size: int, length: int) -> np.ndarray:
  return np.asarray([*itertools.product(range(size), repeat=length)])


_POOLS = [
  {'num_symbols': 3, 'context_length': 3, 'num_chains': 4},
  {'num_symbols': 2, 'context_length': 4, 'num_chains': 3, 'order': 2},
  {'num_symbols': 2, 'context_length': 5, 'num_chains': 3, 'order': 3},
]


@pytest.mark.parametrize('changes', _POOLS)
def test_retrieval_is_the_ratio_of_probabilities_of_all_sequences(changes):
  task, order = _task(**changes), changes.get('order', 1)
  size, length = task.num_symbols, task.context_length + 1
  sequences = _all_sequences(size, length)
  with jax.enable_x64(True):
    prompt = _prompt_of(sequences, size)
    predicted = {
      name: softmax(np.asarray(jax.jit(predictor.predictions)(prompt)), axis=-1)
      for name, predictor in task.baselines().items()
    }
  # Of order 1 the first symbol is stationary; retrieval by transitions ignores it.
  firsts: dict[str, Any] = {'bayes': [_eigenvector(rows) for rows in task.pool]}
  name = 'bigram_retrieval' if order == 1 else 'ngram_retrieval'
  firsts[name] = [None] * task.num_chains
  if order > 1:
    firsts['bayes'] = firsts[name]
  for name, laws in firsts.items():

    def law(symbols, laws=laws):
      pairs = zip(task.pool, laws, strict=True)
      return sum(_probability(symbols, *pair) for pair in pairs)

    for b, symbols in enumerate(sequences.tolist()):
      for k in range(length):
        prefix = symbols[: k + 1]
        # The sequence of fewer symbols has the sum of the probabilities of longer ones.
        both = np.asarray([law([*prefix, symbol]) for symbol in range(size)])
        np.testing.assert_allclose(both.sum(), law(prefix), rtol=1e-12)
        np.testing.assert_allclose(predicted[name][b, k], both / both.sum(), rtol=1e-9)


@pytest.mark.parametrize('changes', _POOLS[:2])
def test_unigram_retrieval_takes_symbols_for_independent(changes):
  task = _task(**changes)
  laws = np.stack([_eigenvector(rows) for rows in task.pool])
  np.testing.assert_allclose(task.laws, laws, rtol=1e-10)
  sequences = _all_sequences(task.num_symbols, task.context_length + 1)
  with jax.enable_x64(True):
    prompt = _prompt_of(sequences, task.num_symbols)
    predictor = task.baselines()['unigram_retrieval']
    actual = softmax(np.asarray(jax.jit(predictor.predictions)(prompt)), axis=-1)
  for b, symbols in enumerate(sequences):
    for k in range(len(symbols)):
      weights = np.prod(laws[:, symbols[: k + 1]], axis=1)
      expected = weights @ laws / weights.sum()
      np.testing.assert_allclose(actual[b, k], expected, rtol=1e-10)


def test_bayes_of_a_fresh_chain_of_order_two_is_an_integral_over_its_rows():
  task = _task(context_length=6, order=2)
  assert [*task.baselines()] == ['bayes', 'ngram', 'bigram', 'unigram', 'zero']
  sequences = _all_sequences(2, 7)[::5]
  predictor = task.baselines()['bayes']
  prompt = _prompt_of(sequences, 2)
  actual = softmax(np.asarray(jax.jit(predictor.predictions)(prompt)), axis=-1)
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
      expected = both / both.sum()
      np.testing.assert_allclose(actual[b, k], expected, rtol=1e-5)


def test_ngram_counts_are_those_of_a_loop():
  task = _task(num_symbols=3, context_length=20, order=2)
  prompt = jax.device_get(task.sample(jax.random.key(3), 5))
  predictor: Any = task.baselines()['ngram']
  actual = softmax(np.asarray(jax.jit(predictor.predictions)(prompt)), axis=-1)
  alone = softmax(np.asarray(jax.jit(predictor)(prompt.prefix(11))), axis=-1)
  np.testing.assert_allclose(alone, actual[:, 11], rtol=1e-6)
  for b, symbols in enumerate(_symbols(prompt)):
    for k in range(21):
      counts = np.ones(3)
      for i in range(2, k + 1):
        if k and tuple(symbols[i - 2 : i]) == tuple(symbols[k - 1 : k + 1]):
          counts[symbols[i]] += 1
      np.testing.assert_allclose(actual[b, k], counts / counts.sum(), rtol=1e-5)


def _p_value(counts, expected):
  statistic = np.sum((counts - expected) ** 2 / expected)
  return chi2.sf(statistic, len(counts) - 1)


_LAWS = [
  _POOLS[0],
  {'num_symbols': 2, 'context_length': 4, 'num_chains': 3, 'order': 2},
  {'num_symbols': 2, 'context_length': 3, 'order': 2},
]


@pytest.mark.parametrize('changes', mostly_slow(_LAWS[:1], _LAWS))
def test_sequences_have_their_probabilities(changes):
  """All of them, and so the symbols at each position and the label of the query."""
  task, count = _task(**changes), 100_000
  size, order = task.num_symbols, task.order
  symbols = _symbols(task.sample(jax.random.key(5), count))
  sequences = _all_sequences(size, task.context_length + 1)
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
  np.testing.assert_allclose(law.sum(), 1, rtol=1e-9)
  index = [_state(s, size, len(s)) for s in sequences]
  assert index == [*range(len(sequences))]
  drawn = symbols @ size ** np.arange(task.context_length + 1)[::-1]
  assert _p_value(np.bincount(drawn, minlength=len(law)), count * law) > 1e-5
  for position in range(task.context_length + 1):
    expected = np.bincount(sequences[:, position], count * law, size)
    counts = np.bincount(symbols[:, position], minlength=size)
    assert _p_value(counts, expected) > 1e-5


@pytest.mark.parametrize('order', [1, 2, 3])
def test_targets_are_rows_after_the_last_symbols(order):
  for chains in (None, 4):
    task = _task(num_symbols=3, context_length=6, order=order, num_chains=chains)
    prompt = jax.device_get(task.sample(jax.random.key(6), 40, latents=True))
    if chains:
      gap = np.abs(prompt.latents[:, None] - task.pool[None]).max((2, 3))
      assert (gap.min(1) < 1e-6).all()
      assert {*gap.argmin(1)} == {0, 1, 2, 3}
    assert prompt.latents.shape == (40, 3**order, 3)
    for symbols, rows, targets in zip(
      _symbols(prompt), prompt.latents, prompt.targets, strict=True
    ):
      for i, target in enumerate(targets):
        expected = np.full(3, 1 / 3)
        if i >= order - 1:
          expected = rows[_state(symbols[: i + 1], 3, order)]
        np.testing.assert_allclose(target, expected, rtol=1e-6)
      np.testing.assert_allclose(rows.sum(1), 1, rtol=1e-5)


def test_rows_of_higher_order_are_dirichlet():
  rows = np.asarray(
    _task(num_symbols=3, context_length=3, order=2)
    .sample(jax.random.key(7), 2000, latents=True)
    .latents
  )
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


@pytest.mark.parametrize('changes', mostly_slow(_POOLS[1:2], _POOLS))
def test_predictions_do_not_depend_on_later_symbols(changes):
  """Bit for bit; nor on the target of the query."""
  task = _task(**changes)
  size, length = task.num_symbols, task.context_length + 1
  rng = np.random.default_rng(0)
  sequences = rng.integers(size, size=(50, length))
  for predictor in task.baselines().values():
    predict = jax.jit(predictor.predictions)
    before = np.asarray(predict(_prompt_of(sequences, size)))
    for k in range(length):
      changed = sequences.copy()
      changed[:, k + 1 :] = (changed[:, k + 1 :] + 1) % size
      after = np.asarray(predict(_prompt_of(changed, size)))
      np.testing.assert_array_equal(after[:, : k + 1], before[:, : k + 1])


def test_too_many_rows_are_refused():
  assert _task(num_symbols=64, order=2).num_outputs == 64
  with refuses('order is 13 with 2 symbols; num_symbols to the power of order must be'):
    _task(order=13)
  with refuses('order is 4; it must be an integer from 1 to 3'):
    _task(context_length=3, order=4)
