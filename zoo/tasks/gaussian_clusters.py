"""Classification of points from Gaussian clusters that are new in every prompt."""

import jax
from jaxtyping import Array, Float, Key

from zoo import losses
from zoo.errors import check_count
from zoo.prompt import Prompt
from zoo.protocols import Predictor
from zoo.registry import tasks
from zoo.tasks.base import BaseTask, dot, make_prompt


@tasks.register('gaussian_clusters')
class GaussianClusters(BaseTask):
  """Prompts of points `x_i ~ N(μ_y, I)` with their class y (Lee et al., 2310.08049).

  The means `μ_1 … μ_K` are fresh for each prompt, with each coordinate uniform on
  [−1, 1]; all classes are equally likely. Labels are one-hot, and the target is the
  probability of each class given x and the means.
  """

  def __init__(
    self, num_features: int = 16, context_length: int = 31, num_classes: int = 2
  ):
    """Raises UserError naming the argument that is out of its range."""
    self.num_features = check_count('num_features', num_features)
    self.context_length = check_count('context_length', context_length)
    self.num_outputs = check_count('num_classes', num_classes, minimum=2)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    means_key, classes_key, noise_key = jax.random.split(key, 3)
    t, d, k = self.context_length + 1, self.num_features, self.num_outputs
    means = jax.random.uniform(means_key, (k, d), minval=-1, maxval=1)
    classes = jax.random.randint(classes_key, (t,), 0, k)
    x = means[classes] + jax.random.normal(noise_key, (t, d))
    # The terms of −|x − μ|²/2 that depend on the class.
    scores = dot(x[:, None], means[None]) - dot(means, means)[None] / 2
    labels = jax.nn.one_hot(classes, k, dtype=x.dtype)
    return make_prompt(x, labels, jax.nn.softmax(scores))

  def loss(
    self, prediction: Float[Array, '*n k'], target: Float[Array, '*n k']
  ) -> Float[Array, '*n']:
    """The log loss of the logits of the classes, in nats."""
    return losses.cross_entropy(prediction, target)

  def baselines(self) -> dict[str, Predictor]:
    # Imported here since the estimators import the tasks.
    from zoo.estimators import clusters, regression

    return {
      'bayes': clusters.Bayes(),
      'gd': clusters.GradientDescent(),
      'averaging': clusters.NearestMean(),
      'nearest_neighbours': clusters.NearestNeighbours(),
      'zero': regression.Zero(),
    }
