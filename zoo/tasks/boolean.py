"""Boolean functions of features ±1.

Labels are ±1, without noise. The target is the probability of the label +1, which is 0
or 1. Features are uniform on {−1, 1}^d unless the task says otherwise.

References: code of Bhattamishra et al., arXiv 2310.03016.
"""

from __future__ import annotations

import abc
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.special import gammaln, logsumexp
from jaxtyping import Array, Bool, Float, Key

from zoo.core import losses
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.estimators.baselines import Examples, NearestNeighbours, OfSigns, Zero
from zoo.estimators.boolean import (
  Elimination,
  NaiveBayes,
  NeighbourBayes,
  ParityBayes,
)
from zoo.tasks.base import (
  BaseTask,
  Points,
  Values,
  Weights,
  check_sampling,
  dot,
  inputs_of,
  make_prompt,
  register_task,
)

# The probability that a conjunction or a majority depends on a feature.
RELEVANT = 0.3
# The probability that an example's features are changed so that a conjunction holds.
FORCED = 0.3
# A baseline enumerates at most this many functions.
MOST_HYPOTHESES = 5_000


@struct.dataclass(eq=False, repr=False)
class SignsTask(BaseTask):
  """Base of tasks with features uniform on {−1, 1}^d, labels ±1 and the log loss.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
  """

  num_features: int = struct.field(pytree_node=False, default=28)
  context_length: int = struct.field(pytree_node=False, default=60)
  label_kind = 'signs'

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    """Draws the features of the context examples and the query."""
    return _sample_signs(key, (self.context_length + 1, self.num_features))

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    return jnp.asarray(-x.size * math.log(2), x.dtype)

  def baselines(self) -> dict[str, Predictor]:
    # Features ±1 have equal norms, so the cosine orders them as the distance does. The
    # prediction is the neighbour's label as a logit, so its probability is 0.73.
    return {'nearest_neighbours': NearestNeighbours(1), 'zero': Zero()}


class Hypotheses(NamedTuple):
  """All functions of a task; their probabilities are given up to a factor.

  Attributes:
    functions: Which features are relevant in each function, as numbers `[h, d]`.
    log_prior: Log prior probability of each function `[h]`.
    log_forced: Logarithm of the factor by which features are more probable if they have
      the label +1 `[h]`.
  """

  functions: Float[np.ndarray, 'h d']
  log_prior: Float[np.ndarray, ' h']
  log_forced: Float[np.ndarray, ' h']


@struct.dataclass(eq=False, repr=False)
class BooleanTask(SignsTask):
  """Base of the tasks whose function does not depend on the features."""

  stationary = True
  exchangeable = True

  @abc.abstractmethod
  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    """Draws which features are relevant, as numbers `[d]`."""

  @abc.abstractmethod
  def evaluate(self, function: Weights, x: Points) -> Values:
    """Returns the probability of the label +1, 0 or 1, at each of the features.

    Args:
      function: What `sample_function` has drawn.
      x: Features `[t, d]`.
    """

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    features_key, function_key, forced_key = jax.random.split(key, 3)
    x, w = self.sample_features(features_key), self.sample_function(function_key)
    return self._prompt_of(w, self._with_forced(forced_key, w, x))

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    check_sampling(self, BooleanTask)
    features_key, function_key, forced_key = jax.random.split(key, 3)
    if keep == 'inputs':
      x = inputs_of(prompt)
      return self._prompt_of(self._function_given_all(function_key, x), x)
    w = self._function_given_query(function_key, prompt.x_query)
    x = self._with_forced(forced_key, w, self.sample_features(features_key))
    return self._prompt_of(w, x.at[-1].set(prompt.x_query))

  def _function_given_query(
    self, key: Key[Array, ''], x: Float[Array, ' d']
  ) -> Float[Array, ' d']:
    """Draws a function given the features of one example, here independent of them."""
    return self.sample_function(key)

  def _function_given_all(
    self, key: Key[Array, ''], x: Float[Array, 't d']
  ) -> Float[Array, ' d']:
    """Draws a function given all features of a prompt, here independent of them."""
    return self.sample_function(key)

  def _with_forced(
    self, key: Key[Array, ''], w: Weights, x: Points
  ) -> Float[Array, 't d']:
    """Changes the features of some examples for a function, here of none."""
    return x

  def _prompt_of(self, w: Weights, x: Points) -> Prompt:
    targets = self.evaluate(w, x)
    return make_prompt(x, 2 * targets - 1, targets, w)


@register_task('conjunction')
@struct.dataclass(eq=False, repr=False)
class Conjunction(BooleanTask):
  """Learning of a conjunction of literals, which is new in each prompt.

  For each prompt, weights w are drawn: each `w_j` is 1 with probability 0.15, −1 with
  probability 0.15, and otherwise 0. Features are uniform on {−1, 1}^d. The label is +1
  where `x_j = w_j` for all j with `w_j ≠ 0`, else −1; if all `w_j` are 0, it is +1.
  With probability 0.3 an example or the query has its features changed in these j such
  that the label is +1. The target is the probability of the label +1, which is 0 or 1.
  The latents are w.

  For up to 7 features the Bayes predictor enumerates all `3^d` functions (baseline
  `bayes`). For more it is estimated by importance sampling (baseline `bayes_estimate`).

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.

  Example:
    >>> task = zoo.create_task('conjunction', num_features=3, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, bool((abs(prompt.y) == 1).all())
    ((2, 5, 3), (2, 5), True)

  References:
    Code of Bhattamishra et al., arXiv 2310.03016.
  """

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    """Draws the weights w."""
    relevant_key, signs_key = jax.random.split(key)
    relevant = jax.random.bernoulli(relevant_key, RELEVANT, (self.num_features,))
    return jnp.where(relevant, _sample_signs(signs_key, relevant.shape), 0)

  def evaluate(self, function: Weights, x: Points) -> Values:
    holds = dot(x, function[None]) == jnp.sum(jnp.abs(function))
    return holds.astype(x.dtype)

  def _with_forced(
    self, key: Key[Array, ''], w: Weights, x: Points
  ) -> Float[Array, 't d']:
    """Changes the features of some examples, so that they have the label +1."""
    forced = jax.random.bernoulli(key, FORCED, x.shape[:1])
    forced = forced[:, None] & (w != 0)[None]
    return jnp.where(forced, w[None], x)

  def _function_given_query(
    self, key: Key[Array, ''], x: Float[Array, ' d']
  ) -> Float[Array, ' d']:
    """Draws a function given the features of one example, which may have been changed.

    The features do not say whether the example was changed, so this is drawn, too.
    Changed features are uniform as well. Given them, all literals are ones that they
    satisfy, and the number of literals is distributed as before.

    Returns:
      The function `[d]`.
    """
    weights_key, forced_key = jax.random.split(key)
    w = self.sample_function(weights_key)
    satisfied = jnp.abs(w) * x
    return jnp.where(jax.random.bernoulli(forced_key, FORCED), satisfied, w)

  def _function_given_all(
    self, key: Key[Array, ''], x: Float[Array, 't d']
  ) -> Float[Array, ' d']:
    """Draws one of all functions, by the probability that it gives the features."""
    functions, scores = self._scores(x)
    return functions[jax.random.categorical(key, scores)]

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    if len(x) == 1:
      return super().log_density(x)
    return logsumexp(self._scores(x)[1]) + super().log_density(x)

  def _scores(self, x: Points) -> tuple[Float[Array, 'h d'], Float[Array, ' h']]:
    """Returns all functions, and their log probabilities given x up to a constant."""
    d = self.num_features
    if 3**d > MOST_HYPOTHESES:
      raise UserError(
        f'the features of {type(self).__name__} depend on its function, as some of '
        'them are changed for its sake; another function given the same features is '
        f'drawn among all 3^{d}, which is done for up to 7 features. keep='
        "'query' keeps those of the query alone"
      )
    functions, log_prior, log_forced = map(jnp.asarray, self.hypotheses())
    log_prior = jax.nn.log_softmax(log_prior.astype(x.dtype))
    functions = functions.astype(x.dtype)
    literals = jnp.sum(jnp.abs(functions), axis=1)
    # Sums of ±1 have no rounding errors, so they can be compared.
    held = x @ functions.T == literals[None]
    of_each = jnp.where(held, log_forced[None], 0) + math.log(1 - FORCED)
    return functions, log_prior + jnp.sum(of_each, axis=0)

  def hypotheses(self) -> Hypotheses:
    """Returns all functions that the task may draw."""
    w = np.asarray([*itertools.product([0.0, 1.0, -1.0], repeat=self.num_features)])
    size = np.abs(w).sum(axis=1)
    log_prior = size * math.log(RELEVANT / 2 / (1 - RELEVANT))
    forced = math.log(FORCED / (1 - FORCED)) + size * math.log(2)
    return Hypotheses(w, log_prior, np.logaddexp(0, forced))

  def baselines(self) -> dict[str, Predictor]:
    d = self.num_features
    # The cost of a draw grows with the number of features. With few features errors are
    # larger, so there are more draws.
    draws = ConjunctionSampling(1024 if d <= 16 else 256)
    few = 3**d <= MOST_HYPOTHESES
    predictors = {
      **({'bayes': VersionSpace(self)} if few else {'bayes_estimate': draws}),
      'elimination': Elimination(),
    }
    return predictors | super().baselines()


@register_task('majority')
@struct.dataclass(eq=False, repr=False)
class Majority(BooleanTask):
  """Learning of the majority of a few features, which are new in each prompt.

  For each prompt, weights w are drawn: each `w_j` is 1 with probability 0.3, else 0.
  Features are uniform on {−1, 1}^d. The label is +1 where `w·x > 1/2`, else −1. The
  target is the probability of the label +1, which is 0 or 1. The latents are w.

  For up to 12 features the Bayes predictor enumerates all `2^d` functions (baseline
  `bayes`). For more there is no such baseline: there are too many functions to
  enumerate, and too few draws of w fit the labels for an estimate.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.

  Example:
    >>> task = zoo.create_task('majority', num_features=3, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, bool((abs(prompt.y) == 1).all())
    ((2, 5, 3), (2, 5), True)

  References:
    Code of Bhattamishra et al., arXiv 2310.03016.
  """

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    relevant = jax.random.bernoulli(key, RELEVANT, (self.num_features,))
    return relevant.astype(float)

  def evaluate(self, function: Weights, x: Points) -> Values:
    return (dot(x, function[None]) > 0.5).astype(x.dtype)

  def hypotheses(self) -> Hypotheses:
    """Returns all functions that the task may draw."""
    w = np.asarray([*itertools.product([0.0, 1.0], repeat=self.num_features)])
    log_prior = w.sum(axis=1) * math.log(RELEVANT / (1 - RELEVANT))
    return Hypotheses(w, log_prior, 0 * log_prior)

  def baselines(self) -> dict[str, Predictor]:
    """Returns the baselines of this task, by name.

    `naive_bayes` is naive Bayes to first order; it uses the sum of `y_i x_i`.
    """
    bayes = {'bayes': VersionSpace(self)}
    few = 2**self.num_features <= MOST_HYPOTHESES
    naive_bayes = {'naive_bayes': NaiveBayes()}
    return (bayes if few else {}) | naive_bayes | super().baselines()


@struct.dataclass(eq=False, repr=False)
class ParityTask(BooleanTask):
  """Base of the parities: +1 where an odd number of relevant features are +1."""

  def evaluate(self, function: Weights, x: Points) -> Values:
    return jnp.mod(dot((x + 1) / 2, function[None]), 2)


@register_task('parity')
@struct.dataclass(eq=False, repr=False)
class Parity(ParityTask):
  """Learning of the parity of a random set of features, which is new in each prompt.

  For each prompt, the set of relevant features is drawn uniformly from all `2^d` sets.
  Features are uniform on {−1, 1}^d. The label is +1 where an odd number of the relevant
  features are +1, else −1. The target is the probability of the label +1, which is 0 or
  1. The latents are 1 for relevant features and 0 for others.

  The Bayes predictor solves linear equations modulo 2 (baseline `bayes`).

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.

  Example:
    >>> task = zoo.create_task('parity', num_features=3, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, bool((abs(prompt.y) == 1).all())
    ((2, 5, 3), (2, 5), True)

  References:
    Code of Bhattamishra et al., arXiv 2310.03016.
  """

  num_features: int = struct.field(pytree_node=False, default=10)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    return jax.random.bernoulli(key, 0.5, (self.num_features,)).astype(float)

  def baselines(self) -> dict[str, Predictor]:
    return {'bayes': ParityBayes()} | super().baselines()


@register_task('sparse_parity')
@struct.dataclass(eq=False, repr=False)
class SparseParity(ParityTask):
  """Learning of the parity of a few random features, which are new in each prompt.

  For each prompt, a set of `num_relevant` features is drawn uniformly. Features are
  uniform on {−1, 1}^d. The label is +1 where an odd number of the relevant features are
  +1, else −1. The target is the probability of the label +1, which is 0 or 1. The
  latents are 1 for relevant features and 0 for others.

  If there are at most 5,000 sets, the Bayes predictor enumerates them (baseline
  `bayes`). There is no such baseline if there are more.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    num_relevant: Number of relevant features, from 1 to d.

  Example:
    >>> task = zoo.create_task('sparse_parity', num_features=3, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2, latents=True)
    >>> prompt.x.shape, prompt.y.shape, prompt.latents.sum(axis=1).tolist()
    ((2, 5, 3), (2, 5), [2.0, 2.0])

  References:
    Code of Bhattamishra et al., arXiv 2310.03016.
  """

  num_features: int = struct.field(pytree_node=False, default=10)
  context_length: int = struct.field(pytree_node=False, default=15)
  num_relevant: int = struct.field(pytree_node=False, default=2)

  def check(self) -> None:
    super().check()
    check_count('num_relevant', self.num_relevant, maximum=self.num_features)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    relevant = jnp.arange(self.num_features) < self.num_relevant
    return jax.random.permutation(key, relevant).astype(float)

  def hypotheses(self) -> Hypotheses:
    """Returns all functions that the task may draw."""
    subsets = [*itertools.combinations(range(self.num_features), self.num_relevant)]
    w = np.zeros((len(subsets), self.num_features))
    np.put_along_axis(w, np.asarray(subsets), 1, axis=1)
    return Hypotheses(w, np.zeros(len(w)), np.zeros(len(w)))

  def baselines(self) -> dict[str, Predictor]:
    few = math.comb(self.num_features, self.num_relevant) <= MOST_HYPOTHESES
    return ({'bayes': VersionSpace(self)} if few else {}) | super().baselines()


@register_task('nearest_neighbour')
@struct.dataclass(eq=False, repr=False)
class NearestNeighbour(SignsTask):
  """Prediction of the label of the nearest earlier example.

  Features are uniform on {−1, 1}^d. The first `num_random` labels are fair coins,
  except that an example with the same features as an earlier one has the same label.
  Each later label, and that of the query, is the label of the nearest earlier example
  by the cosine; the first one counts if several are equally near. The target is the
  probability of the label +1, which is 0 or 1. There are no latents.

  The Bayes predictor follows this rule; for the random labels it predicts a fair coin
  (baseline `bayes`).

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    num_random: Number of random labels, from 1 to C. None is a third of C, and at least
      1.

  Example:
    >>> task = zoo.create_task('nearest_neighbour', num_features=3, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 2)
    >>> prompt.x.shape, prompt.y.shape, task.num_random
    ((2, 5, 3), (2, 5), 1)

  References:
    Code of Bhattamishra et al., arXiv 2310.03016.
  """

  num_random: Any = struct.field(pytree_node=False, default=None)

  def __post_init__(self):
    super().__post_init__()
    # `check` refuses a length that is not an integer.
    is_size = isinstance(self.context_length, int)
    if self.num_random is None and is_size:
      third = self.context_length // 3
      object.__setattr__(self, 'num_random', max(1, third))

  def check(self) -> None:
    super().check()
    check_count('num_random', self.num_random, maximum=self.context_length)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    features_key, coins_key = jax.random.split(key)
    return self._labelled(coins_key, self.sample_features(features_key))

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    check_sampling(self, NearestNeighbour)
    features_key, coins_key = jax.random.split(key)
    x = inputs_of(prompt)
    if keep == 'query':
      x = x.at[:-1].set(self.sample_features(features_key)[:-1])
    return self._labelled(coins_key, x)

  def _labelled(self, key: Key[Array, ''], x: Points) -> Prompt:
    """Returns the prompt of these features, with new coins for the first labels."""
    t, d = x.shape
    # Sums of d numbers ±1 have no rounding errors, whatever their order.
    agreement = jnp.where(jnp.tri(t, k=-1, dtype=bool), x @ x.T, -jnp.inf)
    nearest = jnp.argmax(agreement, axis=1)
    follows = (jnp.arange(t) >= self.num_random) | (jnp.max(agreement, axis=1) == d)

    def decide(labels: Array, i: Array) -> tuple[Array, None]:
      label = jnp.where(follows[i], labels[nearest[i]], labels[i])
      return labels.at[i].set(label), None

    labels, _ = jax.lax.scan(decide, _sample_signs(key, (t,)), jnp.arange(t))
    return make_prompt(x, labels, (1 + labels) / 2)

  def baselines(self) -> dict[str, Predictor]:
    return {'bayes': NeighbourBayes(self.num_random)} | super().baselines()


def _sample_signs(key: Key[Array, ''], shape: tuple[int, ...]) -> Float[Array, '*n']:
  return jax.random.rademacher(key, shape, float)


@struct.dataclass(eq=False, repr=False)
class ConjunctionSampling(OfSigns):
  """An estimate of the Bayes predictor of 'conjunction', by importance sampling.

  Given weights w with |w| literals, an example has the probability
  `2^−d (0.7 + 0.3·2^|w|)` if it is positive and `0.7·2^−d` if it is negative. The
  positive examples leave r literals that they all satisfy. From the positive examples
  alone, all conjunctions of t of these literals have the same posterior probability.
  Therefore t has a known distribution, and the t literals are the first ones of a
  random order. Only this order is drawn. Each negative example must violate a literal,
  so in each order t is at least some τ. The probability is summed over t ≥ τ, and
  averaged over orders. The query is treated in the same way, once as a positive and
  once as a negative example.

  The draws are the same for every prompt, and the error falls as `1/√num_draws`. It was
  measured as the excess of the log loss over that of the exact predictor, and as the
  root mean square error of a probability:

  - 256 draws, 28 features: at most 2e-5 nats, and 0.002. (The comparison has 16,384
    draws, and up to 59 examples.)
  - 256 draws, 7 or 8 features: at most 3e-4 nats, and 0.01. (The comparison is
    enumeration.)
  - 1024 draws, which the tasks have for up to 16 features: 7e-5 nats and 0.005 for 8
    features, 2e-5 nats and 0.003 for 16.

  Args:
    num_draws: Number of orders that are drawn.
  """

  num_draws: int = struct.field(pytree_node=False, default=256)

  def predict(self, examples: Examples) -> Float[Array, '']:
    x, y, seen, x_query = examples
    order_key, signs_key = jax.random.split(jax.random.key(0))
    shape = (x.shape[1], self.num_draws)
    order = jax.random.uniform(order_key, shape, x.dtype)
    positive = seen & (y > 0)
    count = jnp.sum(positive).astype(x.dtype)
    total = jnp.sum(jnp.where(positive[:, None], x, 0), axis=0)
    literals = jnp.where(jnp.abs(total) == count, jnp.sign(total), 0)
    # The query satisfies the literals `shared`, too. Before the first positive example,
    # `shared` are all literals of the query.
    shared = jnp.where((count == 0) | (literals == x_query), x_query, 0)
    signs = jax.random.rademacher(signs_key, shape, x.dtype)
    literals = jnp.where(count == 0, signs, literals[:, None])

    negative = seen & (y < 0)
    shared = jnp.broadcast_to(shared[:, None], shape)
    for_it = _log_evidence(x, negative, shared, count + 1, order)
    x, negative = jnp.append(x, x_query[None], axis=0), jnp.append(negative, True)
    against_it = _log_evidence(x, negative, literals, count, order)
    most = losses.logit(jnp.ones((), x.dtype))
    return jnp.clip(for_it - against_it - math.log(1 - FORCED), -most, most)


def _log_evidence(
  x: Float[Array, 'c d'],
  negative: Bool[Array, ' c'],
  literals: Float[Array, 'd s'],
  num_positive: Float[Array, ''],
  order: Float[Array, 'd s'],
) -> Float[Array, '']:
  """Returns the log probability of examples, up to factors that do not depend on w.

  Positive examples satisfy the `literals` (0 is no literal), of which s orders were
  drawn.
  """
  c, (d, s) = len(x), order.shape
  left = literals != 0

  # `first` is the place of the first literal that each example violates. On a CPU a
  # loop over features is several times as fast as a minimum over their axis.
  def earlier(j: Any, first: Array) -> Array:
    violated = left[j][None] & (x[:, j, None] != literals[j][None])
    return jnp.where(violated, jnp.minimum(first, order[j][None]), first)

  first = jax.lax.fori_loop(0, d, earlier, jnp.full((c, s), jnp.inf, x.dtype))
  last = jnp.max(jnp.where(negative[:, None], first, -1), axis=0, initial=-1)
  least = jnp.sum(left & (order <= last[None]), axis=0)

  sizes = jnp.arange(d + 1)
  t, r = sizes.astype(x.dtype), jnp.sum(left[:, 0]).astype(x.dtype)
  # Each literal has the probability 0.15, and twice that if it may have either sign.
  signs = jnp.where(num_positive == 0, math.log(2), 0).astype(x.dtype)
  odds = math.log(RELEVANT / 2 / (1 - RELEVANT)) + signs
  forced = jnp.logaddexp(math.log(1 - FORCED), math.log(FORCED) + t * math.log(2))
  subsets = gammaln(r + 1) - gammaln(t + 1) - gammaln(jnp.maximum(r - t, 0) + 1)
  log_p = subsets + t * odds + num_positive * forced
  log_p = jnp.where(t <= r, log_p, -jnp.inf)
  tail = jax.lax.cumlogsumexp(log_p, reverse=True)
  # An example that violates no literal at all cannot be negative.
  logs = jnp.where(jnp.isinf(last), -jnp.inf, tail[least])
  return logsumexp(logs) - math.log(s)


@struct.dataclass(eq=False, repr=False)
class VersionSpace(OfSigns):
  """The Bayes predictor by enumeration of all functions of a task.

  All functions that fit the examples vote, weighted by their posterior probability. If
  none fits, the prediction is a fair coin.

  Args:
    task: The task, which has `hypotheses`.
  """

  task: Conjunction | Majority | SparseParity

  def predict(self, examples: Examples) -> Float[Array, '']:
    x, y, seen, x_query = examples
    functions, log_p, log_forced = (
      jnp.asarray(array, x.dtype) for array in self.task.hypotheses()
    )

    def labels(point: Array) -> Array:
      """Returns whether each function has the label +1."""
      return jax.vmap(lambda w: self.task.evaluate(w, point[None])[0])(functions) > 0

    # Examples are read one after the other, so that no array has both examples and
    # functions as axes.
    def fits(i: Any, so_far: Array) -> Array:
      return so_far & ((labels(x[i]) == (y[i] > 0)) | ~seen[i])

    fitting = jax.lax.fori_loop(0, len(x), fits, jnp.ones(len(functions), bool))
    positive = labels(x_query)
    num_forced = jnp.sum(seen & (y > 0)).astype(x.dtype) + positive.astype(x.dtype)
    log_p = jnp.where(fitting, log_p + num_forced * log_forced, -jnp.inf)
    for_it, against_it = (
      logsumexp(jnp.where(positive == label, log_p, -jnp.inf))
      for label in (True, False)
    )
    most = losses.logit(jnp.ones((), x.dtype))
    logit = jnp.clip(for_it - against_it, -most, most)
    return jnp.where(jnp.any(fitting), logit, 0)
