"""Linear classification with a new weight vector in every prompt."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from zoo import losses
from zoo.errors import check_count, check_covariance, check_name, check_vector
from zoo.protocols import Predictor
from zoo.registry import tasks
from zoo.tasks.base import FunctionClass, dot, sample_signs, symmetric_root

_LINKS = {
  'logistic': jax.nn.sigmoid,
  'probit': jax.scipy.special.ndtr,
  'sign': lambda logit: jnp.where(logit > 0, 1, 0).astype(logit.dtype),
}


@tasks.register('logistic_regression')
class LogisticRegression(FunctionClass):
  """Prompts of labels ±1 that are +1 with the probability `link(w·x_i)`.

  `w ~ N(prior_mean, prior_covariance)` is fresh for each prompt, features are
  `~ N(0, I)`. The link is the logistic function (Bai et al., arXiv 2306.04637), the
  standard normal distribution function ('probit'), or 1 for positive numbers and 0 for
  others ('sign'; code of Garg et al., arXiv 2208.01066). The target is that
  probability.

  Attributes, float64 on the host:
    prior_mean: `[d]`; a scalar argument is repeated.
    prior_covariance: `[d, d]`, or None for the identity; it may be singular.
  """

  def __init__(
    self,
    num_features: int = 20,
    context_length: int = 40,
    link: str = 'logistic',
    prior_mean: ArrayLike | Sequence[float] = 0.0,
    prior_covariance: ArrayLike | Sequence[Sequence[float]] | None = None,
  ):
    """Raises UserError naming the argument that is out of its range."""
    self.num_features = d = check_count('num_features', num_features)
    self.context_length = check_count('context_length', context_length)
    self.link = check_name('link', link, _LINKS)
    self.prior_mean = check_vector('prior_mean', prior_mean, d)
    self.prior_covariance = check_covariance('prior_covariance', prior_covariance, d)

  def prior_root(self) -> Float[np.ndarray, 'd d']:
    """The symmetric root R of the prior covariance: `w = prior_mean + R z`."""
    if self.prior_covariance is None:
      return np.eye(self.num_features)
    return symmetric_root(self.prior_covariance)

  def sample_function(self, key: Key[Array, '']) -> Float[Array, ' d']:
    normal = jax.random.normal(key, (self.num_features,))
    if self.prior_covariance is not None:
      normal = dot(jnp.asarray(self.prior_root(), normal.dtype), normal[None])
    return jnp.asarray(self.prior_mean, normal.dtype) + normal

  def evaluate(
    self, function: Float[Array, ' d'], x: Float[Array, 't d']
  ) -> Float[Array, ' t']:
    return _LINKS[self.link](dot(x, function[None]))

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t']
  ) -> Float[Array, ' t']:
    return sample_signs(key, targets)

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*n']:
    """The log loss of a logit, in nats."""
    return losses.log_loss(prediction, target)

  def baselines(self) -> dict[str, Predictor]:
    # There is no `bayes` for 'sign'. The posterior is the prior cut off by a hyperplane
    # for each example, which no method estimated at an acceptable cost: importance
    # sampling kept 1 sample of 100 for 20 features, and a particle filter was off by
    # 0.1 in the probability after 40 examples.
    #
    # Imported here since the estimators import the tasks.
    from zoo.estimators import classification, regression

    found: dict[str, Predictor] = {'map': classification.MaximumAPosteriori(self)}
    if self.link != 'sign':
      found['bayes'] = classification.bayes(self)
    return found | {
      'averaging': classification.Averaging(self),
      'zero': regression.Zero(),
    }
