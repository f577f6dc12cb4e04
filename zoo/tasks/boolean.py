"""Boolean functions of features ±1 (code of Bhattamishra et al., arXiv 2310.03016).

Labels are ±1, without noise; the target is the probability of the label +1, 0 or 1.
Features are uniform on {−1, 1}^d unless the task says otherwise.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from zoo import losses
from zoo.errors import UserError, check_count
from zoo.prompt import Prompt
from zoo.protocols import Predictor, Task
from zoo.registry import tasks
from zoo.tasks.base import BaseTask, FunctionClass, dot, make_prompt

RELEVANT = 0.3  # probability that a conjunction or a majority depends on a feature
FORCED = 0.3  # probability that the features are changed so that a conjunction holds
MOST_HYPOTHESES = 5_000  # functions that a baseline enumerates


class BooleanTask(FunctionClass):
  """The base of these tasks: features uniform on {−1, 1}^d, labels ±1, the log loss."""

  def __init__(self, num_features: int, context_length: int):
    """Raises UserError naming the argument that is out of its range."""
    self.num_features = check_count('num_features', num_features)
    self.context_length = check_count('context_length', context_length)

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    return losses.log_loss(prediction, target)

  def sample_features(self, key: Key[Array, '']) -> Float[Array, 't d']:
    return _sample_signs(key, (self.context_length + 1, self.num_features))

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t']
  ) -> Float[Array, ' t']:
    return 2 * targets - 1

  def shifts(self) -> dict[str, Task]:
    return BaseTask.shifts(self)  # features other than ±1 have no labels

  def baselines(self) -> dict[str, Predictor]:
    from zoo.estimators import regression

    # Features ±1 have equal norms, so the cosine orders them as the distance does. The
    # prediction is the neighbour's label as a logit, so a probability of 0.73.
    return {
      'nearest_neighbours': regression.NearestNeighbours(1),
      'zero': regression.Zero(),
    }


@tasks.register('conjunction')
class Conjunction(BooleanTask):
  """The label is +1 where `x_j = w_j` for all j with `w_j ≠ 0`.

  Each `w_j` is 1 or −1 with probability 0.15 each, and otherwise 0; without a literal
  all labels are +1. With probability 0.3 an example's features are changed so that its
  label is +1. The baseline `bayes` enumerates the 3^d functions of up to 7 features;
  for more features it is estimated by importance sampling.
  """

  forced_label = 1

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    relevant_key, signs_key = jax.random.split(key)
    relevant = jax.random.bernoulli(relevant_key, RELEVANT, (self.num_features,))
    return jnp.where(relevant, _sample_signs(signs_key, relevant.shape), 0)

  def evaluate(
    self, function: Float[Array, ' d'], x: Float[Array, 't d']
  ) -> Float[Array, ' t']:
    holds = dot(x, function[None]) == jnp.sum(jnp.abs(function))
    return holds.astype(x.dtype)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    features_key, function_key, forced_key = jax.random.split(key, 3)
    x, w = self.sample_features(features_key), self.sample_function(function_key)
    forced = jax.random.bernoulli(forced_key, FORCED, x.shape[:1])
    forced = forced[:, None] & (w != 0)[None]
    x = jnp.where(forced, self.forced_label * w[None], x)
    targets = self.evaluate(w, x)
    return make_prompt(x, 2 * targets - 1, targets)

  def baselines(self) -> dict[str, Predictor]:
    # Imported here since the estimators import the tasks.
    from zoo.estimators import boolean

    return {
      'bayes': boolean.conjunction_bayes(self),
      'elimination': boolean.Elimination(),
    } | super().baselines()


@tasks.register('disjunction')
class Disjunction(Conjunction):
  """The label is +1 where `x_j = w_j` for some j with `w_j ≠ 0`.

  w is drawn as for a conjunction. With probability 0.3 an example's features are
  changed so that its label is −1. So labels and features are those of a conjunction,
  negated.
  """

  forced_label = -1

  def evaluate(
    self, function: Float[Array, ' d'], x: Float[Array, 't d']
  ) -> Float[Array, ' t']:
    return 1 - super().evaluate(function, -x)

  def baselines(self) -> dict[str, Predictor]:
    from zoo.estimators import boolean

    # The other baselines are their own duals.
    return super().baselines() | {
      'bayes': boolean.Negated(boolean.conjunction_bayes(self)),
      'elimination': boolean.Negated(boolean.Elimination()),
    }


@tasks.register('majority')
class Majority(BooleanTask):
  """The label is +1 where `w·x > 1/2`; each `w_j` is 1 with probability 0.3, else 0.

  `baselines` has the Bayes predictor for up to 12 features. With more, the 2^d
  functions are too many to enumerate, and too few draws of w fit the labels.
  """

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    relevant = jax.random.bernoulli(key, RELEVANT, (self.num_features,))
    return relevant.astype(float)

  def evaluate(
    self, function: Float[Array, ' d'], x: Float[Array, 't d']
  ) -> Float[Array, ' t']:
    return (dot(x, function[None]) > 0.5).astype(x.dtype)

  def hypotheses(self) -> tuple[Float[np.ndarray, 'h d'], Float[np.ndarray, ' h']]:
    """All functions and their prior probabilities, up to a factor."""
    w = np.asarray([*itertools.product([0.0, 1.0], repeat=self.num_features)])
    count = w.sum(axis=1)
    return w, RELEVANT**count * (1 - RELEVANT) ** (self.num_features - count)

  def baselines(self) -> dict[str, Predictor]:
    from zoo.estimators import boolean

    bayes = {'bayes': boolean.VersionSpace(self)}
    few = 2**self.num_features <= MOST_HYPOTHESES
    averaging = {'averaging': boolean.Averaging()}
    return (bayes if few else {}) | averaging | super().baselines()


@tasks.register('parity')
class Parity(BooleanTask):
  """The label is +1 where an odd number of the relevant features are +1.

  The set of relevant features is uniform over all 2^d subsets.
  """

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    return jax.random.bernoulli(key, 0.5, (self.num_features,)).astype(float)

  def evaluate(
    self, function: Float[Array, ' d'], x: Float[Array, 't d']
  ) -> Float[Array, ' t']:
    return jnp.mod(dot((x + 1) / 2, function[None]), 2)

  def baselines(self) -> dict[str, Predictor]:
    from zoo.estimators import boolean

    return {'bayes': boolean.ParityBayes()} | super().baselines()


@tasks.register('sparse_parity')
class SparseParity(Parity):
  """The parity of a random set of `num_relevant` features, a new set for each prompt.

  `baselines` has the Bayes predictor if there are at most 5,000 such sets.
  """

  def __init__(self, num_features: int, context_length: int, num_relevant: int = 2):
    """Raises UserError naming the argument that is out of its range."""
    super().__init__(num_features, context_length)
    self.num_relevant = check_count('num_relevant', num_relevant)
    if self.num_relevant > self.num_features:
      raise UserError(
        f'num_relevant is {num_relevant}; it must be at most num_features, '
        f'{num_features}'
      )

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    relevant = jnp.arange(self.num_features) < self.num_relevant
    return jax.random.permutation(key, relevant).astype(float)

  def hypotheses(self) -> tuple[Float[np.ndarray, 'h d'], Float[np.ndarray, ' h']]:
    """All functions and their prior probabilities, up to a factor."""
    subsets = [*itertools.combinations(range(self.num_features), self.num_relevant)]
    w = np.zeros((len(subsets), self.num_features))
    np.put_along_axis(w, np.asarray(subsets), 1, axis=1)
    return w, np.ones(len(w))

  def baselines(self) -> dict[str, Predictor]:
    from zoo.estimators import boolean

    found = super().baselines()
    del found['bayes']  # it is for parities of any size
    few = math.comb(self.num_features, self.num_relevant) <= MOST_HYPOTHESES
    return ({'bayes': boolean.VersionSpace(self)} if few else {}) | found


@tasks.register('nearest_neighbour')
class NearestNeighbour(BooleanTask):
  """Each label is that of the nearest earlier example, by the cosine.

  The first of equally near examples counts. The first `num_random` labels are fair
  coins, except that an example with the features of an earlier one has the same label.
  """

  def __init__(
    self, num_features: int, context_length: int, num_random: int | None = None
  ):
    """`num_random` defaults to a third of the context, but at least 1.

    Raises UserError naming the argument that is out of its range.
    """
    super().__init__(num_features, context_length)
    if num_random is None:
      num_random = max(1, self.context_length // 3)
    self.num_random = check_count('num_random', num_random)
    if self.num_random > self.context_length:
      raise UserError(
        f'num_random is {num_random}; it must be at most context_length, '
        f'{context_length}'
      )

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    features_key, coins_key = jax.random.split(key)
    x = self.sample_features(features_key)
    t, d = x.shape
    # Sums of d numbers ±1 are exact in any order.
    agreement = jnp.where(jnp.tri(t, k=-1, dtype=bool), x @ x.T, -jnp.inf)
    nearest = jnp.argmax(agreement, axis=1)
    follows = (jnp.arange(t) >= self.num_random) | (jnp.max(agreement, axis=1) == d)

    def decide(labels: Array, i: Array) -> tuple[Array, None]:
      label = jnp.where(follows[i], labels[nearest[i]], labels[i])
      return labels.at[i].set(label), None

    labels, _ = jax.lax.scan(decide, _sample_signs(coins_key, (t,)), jnp.arange(t))
    return make_prompt(x, labels, (1 + labels) / 2)

  def baselines(self) -> dict[str, Predictor]:
    from zoo.estimators import boolean

    return {'bayes': boolean.NeighbourBayes(self.num_random)} | super().baselines()

  def shifts(self) -> dict[str, Task]:
    found = super().shifts()
    for task in found.values():
      # The rule stays; the default would be a third of the longer context.
      vars(task)['num_random'] = self.num_random
    return found


def _sample_signs(key: Key[Array, ''], shape: tuple[int, ...]) -> Float[Array, '*n']:
  return jax.random.rademacher(key, shape, float)
