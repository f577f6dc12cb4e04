"""Linear regression among outliers, which carry no information about the weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Key

from zoo.core.distributions import Gaussian
from zoo.core.errors import UserError, check_count, check_name, check_number
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
  """Linear regression in which most examples of the context may be outliers.

  For each prompt, weights `w ~ N(0, I)` are drawn. The query and those examples that
  are not outliers have features `x_i ~ N(0, I)` and the label `y_i = w·x_i`, without
  noise. Each example of the context is an outlier with probability
  `outlier_probability`. The query is not an outlier. Its target is `w·x_q`. The latents
  are w. There are two kinds of outliers:

  - `many`: All features, the label and the target of an outlier are 1.
  - `orthogonal`: All outliers of a prompt have the same features and the same label.
    The features are `(a u + b v) / (a² + b²)` with `a, b ~ N(0, 1)` and vectors
    `u, v ~ N(0, I)` that are then made orthogonal to w and to each other. The label is
    the first entry of another such vector. (In the paper it is the whole vector.) The
    variance of the label is infinite, so compare medians. The target of an outlier is
    `w·x = 0`.

  For `many`, the Bayes predictor is least squares on the examples that are not outliers
  (baseline `bayes`). For `orthogonal` it is not known: only repetition tells outliers
  from other examples. In a curve of the loss against the number of examples, outliers
  are among the queries at all lengths but the last.

  Args:
    num_features: Number of features d ≥ 1; for `orthogonal` ≥ 3.
    context_length: Number of examples C ≥ 1.
    kind: Kind of the outliers, 'many' or 'orthogonal'.
    outlier_probability: Probability that an example of the context is an outlier, from
      0 to 1. None is the value of the paper: 0.9 for `many`, 0.5 for `orthogonal`.

  Example:
    >>> task = zoo.create_task('outlier_regression', num_features=2, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((3, 5, 2), (3, 5), (3,))

  References:
    Park et al., arXiv 2402.04248.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=100)
  kind: str = struct.field(pytree_node=False, default='many')
  outlier_probability: Number = None
  exchangeable = True

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
    """Draws one prompt again, as `redraw` says; with 'inputs' outliers stay outliers.

    For the kind `orthogonal` they are recognised by their labels, which are not their
    targets. The new weights are orthogonal to the features of the outliers and
    otherwise distributed as before: given w, these features have any direction
    orthogonal to w, with equal probability.

    Args:
      key: Random key.
      prompt: One prompt, without the axis b.
      keep: 'query' or 'inputs'.

    Returns:
      One prompt, without the axis b.

    Raises:
      UserError: For the kind `orthogonal`, if 'inputs' are kept and the prompt has no
        targets of its context.
    """
    x_key, w_key, which_key, features_key, label_key = jax.random.split(key, 5)
    c, d = self.context_length, self.num_features
    w = jax.random.normal(w_key, (d,))
    if keep == 'query':
      # The query is not an outlier, and it does not depend on the other numbers.
      x = jax.random.normal(x_key, (c + 1, d)).at[-1].set(prompt.x_query)
      outlier = self._sample_outliers(which_key)
      return self._prompt_of(features_key, label_key, x, w, outlier)
    x = inputs_of(prompt)
    if self.kind == 'many':
      outlier = jnp.all(x == 1, axis=1).at[-1].set(False)
      return self._prompt_of(features_key, label_key, x, w, outlier)
    if prompt.context_targets is None:
      raise UserError(
        "the prompt has no context_targets, by which redraw(…, keep='inputs') finds "
        'the outliers; give a prompt of task.sample'
      )
    outlier = jnp.append(prompt.y != prompt.context_targets, False)
    features = jnp.where(jnp.any(outlier), x[jnp.argmax(outlier)], 0)
    size = jnp.maximum(dot(features, features), jnp.finfo(x.dtype).tiny)
    across = w - dot(w, features) / size * features
    # The projection has the length of d − 1 normal numbers. It gets the length of d of
    # them, as before.
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
    """Returns a prompt with these outliers; None as features draws their features."""
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
  """Draws a vector that is orthogonal to w."""
  vectors_key, scales_key = jax.random.split(key)
  u, v = jax.random.normal(vectors_key, (2, w.size))
  a, b = jax.random.normal(scales_key, (2,))

  def without(vector: Array, direction: Array) -> Array:
    return vector - dot(vector, direction) / dot(direction, direction) * direction

  u, v = without(u, w), without(v, w)
  return (a * u + b * without(v, u)) / (a * a + b * b)


@struct.dataclass(eq=False, repr=False)
class WithoutOnes(Describing):
  """Least squares on the examples that have a feature other than 1.

  This is the posterior mean of the task `outlier_regression` of the kind `many`.
  Examples that are not outliers have features that are all 1 with probability 0, so the
  outliers are known. They say nothing about w, and the other examples are linear
  regression without noise. A query whose features are all 1 gets the prediction 1.
  """

  def predict(self, examples: Examples) -> Float[Array, '']:
    prediction = Ridge().predict(self._without(examples))
    return jnp.where(jnp.all(examples.x_query == 1), 1, prediction)

  def describe(self, examples: Examples) -> Gaussian:
    """Returns the distribution of the label of the query.

    It is the posterior of regression without noise. The label of an outlier is 1.
    """
    is_known = jnp.all(examples.x_query == 1)
    rest = Ridge(prior_std=1.0).describe(self._without(examples))
    return Gaussian(jnp.where(is_known, 1, rest.mean), jnp.where(is_known, 0, rest.std))

  def _without(self, examples: Examples) -> Examples:
    """Returns the examples, of which the outliers count as not seen."""
    return examples._replace(seen=examples.seen & jnp.any(examples.x != 1, axis=1))
