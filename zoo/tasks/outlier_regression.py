"""Linear regression among outliers, which carry no information about the weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Key

from zoo.core.distributions import Gaussian
from zoo.core.errors import check_count, check_name, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.trees import Number
from zoo.estimators.baselines import Describing, Examples, Zero
from zoo.estimators.linear import Ridge
from zoo.tasks.base import (
  BaseTask,
  dot,
  inputs_of,
  log_normal,
  make_prompt,
  register_task,
)

_PROBABILITIES = {'many': 0.9, 'orthogonal': 0.5}


@register_task('outlier_regression')
@struct.dataclass(eq=False, repr=False)
class OutlierRegression(BaseTask):
  """Prompts of `y_i = w·x_i` among outliers (Park et al., arXiv 2402.04248).

  `w ~ N(0, I)` is fresh for each prompt, features are `~ N(0, I)`. Each example of the
  context, but not the query, is an outlier with probability `outlier_probability`:

    many: an outlier's features are all 1, as are its label and its target.
    orthogonal: all outliers of a prompt have the same features and the same label. The
      features are `(a u + b v) / (a² + b²)` with u, v normal, then made orthogonal to w
      and to each other, and a, b normal. The label is the first entry of another such
      vector (in the paper it is the vector); its variance is infinite, so compare
      medians. The target is `w·x = 0`.

  For `many` there is a baseline `bayes`. For `orthogonal` there is none: outliers can
  be recognised only by their repetition. A curve of the loss has outliers as queries at
  all lengths but the last.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=100)
  kind: str = struct.field(pytree_node=False, default='many')  # or 'orthogonal'
  # 0 to 1, of an example of the context; None: that of the paper, 0.9 for `many` and
  # 0.5 for `orthogonal`.
  outlier_probability: Number = None

  def check(self) -> None:
    super().check()
    check_name('kind', self.kind, _PROBABILITIES)
    if self.outlier_probability is not None:
      probability = self.outlier_probability
      check_number('outlier_probability', probability, minimum=0.0, maximum=1.0)
    if self.kind == 'orthogonal':
      check_count("num_features of the kind 'orthogonal'", self.num_features, minimum=3)

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    x_key, w_key, which_key, features_key, label_key = jax.random.split(key, 5)
    c, d = self.context_length, self.num_features
    x, w = jax.random.normal(x_key, (c + 1, d)), jax.random.normal(w_key, (d,))
    outlier = self._sample_outliers(which_key)
    return self._prompt_of(features_key, label_key, x, w, outlier)

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, as `redraw` says; 'inputs' also keeps who is an outlier.

    Of the kind `orthogonal` this is seen by the labels, which are not the targets. The
    weights are then orthogonal to the features of outliers, and otherwise as before:
    given w, these features have any direction orthogonal to w.
    """
    x_key, w_key, which_key, features_key, label_key = jax.random.split(key, 5)
    c, d = self.context_length, self.num_features
    w = jax.random.normal(w_key, (d,))
    if keep == 'query':
      # The query is no outlier, and does not depend on the rest.
      x = jax.random.normal(x_key, (c + 1, d)).at[-1].set(prompt.x_query)
      outlier = self._sample_outliers(which_key)
      return self._prompt_of(features_key, label_key, x, w, outlier)
    x = inputs_of(prompt)
    if self.kind == 'many':
      outlier = jnp.all(x == 1, axis=1).at[-1].set(False)
      return self._prompt_of(features_key, label_key, x, w, outlier)
    outlier = jnp.append(prompt.y != prompt.context_targets, False)
    features = jnp.where(jnp.any(outlier), x[jnp.argmax(outlier)], 0)
    size = jnp.maximum(dot(features, features), jnp.finfo(x.dtype).tiny)
    across = w - dot(w, features) / size * features
    # A length of d numbers, not of d − 1.
    w = across * jnp.sqrt(dot(w, w) / dot(across, across))
    return self._prompt_of(features_key, label_key, x, w, outlier, features)

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    return log_normal(x) if len(x) == 1 else super().log_density(x)

  def _sample_outliers(self, key: Key[Array, '']) -> Bool[Array, ' t']:
    probability = self.outlier_probability
    if probability is None:
      probability = _PROBABILITIES[self.kind]
    outlier = jax.random.uniform(key, (self.context_length + 1,)) < probability
    return outlier.at[-1].set(False)

  def _prompt_of(
    self,
    features_key: Key[Array, ''],
    label_key: Key[Array, ''],
    x: Float[Array, 't d'],
    w: Float[Array, ' d'],
    outlier: Bool[Array, ' t'],
    features: Float[Array, ' d'] | None = None,
  ) -> Prompt:
    """A prompt with these outliers, whose features are drawn unless they are given."""
    targets = dot(x, w[None])
    if self.kind == 'many':
      features, label, target = jnp.ones(w.size, x.dtype), 1, 1
    else:
      if features is None:
        features = _orthogonal_vector(features_key, w)
      label, target = _orthogonal_vector(label_key, w)[0], 0
    x = jnp.where(outlier[:, None], features[None], x)
    labels = jnp.where(outlier, label, targets)
    targets = jnp.where(outlier, target, targets)
    return make_prompt(x, labels, None if self.kind == 'many' else targets, w)

  def baselines(self) -> dict[str, Predictor]:
    bayes = {'bayes': WithoutOnes()} if self.kind == 'many' else {}
    return {
      **bayes,
      'ols': Ridge(),
      'ridge': Ridge(1.0),
      'zero': Zero(),
    }


def _orthogonal_vector(
  key: Key[Array, ''], w: Float[Array, ' d']
) -> Float[Array, ' d']:
  """A random vector that is orthogonal to w."""
  vectors_key, scales_key = jax.random.split(key)
  u, v = jax.random.normal(vectors_key, (2, w.size))
  a, b = jax.random.normal(scales_key, (2,))

  def without(vector: Array, direction: Array) -> Array:
    return vector - dot(vector, direction) / dot(direction, direction) * direction

  u, v = without(u, w), without(v, w)
  return (a * u + b * without(v, u)) / (a * a + b * b)


@struct.dataclass(eq=False, repr=False)
class WithoutOnes(Describing):
  """Least squares without the examples whose features are all 1, whose label is 1.

  This is the posterior mean of the task `outlier_regression` of the kind `many`: other
  examples have such features with probability 0, so that the outliers are known, and
  the outliers do not depend on w. The rest is linear regression without noise.
  """

  def predict(self, examples: Examples) -> Float[Array, '']:
    prediction = Ridge().predict(self._without(examples))
    return jnp.where(jnp.all(examples.x_query == 1), 1, prediction)

  def describe(self, examples: Examples) -> Gaussian:
    """The posterior of regression without noise, and the label 1 of an outlier."""
    is_known = jnp.all(examples.x_query == 1)
    rest = Ridge(prior_std=1.0).describe(self._without(examples))
    return Gaussian(jnp.where(is_known, 1, rest.mean), jnp.where(is_known, 0, rest.std))

  def _without(self, examples: Examples) -> Examples:
    """The examples of which outliers are not seen."""
    return examples._replace(seen=examples.seen & jnp.any(examples.x != 1, axis=1))
