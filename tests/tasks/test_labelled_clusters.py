import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2, multivariate_normal, norm

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from tests.tasks import host
from zoo.estimators import partitions as tables
from zoo.tasks import LabelledClusters
from zoo.tasks.labelled_clusters import TESTS, sample_slots


def _task(**changes) -> LabelledClusters:
  fields = {'num_features': 2, 'context_length': 3, 'num_classes': 4, 'num_labels': 2}
  task = zoo.create_task('labelled_clusters', **fields | {'within': 0.7} | changes)
  assert isinstance(task, LabelledClusters)
  return task


def _sample(task, seed=0, batch_size=64) -> Any:
  return host.sample_with_latents(task, seed, batch_size)


# Without partitions, in loops over all classes that the points may have.


def _law(task):
  law = np.arange(1, task.num_classes + 1) ** -float(task.zipf)
  return law / law.sum()


def _arrangements(task, num_points):
  """The slots of the first points, if no more than N, or of N and the query."""
  n, b = task.context_length, task.burstiness
  if not b:
    return [tuple(range(num_points))]
  slots = np.repeat(np.arange(n // b), b)
  orders = [tuple(slots[list(order)]) for order in itertools.permutations(range(n))]
  if num_points <= n:
    return [order[:num_points] for order in orders]
  return [(*order, query) for order in orders for query in range(n // b)]


def _expected_bayes(task, x, y, x_query):
  """The probabilities of labels, all classes of all slots being enumerated."""
  points, std = np.concatenate([x, x_query[None]]), task.within
  scale = math.sqrt(1 + std**2)
  spread = std / math.sqrt(task.num_features) / scale
  density = norm.pdf(points[:, None], task.means / scale, spread).prod(-1)
  law, label = _law(task), np.arange(task.num_classes) % task.num_labels
  shown = np.argmax(y, axis=1)
  total = np.zeros(task.num_labels)
  for slots in _arrangements(task, len(points)):
    used = max(slots) + 1
    for of_slot in itertools.product(range(task.num_classes), repeat=used):
      classes = np.asarray(of_slot)[list(slots)]
      if (label[classes[:-1]] == shown).all():
        weight = np.prod(law[list(of_slot)])
        weight *= np.prod(density[np.arange(len(points)), classes])
        total[label[classes[-1]]] += weight
  return total / total.sum()


def _by_quadrature(points, within):
  """The density of points of one class with one feature, its mean being integrated."""
  grid = np.linspace(-9, 9, 4001)
  scale = math.sqrt(1 + within**2)
  values = norm.pdf(grid)
  for point in points[:, 0]:
    values = values * norm.pdf(point, grid / scale, within / scale)
  return np.sum(values) * (grid[1] - grid[0])


def _by_covariance(points, within):
  count, d = points.shape
  covariance = (within**2 * np.eye(count) + 1) / d / (1 + within**2)
  return np.prod(
    [
      multivariate_normal.pdf(points[:, j], np.zeros(count), covariance)
      for j in range(d)
    ]
  )


def _expected_context(task, x, y, x_query, density):
  """The same if the mean and the label of each class are new.

  For B > 0 each slot has a class; without bursts a class is drawn for every point.
  """
  points = np.concatenate([x, x_query[None]])
  shown, law = np.argmax(y, axis=1), _law(task)
  if task.burstiness:
    sequences = [(slots, 1.0) for slots in _arrangements(task, len(points))]
  else:
    sequences = [
      (classes, np.prod(law[list(classes)]))
      for classes in itertools.product(range(task.num_classes), repeat=len(points))
    ]
  total = np.zeros(task.num_labels)
  for classes, weight in sequences:
    of_point = np.asarray(classes)
    kinds = sorted(set(classes))
    weight *= np.prod([density(points[of_point == k], task.within) for k in kinds])
    for labels in itertools.product(range(task.num_labels), repeat=len(kinds)):
      label = np.asarray([labels[kinds.index(k)] for k in classes])
      if (label[:-1] == shown).all():
        total[label[-1]] += weight / task.num_labels ** len(kinds)
  return total / total.sum()


def _compare(task, name, expected, prompt=None):
  """A predictor on four prompts, at all lengths; by default those of the task."""
  prompt = _sample(task, 0, 4) if prompt is None else prompt
  predictor: Any = task.baselines()[name]
  run = jax.jit(lambda prompt: (predictor.predictions(prompt), predictor(prompt)))
  actual, alone = map(np.exp, jax.device_get(run(prompt)))
  np.testing.assert_allclose(alone, actual[:, -1], rtol=1e-4, atol=1e-6)
  for k in range(task.context_length + 1):
    part = prompt.prefix(k)
    for b in range(4):
      arrays = [np.asarray(a[b], np.float64) for a in (part.x, part.y, part.x_query)]
      np.testing.assert_allclose(
        actual[b, k], expected(task, *arrays), rtol=2e-4, atol=1e-5
      )


_BURSTS = [
  {'burstiness': 1},
  {'burstiness': 3},
  {'burstiness': 2, 'context_length': 4, 'num_classes': 2},
  {'burstiness': 0},
]


@pytest.mark.parametrize('changes', mostly_full(_BURSTS[2:3], _BURSTS))
def test_bayes_agrees_with_a_loop_over_all_classes(changes):
  _compare(_task(zipf=1.0, **changes), 'bayes', _expected_bayes)


@pytest.mark.slow
@pytest.mark.full
def test_weights_agree_with_a_loop_over_classes():
  task, drawn = _drawn(2)
  blind = _task(zipf=1.5, burstiness=0)

  def expected(_, x, y, x_query):
    return _expected_bayes(blind, x[:0], y[:0], x_query)

  prompt = jax.tree.map(lambda array: array[:4], drawn)
  _compare(task, 'weights', expected, prompt)


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  mostly_full(
    _BURSTS[2:3],
    [*_BURSTS, {'burstiness': 0, 'num_classes': 2}],
  ),
)
def test_context_agrees_with_a_loop_and_covariances(changes):
  def expected(*arguments):
    return _expected_context(*arguments, density=_by_covariance)

  _compare(_task(zipf=0.5, **changes), 'context', expected)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('burstiness', mostly_full([], [0, 1], slow=[3]))
def test_context_agrees_with_quadrature_over_the_means(burstiness):
  def expected(*arguments):
    return _expected_context(*arguments, density=_by_quadrature)

  task = _task(num_features=1, burstiness=burstiness, num_labels=4, within=0.3)
  _compare(task, 'context', expected)


@pytest.mark.slow
def test_predictors_are_finite_where_their_law_has_no_such_prompt():
  # Means far away, and labels that no partition explains.
  task = _task(burstiness=3, num_features=5, within=0.01)
  points: Any = np.random.default_rng(0).normal(0, 100, (64, 4, 5)).astype('f')
  y: Any = np.eye(2, dtype='f')[np.tile([0, 1, 1, 0], (64, 1))]
  prompt = zoo.Prompt(points[:, :-1], y[:, :-1], -points[:, -1], y[:, -1])
  baselines = task.baselines()
  run = jax.jit(lambda prompt: {name: f(prompt) for name, f in baselines.items()})
  for name, prediction in run(prompt).items():
    assert np.isfinite(prediction).all(), name


@pytest.mark.parametrize(
  ('length', 'burstiness', 'count'),
  [(3, 0, 15), (4, 1, 4), (4, 2, 6), (4, 4, 1), (6, 2, 45)],
)
def test_the_partitions_are_all_there_are(length, burstiness, count):
  table = tables.partitions(length, burstiness)
  assert tables.count(length, burstiness) == len(table.rows) == count
  assert len({tuple(sorted(row)) for row in table.rows.tolist()}) == count
  points = table.blocks[table.rows]
  assert (points.sum(1) == 1).all()  # each point is in one block
  for i, point in enumerate((length - 1, length)):
    assert table.blocks[table.holders[:, i], point].all()
  if burstiness:
    sizes = points[..., :-1].sum(2)
    assert set(sizes.ravel().tolist()) <= {0, burstiness}


@pytest.mark.slow
def test_too_many_partitions_are_not_summed_over():
  assert {*_task(context_length=8, burstiness=0).baselines()} == {
    *('bayes', 'context', 'weights', 'zero')
  }
  assert {*_task(context_length=9, burstiness=0).baselines()} == {
    *('bayes', 'weights', 'zero')
  }
  assert {*_task(context_length=16, burstiness=4).baselines()} == {'weights', 'zero'}
  assert 'context' in _task(context_length=256).baselines()
  assert 'context' not in _task(context_length=10_000, burstiness=0).baselines()
  with refuses('the prompt has 4 examples, and the predictor is for 3'):
    parts = (np.zeros(shape, 'f') for shape in ((1, 4, 2), (1, 4, 2), (1, 2), (1, 2)))
    jax.eval_shape(_task().baselines()['bayes'], zoo.Prompt(*map(jnp.asarray, parts)))


def test_partitions_without_bursts_have_the_probabilities_of_their_classes():
  law = np.array([0.5, 0.3, 0.2])
  table = tables.partitions(3, 0)
  expected = np.zeros(len(table.rows))
  of_point = np.argmax(table.blocks[table.rows], axis=1)  # the block of each point
  for classes in itertools.product(range(3), repeat=4):
    same = np.equal.outer(classes, classes)
    index = [np.equal.outer(row, row).tolist() for row in of_point].index(same.tolist())
    expected[index] += np.prod(law[list(classes)])
  actual = np.exp(tables.log_prior(3, law))
  np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-300)


# The prompts.


def _p_value(counts, expected):
  statistic = np.sum((counts - expected) ** 2 / expected)
  return chi2.sf(statistic, len(counts) - 1)


_COUNT = 5000


@functools.cache
def _drawn(burstiness: int, test: str = 'training') -> Any:
  """A task, and prompts of one of its tests."""
  task = _task(context_length=4, burstiness=burstiness, zipf=1.5)
  tests: Any = {'training': task, **task.shifts()}
  return task, _sample(tests[test], 1, _COUNT)


@pytest.mark.slow
@pytest.mark.parametrize('burstiness', mostly_full([2], [1, 0]))
def test_classes_have_their_probabilities_in_bursts(burstiness):
  task, prompt = _drawn(burstiness)
  classes = prompt.latents
  for position in range(5):
    counts = np.bincount(classes[:, position], minlength=4)
    assert _p_value(counts, _COUNT * _law(task)) > 1e-5
  of_context = np.sum(classes[:, :-1, None] == np.arange(4), axis=1)
  if burstiness:
    assert (of_context % burstiness == 0).all()
    of_query = np.take_along_axis(of_context, classes[:, -1:], 1)
    assert (of_query >= burstiness).all()
  else:
    pairs = np.bincount(4 * classes[:, 0] + classes[:, -1], minlength=16)
    assert _p_value(pairs, _COUNT * np.outer(_law(task), _law(task)).ravel()) > 1e-5


def test_features_are_around_the_means_of_their_classes():
  task, prompt = _drawn(2)
  noise = host.features(prompt) * math.sqrt(1 + 0.7**2) - task.means[prompt.latents]
  noise = noise.reshape(-1, 2) * math.sqrt(2) / 0.7
  np.testing.assert_allclose(noise.mean(0), 0, atol=5 / math.sqrt(len(noise)))
  covariance = noise.T @ noise / len(noise)
  np.testing.assert_allclose(covariance, np.eye(2), atol=5 * math.sqrt(2 / len(noise)))
  labels = np.eye(2)[prompt.latents % 2]
  np.testing.assert_array_equal(host.targets(prompt), labels)
  # The means have the size of one feature vector, 1.
  many = _task(num_features=8, num_classes=2000).means
  assert abs(np.mean(np.sum(many**2, 1)) - 1) <= 5 * math.sqrt(2 / 8 / 2000)
  assert not np.isclose(_task(seed=1).means, _task().means).any()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('labels', ['swapped', 'of another number'])
def test_features_do_not_depend_on_labels(labels):
  """Bit for bit."""
  if labels == 'swapped':
    (_, prompt), (_, changed) = _drawn(2), _drawn(2, 'swapped')
  else:
    prompt, changed = (
      _sample(
        _task(context_length=4, burstiness=2, zipf=1.0, num_labels=number), 1, 20_000
      )
      for number in (2, 4)
    )
  np.testing.assert_array_equal(changed.x, prompt.x)
  np.testing.assert_array_equal(changed.x_query, prompt.x_query)
  assert not np.array_equal(changed.y_query, prompt.y_query)


@pytest.mark.parametrize(
  'test', mostly_full([], ['training', 'in_context'], slow=['swapped'])
)
def test_no_position_tells_the_label_of_the_query(test):
  count, n = 20_000, 4
  task = _task(num_features=1, context_length=n, num_classes=8, burstiness=2)
  if test != 'training':
    task = task.shifts()[test]
  prompt = _sample(task, 3, count)
  query = np.argmax(prompt.y_query, 1)
  assert _p_value(np.bincount(query, minlength=2), np.full(2, count / 2)) > 1e-5
  same = (np.argmax(prompt.y, 2) == query[:, None]).sum(0)
  assert _p_value(same, np.full(n, same.mean())) > 1e-5


@pytest.mark.slow
def test_the_slot_of_the_query_is_at_any_place():

  @jax.jit
  def draw(key):
    return jax.vmap(lambda key: sample_slots(key, 6, 2))(jax.random.split(key, 9000))

  slots = np.asarray(draw(jax.random.key(0)))
  for slot in range(3):
    counts = (slots[:, :-1] == slot).sum(0)
    assert _p_value(counts, np.full(6, 3000)) > 1e-5
  same = (slots[:, :-1] == slots[:, -1:]).sum(0)
  assert _p_value(same, np.full(6, 3000)) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('burstiness', mostly_full([2], [0]))
def test_the_tests_are_what_they_say(burstiness):
  task = _drawn(burstiness)[0]
  assert [*task.shifts()][:3] == [*TESTS]
  prompts = {test: _drawn(burstiness, test)[1] for test in TESTS}
  absent = prompts['in_weights'].latents
  assert not (absent[:, :-1] == absent[:, -1:]).any()
  counts = np.bincount(absent[:, -1], minlength=4)
  assert _p_value(counts, _COUNT * _law(task)) > 1e-5
  targets = host.targets(prompts['in_weights'])
  np.testing.assert_array_equal(targets, np.eye(2)[absent % 2])
  swapped = prompts['swapped']
  # One permutation a prompt: labels are those of classes, or all are the others.
  is_same = np.all(host.targets(swapped) == np.eye(2)[swapped.latents % 2], axis=2)
  assert (is_same == is_same[:, :1]).all()
  assert abs(is_same[:, 0].mean() - 0.5) <= 5 * 0.5 / math.sqrt(_COUNT)
  assert (swapped.latents[:, :-1] == swapped.latents[:, -1:]).any(1).all()
  new = prompts['in_context']
  # A class is as far from the known ones as from itself elsewhere: E |x|² = 1.
  assert abs(np.mean(np.sum(new.x_query**2, 1)) - 1) <= 5 / math.sqrt(_COUNT)
  same = new.latents[:, :-1] == new.latents[:, -1:]
  assert (same.sum(1) == max(burstiness, 1)).all()
  products = np.sum(new.x * new.x_query[:, None], axis=2)
  for is_one, mean in ((same, 1 / (1 + 0.7**2)), (~same, 0)):
    sample = products[is_one]
    # Examples of one prompt share a query.
    assert abs(sample.mean() - mean) <= 5 * sample.std() / math.sqrt(_COUNT)
  labels = np.argmax(host.targets(new), 2)
  assert (labels[:, :-1] == labels[:, -1:])[same].all()


def test_bayes_of_new_classes_is_the_context_in_bursts():
  bursts = _task(burstiness=3).shifts()['in_context'].baselines()
  assert [*bursts] == ['bayes', 'bayes_unshifted', 'context', 'weights', 'zero']
  assert bursts['bayes'] == bursts['context']
  none = _task(burstiness=0).shifts()['in_context'].baselines()
  assert none['bayes'] == _task(burstiness=1).baselines()['context']
  others = _task().shifts()['in_weights'].baselines()
  assert [*others] == ['bayes_unshifted', 'context', 'weights', 'zero']


@pytest.mark.slow
@pytest.mark.full
def test_each_predictor_fails_the_tests_of_the_other():
  """The accuracies of docs/tasks.md, to five standard errors of these prompts."""
  task = zoo.create_task('labelled_clusters', burstiness=2, within=1.5)
  count, others = 1024, 3 / 127  # classes with the label of the query, of all others
  expected = {
    'training': {'context': 0.973, 'weights': 0.987, 'bayes': 1.0},
    'in_context': {'context': 0.973, 'weights': 1 / 32},
    'swapped': {'context': 0.973, 'weights': 1 / 32},
    'in_weights': {'context': others, 'weights': 0.987, 'bayes': others},
  }
  predictors = {name: jax.jit(f) for name, f in task.baselines().items()}
  for test, accuracies in expected.items():
    prompt = _sample({'training': task, **task.shifts()}[test], 5, count)
    for name, accuracy in accuracies.items():
      target = jnp.asarray(prompt.y_query)
      right: Any = task.accuracy(predictors[name](prompt), target)
      error = math.sqrt(accuracy * (1 - accuracy) / count)
      assert abs(right.mean() - accuracy) <= 5 * error + 0.005, (test, name)


@pytest.mark.slow
@pytest.mark.full
def test_the_table_of_truth_where_it_has_closed_forms():
  """Two classes on a line, each with a label of its own, and one example."""
  sizes = {'num_features': 1, 'context_length': 1, 'num_classes': 2, 'num_labels': 2}
  task: Any = zoo.create_task('labelled_clusters', **sizes, within=0.8)
  # The example has the label of the query's class, unless that is the other one; and
  # the nearer mean is right with probability Φ(|μ_0 − μ_1| / 2ε).
  gap = abs(float(task.means[0, 0] - task.means[1, 0]))
  nearer = 0.5 * (1 + math.erf(gap / (2 * 0.8) / math.sqrt(2)))
  truth = {
    'training': {'context': 1.0, 'weights': nearer, 'bayes': 1.0},
    'in_context': {'context': 1.0, 'weights': 0.5, 'bayes': 1.0},
    'swapped': {'context': 1.0, 'weights': 0.5, 'bayes': 1.0},
    'in_weights': {'context': 0.0, 'weights': nearer, 'bayes': 0.0},
  }
  assert 0.55 < nearer < 0.95
  predictors, number = task.baselines(), 20_000

  @jax.jit
  def accuracies_of(prompt):
    return {
      name: task.accuracy(predictor(prompt), prompt.y_query)
      for name, predictor in predictors.items()
    }

  for test, accuracies in truth.items():
    subject = task if test == 'training' else task.shifts()[test]
    every = jax.device_get(accuracies_of(host.sample(subject, 7, number)))
    for name, accuracy in accuracies.items():
      right = every[name]
      # 4.5 standard errors of a share; certain ones have none.
      error = 4.5 * math.sqrt(accuracy * (1 - accuracy) / number)
      assert abs(float(right.mean()) - accuracy) <= error + 1e-6, (test, name)
