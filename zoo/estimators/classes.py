"""Predictors of classes, for one-hot labels. Predictions are logits."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from zoo.core import losses
from zoo.core.errors import check_count, check_number
from zoo.core.prompt import Prompt
from zoo.core.trees import Number
from zoo.estimators.baselines import Baseline, Examples, OfClasses, check_classes

# Up to n = 1,600 points of a class, the standard deviation 1/√n of the posterior of its
# mean is at least the distance of two nodes, π/128; the sum is then exact in float32.
_NODES = 128


@struct.dataclass(eq=False, repr=False)
class ClusterBayes(OfClasses):
  """The exact probabilities of the classes, for means uniform on the cube [−1, 1]^d.

  Given n points of a class with mean m, the posterior of a coordinate of μ is
  `N(m, 1/n)` cut off at ±1. The density of the class at the query is, for each
  coordinate, `Z(n + 1, m')/Z(n, m)`. Here m' is the mean with the query, and Z is the
  integral of the likelihood over [−1, 1], a difference of normal distribution
  functions.
  """

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    check_classes(self, examples)
    n, mean = counts_and_means(examples)
    n, x_query = n[:, None], examples.x_query[None]
    with_query = (n * mean + x_query) / (n + 1)
    # For n > 0 this is the density of N(m, 1 + 1/n), and for n = 0 the density of μ,
    # times √(2π).
    some = jnp.maximum(n, 1)
    normal = 0.5 * jnp.log(n / (some + 1)) - 0.5 * n / (n + 1) * (x_query - mean) ** 2
    uniform = 0.5 * math.log(math.pi / 2)
    before = jnp.where(n > 0, normal - log_mass(some, mean), uniform)
    return jnp.sum(before + log_mass(n + 1, with_query), axis=-1)

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the means of all coordinates of the μ of all classes, then the variances.

    The μ of a class is, with the probability that the query is of the class, that given
    its points and the query, and otherwise that given its points alone.
    """

    def of_one(examples: Examples) -> Float[Array, ' m']:
      n, mean = counts_and_means(examples)
      n, is_of = n[:, None], jax.nn.softmax(self.predict(examples))[:, None]
      with_query = (n * mean + examples.x_query[None]) / (n + 1)
      alone, square_alone = _moments_within(n, mean)
      joined, square_joined = _moments_within(n + 1, with_query)
      middle = alone + is_of * (joined - alone)
      apart = jnp.square(joined - alone) * is_of * (1 - is_of)
      spread = square_alone + is_of * (square_joined - square_alone) + apart
      return jnp.concatenate([middle.ravel(), spread.ravel()])

    return self._everywhere(of_one, prompt)


@struct.dataclass(eq=False, repr=False)
class NearestMean(Baseline):
  """The posterior of the classes if the mean of each were that of its examples.

  The mean of a class without examples is 0. The most probable class is that of the
  nearest mean.
  """

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    check_classes(self, examples)
    _, mean = counts_and_means(examples)
    return -0.5 * jnp.sum(jnp.square(examples.x_query[None] - mean), axis=-1)


@struct.dataclass(eq=False, repr=False)
class NearestShares(Baseline):
  """The shares of the classes among the examples nearest to the query.

  The shares of the classes among all examples, which are `smoothed`, count as
  `pseudo_count` further neighbours, so that a class without a near example has a
  probability above 0. Without examples all classes have the same probability.

  Args:
    num_neighbours: Number of nearest examples, ≥ 1.
    pseudo_count: How many examples the shares among all examples count for, ≥ 0. With 0
      the shares are those of the nearest examples, at least 1e-6: for labels that the
      nearest example determines.
  """

  num_neighbours: int = struct.field(pytree_node=False, default=3)
  pseudo_count: float = struct.field(pytree_node=False, default=1.0)

  def __post_init__(self):
    super().__post_init__()
    check_count('num_neighbours', self.num_neighbours)
    check_number('pseudo_count', self.pseudo_count, minimum=0.0)

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    check_classes(self, examples)
    x, y, seen, x_query = examples
    distances = jnp.sum(jnp.square(x - x_query[None]), axis=-1)
    nearest = jnp.argsort(jnp.where(seen, distances, jnp.inf))[: self.num_neighbours]
    votes = seen[nearest].astype(y.dtype) @ y[nearest]
    of_all = jnp.sum(examples.zeroed().y, axis=0)
    shares = smoothed(votes, smoothed(of_all, 1 / len(of_all)), self.pseudo_count)
    return losses.log_probability(shares)


def smoothed(
  counts: Float[Array, ' k'],
  shares: Float[Array, ' k'] | float,
  pseudo_count: float = 1.0,
) -> Float[Array, ' k']:
  """Returns the shares of classes, if others count as some more examples.

  This is the posterior mean of the probabilities of the classes under a Dirichlet
  prior.

  Args:
    counts: How many examples each class has.
    shares: The shares that count as more examples: the mean of the prior.
    pseudo_count: As how many examples they count: the concentration of the prior.
  """
  total = jnp.sum(counts) + pseudo_count
  return (counts + pseudo_count * shares) / jnp.where(total > 0, total, 1)


@struct.dataclass(eq=False, repr=False)
class SoftmaxRegression(Baseline):
  """Logistic regression with intercepts, by gradient descent on the mean log loss.

  The weights start at 0. In Lee et al., whose baseline it is, they start at random.

  Args:
    num_steps: Number of steps.
    step_size: Size of each step.

  References:
    Lee et al., arXiv 2310.08049.
  """

  is_slow = True

  num_steps: int = struct.field(pytree_node=False, default=1000)
  step_size: Number = 0.01

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    check_classes(self, examples)
    x, y, seen, x_query = examples.zeroed()
    x = jnp.concatenate([x, seen[:, None].astype(x.dtype)], axis=1)
    rate = self.step_size / jnp.maximum(examples.num_seen, 1)

    def step(_: Array, weights: Array) -> Array:
      return weights + rate * x.T @ (y - jax.nn.softmax(x @ weights))

    weights = jnp.zeros((x.shape[1], y.shape[1]), x.dtype)
    weights = jax.lax.fori_loop(0, self.num_steps, step, weights)
    return x_query @ weights[:-1] + weights[-1]


def counts_and_means(
  examples: Examples,
) -> tuple[Float[Array, ' k'], Float[Array, 'k d']]:
  """Returns the number of examples of each class, and their mean.

  The mean is 0 for a class without examples.
  """
  x, y, *_ = examples.zeroed()
  counts = jnp.sum(y, axis=0)
  return counts, y.T @ x / jnp.maximum(counts, 1)[:, None]


def log_mass(
  n: Float[Array, ' k #d'], mean: Float[Array, 'k d']
) -> Float[Array, 'k d']:
  """Returns the log probability of [−1, 1] under `N(mean, 1/n)`, for n ≥ 1."""
  # By symmetry the mean may be taken as ≥ 0. The first of the two lower tails is then
  # at least five times the second, so nothing cancels and each logarithm is finite.
  root, mean = jnp.sqrt(n), jnp.abs(mean)
  large = jax.scipy.special.log_ndtr(root * (1 - mean))
  small = jax.scipy.special.log_ndtr(root * (-1 - mean))
  return large + jnp.log1p(-jnp.exp(small - large))


def _moments_within(
  n: Float[Array, ' k #d'], mean: Float[Array, 'k d']
) -> tuple[Float[Array, 'k d'], Float[Array, 'k d']]:
  """Returns mean and variance of `N(mean, 1/n)` cut off at ±1; for n = 0 it is uniform.

  They are integrals over [−1, 1] by Gauss–Legendre quadrature, since the closed form
  is a difference of nearly equal numbers where the mean is far outside.
  """
  nodes, weights = np.polynomial.legendre.leggauss(_NODES)
  nodes, weights = (
    jnp.asarray(array, mean.dtype)[None, None] for array in (nodes, weights)
  )
  scores = -n[..., None] * jnp.square(nodes - mean[..., None]) / 2
  density = jax.nn.softmax(scores + jnp.log(weights), axis=-1)
  middle = jnp.sum(density * nodes, axis=-1)
  return middle, jnp.sum(density * jnp.square(nodes - middle[..., None]), axis=-1)


@struct.dataclass(eq=False, repr=False)
class Recall(OfClasses):
  """The value that the key of the query had; for a new key, any value.

  Args:
    own_values: Whether each key has its own value. The values of other keys then get no
      probability for a new key.
  """

  own_values: bool = struct.field(pytree_node=False)

  def predict(self, examples: Examples) -> Float[Array, ' k']:
    x, y, _, x_query = examples.zeroed()
    value = (x @ x_query) @ y
    free = jnp.ones_like(value)
    if self.own_values:
      free = jnp.where(jnp.sum(y, axis=0) > 0, 0, free)
    weights = jnp.where(jnp.any(value > 0), value, free)
    return losses.log_probability(weights / jnp.maximum(jnp.sum(weights), 1))
