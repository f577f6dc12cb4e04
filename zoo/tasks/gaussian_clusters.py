"""Classification of points from Gaussian clusters that are new in every prompt."""

# A size that the base class declares as a field may be a property here.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from zoo.core.beliefs import Belief, values_of
from zoo.core.errors import check_count
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.estimators.baselines import Examples, Zero
from zoo.estimators.classes import (
  ClusterBayes,
  NearestMean,
  NearestShares,
  SoftmaxRegression,
  log_mass,
)
from zoo.tasks.base import BaseTask, dot, inputs_of, make_prompt, register_task


@register_task('gaussian_clusters')
@struct.dataclass(eq=False, repr=False)
class GaussianClusters(BaseTask):
  """Classification of points from K Gaussian clusters, which are new in each prompt.

  For each prompt, means `μ_1 … μ_K` are drawn, with each coordinate uniform on [−1, 1].
  The class y of an example is drawn uniformly from the K classes, and its features are
  `x_i ~ N(μ_y, I)`. The query is drawn like the features of an example. Labels are the
  classes, one-hot. Targets are the probabilities of the classes given the features and
  the means. The latents are the means.

  The Bayes predictor integrates over the means in closed form (baseline `bayes`).

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    num_classes: Number of classes K ≥ 2.

  Example:
    >>> task = zoo.create_task('gaussian_clusters', num_features=2, num_classes=3)
    >>> prompt = task.sample(jax.random.key(0), 4)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((4, 31, 2), (4, 31, 3), (4, 3))

  References:
    Lee et al., arXiv 2310.08049.
  """

  num_features: int = struct.field(pytree_node=False, default=16)
  context_length: int = struct.field(pytree_node=False, default=31)
  num_classes: int = struct.field(pytree_node=False, default=2)
  label_kind = 'classes'
  stationary = True
  exchangeable = True

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k; here the number of classes."""
    return self.num_classes

  def check(self) -> None:
    super().check()
    check_count('num_classes', self.num_classes, minimum=2)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    means_key, classes_key, noise_key = jax.random.split(key, 3)
    t, d, k = self.context_length + 1, self.num_features, self.num_outputs
    means = jax.random.uniform(means_key, (k, d), minval=-1, maxval=1)
    classes = jax.random.randint(classes_key, (t,), 0, k)
    x = means[classes] + jax.random.normal(noise_key, (t, d))
    return self._prompt_of(means, classes, x)

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, as `redraw` says.

    With 'inputs', examples of one class stay examples of one class, since there are too
    many ways to sort all examples into classes. The class of the query is drawn by its
    probability, the means are drawn given the points of each class, and the names of
    the classes are permuted.

    Args:
      key: Random key.
      prompt: One prompt, without the axis b.
      keep: 'query' or 'inputs'.

    Returns:
      One prompt, without the axis b.
    """
    means_key, classes_key, noise_key = jax.random.split(key, 3)
    t, d, k = self.context_length + 1, self.num_features, self.num_outputs
    if keep == 'query':
      classes = jax.random.randint(classes_key, (t,), 0, k)
      x = jax.random.normal(noise_key, (t, d))
      of_query = jax.nn.one_hot(classes[-1], k)
      means = _sample_means(
        means_key, of_query, of_query[:, None] * prompt.x_query[None]
      )
      x = (means[classes] + x).at[-1].set(prompt.x_query)
      return self._prompt_of(means, classes, x)
    query_key, order_key = jax.random.split(classes_key)
    seen = jnp.ones(t - 1, bool)
    scores = ClusterBayes().predict(Examples(prompt.x, prompt.y, seen, prompt.x_query))
    query = jax.random.categorical(query_key, scores)
    # The names of the classes are permuted.
    order = jax.random.permutation(order_key, k)
    classes = order[jnp.append(jnp.argmax(prompt.y, axis=1), query)]
    x, members = inputs_of(prompt), jax.nn.one_hot(classes, k)
    counts = jnp.sum(members, axis=0)
    sums = jnp.matmul(members.T, x, precision='highest')
    means = _sample_means(means_key, counts, sums / jnp.maximum(counts, 1)[:, None])
    return self._prompt_of(means, classes, x)

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    """Returns the log density of the features of a query.

    Raises:
      UserError: If there are several examples. Their density would be a sum over the
        classes of all of them.
    """
    if len(x) > 1:
      return super().log_density(x)
    some = jnp.ones((1, 1), x.dtype)
    return jnp.sum(log_mass(some, x) - math.log(2))

  def _prompt_of(
    self,
    means: Float[Array, 'k d'],
    classes: Int[Array, ' t'],
    x: Float[Array, 't d'],
  ) -> Prompt:
    # Only these terms of −|x − μ|²/2 depend on the class.
    scores = dot(x[:, None], means[None]) - dot(means, means)[None] / 2
    labels = jax.nn.one_hot(classes, self.num_outputs, dtype=x.dtype)
    return make_prompt(x, labels, jax.nn.softmax(scores), means)

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes the means of the cluster of each label, and then their variances.

    The query, whose label is not known, counts for each cluster by its probability.

    Args:
      prompt: Prompts `[b]`.

    Returns:
      The belief, with values `[b, c + 1, 2 K d]`.
    """
    names = tuple(
      f'{what} of cluster {k}, feature {j}'
      for what in ('mean', 'variance')
      for k in range(self.num_classes)
      for j in range(self.num_features)
    )
    return Belief(values_of(ClusterBayes(), prompt), names, 'moments')

  def baselines(self) -> dict[str, Predictor]:
    """Returns the baselines of this task, by name.

    `logistic` is softmax regression by 1000 steps of gradient descent.
    """
    return {
      'bayes': ClusterBayes(),
      'logistic': SoftmaxRegression(),
      'nearest_mean': NearestMean(),
      'nearest_neighbours': NearestShares(),
      'zero': Zero(),
    }


def _sample_means(
  key: Key[Array, ''], counts: Float[Array, ' k'], averages: Float[Array, 'k d']
) -> Float[Array, 'k d']:
  """Draws the means of classes, given the average of n points of each class.

  A coordinate is `N(average, 1/n)` cut off at ±1. For a class without points it is
  uniform.

  Returns:
    The means `[k, d]`.
  """
  some = jnp.maximum(counts, 1)[:, None]
  root, center = jnp.sqrt(some), jnp.abs(averages)
  # By symmetry the average may be taken as ≥ 0, so that both ends are lower tails,
  # which float32 resolves.
  low, high = (jax.scipy.special.ndtr(root * (end - center)) for end in (-1, 1))
  share = jax.random.uniform(key, averages.shape)
  deviation = jax.scipy.special.ndtri(low + share * (high - low)) / root
  drawn = jnp.clip(center + deviation, -1, 1) * jnp.where(averages < 0, -1, 1)
  return jnp.where(counts[:, None] > 0, drawn, 2 * share - 1)
