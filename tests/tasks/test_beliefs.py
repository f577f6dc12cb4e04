"""Beliefs of tasks against sums over all that prompts may come from, in NumPy."""

import dataclasses
import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, spatial, stats

import zoo
from tests.compare import refuses
from tests.marks import mostly_slow
from tests.sequences import all_sequences, prompt_of
from tests.tasks import host


def _beliefs(task: Any, prompt: zoo.Prompt) -> np.ndarray:
  """Values in float64, after checking those of float32 against them.

  A value of float32 is off by its rounding, 6e-8, times the number of terms in the log
  likelihoods, which are sums of about ten numbers up to ten here: 1e-5 in all.
  """
  short = task.belief(prompt)
  assert len(short.names) == short.values.shape[-1]
  assert short.kind in ('simplex', 'moments')
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), prompt)
    values = np.asarray(task.belief(wide).values)
  assert values.dtype == np.float64
  np.testing.assert_allclose(short.values, values, atol=2e-5, rtol=2e-4)
  if short.kind == 'simplex':
    np.testing.assert_allclose(values.sum(axis=-1), 1, rtol=1e-9)
  return values


def _check(
  task: Any,
  prompt: zoo.Prompt,
  expected: Callable[..., np.ndarray],
  rtol: float = 1e-6,
) -> int:
  """Every belief is `expected(x, y, x_query)` of what is seen; returns their number."""
  prompt = jax.device_get(dataclasses.replace(prompt, latents=None))
  values, features = _beliefs(task, prompt), host.features(prompt)
  b, t, _ = values.shape
  for i, k in itertools.product(range(b), range(t)):
    x, y = (np.asarray(array[i, :k], np.float64) for array in (prompt.x, prompt.y))
    truth = expected(x, y, np.asarray(features[i, k], np.float64))
    np.testing.assert_allclose(values[i, k], truth, rtol=rtol, atol=1e-9)
  return b * t


def _symbols(x, x_query) -> list[int]:
  return [int(np.argmax(symbol)) for symbol in [*x, x_query]]


def _of_sequences(task: Any, of: Callable[[list[int]], np.ndarray]) -> int:
  prompt = prompt_of(all_sequences(task), task.num_symbols)
  return _check(task, prompt, lambda x, y, q: of(_symbols(x, q)))


def test_states_are_sums_over_all_paths():
  task: Any = zoo.create_task(
    'hidden_markov', num_states=3, num_symbols=2, context_length=3, persistence=0.6
  )
  random = np.random.RandomState(0)
  moves = 0.6 * np.eye(3) + 0.4 * random.dirichlet(np.ones(3), 3)
  emissions = random.dirichlet(np.ones(2), 3)
  law = np.linalg.matrix_power(moves, 200)[0]

  def of(symbols):
    total = np.zeros(3)
    for path in itertools.product(range(3), repeat=len(symbols)):
      steps = [moves[i, j] for i, j in itertools.pairwise(path)]
      total[path[-1]] += (
        law[path[0]] * np.prod(steps) * np.prod(emissions[list(path), symbols])
      )
    return total / total.sum()

  assert _of_sequences(task, of) == 64


# Shai et al. give the joint probability of a symbol and the next state, by state.
def _mess3(a=0.85, x=0.05) -> np.ndarray:
  b, y = (1 - a) / 2, 1 - 2 * x
  return np.array(
    [
      [[a * y, b * x, b * x], [a * x, b * y, b * x], [a * x, b * x, b * y]],
      [[b * y, a * x, b * x], [b * x, a * y, b * x], [b * x, a * x, b * y]],
      [[b * y, b * x, a * x], [b * x, b * y, a * x], [b * x, b * x, a * y]],
    ]
  )


def _rrxor() -> np.ndarray:
  """By the definition of the process: two random bits, then their exclusive or."""
  joint = np.zeros((2, 5, 5))  # The states are S, 0, 1, T, F.
  for bit in range(2):
    joint[bit, 0, 1 + bit] = 0.5
    for first in range(2):
      joint[bit, 1 + first, 3 if bit ^ first else 4] = 0.5
  joint[1, 3, 0] = joint[0, 4, 0] = 1
  return joint


@pytest.mark.parametrize(
  ('fields', 'joint', 'count'),
  [
    ({'process': 'mess3'}, _mess3(), 324),
    ({'process': 'mess3', 'mess3_alpha': 0.6, 'mess3_x': 0.15}, _mess3(0.6, 0.15), 324),
  ],
)
def test_beliefs_of_mess3_are_products_of_the_matrices_of_the_paper(
  fields, joint, count
):
  task: Any = zoo.create_task('hidden_markov', context_length=3, **fields)
  assert _of_sequences(task, lambda symbols: _product(joint, symbols)) == count


def _product(joint: np.ndarray, symbols: list[int]) -> np.ndarray:
  """`π T(x_0) … T(x_n)`, divided by its sum; π is the left eigenvector of the sum."""
  values, vectors = np.linalg.eig(joint.sum(axis=0).T)
  belief = np.real(vectors[:, np.argmin(np.abs(values - 1))])
  for symbol in symbols:
    belief = belief @ joint[symbol]
  return belief / belief.sum()


def test_mess3_and_rrxor_predict_by_the_matrices_of_the_paper():
  for process, joint in (('mess3', _mess3()), ('rrxor', _rrxor())):
    task: Any = zoo.create_task('hidden_markov', process=process, context_length=7)
    prompt = task.sample(jax.random.key(0), 64)
    belief = task.belief(prompt)
    said = np.asarray(task.belief_prediction(belief.values[:, -1], prompt))
    bayes = jax.nn.softmax(task.baselines()['bayes'](prompt))
    # The logarithm of a probability of 0 is that of 1e-6.
    np.testing.assert_allclose(said, bayes, atol=3e-6)
    symbols = np.asarray(prompt.features).argmax(-1)
    own = np.array([_product(joint, [*of]) for of in symbols])
    np.testing.assert_allclose(belief.values[:, -1], own, atol=2e-6)
    np.testing.assert_allclose(said, own @ joint.sum(axis=2).T, atol=2e-6)


def test_prompts_of_mess3_and_rrxor_have_their_law():
  """Words of four symbols: 20,000 prompts against the products of the matrices."""
  for process, joint in (('mess3', _mess3()), ('rrxor', _rrxor())):
    task: Any = zoo.create_task('hidden_markov', process=process, context_length=5)
    symbols = host.features(host.sample(task, 3, 20_000)).argmax(-1)[:, 1:5]
    words = [*itertools.product(range(task.num_symbols), repeat=4)]
    law = np.array([_weight(joint, word) for word in words])
    np.testing.assert_allclose(law.sum(), 1)
    index = symbols @ task.num_symbols ** np.arange(4)[::-1]
    counts = np.bincount(index, minlength=len(words))
    assert (counts[law == 0] == 0).all()
    some = law > 0
    test = stats.chisquare(counts[some], 20_000 * law[some])
    assert test.pvalue > 1e-4


def _weight(joint: np.ndarray, symbols: Any) -> float:
  """The probability of a word, by the sum over all paths of states."""
  n, total = joint.shape[1], 0.0
  start = np.linalg.matrix_power(joint.sum(axis=0) / 2 + np.eye(n) / 2, 400)[0]
  for path in itertools.product(range(n), repeat=len(symbols) + 1):
    steps = zip(symbols, itertools.pairwise(path), strict=True)
    total += start[path[0]] * np.prod([joint[s, i, j] for s, (i, j) in steps])
  return total


def test_rrxor_has_36_beliefs():
  """Exact arithmetic: all that follow from the stationary law by possible words.

  The test rests on the definition of the process alone. The paper shows 36 states.
  """
  joint = [
    [[Fraction(value).limit_denominator(2) for value in row] for row in of_symbol]
    for of_symbol in _rrxor()
  ]
  # A third of the places have the first bit, the second bit and the exclusive or each.
  start = tuple(Fraction(n, 6) for n in (2, 1, 1, 1, 1))
  known, new = {start}, [start]
  while new:
    belief = new.pop()
    for matrix in joint:
      after: Any = [
        sum(p * row[j] for p, row in zip(belief, matrix, strict=True)) for j in range(5)
      ]
      if sum(after):
        after = tuple(p / sum(after) for p in after)
        if after not in known:
          known.add(after)
          new.append(after)
  assert len(known) == 36
  task: Any = zoo.create_task('hidden_markov', process='rrxor', context_length=30)
  values = np.asarray(task.belief(task.sample(jax.random.key(0), 200)).values)
  points = np.array([[float(p) for p in belief] for belief in known])
  apart = np.abs(values.reshape(-1, 1, 5) - points[None]).max(axis=-1)
  assert apart.min(axis=1).max() < 1e-5
  # All but the start are seen in 6,200 tokens.
  assert len(np.unique(apart.argmin(axis=1))) == 35


def test_beliefs_of_mess3_are_images_of_three_projective_maps():
  """The update is `b ↦ b T(x) / sum`, exactly, with the matrices T(x) of the paper.

  A projective map takes the triangle to the triangle of the images of its corners. So
  all beliefs after a symbol lie in three triangles, one for each symbol, and leave out
  the middle: the image of the corners has at least 0.0425 / 0.11375 = 34/91 in the
  coordinate of the symbol.
  """
  joint = _mess3()
  task: Any = zoo.create_task('hidden_markov', process='mess3', context_length=20)
  prompt = task.sample(jax.random.key(0), 500)
  values = np.asarray(task.belief(prompt).values, np.float64)
  symbols = np.asarray(prompt.features).argmax(-1)
  before, last = values[:, :-1].reshape(-1, 3), symbols[:, 1:].ravel()
  after = np.einsum('ni,nij->nj', before, joint[last])
  after /= after.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(values[:, 1:].reshape(-1, 3), after, atol=2e-6)
  corners = joint / joint.sum(axis=2, keepdims=True)
  for symbol in range(3):
    inside = np.linalg.solve(corners[symbol].T, after[last == symbol].T)
    assert inside.min() > 0  # These are coordinates in the triangle of the images.
    np.testing.assert_allclose(corners[symbol][:, symbol].min(), 34 / 91)
  assert after.max(axis=1).min() >= 34 / 91


def test_beliefs_of_mess3_are_a_fractal():
  """Of all words of 11 symbols, by counting boxes: more than lines, less than an area.

  Each of the three parts is congruent to the others by a rotation of the states.
  """
  joint = _mess3()
  beliefs = np.full((1, 3), 1 / 3)
  for _ in range(11):
    beliefs = np.concatenate([beliefs @ matrix for matrix in joint])
    beliefs /= beliefs.sum(axis=1, keepdims=True)
  plane = beliefs @ np.array([[0, 0], [1, 0], [0.5, 0.75**0.5]])
  boxes = [len(np.unique(np.floor(plane * 2**k), axis=0)) for k in (3, 7)]
  assert 1.4 < np.log2(boxes[1] / boxes[0]) / 4 < 1.8
  parts = np.split(beliefs, 3)
  apart, which = spatial.KDTree(parts[1]).query(np.roll(parts[0], 1, axis=1))
  assert np.max(apart) < 1e-12
  assert len(np.unique(which)) > 0.99 * len(parts[1])  # Some words have one belief.


@pytest.mark.parametrize('noise_std', [0.5, 0.0])
def test_members_of_a_pool(noise_std):
  task: Any = zoo.create_task(
    'task_pool', num_features=2, num_tasks=5, context_length=4, noise_std=noise_std
  )

  def of(x, y, _):
    apart = y[:, None] - x @ task.pool.T
    if noise_std == 0:
      weights = (np.abs(apart) < 1e-6).all(axis=0).astype(float)
    else:
      weights = stats.norm.pdf(apart, scale=noise_std).prod(axis=0)
    return weights / weights.sum()

  if noise_std:
    assert _check(task, task.sample(jax.random.key(0), 20), of) == 100
  else:  # Labels of float32 are not those of float64; a pool has no rounding there.
    with jax.enable_x64(True):
      prompt = jax.device_get(task.sample(jax.random.key(0), 20))
      values = np.asarray(task.belief(prompt).values)
    for i, k in itertools.product(range(20), range(5)):
      np.testing.assert_allclose(
        values[i, k], of(prompt.x[i, :k], prompt.y[i, :k], None)
      )


def _density(x, y, mean, covariance, noise_std, features) -> float:
  """The density of features and labels, by the joint normal of all labels."""
  of_labels = x @ covariance @ x.T + noise_std**2 * np.eye(len(y))
  density = 1.0
  if len(y):
    density = stats.multivariate_normal.pdf(y, x @ mean, of_labels)
  return float(density) * features


def test_parts_of_a_mixture():
  wide = np.array([[2.0, 0.5], [0.5, 1.0]])
  tasks = (
    zoo.tasks.LinearRegression(2, 4, noise_std=0.5, prior_mean=0.5),
    zoo.tasks.LinearRegression(2, 4, noise_std=0.3, feature_covariance=wide),
    zoo.tasks.SparseRegression(2, 4, num_nonzero=1, noise_std=0.4),
  )
  task = zoo.tasks.Mixture(tasks, weights=[0.5, 0.2, 0.3])

  normal: Any = stats.multivariate_normal  # Its types allow no matrix.

  def of(x, y, query):
    points = np.concatenate([x, query[None]])
    plain = np.prod(normal.pdf(points, cov=np.eye(2)))
    other = np.prod(normal.pdf(points, cov=wide))
    first = _density(x, y, np.full(2, 0.5), np.eye(2), 0.5, plain)
    second = _density(x, y, np.zeros(2), np.eye(2), 0.3, other)
    third = np.mean(
      [_density(x, y, np.zeros(2), np.diag(of), 0.4, plain) for of in np.eye(2)]
    )
    weights = np.array([0.5 * first, 0.2 * second, 0.3 * third])
    return weights / weights.sum()

  assert _check(task, task.sample(jax.random.key(1), 20), of) == 100


def test_chains_of_a_pool():
  for order, count in ((1, 64), (2, 64)):
    task: Any = zoo.create_task(
      'markov_chain', num_symbols=2, context_length=3, order=order, num_chains=3
    )

    def of(symbols, task=task, order=order):
      weights = task.laws[:, symbols[0]].copy() if order == 1 else np.ones(3)
      for i in range(order, len(symbols)):
        context = int(''.join(map(str, symbols[i - order : i])), 2)
        weights *= task.pool[:, context, symbols[i]]
      return weights / weights.sum()

    assert _of_sequences(task, of) == count


def test_entries_of_a_new_chain_of_order_two():
  """By integrals over the probability of a 1 after each context."""
  task: Any = zoo.create_task('markov_chain', num_symbols=2, context_length=4, order=2)

  def of(symbols):
    means, variances = [], []
    for context in itertools.product(range(2), repeat=2):
      after = [
        symbols[i]
        for i in range(2, len(symbols))
        if tuple(symbols[i - 2 : i]) == context
      ]
      ones, zeros = sum(after), len(after) - sum(after)
      mean, variance = _moments(lambda p, n=ones, m=zeros: p**n * (1 - p) ** m)
      means += [1 - mean, mean]
      variances += [variance, variance]
    return np.array(means + variances)

  assert _of_sequences(task, of) == 160


def _moments(density: Callable[[float], float], low=0.0, high=1.0) -> Any:
  whole, first, second = (
    integrate.quad(lambda p, n=n: p**n * density(p), low, high, epsabs=0)[0]
    for n in range(3)
  )
  return first / whole, second / whole - (first / whole) ** 2


def test_entries_of_a_new_chain_of_two_symbols():
  """By integrals over both probabilities of leaving, with the law of the first."""
  task: Any = zoo.create_task('markov_chain', num_symbols=2, context_length=3)
  # Of the law of the first symbol only products of 1/(u + v) are no polynomials; they
  # are smooth except at u = v = 0, where the density is bounded: 1e-6 in 400 nodes.
  nodes, weights = np.polynomial.legendre.leggauss(400)
  u, v = np.meshgrid((1 + nodes) / 2, (1 + nodes) / 2, indexing='ij')
  area = weights[:, None] * weights[None]

  def of(symbols):
    density = (v if symbols[0] == 0 else u) / (u + v) * area
    for i, j in itertools.pairwise(symbols):
      leaves = u if i == 0 else v
      density = density * (leaves if i != j else 1 - leaves)
    entries = [1 - u, u, v, 1 - v]
    means = [np.sum(entry * density) / density.sum() for entry in entries]
    squares = [np.sum(entry**2 * density) / density.sum() for entry in entries]
    return np.array([*means, *(np.array(squares) - np.square(means))])

  prompt = prompt_of(all_sequences(task), 2)
  count = _check(task, prompt, lambda x, y, q: of(_symbols(x, q)), rtol=2e-5)
  assert count == 64


def test_urns():
  pool: Any = zoo.create_task('urns', num_urns=4, num_symbols=2, context_length=3)
  assert (
    _of_sequences(pool, lambda symbols: _shares(pool.urns[:, symbols].prod(axis=1)))
    == 64
  )
  new: Any = zoo.create_task(
    'urns', num_urns=None, num_symbols=2, context_length=3, concentration=1.5
  )

  def of(symbols):
    ones, zeros = sum(symbols) + 0.5, len(symbols) - sum(symbols) + 0.5
    mean, variance = _moments(lambda p: p**ones * (1 - p) ** zeros)
    return np.array([1 - mean, mean, variance, variance])

  assert _of_sequences(new, of) == 64


def _shares(weights: np.ndarray) -> np.ndarray:
  return weights / weights.sum()


@pytest.mark.parametrize('burstiness', [0, 2])
def test_classes_of_labelled_clusters(burstiness):
  """By sums over the classes of all slots, and over the slots of all points."""
  task: Any = zoo.create_task(
    'labelled_clusters',
    num_features=2,
    context_length=4,
    num_classes=4,
    num_labels=2,
    burstiness=burstiness,
    zipf=0.5,
    within=0.7,
  )
  prior = _shares(np.arange(1, 5) ** -0.5)
  spread = 0.7 / np.sqrt(1 + 0.7**2) / np.sqrt(2)
  means = task.means / np.sqrt(1 + 0.7**2)

  def orders():
    """The slot of each of five points, with equal probability."""
    if burstiness == 0:
      return [(0, 1, 2, 3, 4)]
    contexts = sorted({*itertools.permutations((0, 0, 1, 1))})
    return [(*context, query) for context in contexts for query in range(2)]

  def of(x, y, query):
    seen = len(x)
    fits = stats.norm.pdf(
      np.concatenate([x, query[None]])[:, None], means[None], spread
    ).prod(axis=2)
    for i in range(seen):
      fits[i] *= np.arange(4) % 2 == y[i].argmax()
    total = np.zeros(4)
    for order in orders():
      # What is asked is the next point: the query after all four, else an example.
      slots = order[:seen] + order[seen : seen + 1]
      used = sorted({*slots})
      for classes in itertools.product(range(4), repeat=len(used)):
        of_slot = dict(zip(used, classes, strict=True))
        weight = np.prod(prior[list(classes)])
        for i, slot in enumerate(slots):
          weight *= fits[i, of_slot[slot]]
        total[of_slot[slots[-1]]] += weight
    return total / total.sum()

  assert _check(task, task.sample(jax.random.key(0), 6), of) == 30


def test_clusters_of_labels():
  """By integrals over each coordinate of the means, summed over the query's class."""
  task: Any = zoo.create_task(
    'gaussian_clusters', num_features=2, context_length=4, num_classes=2
  )

  # The trapezoidal rule is off by h²/12 = 1e-9 times a difference of slopes.
  at = np.linspace(-1, 1, 20_001)

  def integrals(points):
    density = stats.norm.pdf(np.asarray(points)[:, None], at[None]).prod(axis=0)
    return [integrate.trapezoid(at**n * density, at) for n in range(3)]

  def of(x, y, query):
    mass, first, second = np.zeros(2), np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    for asked in range(2):  # The class of the query.
      whole = 1.0
      for k, j in itertools.product(range(2), range(2)):
        points = [*x[y[:, k] > 0, j], *([query[j]] if k == asked else [])]
        zero, one, two = integrals(points)
        whole *= zero
        first[asked, k, j], second[asked, k, j] = one / zero, two / zero
      mass[asked] = whole
    mass /= mass.sum()
    mean, square = (np.tensordot(mass, power, 1) for power in (first, second))
    return np.concatenate([mean.ravel(), (square - mean**2).ravel()])

  assert _check(task, task.sample(jax.random.key(0), 4), of) == 20


@pytest.mark.parametrize('noise_std', [0.5, 0.0])
def test_weights_of_linear_regression(noise_std):
  """By conditioning the joint normal distribution of weights and labels."""
  prior = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, 0.2], [0.0, 0.2, 0.5]])
  task = zoo.tasks.LinearRegression(
    3, 5, prior_mean=[0.5, -1.0, 0.0], prior_covariance=prior, noise_std=noise_std
  )
  mean = np.array([0.5, -1.0, 0.0])

  def of(x, y, _):
    if noise_std == 0:  # More examples than weights say the same.
      x, y = x[:3], y[:3]
    both = prior @ x.T
    gain = both @ np.linalg.inv(x @ both + noise_std**2 * np.eye(len(y)))
    covariance = prior - gain @ both.T
    return np.concatenate([mean + gain @ (y - x @ mean), np.diag(covariance)])

  # Without noise the labels of float32 fit no weights in float64, up to rounding times
  # the condition of three examples.
  if noise_std:
    assert _check(task, task.sample(jax.random.key(0), 20), of) == 120
  else:
    with jax.enable_x64(True):
      prompt = jax.device_get(task.sample(jax.random.key(0), 20))
      values = np.asarray(task.belief(prompt).values)
    for i, k in itertools.product(range(20), range(6)):
      truth = of(prompt.x[i, :k], prompt.y[i, :k], None)
      np.testing.assert_allclose(values[i, k], truth, rtol=1e-6, atol=1e-8)


def test_supports_of_sparse_regression():
  task: Any = zoo.create_task(
    'sparse_regression', num_features=4, num_nonzero=2, context_length=5, noise_std=0.3
  )

  def of(x, y, _):
    inclusion, total = np.zeros(4), 0.0
    for support in itertools.combinations(range(4), 2):
      member = np.isin(np.arange(4), support).astype(float)
      weight = _density(x, y, np.zeros(4), np.diag(member), 0.3, 1.0)
      inclusion += weight * member
      total += weight
    return inclusion / total

  assert _check(task, task.sample(jax.random.key(0), 20), of) == 120


@pytest.mark.parametrize(
  ('name', 'fields'),
  mostly_slow(
    [
      ('markov_chain', {'num_chains': 4, 'num_symbols': 3}),
      ('linear_regression', {'num_features': 2, 'noise_std': 0.5}),
    ],
    [
      ('task_pool', {'num_features': 2, 'num_tasks': 5}),
      ('urns', {'num_urns': 4}),
      ('urns', {'num_urns': None}),
      ('markov_chain', {'num_chains': 4, 'order': 2}),
      ('markov_chain', {'order': 2}),
      ('markov_chain', {}),
      ('labelled_clusters', {'num_features': 3, 'burstiness': 2, 'context_length': 4}),
      ('labelled_clusters', {'num_features': 3, 'burstiness': 0, 'context_length': 4}),
    ],
  ),
)
def test_the_prediction_of_the_own_belief_is_that_of_bayes(name, fields):
  task: Any = zoo.create_task(name, **{'context_length': 6} | fields)
  prompt = task.sample(jax.random.key(2), 32)
  belief = task.belief(prompt)
  said = task.belief_prediction(belief.values[:, -1], prompt)
  bayes = task.baselines()['bayes'](prompt)
  if task.label_kind == 'classes':
    bayes = jax.nn.softmax(bayes)
  # The logarithm of a probability of 0 is that of 1e-6, for each of 32 labels.
  np.testing.assert_allclose(said, bayes, atol=5e-5)


def test_a_prompt_may_have_fewer_examples():
  task: Any = zoo.create_task('urns', num_urns=4, context_length=6)
  prompt = task.sample(jax.random.key(0), 3)
  whole = task.belief(prompt).values
  short = task.belief(prompt.prefix(2)).values
  np.testing.assert_allclose(short, whole[:, :3], rtol=1e-5)


@pytest.mark.parametrize(
  ('name', 'fields', 'why'),
  [
    ('sinusoid', {}, 'Sinusoid has no belief: its posterior has no closed form'),
    ('markov_chain', {'num_symbols': 3}, 'has no closed posterior for more than two'),
    (
      'labelled_clusters',
      {'burstiness': 2, 'context_length': 12},
      'too many partitions of 12 examples into classes of 2',
    ),
    (
      'sparse_regression',
      {'num_features': 40, 'num_nonzero': 8},
      'more than 20,000 sets of 8 of 40 weights',
    ),
  ],
)
def test_a_task_without_a_belief_says_why(name, fields, why):
  task = zoo.create_task(name, **fields)
  prompt = jax.eval_shape(lambda: task.sample(jax.random.key(0), 2))
  prompt: Any = jax.tree.map(lambda of: np.zeros(of.shape, of.dtype), prompt)
  with refuses(why):
    task.belief(prompt)


def test_a_mixture_says_which_part_has_no_density():
  parts = zoo.tasks.LinearRegression(2, 4), zoo.tasks.LinearRegression(2, 4, 1.0)
  task = zoo.tasks.Mixture(parts)
  shapes = (1, 4, 2), (1, 4), (1, 2), (1,)
  prompt = zoo.Prompt(*(jnp.zeros(shape) for shape in shapes))
  with refuses('LinearRegression with these fields gives no density of prompts'):
    task.belief(prompt)


@pytest.mark.parametrize(
  ('fields', 'why'),
  [
    ({'process': 'mess4'}, "unknown process 'mess4'"),
    ({'mess3_alpha': 1.0}, 'mess3_alpha is 1.0; it must be below 1'),
    ({'mess3_x': 0.5}, 'mess3_x is 0.5; it must be below 0.5'),
  ],
)
def test_wrong_fields_of_a_process(fields, why):
  with refuses(why):
    zoo.create_task('hidden_markov', **{'process': 'mess3'} | fields)
