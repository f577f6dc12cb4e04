"""Small tables, as data science has them, which are drawn from a prior."""

# A size that the base class declares as a field may be a property here.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from zoo.core import losses
from zoo.core.distributions import has_classes
from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.trees import Number
from zoo.estimators.tables import MeanLabel, TableNeighbours, TableRidge
from zoo.tasks.base import BaseTask, make_prompt, register_task

KINDS = 'both', 'numbers', 'classes'

# Each table has this many rows that are not shown. Scales and thresholds of the table
# come from them, so that the rows that are shown are independent given the table.
_HIDDEN_ROWS = 64
# The causal graph has layers of _NODES nodes, with _LAYERS layers after the roots. The
# roots may lie in up to _CLUSTERS clusters.
_NODES, _LAYERS, _CLUSTERS = 16, 3, 8
# With more features there would be too few nodes left for the scores.
_MOST_FEATURES = 60
# Labels are made from _SCORES numbers. Up to _TREES trees are summed, each with _SPLITS
# splits from root to leaf.
_SCORES, _TREES, _SPLITS = 4, 6, 3
# Features and numbers are cut off at this many standard deviations.
_LARGEST = 10.0


class _Labels(NamedTuple):
  """The labels of rows, as numbers and as classes."""

  numbers: Float[Array, ' n']
  classes: Int[Array, ' n']


@register_task('tabular')
@struct.dataclass(eq=False, repr=False)
class Tabular(BaseTask):
  """Prompts that are random tables, with missing and irrelevant features.

  Each prompt is one table, whose last row is the query. It has from 2 to `num_features`
  features, log-uniformly; the other columns are 0. Rows are independent given the
  table. docs/tabular.md says in full how a table is drawn; in short:

  - Features are nodes of a random causal graph (70 %) or points of Gaussian clusters,
    one for each class (30 %).
  - Scores are another node of the graph, a sparse linear function of the features, a
    sum of up to 6 trees of depth 3, or a mixture of these, with noise of 1 % to 220 %
    of their standard deviation.
  - A number is a score, at times warped. A class is an interval of a score, the largest
    of several linear combinations of scores, or the cluster. Names of classes are
    permuted.
  - Features are then replaced by noise, warped, rounded to levels, made binary, or
    missing at random (NaN).

  The labels of a table are numbers, whose variance is 1 up to the error of 64 rows, or
  classes. With `kind='both'` a label is a vector `[1 + num_classes]`: the number, then
  the class as a one-hot vector; the part that does not apply is 0. With
  `kind='numbers'` labels are numbers alone, and with `kind='classes'` one-hot vectors
  alone. Targets are the labels with their noise. The Bayes predictor is not known.

  TabPFN has a prior of the same kind for classes (Hollmann et al., arXiv 2207.01848,
  section 4). The distribution here is our own.

  Args:
    num_features: Largest number of features of a table, from 1 to 60.
    context_length: Number of context rows: the rows of a table without the query, ≥ 1.
    num_classes: Largest number of classes, ≥ 2.
    kind: Kind of the labels: 'both', 'numbers' or 'classes'.
    share_missing: The share of tables with missing features, from 0 to 1. In each of
      them an entry is missing with a probability that is uniform from 0 to 0.3.

  Example:
    >>> task = zoo.create_task('tabular', num_features=4, context_length=9)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape  # a number, and ten classes
    ((2, 9, 4), (2, 9, 11))
  """

  num_features: int = struct.field(pytree_node=False, default=32)
  context_length: int = struct.field(pytree_node=False, default=127)
  num_classes: int = struct.field(pytree_node=False, default=10)
  kind: str = struct.field(pytree_node=False, default='both')
  share_missing: Number = 0.0
  stationary = True
  exchangeable = True
  may_miss = True

  @property
  def num_outputs(self) -> int:
    """Number of entries of a label, k."""
    entries = {'both': 1 + self.num_classes, 'numbers': 1, 'classes': self.num_classes}
    return entries[self.kind]

  @property
  def label_kind(self) -> str:
    """What labels are; those of both kinds are vectors of numbers, with their loss."""
    return 'classes' if self.kind == 'classes' else 'numbers'

  def check(self) -> None:
    super().check()
    check_count('num_features', self.num_features, maximum=_MOST_FEATURES)
    check_count('num_classes', self.num_classes, minimum=2)
    check_name('kind', self.kind, KINDS)
    check_number('share_missing', self.share_missing, minimum=0.0, maximum=1.0)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    size_key, features_key, labels_key, records_key, kind_key = jax.random.split(key, 5)
    d = _sample_size(size_key, self.num_features)
    n = self.context_length + 1 + _HIDDEN_ROWS
    x, nodes, clusters, is_clusters = _sample_features(
      features_key, n, d, self.num_features, self.num_classes
    )
    present = jnp.arange(self.num_features) < d
    x = jnp.where(present[None], x, 0)
    labels = _sample_labels(labels_key, x, d, nodes, is_clusters, self.num_classes)
    # The class of a table of clusters is the cluster.
    classes = jnp.where(is_clusters, clusters, labels.classes)
    x = _record(records_key, x, jnp.asarray(self.share_missing, x.dtype))
    x = jnp.where(present[None], x, 0)
    of_kind, names = jax.random.split(kind_key)
    classes = jax.random.permutation(names, self.num_classes)[classes]
    is_class = jax.random.bernoulli(of_kind)
    labelled = self._labels_of_kind(_Labels(labels.numbers, classes), is_class)
    latents = {'num_features': d, 'is_class': is_class}
    rows = slice(self.context_length + 1)
    return make_prompt(x[rows], labelled[rows], None, latents)

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Raises UserError: how labels depend on given features is not known.

    Args:
      key: Random key.
      prompt: One prompt.
      keep: 'query' or 'inputs'.

    Raises:
      UserError: If it is called: the distribution is not known.
    """
    raise UserError(
      'the features of a table do not tell how its labels were drawn, so prompts of '
      'Tabular cannot be drawn again'
    )

  def _labels_of_kind(
    self, labels: _Labels, is_class: Bool[Array, '']
  ) -> Float[Array, ' n *k']:
    one_hot = jax.nn.one_hot(labels.classes, self.num_classes)
    if self.kind == 'numbers':
      return labels.numbers
    if self.kind == 'classes':
      return one_hot
    numbers = jnp.where(is_class, 0, labels.numbers)
    return jnp.concatenate([numbers[:, None], jnp.where(is_class, one_hot, 0)], axis=1)

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    """Returns the squared error of a number, or the log loss of the logits of classes.

    With `kind='both'` the mean of this loss over prompts has no unit, since it is over
    both kinds of tables. The negative log likelihood, in nats, is the number to read
    then.
    """
    if self.kind != 'both':
      return super().loss(prediction, target)
    of_classes = losses.cross_entropy(prediction[..., 1:], target[..., 1:])
    of_numbers = losses.squared_error(prediction[..., 0], target[..., 0])
    return jnp.where(has_classes(target), of_classes, of_numbers)

  def baselines(self) -> dict[str, Predictor]:
    """Returns the baselines of this task, by name.

    `mean` predicts the same for every row of a table. `ridge` is there for numbers
    alone.
    """
    ridge = {'ridge': TableRidge()} if self.kind == 'numbers' else {}
    neighbours = {'nearest_neighbours': TableNeighbours(self.kind)}
    return {**ridge, **neighbours, 'mean': MeanLabel(self.kind)}


class _Draws:
  """Random numbers of one key, which are given out in order.

  All come from uniform numbers of a single call, since XLA takes as long to compile one
  call of a generator as the rest of a function.
  """

  def __init__(self, key: Key[Array, ''], size: int):
    # The ends exclude 0, whose logarithm and whose normal quantile are infinite.
    self._numbers = jax.random.uniform(key, (size,), minval=1e-7, maxval=1 - 1e-7)
    self._used = 0

  def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Array:
    """Returns uniform numbers between two ends."""
    start, self._used = self._used, self._used + math.prod(shape)
    assert self._used <= len(self._numbers), 'there are too few numbers'
    numbers = self._numbers[start : self._used].reshape(shape)
    return numbers if (low, high) == (0, 1) else low + (high - low) * numbers

  def normal(self, *shape: int) -> Array:
    """Returns standard normal numbers."""
    return jax.scipy.special.ndtri(self.uniform(*shape))

  def gumbel(self, *shape: int) -> Array:
    """Returns Gumbel numbers.

    Their sum with logits is largest at each class with the probability of the class.
    """
    return -jnp.log(-jnp.log(self.uniform(*shape)))

  def happens(self, probability: float | Array, *shape: int) -> Array:
    """Returns whether an event with this probability happens."""
    return self.uniform(*shape) < probability

  def integer(self, number: int | Array, *shape: int) -> Array:
    """Returns integers ≥ 0 and below a number."""
    share = self.uniform(*shape)
    number = jnp.asarray(number, share.dtype)
    return jnp.minimum(jnp.floor(share * number), number - 1).astype(int)


def _sample_size(key: Key[Array, ''], largest: int) -> Int[Array, '']:
  """Draws a number of features from 2 to the largest, log-uniformly."""
  least = min(2, largest)
  low, high = math.log(least), math.log(largest + 1)
  size = jnp.floor(jnp.exp(jax.random.uniform(key, minval=low, maxval=high)))
  return jnp.clip(size, least, largest).astype(int)


def _sample_features(
  key: Key[Array, ''], n: int, size: Int[Array, ''], d: int, k: int
) -> tuple[Float[Array, 'n d'], Float[Array, 'n s'], Int[Array, ' n'], Bool[Array, '']]:
  """Draws features, other nodes, the cluster of each row, and the kind of the table.

  The last value says whether the table comes from clusters. Otherwise it comes from the
  graph.

  Returns:
    The features `[n, d]`, the nodes that may be scores `[n, s]`, the clusters `[n]`,
    and the kind.
  """
  graph_key, clusters_key, own_key = jax.random.split(key, 3)
  draws = _Draws(own_key, 2 * (_LAYERS + 1) * _NODES + 3)
  x, others = _choose_nodes(draws, _sample_graph(graph_key, n), size, d)
  points, clusters = _sample_clusters(clusters_key, n, d, k)
  is_clusters = draws.happens(0.3)
  return jnp.where(is_clusters, points, x), others, clusters, is_clusters


def _sample_graph(key: Key[Array, ''], n: int) -> Float[Array, 'n m']:
  """Draws the standardised nodes of a random causal graph: roots, then three layers.

  A node of a layer is a function of a weighted sum of nodes of the layer before, plus
  noise. It has one sure parent. Each other node of that layer is a parent with a
  probability that is drawn for the table, from 0.1 to 0.7. In 30 % of the tables there
  is no noise, and in 20 % all functions are linear.

  Returns:
    The nodes `[n, m]`, from the roots to the last layer.
  """
  m = _NODES
  of_roots = n * (3 * m + 1) + _CLUSTERS * m + m * m + m + 3
  draws = _Draws(key, of_roots + _LAYERS * (2 * m * m + 4 * m + n * m) + 4)
  layers = [_sample_roots(draws, n)]
  density = draws.uniform(low=0.1, high=0.7)
  noise_std = jnp.where(draws.happens(0.3), 0, 10 ** draws.uniform(low=-2.0, high=0.0))
  is_linear = draws.happens(0.2)
  for _ in range(_LAYERS):
    weights = draws.normal(m, m)
    weights *= draws.happens(density, m, m).astype(weights.dtype)
    weights += jax.nn.one_hot(draws.integer(m, m), m)
    sums = _standardised(_product(layers[-1], weights))
    scale, shift = draws.normal(2, m) / 2
    which = jnp.where(is_linear, 0, draws.integer(_NUM_FUNCTIONS, m))
    values = _apply_functions(which, sums * jnp.exp(scale)[None] + shift[None])
    noise = noise_std * draws.normal(n, m)
    layers.append(_standardised(_standardised(values) + noise))
  return jnp.concatenate(layers, axis=1)


def _sample_roots(draws: _Draws, n: int) -> Float[Array, 'n r']:
  """Draws roots: normal, uniform or clustered, and mixed in half of the tables."""
  normal, uniform = draws.normal(n, _NODES), draws.uniform(n, _NODES, low=-1.0)
  centres = draws.normal(_CLUSTERS, _NODES)
  cluster = draws.integer(2 + draws.integer(_CLUSTERS - 1), n)
  clustered = centres[cluster] + draws.normal(n, _NODES) / 3
  which = draws.integer(4, _NODES)[None]
  roots = jnp.where(which == 0, uniform, jnp.where(which == 1, clustered, normal))
  strength = jnp.where(draws.happens(0.5), 0, draws.uniform(high=2.0))
  others = draws.normal(_NODES, _NODES) / math.sqrt(_NODES)
  return _standardised(_standardised(roots) + strength * _product(roots, others))


def _apply_functions(
  which: Int[Array, ' m'], values: Float[Array, 'n m']
) -> Float[Array, 'n m']:
  """Applies one of the functions of `_functions` to each column."""
  chosen = jax.nn.one_hot(which, _NUM_FUNCTIONS)[None]
  return jnp.sum(_functions(values) * chosen, axis=-1)


def _functions(x: Float[Array, 'n m']) -> Float[Array, 'n m f']:
  functions = (
    x,
    jnp.tanh(x),
    jax.nn.relu(x),
    jnp.sin(2 * x),
    jnp.abs(x),
    jnp.square(x),
    jnp.sign(x),
    jnp.exp(-jnp.square(x)),
    jnp.where(x > 0, x, x / 5),
  )
  return jnp.stack(functions, axis=-1)


_NUM_FUNCTIONS = 9


def _choose_nodes(
  draws: _Draws, nodes: Float[Array, 'n m'], size: Int[Array, ''], d: int
) -> tuple[Float[Array, 'n d'], Float[Array, 'n s']]:
  """Chooses nodes that are features, and nodes that may be scores.

  In 40 % of the tables features are roots, as far as there are roots, and the scores
  are nodes of the layer at the depth of the table. In the others both are any nodes up
  to that depth, so that a score may be a cause of features. If all of these are
  features, scores are nodes of later layers.

  Returns:
    The features `[n, d]`, and the nodes that may be scores `[n, s]`.
  """
  layer = np.repeat(np.arange(_LAYERS + 1), _NODES)
  depth, are_roots = 1 + draws.integer(_LAYERS), draws.happens(0.4)
  may_be = jnp.where(are_roots, layer == 0, layer <= depth)
  last = jnp.where(may_be, 0, layer).astype(nodes.dtype)
  features = jnp.argsort(last - draws.uniform(len(layer)))[:d]
  may_be = jnp.where(are_roots, layer == depth, layer <= depth)
  later = jnp.where(may_be, 0, 1 + layer).astype(nodes.dtype)
  # Columns that the table does not have do not count as features.
  is_feature = jnp.zeros(len(layer), bool).at[features].set(jnp.arange(d) < size)
  later = jnp.where(is_feature, 2 + _LAYERS, later)
  scores = jnp.argsort(later - draws.uniform(len(layer)))[:_SCORES]
  return nodes[:, features], nodes[:, scores]


def _sample_clusters(
  key: Key[Array, ''], n: int, d: int, k: int
) -> tuple[Float[Array, 'n d'], Int[Array, ' n']]:
  """Draws points of Gaussian clusters, standardised, and the cluster of each.

  There are 2 clusters in 35 % of the tables, and from 2 to k in the others. The
  logarithms of their shares are Gumbel variables times a uniform one. Centres are
  `s N(0, I)` with log s uniform, and are the same for all clusters in some features.
  Points have the covariance of a model with three factors. In half of the tables its
  scales differ between clusters.

  Returns:
    The points `[n, d]`, and their clusters `[n]`.
  """
  draws = _Draws(key, 2 * k * d + (n + 3) * k + n * d + 3 * n + 4 * d + 8)
  logits = draws.gumbel(k) * draws.uniform()
  logits = jnp.where(jnp.arange(k) < _sample_number(draws, k), logits, -jnp.inf)
  cluster = jnp.argmax(logits[None] + draws.gumbel(n, k), axis=1)
  tells = draws.happens(draws.uniform(low=0.2), d)
  separation = 10 ** draws.uniform(low=-0.7, high=0.6)
  centres = separation * draws.normal(k, d) * tells[None].astype(logits.dtype)
  loads = draws.uniform(high=1.5) * draws.normal(d, 3)
  spread = jnp.where(draws.happens(0.5), 0, draws.uniform(high=0.7))
  scales = jnp.exp(spread * draws.normal(k, d))
  own = _product(draws.normal(n, 3), loads) + draws.normal(n, d)
  return _standardised(centres[cluster] + scales[cluster] * own), cluster


def _sample_number(draws: _Draws, k: int) -> Int[Array, '']:
  """Draws a number of classes: 2 in 35 % of the tables, else uniform from 2 to k."""
  return jnp.where(draws.happens(0.35), 2, 2 + draws.integer(k - 1))


def _sample_labels(
  key: Key[Array, ''],
  x: Float[Array, 'n d'],
  size: Int[Array, ''],
  nodes: Float[Array, 'n s'],
  is_clusters: Bool[Array, ''],
  k: int,
) -> _Labels:
  """Draws labels from scores: nodes of the graph and functions of the features.

  In tables of clusters, which do not come from the graph, scores are functions of the
  features alone.

  Returns:
    The labels as numbers and as classes.
  """
  d, n, s = x.shape[1], len(x), _SCORES
  of_trees = _TREES * (2 * _SPLITS + s * 2**_SPLITS) + 1
  of_classes = (s + 1) * k + 2 * n + _HIDDEN_ROWS + 6
  draws = _Draws(key, (s + 1) * d + 1 + of_trees + n * (s + 1) + of_classes + 10)
  linear, trees = _sample_linear(draws, x), _sample_trees(draws, x, size)
  # Scores are one of the three (35 %, 25 %, 20 %), or a mixture of all.
  low = jnp.where(is_clusters, 0.35, 0.0)
  which = jnp.sum(low + (1 - low) * draws.uniform() > jnp.array([0.35, 0.6, 0.8]))
  weights = jnp.where(which == 3, draws.uniform(3), jax.nn.one_hot(which, 3))
  weights = weights.at[0].set(jnp.where(is_clusters, 0, weights[0]))
  scores = weights[0] * nodes + weights[1] * linear + weights[2] * trees
  scores = _standardised(scores) + _sample_noise(draws, n)
  return _Labels(_numbers_of(draws, scores[:, 0]), _classes_of(draws, scores, k))


def _sample_linear(draws: _Draws, x: Float[Array, 'n d']) -> Float[Array, 'n s']:
  """Draws linear functions of the features, with the same sparsity; standardised."""
  d = x.shape[1]
  used = draws.happens(draws.uniform(low=0.2), d)
  return _standardised(
    _product(x, draws.normal(_SCORES, d) * used[None].astype(x.dtype))
  )


def _sample_trees(
  draws: _Draws, x: Float[Array, 'n d'], size: Int[Array, '']
) -> Float[Array, 'n s']:
  """Draws sums of 1 to 6 trees of depth 3, standardised.

  All nodes of one level of a tree split in the same way.

  Returns:
    The sums `[n, s]`.
  """
  features = draws.integer(size, _TREES, _SPLITS)
  rows = len(x) - 1 - draws.integer(_HIDDEN_ROWS, _TREES, _SPLITS)
  bits = x[:, features] > x[rows, features][None]
  leaves = jnp.sum(bits.astype(int) * 2 ** np.arange(_SPLITS)[None, None], axis=-1)
  values = draws.normal(_TREES, 2**_SPLITS, _SCORES)
  used = jnp.arange(_TREES) < 1 + draws.integer(_TREES)
  values *= used[:, None, None].astype(values.dtype)
  scores = values[0][leaves[:, 0]]
  for i in range(1, _TREES):
    scores += values[i][leaves[:, i]]
  return _standardised(scores)


def _sample_noise(draws: _Draws, n: int) -> Float[Array, 'n s']:
  """Draws the noise of scores.

  Its standard deviation is 0.01 in 20 % of the tables, and log-uniform from 0.03 to 2.2
  in the others. In 20 % of the tables the noise of each row is also multiplied by a
  log-normal factor, whose mean square is 1.

  Returns:
    The noise `[n, s]`.
  """
  size = 10 ** draws.uniform(low=-1.5, high=0.35)
  std = jnp.where(draws.happens(0.2), 0.01, size)
  # The mean of exp(1.6 z) is exp(1.6² / 2).
  is_heavy, factor = draws.happens(0.2), jnp.exp(0.8 * draws.normal(n, 1) - 0.64)
  return std * draws.normal(n, _SCORES) * jnp.where(is_heavy, factor, 1)


def _numbers_of(draws: _Draws, score: Float[Array, ' n']) -> Float[Array, ' n']:
  """Returns numbers of unit variance from a score.

  In 60 % of the tables they are the score itself, else its exponential or a power of
  it.
  """
  which, strength = draws.integer(5), draws.uniform(low=0.2)
  score = _standardised(score[:, None])[:, 0]
  power = jnp.sign(score) * jnp.abs(score) ** (1 + strength)
  skewed = jnp.where(which == 0, jnp.exp(strength * score), power)
  numbers = jnp.where(which < 2, skewed, score)
  return jnp.clip(_standardised(numbers[:, None])[:, 0], -_LARGEST, _LARGEST)


def _classes_of(draws: _Draws, scores: Float[Array, 'n s'], k: int) -> Int[Array, ' n']:
  """Draws classes: intervals of one score, or the largest combination of scores.

  In half of the tables up to 15 % of the classes are drawn anew.

  Returns:
    The classes `[n]`, from 0.
  """
  n, number = len(scores), _sample_number(draws, k)
  # The ends of the intervals are scores of hidden rows.
  order = jnp.argsort(draws.uniform(_HIDDEN_ROWS))
  hidden = scores[-_HIDDEN_ROWS:, 0][order]
  ends = hidden[jnp.minimum(jnp.arange(k - 1), _HIDDEN_ROWS - 1)]
  is_end = jnp.arange(k - 1) < number - 1
  intervals = jnp.sum((scores[:, :1] > ends[None]) & is_end[None], axis=1)
  logits = _product(scores, draws.normal(k, _SCORES)) + draws.normal(k)[None] / 2
  largest = jnp.argmax(jnp.where(jnp.arange(k) < number, logits, -jnp.inf), axis=1)
  classes = jnp.where(draws.happens(0.5), intervals, largest)
  share = jnp.where(draws.happens(0.5), 0, draws.uniform(high=0.15))
  return jnp.where(draws.happens(share, n), draws.integer(number, n), classes)


def _record(
  key: Key[Array, ''], x: Float[Array, 'n d'], share_missing: Float[Array, '']
) -> Float[Array, 'n d']:
  """Returns features as a table records them: some irrelevant, warped or missing.

  In half of the tables each feature is replaced by noise, so that it is irrelevant,
  with a probability that is uniform from 0 to 0.6. In 60 % of the tables features are
  then warped: a feature stays as it is (50 %), or becomes its exponential, a power, or
  rounded levels (12.5 % each), or (12.5 %) levels in an order without meaning or, in
  half of the tables, a binary feature. At last features are made NaN, in a share of the
  tables.
  """
  n, d = x.shape
  draws = _Draws(key, 2 * n * d + 4 * d + 6)
  share = jnp.where(draws.happens(0.5), 0, draws.uniform(high=0.6))
  x = jnp.where(draws.happens(share, d)[None], draws.normal(n, d), x)
  which = draws.integer(8, d)[None]
  strength = draws.uniform(d, low=0.2, high=1.2)[None]
  sign = jnp.where(draws.happens(0.5, d), 1, -1)[None].astype(x.dtype)
  levels = jnp.round(x * jnp.exp(strength))
  unordered = jnp.sin(levels * 13 * strength + 7 * strength)
  binary = (x > strength - 0.7).astype(x.dtype)
  warped = jnp.select(
    [which == 0, which == 1, which == 2, which == 3],
    [
      jnp.exp(strength * sign * x),
      jnp.sign(x) * jnp.abs(x) ** (1 + strength),
      levels,
      jnp.where(draws.happens(0.5), unordered, binary),
    ],
    x,
  )
  x = jnp.where(draws.happens(0.6), warped, x)
  x = jnp.clip(_standardised(x), -_LARGEST, _LARGEST)
  share = jnp.where(draws.happens(share_missing), draws.uniform(high=0.3), 0)
  return jnp.where(draws.happens(share, n, d), jnp.nan, x)


def _standardised(values: Float[Array, 'n m']) -> Float[Array, 'n m']:
  """Gives columns the mean 0 and the variance 1 over the hidden rows."""
  hidden = values[-_HIDDEN_ROWS:]
  share = jnp.full((1, _HIDDEN_ROWS), 1 / _HIDDEN_ROWS, values.dtype)
  (mean,) = _product(share, hidden.T)
  (variance,) = _product(share, jnp.square(hidden - mean[None]).T)
  scale = jnp.where(variance > 1e-8, jax.lax.rsqrt(jnp.maximum(variance, 1e-8)), 1)
  return (values - mean[None]) * scale[None]


def _product(
  left: Float[Array, 'n m'], right: Float[Array, 'k m']
) -> Float[Array, 'n k']:
  """Returns `left @ right.T`, summed in a fixed order.

  It is like `zoo.tasks.base.dot`, but its loop is not unrolled, which compiles faster.
  """

  def add(i: Array, total: Float[Array, 'n k']) -> Float[Array, 'n k']:
    at = jax.lax.dynamic_index_in_dim
    return total + at(left, i, axis=1) * at(right, i, axis=1)[:, 0][None]

  start = jnp.zeros((len(left), len(right)), left.dtype)
  return jax.lax.fori_loop(0, left.shape[1], add, start)
